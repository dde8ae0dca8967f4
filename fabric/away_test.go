package fabric

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric/envelope"
	"fleetd/test/rabbit"
)

// desk is the reader of one inbox at work on what the test gives it. Its
// channel has ended, so that what it settles costs nothing.
type desk struct {
	*reader
	t     *testing.T
	fl    *fleet
	g     *gateway
	ch    *amqp.Channel
	to    string
	taken []string // the bodies
	now   time.Time
	up    time.Duration
}

func newDesk(t *testing.T) *desk {
	uri := rabbit.URI(t)
	d := &desk{t: t, fl: newFleet(t, uri), now: time.Now()}
	_, d.ch = stranger(t, uri)
	if err := d.ch.Close(); err != nil {
		t.Fatal(err)
	}
	d.g = d.fl.gateway("hostb", func(_ *Config, deps *Deps) { deps.Now = func() time.Time { return d.now } })
	d.g.uptime = func() time.Duration { return d.up }
	d.g.solicitWait = time.Hour
	d.fl.key("hosta")
	d.to = d.fl.entity("hostb")
	in := newInbox(d.g.Fabric, Inbox{GID: d.to})
	d.g.inboxes[d.to] = in
	d.reader = newReader(d.g.Fabric, place{lane: envelope.LaneMail, gid: d.to, queue: "q"}, in.awaits,
		func(env *envelope.Envelope, _ *amqp.Delivery, _ *hold) { d.taken = append(d.taken, string(env.Body)) })
	d.room, d.spare = func() bool { return false }, func() int { return windowMessages }
	return d
}

// bring delivers a brief of from, who is at home on hosta, and returns it.
func (d *desk) bring(from, body string) (amqp.Delivery, *hold) {
	e := d.fl.letter(envelope.Send, "hosta", from, d.to, body)
	m := amqp.Delivery{Headers: amqp.Table(e.Table()), RoutingKey: d.to, Body: e.Body}
	return m, d.deliver(m)
}

func (d *desk) deliver(m amqp.Delivery) *hold {
	h := &hold{ch: d.ch}
	d.take(m, h)
	return h
}

func (d *desk) again(m amqp.Delivery) *hold {
	m.Redelivered = true
	return d.deliver(m)
}

func (d *desk) want(what string, parked int, taken ...string) {
	d.t.Helper()
	if len(d.parked) != parked || d.g.Stats().Parked != int64(parked) {
		d.t.Errorf("%s: %d wait, counted as %d, want %d", what, len(d.parked), d.g.Stats().Parked, parked)
	}
	if fmt.Sprint(d.taken) != fmt.Sprint(taken) {
		d.t.Errorf("%s: taken are %q, want %q", what, d.taken, taken)
	}
}

func (d *desk) woken() bool {
	select {
	case <-d.awaits.wake:
		return true
	default:
		return false
	}
}

// Fails when a message that was handed back and does not come again, since its
// queue lost it, holds up what its sender sends later, when one is given up on
// while the broker cannot give it, or when it is then not taken any more.
func TestWhatDoesNotComeAgainHoldsNothingUp(t *testing.T) {
	d := newDesk(t)
	open := true
	d.open = func() bool { return open }
	d.fl.silence("hosta", true)
	from := nobodys()
	first, h := d.bring(from, "first")
	d.fl.settle(from, "hosta")
	d.resume()
	if !h.done.Load() {
		t.Fatal("what waits without its text was not handed back")
	}
	d.bring(from, "second")
	open = false
	for range 3 { // the window is full
		d.up += missedFor
		d.resume()
	}
	d.want("while the window is full", 2)
	open = true
	d.up += missedFor
	d.resume()
	d.want("while it may be on its way", 2)
	d.up += time.Second
	d.resume() // the second is judged for the first time, and handed back
	d.want("once the first is given up", 1)
	d.again(first)
	d.want("comes late", 2)
	d.resume()
	d.up += missedFor + 1
	d.resume() // the second is given up too, and the first handed back
	d.again(first)
	d.resume()
	d.want("after all", 0, "first")
}

// Fails when mail is handed back into a queue without room, which loses it or
// other mail, in another order than it came, or not once there is room.
func TestMailThatWaitsIsHandedBackWhereThereIsRoom(t *testing.T) {
	d := newDesk(t)
	left, asked := 0, 0
	d.spare = func() int { asked++; return left }
	d.fl.silence("hosta", true)
	from := nobodys()
	_, first := d.bring(from, "first")
	_, second := d.bring(from, "second")
	d.fl.settle(from, "hosta")
	for _, want := range []struct{ left, back int }{{0, 0}, {-3, 0}, {1, 1}} {
		left, asked = want.left, 0
		d.resume()
		back := 0
		for _, h := range []*hold{first, second} {
			if h.done.Load() {
				back++
			}
		}
		if back != want.back || asked != 1 {
			t.Errorf("with room for %d: %d are handed back, want %d; the broker was asked %d times", want.left, back, want.back, asked)
		}
	}
	if !first.done.Load() {
		t.Error("the second was handed back before the first")
	}
}

// Fails when the room in a queue of LavinMQ, which pushes mail out when some is
// handed back at its cap, is reckoned wrongly, or asked for where it does not matter.
func TestHowMuchMayBeHandedBack(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	a := fl.gateway("hosta")
	a.inboxCap = 3
	a.run().await(Connected)
	gid := fl.entity("hosta")
	a.attach(gid)
	a.Detach(gid)
	_, ch := stranger(t, fl.uri)
	w := &window{in: newInbox(a.Fabric, Inbox{GID: gid}), ch: ch, queue: fl.names().Inbox(gid)}
	for sent := range 4 {
		w.lavin = true
		if n := w.spare(); n != 3-sent {
			t.Errorf("with %d in the queue %d may be handed back, want %d", sent, n, 3-sent)
		}
		w.lavin = false
		if n := w.spare(); n != windowMessages {
			t.Errorf("RabbitMQ keeps what is handed back; %d may be", n)
		}
		if sent < 3 {
			a.send(gid, gid, "x")
		}
	}
	w.lavin, w.queue = true, "none"
	if n := w.spare(); n != 0 {
		t.Errorf("%d may be handed back into a queue that is not there", n)
	}
}

// Fails when what is to be refused while it is handed back is counted and
// reported then, and again when it has come, or when it holds up others although
// its life is over.
func TestARefusalOfWhatWasHandedBackCountsOnce(t *testing.T) {
	for name, c := range map[string]struct {
		reason string
		judge  func(*desk)
		waits  int
	}{
		"nobody announces its sender": {"unknown_home", func(d *desk) {
			for range fullsMost {
				d.g.Heard("hosta", true)
			}
		}, 1},
		"its life ends": {"expired", func(d *desk) { d.now = d.now.Add(time.Hour); d.fl.silence("hosta", true) }, 0},
	} {
		d := newDesk(t)
		m, h := d.bring(nobodys(), "x")
		if h.end(); len(d.parked) != 1 {
			t.Fatal("it does not wait")
		}
		d.open = func() bool { return false } // it may be away for long
		c.judge(d)
		d.resume()
		d.want(name, c.waits)
		if r := d.g.Refusals(); len(r)+len(d.g.reported) != 0 {
			t.Errorf("%s: refused %v and reported %d times while the broker has it", name, r, len(d.g.reported))
		}
		d.again(m)
		d.resume()
		if r := d.g.Refusals(); r[c.reason] != 1 || len(r) != 1 {
			t.Errorf("%s: refused %v, want one, as %s", name, r, c.reason)
		}
		d.want(name, 0)
	}
}

// Fails when a full announcement that was under way when a new sender's first
// mail came has that refused, or when a host that does not announce him is
// waited for until time is up.
func TestAnAnnouncementUnderWayDoesNotSpeakOfANewSender(t *testing.T) {
	d := newDesk(t)
	asked := func(want int) {
		t.Helper()
		if n := len(d.g.solicited); n != want {
			t.Errorf("asked %d times, want %d", n, want)
		}
	}
	d.room = nil
	from := nobodys()
	d.bring(from, "first")
	asked(1)
	d.g.Heard("hosta", true) // made before he was there
	d.resume()
	d.resume()
	d.want("after the first announcement", 1)
	asked(2)
	d.fl.settle(from, "hosta")
	d.g.Heard("hosta", true)
	d.resume()
	d.want("after the next", 0, "first")
	d.bring(nobodys(), "forged")
	for range fullsMost {
		d.resume()
		d.want("a forgery waits", 1, "first")
		d.g.Heard("hosta", true)
	}
	d.resume()
	d.want("a forgery", 0, "first")
	if n := d.g.Refusals()["unknown_home"]; n != 1 {
		t.Errorf("%d refused", n)
	}
}

// Fails when all that waits is looked at anew for each message that comes again,
// or not at all where no more can come.
func TestManyMessagesThatComeAgainCostOneLook(t *testing.T) {
	const many = 50
	d := newDesk(t)
	d.fl.silence("hosta", true)
	from := nobodys()
	var mail []amqp.Delivery
	var all []string
	for i := range many {
		m, _ := d.bring(from, fmt.Sprint(i))
		mail, all = append(mail, m), append(all, fmt.Sprint(i))
	}
	d.fl.settle(from, "hosta")
	d.resume()
	d.woken()
	for i, m := range mail {
		d.again(m)
		if last := i == many-1; d.woken() != last {
			t.Fatalf("message %d: looked at: %t", i, !last)
		}
		if due := time.Until(d.next); d.next.IsZero() || due > lookSoon {
			t.Fatalf("message %d: looked at in %s if no more come", i, due)
		}
	}
	d.resume()
	d.want("all have come", 0, all...)

	d.taken = nil
	from = nobodys()
	m, _ := d.bring(from, "one")
	d.bring(from, "two")
	d.fl.settle(from, "hosta")
	d.resume()
	d.woken()
	m.Redelivered = true
	full := &consumer{prefetch: 1}
	full.unsettled.Add(1)
	d.take(m, &hold{ch: d.ch, from: full})
	if !d.woken() {
		t.Error("not looked at, though the window is full")
	}
	d.resume()
	d.want("a full window", 1, "one")
}

// Fails when traffic puts off the look at what waits for a host that was asked.
func TestTrafficDoesNotPutOffTheLook(t *testing.T) {
	d := newDesk(t)
	d.bring(nobodys(), "one")
	due := d.next
	d.bring(nobodys(), "two")
	if due.IsZero() || !d.next.Equal(due) {
		t.Errorf("the look that was due at %v is due at %v", due, d.next)
	}
}

// Fails when mail of many senders of a host that was asked for them, and has
// answered, is not read on when it comes again with its text. The window is so
// narrow that nothing but the reader takes what the broker gives.
func TestMailThatComesAgainIsReadOn(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	b := fl.gateway("hostb")
	b.loadBytes, b.solicitWait = 1, time.Hour
	b.run().await(Connected)
	fl.key("hosta")
	fl.silence("hosta", true)
	to := fl.entity("hostb")
	box := b.attach(to, func(in *Inbox) { in.Prefetch = narrowWindow })
	_, ch := stranger(t, fl.uri)
	var senders []string
	for range 2 * waitingMost {
		gid := uuid.Must(uuid.NewV7()).String()
		senders = append(senders, gid)
		raw(t, ch, fl.names().Msg(), to, fl.letter(envelope.Send, "hosta", gid, to, gid), nil)
	}
	eventually(t, "all wait", func() bool { return int(b.Stats().Parked) == len(senders) })
	fl.silence("hosta", false)
	b.Heard("hosta", false)
	eventually(t, "all are asked for", func() bool { return len(b.solicited) == len(senders) })
	for _, gid := range senders {
		fl.settle(gid, "hosta")
	}
	b.Heard("hosta", true)
	for range senders {
		if err := got(t, "mail that waited", box.mail).Ack(); err != nil {
			t.Error("ack:", err)
		}
	}
}

// Fails when a lane whose queue is gone is told of hosts for ever.
func TestALaneThatEndedIsForgotten(t *testing.T) {
	d := newDesk(t)
	s := &session{f: d.g.Fabric, ctx: t.Context()}
	other := s.newAwaited()
	gone := make(chan amqp.Delivery)
	close(gone)
	s.readLane(d.ch, gone, lane{place: place{lane: envelope.LaneControl}})
	if len(s.awaits) != 1 || s.awaits[0] != other {
		t.Errorf("%d lanes are told, want the other one", len(s.awaits))
	}
}
