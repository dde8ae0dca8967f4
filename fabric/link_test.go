package fabric

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/test/faultproxy"
	"fleetd/test/rabbit"
)

// Fails if the password shows in an error, a state or a log line, be it of a
// URI that cannot be parsed or of a login that is refused.
func TestPasswordIsNeverShown(t *testing.T) {
	t.Attr("threat", "B7")
	const secret = "hunter2-sesame"
	for _, uri := range []string{
		"amqp://u:" + secret + "@host:port/", "amqp://u:" + secret + "@h:1/%zz", "amqp://u:" + secret + "@[::1/", "http://u:" + secret + "@h/",
		"amqp://u:" + secret + "@h:1/?heartbeat=" + secret, "amqp://u: " + secret + "@h",
	} {
		_, err := New(Config{Host: "hosta", URI: uri}, Deps{})
		if err == nil {
			t.Errorf("a bad URI was taken: %s", uri)
		} else if strings.Contains(err.Error(), secret) {
			t.Errorf("the password is in %q", err)
		}
	}
	real := rabbit.URI(t)
	fl := newFleet(t, real)
	a := fl.gateway("hosta", func(c *Config, _ *Deps) { c.URI = "amqp://nobody:" + secret + "@" + hostOf(t, real) + "/" })
	a.run()
	eventually(t, "a reason", func() bool { return strings.Contains(a.State().Reason, "connect to") })
	a.stop()
	for _, line := range append(a.log.lines(), a.State().Reason, a.State().down().Error()) {
		if strings.Contains(line, secret) {
			t.Errorf("the password is in %q", line)
		}
	}
}

// Fails if a broker.tls setting is dropped without a word, or files that
// cannot be used are found out only later.
func TestTLSIsNeverDroppedSilently(t *testing.T) {
	t.Attr("threat", "B7")
	for what, c := range map[string]Config{
		"plain scheme": {URI: "amqp://h/", TLS: TLS{ServerName: "broker"}},
		"no such CA":   {URI: "amqps://h/", TLS: TLS{CA: "/nonexistent/ca.pem"}},
		"half a pair":  {URI: "amqps://h/", TLS: TLS{Cert: "cert.pem"}},
	} {
		c.Host = "hosta"
		if _, err := New(c, Deps{}); !fault.Is(err, fault.BadRequest) {
			t.Errorf("%s: %v, want BAD_REQUEST", what, err)
		}
	}
}

// Fails if a second gateway of the same id binds, consumes or announces
// anything, is quiet about it, or never takes over.
func TestSecondGatewayOfAHostIdIsRefusedAndLoud(t *testing.T) {
	t.Attr("threat", "B6")
	uri := rabbit.URI(t)
	fl := newFleet(t, uri)
	first := fl.up("hosta")
	worker := fl.entity("hosta")
	box := first.attach(worker)
	second := fl.gateway("hosta")
	second.refusedFor = time.Second
	second.run().box(worker)
	eventually(t, "a contested claim", func() bool { return second.Claim().Status == ClaimContested })
	eventually(t, "a state that says why", func() bool {
		s := second.State()
		return s.Phase == Connecting && strings.Contains(s.Reason, "hosta is in use by another gateway")
	})
	out, err := second.Publish(t.Context(), envelope.LanePresence, fl.letter(envelope.Presence, "hosta", envelope.GatewayAddress("hosta"), envelope.RosterKey("hosta", envelope.RosterGateway), "{}"), nil)
	if out != NotSent || !fault.Is(err, fault.BrokerDown) {
		t.Errorf("the second one announced itself: %v %v", out, err)
	}
	if !contains(second.log.lines(), "another gateway uses our host id", "BRIDGED_HOST") {
		t.Error("no line says what to change")
	}
	if first.Claim().Status != ClaimHeld || first.State().Phase != Connected || first.Stats().SessionsLost != 0 {
		t.Errorf("the first one was disturbed: %+v %+v", first.Claim(), first.State())
	}
	ask := fl.letter(envelope.Query, "hosta", fl.entity("hosta"), worker, "")
	first.publish(envelope.LaneSignal, ask, Confirmed)
	got(t, "a signal at the first one", first.signals)
	first.publish(envelope.LaneMail, fl.letter(envelope.Send, "hosta", worker, worker, "mine"), Confirmed)
	box.take(t, "mine")
	if len(second.signals) != 0 {
		t.Error("the second one got a signal")
	}
	first.stop()
	if lines := first.log.lines(); !contains(lines, "broker link ended") || contains(lines, "context canceled") {
		t.Errorf("the first one's log ends with %q", lines[max(0, len(lines)-3):])
	}
	second.await(Connected)
	eventually(t, "the inbox taken over", func() bool { return second.InboxState(worker).Status == InboxAttached })
}

func contains(lines []string, words ...string) bool {
	for _, l := range lines {
		all := true
		for _, w := range words {
			all = all && strings.Contains(l, w)
		}
		if all {
			return true
		}
	}
	return false
}

// Fails if a reconnect of the same boot waits for the claim, or if a gateway
// that lost it to another one goes on to speak for the host.
func TestReconnectStopsAgainWhenTheClaimStaysRefused(t *testing.T) {
	uri := rabbit.URI(t)
	fl := newFleet(t, uri)
	proxy, err := faultproxy.Start(hostOf(t, uri))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	a := fl.gateway("hosta", func(c *Config, _ *Deps) { c.URI = through(t, uri, proxy.Addr()) })
	a.refusedFor = time.Second
	a.run().await(Connected)
	proxy.Set(faultproxy.Down)
	proxy.Cut()
	conn, _ := stranger(t, uri)
	eventually(t, "the claim taken by another", func() bool {
		ch, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		_, err = ch.Consume(fl.names().ControlQueue("hosta"), "", false, true, false, false, nil)
		return err == nil
	})
	for len(a.states) > 0 {
		<-a.states
	}
	proxy.Set(faultproxy.Pass)
	for got(t, "connected without the claim", a.states).Phase != Connected {
	}
	for s := got(t, "stopped again", a.states); !strings.Contains(s.Reason, "in use by another gateway"); s = got(t, "stopped again", a.states) {
	}
	if c := a.Claim(); c.Status != ClaimContested || a.Serving() {
		t.Errorf("claim %+v, serving %v", c, a.Serving())
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "serving again", a.Serving)
}

// Fails if the roster is synced before its queue or the signal keys of our
// entities are bound, if connected does not wait for it, or if a roster that
// never answers keeps the gateway down.
func TestConnectedWaitsForTheRosterButNotForEver(t *testing.T) {
	uri := rabbit.URI(t)
	fl := newFleet(t, uri)
	var g *gateway
	_, ch := stranger(t, uri)
	from, to := fl.entity("hosta"), fl.entity("hosta")
	self := envelope.GatewayAddress("hosta")
	var inSync Phase
	var heardOurselves bool
	g = fl.gateway("hosta", func(_ *Config, d *Deps) {
		d.Sync = func(ctx context.Context) error {
			inSync = g.State().Phase
			g.publish(envelope.LanePresence, fl.letter(envelope.Presence, "hosta", self, envelope.RosterKey("hosta", envelope.RosterSolicit), "{}"), Confirmed)
			raw(t, ch, fl.names().Msg(), to+".signal", fl.letter(envelope.Query, "hosta", from, to, ""), nil)
			limit := time.After(patience) // not the end of ctx: a slow machine is no fault
			for range 2 {
				select {
				case <-g.presence:
				case <-g.signals:
				case <-limit:
					return errors.New("we do not hear ourselves")
				}
			}
			heardOurselves = true
			<-ctx.Done()
			return ctx.Err()
		}
	})
	g.box(to)
	g.run().await(Connected)
	if inSync == Connected || !heardOurselves {
		t.Errorf("state in sync: %s, heard ourselves: %v", inSync, heardOurselves)
	}
}

// slowLog is a logger that takes its time for one line.
type slowLog struct {
	hclog.Logger
	line string
	wait func()
}

func (l slowLog) Info(line string, args ...any) {
	if line == l.line {
		l.wait()
	}
	l.Logger.Info(line, args...)
}

// Fails if a gateway is connected, and so says that it serves, before the
// requests of other hosts reach it: those of the first moment would come back.
func TestConnectedMeansThatRequestsComeIn(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	synced := make(chan struct{})
	a := fl.up("hosta", func(_ *Config, d *Deps) {
		d.Log = slowLog{d.Log, "host id claimed", func() { <-synced; time.Sleep(200 * time.Millisecond) }} // right before the queue is bound
		d.Sync = func(context.Context) error { close(synced); return nil }
	})
	if !a.Serving() {
		t.Error("it does not serve")
	}
	a.publish(envelope.LaneControl, fl.letter(envelope.Trace, "hosta", envelope.GatewayAddress("hosta"), "hosta", "{}"), Confirmed)
}

// Fails if an entity is announced before its inbox is on the broker: whoever
// reads the announcement and sends at once is told UNROUTABLE.
func TestInboxesAreThereBeforeTheyAreAnnounced(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	b := fl.up("hostb")
	first, late := fl.entity("hosta"), fl.entity("hosta")
	from := fl.entity("hostb")
	a := fl.gateway("hosta")
	outcomes := make(chan Outcome, 4)
	a.Fabric.deps.Sync = func(context.Context) error { // where all is announced
		a.box(late) // one that comes meanwhile
		for _, to := range []string{first, late} {
			for lane, kind := range map[envelope.Lane]envelope.Kind{envelope.LaneMail: envelope.Send, envelope.LaneSignal: envelope.Query} {
				out, _ := b.Publish(context.Background(), lane, fl.letter(kind, "hostb", from, to, ""), nil)
				outcomes <- out
			}
		}
		return nil
	}
	a.box(first)
	a.run().await(Connected)
	for range 4 {
		if out := got(t, "the broker's word", outcomes); out != Confirmed {
			t.Errorf("a message to an announced entity is %v", out)
		}
	}
}

// Fails if durable mail, consumers or the state do not come back after the
// broker went down and up, or the changes are told out of order.
func TestBrokerRestartHeals(t *testing.T) {
	node := rabbit.Private(t)
	fl := newFleet(t, node.URI)
	fl.uri = "" // nothing to sweep on a private node
	onNode := func(c *Config, _ *Deps) { c.URI = node.URI }
	a, b := fl.up("hosta", onNode), fl.up("hostb", onNode)
	from, to := fl.entity("hosta"), fl.entity("hostb")
	box := b.attach(to)
	a.publish(envelope.LaneMail, fl.letter(envelope.Send, "hosta", from, to, "before"), Confirmed)
	held := got(t, "mail", box.mail)
	if err := node.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	node.Kill()
	eventually(t, "down", func() bool { return a.State().Phase != Connected && b.State().Phase != Connected })
	if err := node.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.await(Connected)
	b.await(Connected)
	got(t, "lost", box.lost)
	if err := held.Ack(); err == nil {
		t.Error("a hold on a dead channel was acked")
	}
	again := box.take(t, "before")
	if again.MsgID != held.MsgID {
		t.Errorf("got %s again, want %s", again.MsgID, held.MsgID)
	}
	a.publish(envelope.LaneMail, fl.letter(envelope.Send, "hosta", from, to, "after"), Confirmed)
	box.take(t, "after")
	a.stop()
	var phases []Phase
	for len(a.states) > 0 {
		phases = append(phases, (<-a.states).Phase)
	}
	if last := len(phases) - 1; last < 3 || phases[last] != Connecting {
		t.Errorf("told phases %v", phases)
	}
}

// Fails if publishing into a frozen broker or stopping beside one hangs.
func TestFrozenBrokerHoldsNobody(t *testing.T) {
	node := rabbit.Private(t)
	fl := newFleet(t, node.URI)
	fl.uri = ""
	a := fl.gateway("hosta", func(c *Config, _ *Deps) { c.URI = node.URI })
	a.confirmWait = confirmWait
	a.run().await(Connected)
	from, to := fl.entity("hosta"), fl.entity("hosta")
	a.attach(to)
	node.Freeze()
	t.Cleanup(node.Thaw)
	body := strings.Repeat("x", 200<<10)
	answers := make(chan Outcome, 64)
	for range 64 { // more than the socket's buffers take
		e := fl.letter(envelope.Send, "hosta", from, to, body)
		go func() {
			out, _ := a.Publish(context.Background(), envelope.LaneMail, e, nil)
			answers <- out
		}()
	}
	for range 64 {
		if out := got(t, "an answer", answers); out != InDoubt && out != NotSent {
			t.Errorf("a frozen broker said %v", out)
		}
	}
	eventually(t, "noticed", func() bool { return a.State().Phase != Connected })
	a.stop()
}

// Fails if an alarm is not seen, does not fail publishes at once, or does not
// end.
func TestAlarmBlocksAndEnds(t *testing.T) {
	node := rabbit.Private(t)
	fl := newFleet(t, node.URI)
	fl.uri = ""
	a := fl.gateway("hosta", func(c *Config, _ *Deps) { c.URI = node.URI })
	a.confirmWait = confirmWait
	a.run().await(Connected)
	from, to := fl.entity("hosta"), fl.entity("hosta")
	box := a.attach(to)
	if _, err := node.Ctl(t.Context(), "set_vm_memory_high_watermark", "0.00001"); err != nil {
		t.Fatal(err)
	}
	settled := make(chan Outcome, 1)
	find := func() (Outcome, error) {
		return a.Publish(t.Context(), envelope.LaneMail, fl.letter(envelope.Send, "hosta", from, to, "found the alarm"), func(o Outcome) { settled <- o })
	}
	out, err := find()
	for ; out == Confirmed; out, err = find() { // the connection is not told of it yet
		<-settled
		box.take(t, "found the alarm")
	}
	if out == NotSent && fault.Is(err, fault.BrokerDown) {
		settled <- Confirmed // the probe found the alarm first
	} else if out != InDoubt {
		t.Fatalf("the publish that found the alarm: %v %v", out, err)
	}
	a.await(Blocked)
	if out, err := a.Publish(t.Context(), envelope.LaneMail, fl.letter(envelope.Send, "hosta", from, to, "x"), nil); out != NotSent || !fault.Is(err, fault.BrokerDown) {
		t.Errorf("publish while blocked: %v %v", out, err)
	}
	if n, err := a.ReadyCount(t.Context(), to); n != 0 || err != nil {
		t.Errorf("the consuming connection is blocked too: %d %v", n, err)
	}
	if _, err := node.Ctl(t.Context(), "set_vm_memory_high_watermark", "0.4"); err != nil {
		t.Fatal(err)
	}
	a.await(Connected)
	if o := got(t, "the late word", settled); o != Confirmed {
		t.Errorf("settled with %v", o)
	}
	if out == InDoubt {
		box.take(t, "found the alarm")
	}
}

// Fails if a gateway that nothing comes back to is called ready.
func TestReadyNeedsTheProbeToComeBack(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	a := fl.up("hosta", func(c *Config, _ *Deps) { c.Limits.HeaderBytes = 1 })
	eventually(t, "the probe refused", func() bool { return a.Refusals()[envelope.HeaderTooLarge] > 0 })
	if ok, why := a.Ready(); ok || !strings.Contains(why, "probe") {
		t.Errorf("ready: %v %q", ok, why)
	}
}
