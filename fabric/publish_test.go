package fabric

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/test/faultproxy"
	"fleetd/test/rabbit"
)

// Fails if the confirm is believed before the returns that came with it are
// read, or if a return is given to another publish than its own.
func TestEachPublishGetsItsOwnWord(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	a := fl.up("hosta")
	from, here, nowhere := fl.entity("hosta"), fl.entity("hosta"), uuid.NewString()
	a.attach(here)
	var wg sync.WaitGroup
	for i := range 400 {
		to, want := here, Confirmed
		if i%2 == 1 {
			to, want = nowhere, Returned
		}
		e := fl.letter(envelope.Send, "hosta", from, to, fmt.Sprint(i))
		wg.Go(func() {
			var word []Outcome
			out, err := a.Publish(t.Context(), envelope.LaneMail, e, func(o Outcome) { word = append(word, o) })
			if out != want || err != nil || len(word) != 1 || word[0] != want {
				t.Errorf("publish %d: %v, %v, settled with %v; want %v", i, out, err, word, want)
			}
		})
	}
	wg.Wait()
}

// Fails if one id under way on two lanes is taken for one publish.
func TestSameIdOnTwoLanesHasTwoOutcomes(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	a, b := fl.up("hosta"), fl.up("hostb")
	main, worker := fl.entity("hosta"), fl.entity("hostb")
	a.attach(main)
	a.Detach(main) // the queue stays, the signal key goes
	e := fl.letter(envelope.Failed, "hostb", worker, main, "", func(e *envelope.Envelope) { e.InReplyTo, e.Reason = uuid.NewString(), "EXPIRED" })
	for range 50 {
		var mail, signal Outcome
		var wg sync.WaitGroup
		wg.Go(func() { mail, _ = b.Publish(t.Context(), envelope.LaneMail, e, nil) })
		wg.Go(func() { signal, _ = b.Publish(t.Context(), envelope.LaneSignal, e, nil) })
		wg.Wait()
		if mail != Confirmed || signal != Returned {
			t.Fatalf("mail %v, signal %v; want confirmed and returned", mail, signal)
		}
	}
}

// Fails if a nack is taken for a lost connection or the other way round, if
// the cap is not seen, or if an empty group is an error.
func TestFullInboxIsNackedAndSeen(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	b := fl.gateway("hostb")
	b.inboxCap = 3
	b.run().await(Connected)
	a := fl.gateway("hosta")
	a.inboxCap = 3
	a.run().await(Connected)
	from, to := fl.entity("hosta"), fl.entity("hostb")
	b.attach(to)
	b.Detach(to)
	for range 3 {
		a.publish(envelope.LaneMail, fl.letter(envelope.Send, "hosta", from, to, "x"), Confirmed)
	}
	a.publish(envelope.LaneMail, fl.letter(envelope.Send, "hosta", from, to, "x"), Nacked)
	if full, err := a.InboxFull(t.Context(), to); !full || err != nil {
		t.Errorf("full: %v %v", full, err)
	}
	if n, err := a.ReadyCount(t.Context(), to); n != 3 || err != nil {
		t.Errorf("ready: %d %v", n, err)
	}
	a.publish(envelope.LaneMail, fl.letter(envelope.Broadcast, "hosta", from, envelope.BroadcastKey("nobody"), "x"), Confirmed)
}

// Fails if a lease is renewed that does not exist, or an existing one is not
// seen.
func TestRenewTellsWhetherTheInboxExists(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	a := fl.up("hosta")
	here := fl.entity("hosta")
	a.attach(here)
	if ok, err := a.Renew(t.Context(), here); !ok || err != nil {
		t.Errorf("existing inbox: %v %v", ok, err)
	}
	if ok, err := a.Renew(t.Context(), uuid.NewString()); ok || err != nil {
		t.Errorf("missing inbox: %v %v", ok, err)
	}
}

// Fails if an inbox that nobody consumes goes, mail and all, although it is
// renewed, or if publishing alone would do: then nothing need be renewed.
func TestRenewKeepsTheLeaseOfAnAbsentHostsInbox(t *testing.T) {
	uri := rabbit.URI(t)
	fl := newFleet(t, uri)
	a := fl.up("hosta")
	for lease := 3 * time.Second; !renews(t, fl, a, lease); lease *= 2 {
	}
}

// renews reports whether it could renew a lease in time, twice as often as has to be.
func renews(t *testing.T, fl *fleet, a *gateway, lease time.Duration) bool {
	t.Helper()
	kept, left := fl.entity("hostb"), fl.entity("hostb")
	_, ch := stranger(t, fl.uri)
	returns := ch.NotifyReturn(make(chan amqp.Return, 1024))
	for _, gid := range []string{kept, left} {
		if _, err := ch.QueueDeclare(fl.names().Inbox(gid), true, false, false, false, amqp.Table{argExpires: lease.Milliseconds()}); err != nil {
			t.Fatal(err)
		}
	}
	renewed := time.Now()
	late := func() bool { return time.Since(renewed) > lease/2 } // a busy machine: the broker's clock goes on
	for gone := false; !gone; {                                  // until the one that is only published to is gone
		now := time.Now()
		ok, err := a.Renew(t.Context(), kept)
		if late() {
			return false
		}
		if renewed = now; !ok || err != nil {
			t.Fatalf("the inbox went although it is renewed: %v %v", ok, err)
		}
		for _, gid := range []string{kept, left} {
			err := ch.PublishWithContext(t.Context(), "", fl.names().Inbox(gid), true, false, amqp.Publishing{Body: []byte("x")})
			if err != nil {
				t.Fatal(err)
			}
		}
		select {
		case r := <-returns:
			if gone = r.RoutingKey == fl.names().Inbox(left); gone {
				break
			}
			if late() {
				return false
			}
			t.Fatalf("%s is gone", r.RoutingKey)
		case <-time.After(50 * time.Millisecond):
		}
	}
	n, err := a.ReadyCount(t.Context(), kept)
	if late() {
		return false
	}
	if n == 0 || err != nil {
		t.Errorf("%d messages in the renewed inbox: %v", n, err)
	}
	return true
}

// Fails if a cut connection is reported as a refusal, if settled is not called
// exactly once, or if the link does not come back.
func TestCutConnectionIsInDoubt(t *testing.T) {
	uri := rabbit.URI(t)
	fl := newFleet(t, uri)
	proxy, err := faultproxy.Start(hostOf(t, uri))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	a := fl.gateway("hosta", func(c *Config, _ *Deps) { c.URI = through(t, uri, proxy.Addr()) })
	a.run().await(Connected)
	from, to := fl.entity("hosta"), fl.entity("hosta")
	box := a.attach(to)

	proxy.Set(faultproxy.StallDown) // the broker gets it, its word does not come back
	settled := make(chan Outcome, 2)
	type answer struct {
		out Outcome
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		out, err := a.Publish(context.Background(), envelope.LaneMail, fl.letter(envelope.Reply, "hosta", from, to, "kept"), func(o Outcome) { settled <- o })
		answers <- answer{out, err}
	}()
	_, ch := stranger(t, uri)
	eventually(t, "the broker has it", func() bool {
		q, err := ch.QueueDeclarePassive(fl.names().Inbox(to), true, false, false, false, nil)
		return err == nil && q.Consumers == 1 && a.inFlight() == 1
	})
	proxy.Reset()
	if r := got(t, "the answer", answers); r.out != InDoubt || r.err != nil {
		t.Errorf("publish: %v %v, want in doubt", r.out, r.err)
	}
	if o := got(t, "settled", settled); o != InDoubt {
		t.Errorf("settled with %v", o)
	}
	eventually(t, "not connected", func() bool { return a.State().Phase != Connected })
	out, err := a.Publish(t.Context(), envelope.LaneMail, fl.letter(envelope.Reply, "hosta", from, to, "later"), func(o Outcome) { settled <- o })
	if out != NotSent || !fault.Is(err, fault.BrokerDown) {
		t.Errorf("publish while down: %v %v, want BROKER_DOWN", out, err)
	}
	proxy.Set(faultproxy.Pass)
	a.await(Connected)
	got(t, "lost", box.lost)
	box.take(t, "kept")
	if len(settled) != 0 {
		t.Errorf("settled again with %v", <-settled)
	}
}

func (g *gateway) inFlight() int {
	g.Fabric.mu.Lock()
	defer g.Fabric.mu.Unlock()
	if g.sess == nil || g.sess.pub == nil {
		return -1
	}
	p := g.sess.pub
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.inFlight
}

// Fails if Publish waits for a silent broker without a bound, or if the word
// that comes late is lost.
func TestLateWordSettlesAfterPublishGaveUp(t *testing.T) {
	uri := rabbit.URI(t)
	fl := newFleet(t, uri)
	proxy, err := faultproxy.Start(hostOf(t, uri))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	a := fl.gateway("hosta", func(c *Config, _ *Deps) {
		c.URI, c.Heartbeat = through(t, uri, proxy.Addr()), 20*time.Second
	})
	a.run().await(Connected)
	from, to := fl.entity("hosta"), fl.entity("hosta")
	a.attach(to)
	proxy.Set(faultproxy.StallDown)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second) // nothing comes, however long
	defer cancel()
	settled := make(chan Outcome, 2)
	out, err := a.Publish(ctx, envelope.LaneMail, fl.letter(envelope.Send, "hosta", from, to, "x"), func(o Outcome) { settled <- o })
	if out != InDoubt || err != nil || len(settled) != 0 {
		t.Fatalf("publish: %v %v, settled %d times; want in doubt and no word yet", out, err, len(settled))
	}
	proxy.Set(faultproxy.Pass)
	if o := got(t, "the late word", settled); o != Confirmed {
		t.Errorf("settled with %v", o)
	}
}

// Fails if a message that would close the whole connection reaches the client
// library, or an unsigned one the broker.
func TestWhatCannotBeCarriedIsRefusedBeforeItIsSent(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	a := fl.up("hosta")
	from, to := fl.entity("hosta"), fl.entity("hosta")
	good := fl.letter(envelope.Send, "hosta", from, to, "x")
	with := func(name, value string) *envelope.Envelope {
		e := *good
		e.Headers = map[string]string{name: value}
		for k, v := range good.Headers {
			e.Headers[k] = v
		}
		return &e
	}
	long := *good
	long.To = strings.Repeat("a", 256)
	unsigned := *good
	unsigned.Headers = nil
	for what, c := range map[string]struct {
		e    *envelope.Envelope
		code fault.Code
	}{
		"long key":    {&long, fault.BadRequest},
		"long name":   {with(strings.Repeat("n", 256), "v"), fault.BadRequest},
		"many bytes":  {with("note", strings.Repeat("n", maxHeader)), fault.TooLarge},
		"unsigned":    {&unsigned, fault.Internal},
		"wrong lane":  {fl.letter(envelope.Ask, "hosta", from, to, "x"), fault.Internal},
		"not our own": {fl.letter(envelope.Presence, "hosta", envelope.GatewayAddress("hosta"), envelope.RosterKey("hosta", envelope.RosterGateway), "x"), fault.Internal},
	} {
		out, err := a.Publish(t.Context(), envelope.LaneMail, c.e, func(Outcome) { t.Error(what, "was settled") })
		if out != NotSent || !fault.Is(err, c.code) {
			t.Errorf("%s: %v %v, want %s", what, out, err, c.code)
		}
	}
	if s := a.State(); s.Phase != Connected || a.Stats().SessionsLost != 0 {
		t.Errorf("the link suffered: %v", s)
	}
}

// Fails if a message that the broker refuses by closing the channel is called
// in doubt, or if publishing does not come back after it.
func TestChannelClosedByTheBrokerIsARefusal(t *testing.T) {
	uri := rabbit.URI(t)
	fl := newFleet(t, uri)
	// One probe at the start and no other while the test goes on: with it on the
	// channel nobody could say which of the two was refused.
	a := fl.up("hosta", func(c *Config, _ *Deps) { c.Heartbeat = time.Minute })
	main := fl.entity("hosta")
	eventually(t, "ready", func() bool { ok, _ := a.Ready(); return ok })
	_, ch := stranger(t, uri)
	if err := ch.ExchangeDelete(fl.names().Control(), false, false); err != nil {
		t.Fatal(err)
	}
	e := fl.letter(envelope.Trace, "hosta", main, "hostb", "{}")
	eventually(t, "alone on the channel", func() bool { return a.inFlight() == 0 })
	out, err := a.Publish(t.Context(), envelope.LaneControl, e, nil)
	if out != Refused || !fault.Is(err, fault.BrokerRefused) {
		t.Fatalf("publish to a missing exchange: %v %v, want refused", out, err)
	}
	eventually(t, "publishing again", func() bool {
		out, _ := a.Publish(t.Context(), envelope.LaneSignal, fl.letter(envelope.Query, "hosta", main, uuid.NewString(), ""), nil)
		return out == Returned
	})
}

// Fails if a refusal is called in doubt where the publish hears of the closed
// channel before the one who counts what was in flight does.
func TestRefusalIsToldWhoeverHearsOfItFirst(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	a := fl.up("hosta", func(c *Config, _ *Deps) { c.Heartbeat = time.Minute }) // no probe in between
	eventually(t, "ready", func() bool { ok, _ := a.Ready(); return ok })
	s, err := a.session()
	if err != nil {
		t.Fatal(err)
	}
	m, err := a.message(envelope.LaneMail, fl.letter(envelope.Send, "hosta", fl.entity("hosta"), fl.entity("hosta"), "x"))
	if err != nil {
		t.Fatal(err)
	}
	m.exchange = "no such exchange"
	for range 60 { // who is first is chance
		p, err := s.openPublisher()
		if err != nil {
			t.Fatal(err)
		}
		if out, err := p.publish(t.Context(), s, m, nil); out != Refused || !fault.Is(err, fault.BrokerRefused) {
			t.Fatalf("publish to a missing exchange: %v %v, want refused", out, err)
		}
	}
}
