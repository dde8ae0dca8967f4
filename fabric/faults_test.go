package fabric

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric/envelope"
	"fleetd/test/faultproxy"
	"fleetd/test/rabbit"
)

// Connection faults (design §3 and 14), each on a real broker. Those that need
// no broker of their own are in link_test.go and publish_test.go, beside what
// they are about.

// proxied is a gateway whose connections go through a proxy.
func (fl *fleet) proxied(host string, change ...func(*Config, *Deps)) (*gateway, *faultproxy.Proxy) {
	fl.t.Helper()
	proxy, err := faultproxy.Start(hostOf(fl.t, fl.uri))
	if err != nil {
		fl.t.Fatal(err)
	}
	fl.t.Cleanup(func() { _ = proxy.Close() })
	change = append(change, func(c *Config, _ *Deps) { c.URI = through(fl.t, fl.uri, proxy.Addr()) })
	return fl.up(host, change...), proxy
}

// anew waits for a session after the lost-th.
func (g *gateway) anew(lost uint64) {
	g.fl.t.Helper()
	eventually(g.fl.t, "a new session", func() bool { return g.Stats().SessionsLost > lost && g.State().Phase == Connected })
}

// link is the session of this moment; nil if there is none.
func (g *gateway) link() *session {
	g.Fabric.mu.Lock()
	defer g.Fabric.mu.Unlock()
	return g.sess
}

func (c *connection) deleteQueue(name string) error {
	return aside(c, func(ch *amqp.Channel) error {
		_, err := ch.QueueDelete(name, false, false, false)
		return err
	})
}

// converses demands that mail reaches box and is settled; what comes before it
// may be mail again whose ack was lost.
func (g *gateway) converses(box *mailbox, body string) {
	g.fl.t.Helper()
	eventually(g.fl.t, "inbox attached", func() bool { return g.InboxState(box.gid).Status == InboxAttached })
	g.publish(envelope.LaneMail, g.fl.letter(envelope.Send, g.host, box.gid, box.gid, body), Confirmed)
	for {
		d := got(g.fl.t, "mail "+body, box.mail)
		err := d.Ack()
		if string(d.Body) != body {
			continue
		}
		if err != nil {
			g.fl.t.Fatal("ack:", err)
		}
		return
	}
}

// §14: broker down or unreachable. Half-open: the network forgets the connections and
// tells nobody (no FIN); the broker keeps the ghost's exclusive consumers until
// it misses heartbeats, while we are back already.
//
// Fails if silence is not noticed, if what is unsettled is lost or given twice,
// or if our own ghost is taken for another gateway.
func TestHalfOpenConnectionIsLeftAndItsGhostOutwaited(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	a, proxy := fl.proxied("hosta")
	gid := fl.entity("hosta")
	box := a.attach(gid)
	a.publish(envelope.LaneMail, fl.letter(envelope.Send, "hosta", gid, gid, "held"), Confirmed)
	held := got(t, "mail", box.mail)
	for got(t, "its being connected", a.states).Phase != Connected {
	}
	proxy.Orphan()
	if s := got(t, "the silence noticed", a.states); s.Phase == Connected || s.Reason == "" {
		t.Errorf("the silence is noticed as %+v", s)
	}
	a.await(Connected)
	eventually(t, "the ghost gone", func() bool { return a.Claim().Status == ClaimHeld && a.InboxState(gid).Status == InboxAttached })
	got(t, "lost", box.lost)
	if err := held.Ack(); err == nil {
		t.Error("a hold on a dead channel was acked")
	}
	box.take(t, "held")
	a.converses(box, "after")
	if contains(a.log.lines(), "another gateway") {
		t.Error("our own ghost was taken for another gateway")
	}
	if len(box.mail) != 0 {
		t.Errorf("%d more came", len(box.mail))
	}
}

// §14: broker down or unreachable; broker blocks publishers; broker killed. One
// node serves all cases, each of which leaves it as it was; the last does not.
func TestBrokerFaults(t *testing.T) {
	node := rabbit.Private(t)
	t.Cleanup(node.Thaw)
	for _, c := range []struct {
		name string
		run  func(*testing.T, *rabbit.Node)
	}{
		{"many cuts", manyCuts},
		{"frozen", thawed},
		{"disk alarm", diskAlarm},
		{"credentials", credentials},
		{"forgotten", forgotten},
	} {
		if !t.Run(c.name, func(t *testing.T) { c.run(t, node) }) {
			return // what it leaves behind would fail the others
		}
	}
}

// Fails if a cut leaves a goroutine, a channel or a
// connection behind.
func manyCuts(t *testing.T, node *rabbit.Node) {
	fl := newFleet(t, node.URI)
	a, proxy := fl.proxied("hosta")
	boxes := []*mailbox{a.attach(fl.entity("hosta")), a.attach(fl.entity("hosta")), a.attach(fl.entity("hosta"))}
	settle := func() (goroutines int, connections, channels string) {
		for _, box := range boxes {
			a.converses(box, "settled "+uuid.NewString())
		}
		a.reporting() // it has all that it ever has
		list := func(what, column string) (out string) {
			eventually(t, what+" settled", func() bool { // the broker lists what ends for a while
				a, err := node.Ctl(t.Context(), what, column)
				if err != nil {
					t.Fatal(err)
				}
				b, err := node.Ctl(t.Context(), what, column)
				out = b
				return err == nil && strings.Count(a, "\n") == strings.Count(b, "\n")
			})
			return out
		}
		connections, channels = list("list_connections", "name"), list("list_channels", "name")
		return runtime.NumGoroutine(), connections, channels
	}
	goroutines, connections, channels := settle()
	for i := range 8 {
		lost := a.Stats().SessionsLost
		if i%2 == 0 {
			proxy.Reset()
		} else if s := a.link(); s != nil { // it ends with both connections open
			if err := s.con.deleteQueue(fl.names().RosterQueue("hosta", s.word)); err != nil {
				t.Fatal(err)
			}
		}
		a.anew(lost)
		for _, box := range boxes {
			a.converses(box, fmt.Sprint("after cut ", i))
		}
	}
	eventually(t, "no more than before", func() bool {
		g, co, ch := settle()
		return g <= goroutines && strings.Count(co, "\n") == strings.Count(connections, "\n") && strings.Count(ch, "\n") == strings.Count(channels, "\n")
	})
}

// SIGSTOP and SIGCONT. Fails if a broker that goes on
// where it stopped finds nobody, or mail that nobody gets.
func thawed(t *testing.T, node *rabbit.Node) {
	fl := newFleet(t, node.URI)
	a := fl.up("hosta")
	box := a.attach(fl.entity("hosta"))
	node.Freeze()
	eventually(t, "noticed", func() bool { return a.State().Phase != Connected })
	node.Thaw()
	a.await(Connected)
	a.converses(box, "after")
}

// What comes back in the place of a broker knows nothing. Fails if
// exchanges, queues or bindings are not made anew, or the claim is not taken.
func forgotten(t *testing.T, node *rabbit.Node) {
	fl := newFleet(t, node.URI)
	a, b := fl.up("hosta"), fl.up("hostb")
	box := b.attach(fl.entity("hostb"), func(i *Inbox) { i.Groups = []string{"crew"} })
	from := fl.entity("hosta")
	if err := node.RestartEmpty(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, g := range []*gateway{a, b} {
		g.anew(0)
		eventually(t, "ready", func() bool { ok, _ := g.Ready(); return ok })
		g.reporting()
	}
	a.publish(envelope.LaneMail, fl.letter(envelope.Send, "hosta", from, box.gid, "mail"), Confirmed)
	box.take(t, "mail")
	a.publish(envelope.LaneMail, fl.letter(envelope.Broadcast, "hosta", from, envelope.BroadcastKey("crew"), "news"), Confirmed)
	box.take(t, "news")
	a.publish(envelope.LaneSignal, fl.letter(envelope.Query, "hosta", from, box.gid, ""), Confirmed)
	got(t, "a signal", b.signals)
	if err := got(t, "a dead letter's mail", func() chan envelope.Delivery {
		a.publish(envelope.LaneMail, fl.letter(envelope.Send, "hosta", from, box.gid, "dies"), Confirmed)
		return box.mail
	}()).Reject(); err != nil {
		t.Fatal(err)
	}
	if d := got(t, "its report", a.dead); d.reason != "rejected" {
		t.Errorf("it died of %s", d.reason)
	}
}

// The broker knows our login no more. Fails if that is not said, if the password
// is, or if it takes a restart to be over.
func credentials(t *testing.T, node *rabbit.Node) {
	const secret = "hunter2-sesame"
	fl := newFleet(t, node.URI)
	ctl := func(args ...string) {
		t.Helper()
		if out, err := node.Ctl(t.Context(), args...); err != nil {
			t.Fatal(out, err)
		}
	}
	ctl("add_user", "hosta", secret)
	ctl("set_permissions", "hosta", ".*", ".*", ".*")
	a := fl.up("hosta", func(c *Config, _ *Deps) { c.URI = strings.Replace(node.URI, "guest:guest", "hosta:"+secret, 1) })
	box := a.attach(fl.entity("hosta"))
	ctl("change_password", "hosta", "another")
	ctl("close_all_user_connections", "hosta", "the password was changed")
	eventually(t, "a reason", func() bool {
		s := a.State()
		return s.Phase == Connecting && strings.Contains(s.Reason, "username or password not allowed")
	})
	if ok, why := a.Ready(); ok || !strings.Contains(why, "username or password") {
		t.Errorf("ready: %v %q", ok, why)
	}
	ctl("change_password", "hosta", secret)
	a.await(Connected)
	a.converses(box, "after")
	for _, line := range a.log.lines() {
		if strings.Contains(line, secret) {
			t.Errorf("the password is in %q", line)
		}
	}
}

// Fails if an inbox whose channel the broker closes takes others or the link
// with it, or comes back without its mail.
func TestInboxOutlivesItsChannel(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	a := fl.up("hosta")
	gid := fl.entity("hosta")
	box, other := a.attach(gid), a.attach(fl.entity("hosta"))
	a.publish(envelope.LaneMail, fl.letter(envelope.Send, "hosta", gid, gid, "held"), Confirmed)
	d := got(t, "mail", box.mail)
	if err := d.Settler.(*hold).ch.Ack(4711, false); err != nil { // 406, as a timed-out delivery gets
		t.Fatal(err)
	}
	got(t, "lost", box.lost)
	box.take(t, "held")
	a.converses(box, "after")
	a.converses(other, "undisturbed")
	if len(other.lost) != 0 || a.Stats().SessionsLost != 0 {
		t.Error("more than one channel was lost")
	}
}

// Fails if a queue of the link's own that somebody deletes is not missed, not
// made again, or if it is said to be there all the while.
func TestDeletedQueuesOfTheLinkHeal(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	a := fl.up("hosta")
	n := fl.names()
	for _, c := range []struct {
		queue func() string
		whole bool // the session ends with it
	}{
		{func() string { return n.SignalQueue("hosta", a.link().word) }, true},
		{func() string { return n.RosterQueue("hosta", a.link().word) }, true},
		{func() string { return n.ControlQueue("hosta") }, false},
		{func() string { return n.ReportQueue("hosta") }, false},
	} {
		consumed := func() bool { // of the session that is up
			if a.link() == nil || a.State().Phase != Connected {
				return false
			}
			q, err := a.inspect(c.queue())
			return err == nil && q.Consumers == 1
		}
		eventually(t, "consumed", consumed)
		queue, s, lost := c.queue(), a.link(), a.Stats().SessionsLost
		if err := s.con.deleteQueue(queue); err != nil {
			t.Fatal(err)
		}
		if c.whole {
			a.anew(lost)
		}
		eventually(t, queue+" consumed again", consumed)
		eventually(t, "ready again", func() bool { ok, _ := a.Ready(); return ok })
		if again := a.Stats().SessionsLost > lost; again != c.whole {
			t.Errorf("%s: a new session: %v, want %v", queue, again, c.whole)
		}
	}
}

// The memory's alarm is in TestAlarmBlocksAndEnds. Fails if the reason does not reach the user.
func diskAlarm(t *testing.T, node *rabbit.Node) {
	fl := newFleet(t, node.URI)
	a := fl.up("hosta")
	box := a.attach(fl.entity("hosta"))
	alarm := func(limit string) {
		t.Helper()
		if _, err := node.Ctl(t.Context(), "set_disk_free_limit", limit); err != nil {
			t.Fatal(err)
		}
	}
	alarm("900000GB")
	a.await(Blocked) // a probe finds it
	if ok, why := a.Ready(); ok || !strings.Contains(why, "disk") {
		t.Errorf("ready: %v %q", ok, why)
	}
	_, err := a.Publish(t.Context(), envelope.LaneMail, fl.letter(envelope.Send, "hosta", box.gid, box.gid, "x"), nil)
	if err == nil || !strings.Contains(err.Error(), "disk") {
		t.Errorf("publish while blocked: %v", err)
	}
	alarm("1MB")
	a.await(Connected)
	a.converses(box, "after")
}

// Fails if a group that is joined while an inbox is being attached stays
// unbound until the next time.
func TestGroupsChangedWhileAttaching(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	off := make(chan struct{}, 16)
	a, proxy := fl.proxied("hosta", func(_ *Config, d *Deps) {
		d.OnInbox = func(_ string, s InboxStatus) {
			if s != InboxAttached {
				off <- struct{}{}
			}
		}
	})
	gid := fl.entity("hosta")
	box := a.attach(gid, func(i *Inbox) { i.Groups = []string{"old"} })
	if err := a.link().con.deleteQueue(a.names.Inbox(gid)); err != nil {
		t.Fatal(err)
	}
	got(t, "the inbox is off", off)
	proxy.Set(faultproxy.StallDown)
	eventually(t, "the inbox is being attached", func() bool {
		stacks := make([]byte, 1<<20)
		all := string(stacks[:runtime.Stack(stacks, true)])
		return strings.Contains(all, "(*inbox).consume") || a.InboxState(gid).Status == InboxAttached
	})
	a.mu.Lock()
	a.groups[gid] = []string{"new"}
	a.mu.Unlock()
	changed := make(chan error, 1)
	go func() { changed <- a.SetGroups(t.Context(), gid, []string{"new"}) }()
	eventually(t, "the groups changed", func() bool {
		a.Fabric.mu.Lock()
		in := a.inboxes[gid]
		a.Fabric.mu.Unlock()
		return slices.Equal(in.snapshot().Groups, []string{"new"})
	})
	proxy.Set(faultproxy.Pass)
	if err := got(t, "the end of the change", changed); err != nil {
		t.Fatal(err)
	}
	a.converses(box, "it is attached")
	for _, group := range []string{"old", "new"} {
		a.publish(envelope.LaneMail, fl.letter(envelope.Broadcast, "hosta", gid, envelope.BroadcastKey(group), group), Confirmed)
	}
	box.take(t, "new")
	if r := a.Refusals(); len(r) != 0 {
		t.Errorf("the old group still delivers: %v", r)
	}
}
