package fabric

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric/envelope"
	"fleetd/test/rabbit"
)

// limited is a node that lets a delivery stay unacked for limit.
func limited(t *testing.T, limit time.Duration) *rabbit.Node {
	n := rabbit.Private(t)
	_, err := n.Ctl(t.Context(), "eval", fmt.Sprintf(
		"application:set_env(rabbit,consumer_timeout,%d), application:set_env(rabbit,channel_tick_interval,200).", limit.Milliseconds()))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// clocked gives a gateway that does not run yet a clock that the test sets.
func clocked(g *gateway) (pass func(time.Duration), looked func()) {
	var up, looks atomic.Int64
	g.uptime = func() time.Duration { looks.Add(1); return time.Duration(up.Load()) }
	g.lookEvery = time.Millisecond
	return func(d time.Duration) { up.Add(int64(d)) }, func() {
		before := looks.Load()
		eventually(g.fl.t, "some looks", func() bool { return looks.Load() > before+3 })
	}
}

func (g *gateway) send(from, to, body string) {
	g.fl.t.Helper()
	g.publish(envelope.LaneMail, g.fl.letter(envelope.Send, g.host, from, to, body), Confirmed)
}

// Fails if mail that is held for longer than the broker allows is lost, or goes
// on to cost the channel, or if a settled one comes again.
func TestHeldMailOutlivesTheBrokersLimit(t *testing.T) {
	fl := newFleet(t, limited(t, 3*time.Second).URI)
	a := fl.up("hosta")
	gid := fl.entity("hosta")
	box := a.attach(gid)
	bodies := []string{"one", "two", "three"}
	for _, b := range bodies {
		a.send(gid, gid, b)
	}
	var mu sync.Mutex
	latest := map[string]envelope.Delivery{}
	done := make(chan struct{})
	t.Cleanup(func() { close(done) })
	go func() {
		for {
			select {
			case d := <-box.mail:
				mu.Lock()
				latest[string(d.Body)] = d
				mu.Unlock()
			case <-done:
				return
			}
		}
	}()
	got(t, "the channel's close", box.lost)
	losses := 1
	calm := a.Stats().HandedBack
	eventually(t, "two rounds in which the channel stays", func() bool {
		select {
		case <-box.lost:
			losses++
			calm = a.Stats().HandedBack
		default:
		}
		return a.Stats().HandedBack >= calm+2*uint64(len(bodies))
	})
	t.Logf("the broker closed the channel %d times; the pace is %s", losses, a.pace.after(false))
	if n := strings.Count(strings.Join(a.log.lines(), ""), "does not let mail be held for so long"); n == 0 || n > losses {
		t.Errorf("%d lines say that the limit is shorter, after %d losses", n, losses)
	}
	eventually(t, "all acked", func() bool { // one that is handed back is acked when it comes again
		mu.Lock()
		defer mu.Unlock()
		for b, d := range latest {
			if d.Ack() == nil {
				delete(latest, b)
			}
		}
		return len(latest) == 0
	})
	a.Detach(gid)
	if n, err := a.ReadyCount(t.Context(), gid); n != 0 || err != nil {
		t.Errorf("%d messages are left: %v", n, err)
	}
}

// Fails if mail is handed back too early or past 25 min, if what is in hand is,
// or if it comes back in another order or more than once.
func TestHeldMailIsHandedBackInTimeAndInOrder(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	a := fl.gateway("hosta")
	pass, looked := clocked(a)
	a.run().await(Connected)
	gid := fl.entity("hosta")
	var inHand atomic.Value
	inHand.Store("")
	box := a.attach(gid, func(i *Inbox) { i.InHand = func(id string) bool { return id == inHand.Load() } })
	old := map[string]envelope.Delivery{}
	for _, b := range []string{"one", "two", "three"} {
		a.send(gid, gid, b)
		old[b] = got(t, b, box.mail)
	}
	inHand.Store(old["two"].MsgID)
	pass(refreshAfter - time.Second)
	looked()
	a.send(gid, gid, "young")
	young := got(t, "young", box.mail)
	if n := a.Stats().HandedBack; n != 0 {
		t.Errorf("%d were handed back too early", n)
	}
	pass(2 * time.Second)
	for _, b := range []string{"one", "three"} {
		if d := got(t, b, box.mail); string(d.Body) != b || !d.Redelivered {
			t.Fatalf("%q came, want %q again", d.Body, b)
		} else if old[b].Ack() == nil {
			t.Errorf("the old hold on %q is still good", b)
		} else if err := d.Ack(); err != nil {
			t.Error(err)
		}
	}
	pass(25*time.Minute - refreshAfter - 2*time.Second) // what is in hand can wait till here
	inHand.Store("")
	box.take(t, "two")
	looked()
	if n := a.Stats().HandedBack; n != 3 {
		t.Errorf("%d were handed back, want 3", n)
	}
	if err := young.Ack(); err != nil {
		t.Error("what is not old was handed back along:", err)
	}
	a.Detach(gid)
	if n, err := a.ReadyCount(t.Context(), gid); n != 0 || err != nil {
		t.Errorf("%d messages are left: %v", n, err)
	}
}

// Fails if a message of an earlier window is handed back and not taken again,
// or if one behind all windows comes instead.
func TestSeveralWindowsAreTakenAgain(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	a := fl.gateway("hosta")
	pass, _ := clocked(a)
	a.run().await(Connected)
	gid := fl.entity("hosta")
	box := a.attach(gid, func(i *Inbox) { i.Prefetch = 4 })
	for i := range 20 {
		a.send(gid, gid, fmt.Sprint(i))
	}
	take := func(n int) (ids []string) {
		for range n {
			ids = append(ids, got(t, "a window", box.mail).MsgID)
		}
		return ids
	}
	first := take(4)
	for range 2 {
		eventually(t, "full", func() bool { return a.Full(gid) })
		if ok, err := a.More(t.Context(), gid); !ok || err != nil {
			t.Fatalf("more: %v %v", ok, err)
		}
		first = append(first, take(4)...)
	}
	pass(refreshAfter)
	again := take(12)
	slices.Sort(again)
	slices.Sort(first)
	if !slices.Equal(first, again) {
		t.Errorf("other messages came than were held")
	}
	if n, err := a.ReadyCount(t.Context(), gid); n != 8 || err != nil {
		t.Errorf("%d are ready, want 8: %v", n, err)
	}
}

// Fails if mail whose sender's home is unknown for long loses its place or is
// shown twice, or if its waiting is told more than once.
func TestMailOfASilentHostIsHandedBackToo(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	a, b := fl.up("hosta"), fl.gateway("hostb")
	pass, looked := clocked(b)
	b.run().await(Connected)
	from, to := fl.entity("hosta"), fl.entity("hostb")
	box := b.attach(to)
	fl.mu.Lock()
	delete(fl.homes, from)
	fl.quiet["hosta"] = true
	fl.mu.Unlock()
	a.send(from, to, "one")
	a.send(from, to, "two")
	eventually(t, "they wait", func() bool { return b.Stats().Parked == 2 })
	pass(refreshAfter)
	eventually(t, "handed back", func() bool { return b.Stats().HandedBack == 2 })
	a.send(from, to, "three")
	for range 5 {
		b.Heard("hosta", false) // has them judged again
		looked()
	}
	eventually(t, "they wait again", func() bool { return b.Stats().Parked == 3 })
	told := 0
	for _, l := range b.log.lines() {
		if strings.Contains(l, "its sender's home is unknown") {
			told++
		}
	}
	if told != 1 {
		t.Errorf("%d lines say that mail of that host waits, want 1", told)
	}
	fl.settle(from, "hosta")
	b.Heard("hosta", true)
	for _, body := range []string{"one", "two", "three"} {
		box.take(t, body)
	}
	b.Detach(to)
	if n, err := a.ReadyCount(t.Context(), to); n != 0 || err != nil {
		t.Errorf("%d messages are left: %v", n, err)
	}
}

// Fails if a gateway full of large mail goes on to take more, keeps a reader
// from getting any, or does not go on when there is room.
func TestAllInboxesTogetherAreBoundInBytes(t *testing.T) {
	const window, total = 32, 100
	fl := newFleet(t, rabbit.URI(t))
	a := fl.gateway("hosta")
	a.loadBytes, a.lookEvery = 32<<10, 10*time.Millisecond
	a.run().await(Connected)
	hog, other := fl.entity("hosta"), fl.entity("hosta")
	for _, gid := range []string{hog, other} {
		a.attach(gid)
		a.Detach(gid)
	}
	body := strings.Repeat("x", 1024)
	for range total {
		a.send(hog, hog, body)
		a.send(hog, other, body)
	}
	one := a.attach(hog, func(i *Inbox) { i.Prefetch = window })
	eventually(t, "the first is full", func() bool { return a.Full(hog) && len(one.mail) == window+narrowWindow })
	two := a.attach(other, func(i *Inbox) { i.Prefetch = window })
	eventually(t, "the second has some", func() bool { return a.Full(other) && len(two.mail) == narrowWindow })
	for gid, want := range map[string]int{hog: total - window - narrowWindow, other: total - narrowWindow} {
		if more, err := a.More(t.Context(), gid); more || err != nil {
			t.Errorf("another window over the bound: %t %v", more, err)
		}
		if n, err := a.ReadyCount(t.Context(), gid); n != want || err != nil {
			t.Errorf("%d lie on the broker, want %d: %v", n, want, err)
		}
	}
	for range total {
		one.take(t, body)
	}
	for range total {
		two.take(t, body)
	}
	for _, gid := range []string{hog, other} {
		eventually(t, "a wide window again", func() bool {
			a.mu.Lock()
			in := a.inboxes[gid]
			a.mu.Unlock()
			return in.consumer().prefetch == window
		})
	}
	if m, b := a.load.messages.Load(), a.load.bytes.Load(); m != 0 || b != 0 {
		t.Errorf("%d messages and %d bytes are counted as held", m, b)
	}
}

// The library fails calls a moment before it tells why the broker closed a
// channel. Fails if the inbox that made one does not wait for that, and so does
// not learn what its mail was held for too long for; or if it waits where nothing
// comes.
func TestWhyAChannelClosedIsWaitedFor(t *testing.T) {
	word := &amqp.Error{Code: amqp.PreconditionFailed, Reason: "it was held for too long"}
	synctest.Test(t, func(t *testing.T) {
		closes := make(chan *amqp.Error, 1)
		time.AfterFunc(time.Millisecond, func() { closes <- word })
		if err := ended(closes, fmt.Errorf("cancel: %w", amqp.ErrClosed)); err != word {
			t.Errorf("the channel closed for %v", err)
		}
		for _, why := range []error{errInboxChannel, amqp.ErrClosed} {
			if err := ended(closes, why); err != why {
				t.Errorf("without a word %v reads %v", why, err)
			}
		}
		closes <- word
		if err := ended(closes, errInboxChannel); err != word {
			t.Errorf("the consumer ended for %v", err)
		}
	})
}

// Fails if LavinMQ is handed anything back that it did not ask for, if holds
// that ended together count as several lessons, or if one makes the pace slower.
func TestThePaceIsLearned(t *testing.T) {
	var p pace
	want := func(lavin bool, after time.Duration) {
		t.Helper()
		if got := p.after(lavin); got != after {
			t.Errorf("after %s, want %s", got, after)
		}
	}
	want(false, 20*time.Minute)
	want(true, 0)
	p.shorten(time.Hour)
	want(false, 20*time.Minute)
	want(true, 20*time.Minute)
	for range 3 {
		p.shorten(2 * time.Minute)
	}
	want(true, time.Minute)
	p.shorten(10 * time.Minute)
	want(false, time.Minute)
	p.shorten(time.Millisecond)
	want(false, refreshLeast)
}

// Fails if what LavinMQ may have pushed out of a full inbox is not told before
// the rest comes again, or if mail is called pushed out where it cannot be.
func TestAFullQueueOfLavinMQMayHavePushedMailOut(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	a := fl.gateway("hosta")
	var isLavin atomic.Bool
	clocked(a)                                                      // it stands still: nothing is handed back
	a.lavin = func(*amqp.Connection) bool { return isLavin.Load() } // this node is none
	a.inboxCap = 3
	a.run().await(Connected)
	gid := fl.entity("hosta")
	out := make(chan int, 8)
	var box *mailbox
	box = a.attach(gid, func(i *Inbox) {
		i.Prefetch = 2
		i.PushedOut = func() { out <- len(box.mail) }
	})
	var held []envelope.Delivery
	take := func() {
		old := held
		held = []envelope.Delivery{got(t, "the first", box.mail), got(t, "the second", box.mail)}
		for _, d := range old { // the new holds take over
			if d.Ack() == nil {
				t.Error("a hold outlived its channel")
			}
		}
	}
	lose := func() {
		if err := held[0].Settler.(*hold).ch.Ack(99, false); err != nil { // an unknown tag closes the channel
			t.Fatal(err)
		}
		got(t, "the loss", box.lost)
		take()
	}
	a.send(gid, gid, "held")
	a.send(gid, gid, "held")
	take()
	isLavin.Store(true)
	lose()
	if len(out) != 0 {
		t.Error("called pushed out of a queue that is not full")
	}
	for range 3 {
		a.send(gid, gid, "ready")
	}
	lose()
	if n := got(t, "pushed out", out); n != 0 {
		t.Errorf("told after %d had come again", n)
	}
	isLavin.Store(false)
	lose()
	if len(out) != 0 {
		t.Error("called pushed out of RabbitMQ, which keeps what is handed back")
	}
}
