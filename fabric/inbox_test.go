package fabric

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric/envelope"
	"fleetd/test/rabbit"
)

// Fails if a held inbox is shared, if the wait for it is silent, or if it is
// not taken over when its holder goes.
func TestContestedInboxIsTakenOverInTheEnd(t *testing.T) {
	uri := rabbit.URI(t)
	fl := newFleet(t, uri)
	a, b := fl.up("hosta"), fl.gateway("hostb")
	b.refusedFor = time.Second
	b.run().await(Connected)
	gid := fl.entity("hosta")
	box := a.attach(gid)
	fine := fl.entity("hostb")
	b.box(gid)
	eventually(t, "contested", func() bool { return b.InboxState(gid).Status == InboxContested })
	eventually(t, "a line that says so", func() bool {
		return contains(b.log.lines(), "[ERROR]", "another gateway holds this inbox", gid)
	})
	b.attach(fine) // other inboxes go on
	a.publish(envelope.LaneMail, fl.letter(envelope.Send, "hosta", gid, gid, "x"), Confirmed)
	box.take(t, "x")
	a.stop()
	eventually(t, "taken over", func() bool { return b.InboxState(gid).Status == InboxAttached })
}

// Fails if a queue with other arguments is not named with the argument, or if
// it keeps other inboxes from being served.
func TestOtherArgumentsAreNamedOnce(t *testing.T) {
	uri := rabbit.URI(t)
	fl := newFleet(t, uri)
	a := fl.up("hosta")
	odd, fine := fl.entity("hosta"), fl.entity("hosta")
	_, ch := stranger(t, uri)
	q := fl.names().inboxQueue(odd, 5)
	if err := q.declare(ch); err != nil {
		t.Fatal(err)
	}
	a.box(odd)
	eventually(t, "mismatched", func() bool { return a.InboxState(odd).Status == InboxMismatched })
	box := a.attach(fine)
	a.publish(envelope.LaneMail, fl.letter(envelope.Send, "hosta", odd, fine, "x"), Confirmed)
	box.take(t, "x")
	if _, err := ch.QueueDelete(q.name, false, false, false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "healed", func() bool { return a.InboxState(odd).Status == InboxAttached })
	n := 0
	for _, l := range a.log.lines() {
		if strings.Contains(l, "queue "+q.name+" exists with another "+argLength+";") && strings.Contains(l, "[ERROR]") {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d lines name queue and argument, want 1", n)
	}
}

// Fails if a queue deleted under its consumer stays deleted, or if the channel
// that a double settle would close is not protected.
func TestInboxHealsWhenItsQueueIsDeleted(t *testing.T) {
	uri := rabbit.URI(t)
	fl := newFleet(t, uri)
	a := fl.up("hosta")
	gid := fl.entity("hosta")
	box := a.attach(gid)
	a.publish(envelope.LaneMail, fl.letter(envelope.Send, "hosta", gid, gid, "one"), Confirmed)
	d := box.take(t, "one")
	if err := d.Reject(); err == nil {
		t.Error("a settled delivery was settled again")
	}
	_, ch := stranger(t, uri)
	if _, err := ch.QueueDelete(fl.names().Inbox(gid), false, false, false); err != nil {
		t.Fatal(err)
	}
	got(t, "lost", box.lost)
	eventually(t, "attached again", func() bool { return a.InboxState(gid).Status == InboxAttached })
	a.publish(envelope.LaneMail, fl.letter(envelope.Send, "hosta", gid, gid, "two"), Confirmed)
	box.take(t, "two")
	if a.Stats().SessionsLost != 0 {
		t.Error("the whole session went with one inbox")
	}
}

// Fails if a second window loses or repeats mail, that which was on its way
// under the first one too, if acks of the first no longer count, or if the
// bound is not kept.
func TestMoreTakesTheNextWindow(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	a := fl.up("hosta")
	gid := fl.entity("hosta")
	a.attach(gid)
	a.Detach(gid)
	const window = 1500
	const total = 3*window + 7
	var crowd sync.WaitGroup
	for i := range 128 { // not all at once: who waits too long for his turn is sent away
		crowd.Go(func() {
			for n := i; n < total; n += 128 {
				e := fl.letter(envelope.Send, "hosta", gid, gid, fmt.Sprint(n))
				out, err := a.Publish(t.Context(), envelope.LaneMail, e, nil)
				for tries := 1; out == NotSent && tries < 10; tries++ { // a busy machine
					out, err = a.Publish(t.Context(), envelope.LaneMail, e, nil)
				}
				if out != Confirmed {
					t.Errorf("publish %d: %v %v", n, out, err)
				}
			}
		})
	}
	crowd.Wait()
	eventually(t, "all published", func() bool { n, err := a.ReadyCount(t.Context(), gid); return err == nil && n == total })
	asked := make(chan struct{})
	box := a.attach(gid, func(i *Inbox) {
		handle := i.Handler
		i.Prefetch = window
		i.Handler = func(ctx context.Context, d envelope.Delivery) { <-asked; handle(ctx, d) }
	})
	eventually(t, "the first window on its way", func() bool { n, err := a.ReadyCount(t.Context(), gid); return err == nil && n == total-window })
	time.AfterFunc(50*time.Millisecond, func() { close(asked) }) // More asks while most of it is unread
	if ok, err := a.More(t.Context(), gid); !ok || err != nil {
		t.Fatalf("more: %v %v", ok, err)
	}
	var held []envelope.Delivery
	for len(held) < 2*window {
		held = append(held, got(t, "two windows", box.mail))
	}
	if ok, err := a.More(t.Context(), gid); ok || err != nil {
		t.Errorf("a third window over the bound of %d: %v %v", windowMessages, ok, err)
	}
	seen := map[string]bool{}
	for i := 0; i < total; i++ {
		if i == len(held) {
			held = append(held, got(t, "the rest", box.mail))
		}
		if held[i].Redelivered {
			t.Fatal("a message was requeued by taking another window")
		}
		seen[held[i].MsgID] = true
		if err := held[i].Ack(); err != nil {
			t.Fatal(err)
		}
	}
	if len(seen) != total {
		t.Errorf("%d different messages of %d", len(seen), total)
	}
}

// Fails if a group that was left still delivers, a new one does not, or the
// change disturbs what is held.
func TestGroupsChangeUnderHeldMail(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	a := fl.up("hosta")
	gid := fl.entity("hosta")
	box := a.attach(gid, func(i *Inbox) { i.Groups = []string{"old", "kept"} })
	say := func(group string) {
		a.publish(envelope.LaneMail, fl.letter(envelope.Broadcast, "hosta", gid, envelope.BroadcastKey(group), group), Confirmed)
	}
	say("old")
	held := got(t, "mail", box.mail)
	a.mu.Lock()
	a.groups[gid] = []string{"kept", "new"}
	a.mu.Unlock()
	if err := a.SetGroups(t.Context(), gid, []string{"kept", "new"}); err != nil {
		t.Fatal(err)
	}
	say("old")
	say("new")
	say("kept")
	box.take(t, "new")
	box.take(t, "kept")
	if err := held.Ack(); err != nil {
		t.Error("what was held is lost:", err)
	}
	if r := a.Refusals(); len(r) != 0 {
		t.Errorf("the old group still delivers: %v", r)
	}
}

// Fails if mail of an unknown sender is refused before its host could
// announce it, is overtaken by later mail of the same sender, or holds up
// others.
func TestUnknownHomeWaitsForTheAnnouncement(t *testing.T) {
	uri := rabbit.URI(t)
	fl := newFleet(t, uri)
	a, b := fl.up("hosta"), fl.gateway("hostb")
	b.solicitWait = time.Hour // nobody is late here
	b.run().await(Connected)
	known, newcomer, to := fl.entity("hosta"), fl.entity("hosta"), fl.entity("hostb")
	fl.mu.Lock()
	delete(fl.homes, newcomer)
	fl.mu.Unlock()
	box := b.attach(to)
	send := func(from, body string) {
		a.publish(envelope.LaneMail, fl.letter(envelope.Send, "hosta", from, to, body), Confirmed)
	}
	send(newcomer, "first")
	send(newcomer, "second")
	send(known, "passes by")
	box.take(t, "passes by")
	if h := got(t, "a solicitation", b.solicited); h != "hosta" {
		t.Errorf("solicited %s", h)
	}
	if p := b.Stats().Parked; p != 2 {
		t.Errorf("%d wait, want 2", p)
	}
	fl.settle(newcomer, "hosta")
	send(newcomer, "third")
	b.Heard("hosta", true)
	for _, body := range []string{"first", "second", "third"} {
		box.take(t, body)
	}

	liar := fl.entity("hosta")
	fl.mu.Lock()
	delete(fl.homes, liar)
	fl.mu.Unlock()
	send(liar, "never announced")
	got(t, "a solicitation", b.solicited)
	eventually(t, "parked", func() bool { return b.Stats().Parked == 1 })
	for range fullsMost {
		b.Heard("hosta", true) // the full announcement does not name it
	}
	eventually(t, "refused", func() bool { return b.Refusals()["unknown_home"] == 1 })
	fl.settle(liar, "hosta") // for the sweep
}

// Fails if mail of a host that is not heard is refused or shown, or a signal
// of one is not let go.
func TestSilentHostsMailWaitsUntilItIsHeard(t *testing.T) {
	uri := rabbit.URI(t)
	fl := newFleet(t, uri)
	a, b := fl.up("hosta"), fl.gateway("hostb")
	b.solicitWait = time.Hour // nobody is late here
	b.run().await(Connected)
	from, to := fl.entity("hosta"), fl.entity("hostb")
	box := b.attach(to)
	fl.mu.Lock()
	delete(fl.homes, from)
	fl.quiet["hosta"] = true
	fl.mu.Unlock()
	a.publish(envelope.LaneMail, fl.letter(envelope.Send, "hosta", from, to, "waits"), Confirmed)
	a.publish(envelope.LaneSignal, fl.letter(envelope.Query, "hosta", from, to, ""), Confirmed)
	eventually(t, "mail waits, signal dropped", func() bool { s := b.Stats(); return s.Parked == 1 && s.Dropped == 1 })
	if len(box.mail) != 0 || len(b.solicited) != 0 {
		t.Error("it was shown, or a silent host was asked")
	}
	fl.silence("hosta", false)
	b.Heard("hosta", false)
	got(t, "a solicitation", b.solicited)
	fl.settle(from, "hosta")
	b.Heard("hosta", true)
	box.take(t, "waits")
}

// Fails if a wall clock that jumped ends the life of mail that waits for its
// sender's host, or if nothing does once the clock is steady.
func TestAJumpOfTheClockEndsNoWaiting(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	a := fl.up("hosta")
	var ahead, judged atomic.Int64
	var steady atomic.Bool
	b := fl.up("hostb", func(_ *Config, d *Deps) {
		d.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		d.Steady = func() bool { judged.Add(1); return steady.Load() }
	})
	from, to := fl.entity("hosta"), fl.entity("hostb")
	b.attach(to)
	fl.mu.Lock()
	delete(fl.homes, from)
	fl.quiet["hosta"] = true
	fl.mu.Unlock()
	a.publish(envelope.LaneMail, fl.letter(envelope.Send, "hosta", from, to, "waits"), Confirmed)
	eventually(t, "mail waits", func() bool { return b.Stats().Parked == 1 })
	ahead.Store(int64(time.Hour))
	b.Heard("hosta", false)
	eventually(t, "judged again", func() bool { return judged.Load() > 0 && b.Stats().Parked == 1 })
	if r := b.Refusals(); len(r) != 0 {
		t.Errorf("refused: %v", r)
	}
	steady.Store(true)
	b.Heard("hosta", false)
	eventually(t, "refused", func() bool { return b.Refusals()["expired"] == 1 })
	fl.settle(from, "hosta") // for the sweep
}

// Fails if more than eight messages of unknown home may wait, or if the ninth
// is lost or overtaken for it.
func TestManyUnknownSendersStopTheLine(t *testing.T) {
	t.Attr("threat", "G1")
	uri := rabbit.URI(t)
	fl := newFleet(t, uri)
	a, b := fl.up("hosta"), fl.gateway("hostb")
	b.solicitWait = time.Hour // nobody is late here
	b.run().await(Connected)
	known, to := fl.entity("hosta"), fl.entity("hostb")
	box := b.attach(to)
	var crowd []string
	for range waitingMost + 4 {
		gid := fl.entity("hosta")
		fl.mu.Lock()
		delete(fl.homes, gid)
		fl.mu.Unlock()
		crowd = append(crowd, gid)
		a.publish(envelope.LaneMail, fl.letter(envelope.Send, "hosta", gid, to, gid), Confirmed)
	}
	a.publish(envelope.LaneMail, fl.letter(envelope.Send, "hosta", known, to, "behind them"), Confirmed)
	eventually(t, "nine wait", func() bool { return b.Stats().Parked == waitingMost+1 })
	for _, gid := range crowd {
		fl.settle(gid, "hosta")
	}
	b.Heard("hosta", true)
	for _, gid := range crowd {
		box.take(t, gid)
	}
	box.take(t, "behind them")
}

// Fails if a duplicate of what was taken is judged again, after its sender's
// home is forgotten or its life is over.
func TestDuplicateIsNotVerifiedAnew(t *testing.T) {
	uri := rabbit.URI(t)
	fl := newFleet(t, uri)
	known := make(chan string, 16)
	b := fl.up("hostb", func(_ *Config, d *Deps) {
		d.Known = func(_ string, e *envelope.Envelope) bool { known <- e.MsgID; return string(e.Body) == "taken" }
	})
	from, to := fl.entity("hosta"), fl.entity("hostb")
	fl.key("hosta")
	box := b.attach(to)
	_, ch := stranger(t, uri)
	old := func(e *envelope.Envelope) { e.ExpiresAt = time.Now().Add(-time.Hour).UnixMilli() }
	dup := fl.letter(envelope.Send, "hosta", from, to, "taken", old)
	raw(t, ch, fl.names().Msg(), to, dup, nil)
	if d := box.take(t, "taken"); d.MsgID != dup.MsgID || got(t, "asked", known) != dup.MsgID {
		t.Errorf("got %s", d.MsgID)
	}
	raw(t, ch, fl.names().Msg(), to, fl.letter(envelope.Send, "hosta", from, to, "new", old), nil)
	eventually(t, "refused", func() bool { return b.Refusals()["expired"] == 1 })
}

// Fails if the arguments drift from the contract of design §3: a queue made by
// another version then cannot be declared.
func TestContractOfQueueArguments(t *testing.T) {
	const day = 24 * 60 * 60 * 1000
	n := Names{}
	for _, c := range []struct {
		q    queue
		name string
		args amqp.Table
	}{
		{n.inboxQueue("g", InboxCap), "agent.g.inbox.v2", amqp.Table{
			"x-queue-type": "classic", "x-dead-letter-exchange": "bridge.dlx", "x-max-length": int64(100000),
			"x-overflow": "reject-publish", "x-message-ttl": int64(7 * day), "x-expires": int64(14 * day)}},
		{n.signalQueue("h", "c"), "signal.h.c", amqp.Table{"x-max-length": int64(10000), "x-message-ttl": int64(60000)}},
		{n.rosterQueue("h", "c"), "roster.h.c", amqp.Table{"x-max-length": int64(10000)}},
		{n.controlQueue("h"), "control.h", amqp.Table{"x-dead-letter-exchange": "bridge.dlx", "x-max-length": int64(1000), "x-overflow": "reject-publish", "x-message-ttl": int64(600000)}},
		{n.dlq(), "bridge.dlq", amqp.Table{"x-max-length": int64(10000), "x-overflow": "drop-head", "x-message-ttl": int64(14 * day)}},
		{n.reportQueue("h"), "dlq.report.h", amqp.Table{"x-max-length": int64(10000), "x-overflow": "drop-head", "x-message-ttl": int64(14 * day), "x-expires": int64(21 * day)}},
	} {
		if c.q.name != c.name || fmt.Sprint(c.q.args) != fmt.Sprint(c.args) {
			t.Errorf("%s %v, want %s %v", c.q.name, c.q.args, c.name, c.args)
		}
	}
}

// Fails if a handler that waits, as it does for a full disk, outlives the
// channel or the link that its delivery came by: the gateway would not attach
// the inbox, or not connect at all, before the disk is mended. Or if mail that
// it did not take is settled.
func TestAHandlerThatWaitsKeepsNoLinkFromEnding(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	a, proxy := fl.proxied("hosta")
	gid := fl.entity("hosta")
	var full atomic.Bool
	full.Store(true)
	waits := make(chan *hold, 8)
	box := a.attach(gid, func(i *Inbox) {
		take := i.Handler
		i.Handler = func(ctx context.Context, d envelope.Delivery) {
			if full.Load() {
				waits <- d.Settler.(*hold)
				<-ctx.Done()
				return
			}
			take(ctx, d)
		}
	})
	a.publish(envelope.LaneMail, fl.letter(envelope.Send, "hosta", gid, gid, "held"), Confirmed)
	first := got(t, "the wait", waits)
	if err := first.ch.Ack(first.tag+1000, false); err != nil { // closes the channel alone
		t.Fatal(err)
	}
	got(t, "the wait on the next channel", waits)
	lost := a.Stats().SessionsLost
	proxy.Cut()
	a.anew(lost)
	third := got(t, "the wait on the next link", waits)
	full.Store(false)
	if err := third.ch.Ack(third.tag+1000, false); err != nil {
		t.Fatal(err)
	}
	box.take(t, "held")
}
