package fabric

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric/envelope"
	"fleetd/test/rabbit"
)

// nobodys makes a gid that nobody announces.
func nobodys() string { return uuid.Must(uuid.NewV7()).String() }

// A trusted gateway signs mail from senders that it announces to nobody. Fails
// when that stops the line of an inbox or of the signals again and again, or
// when mail behind a sender that was found out is waited for anew.
func TestAHostThatAnnouncesNobodyDoesNotStopTheLine(t *testing.T) {
	t.Attr("threat", "G5")
	uri := rabbit.URI(t)
	fl := newFleet(t, uri)
	b := fl.up("hostb")
	fl.key("hosta")
	friend, to := fl.entity("hostc"), fl.entity("hostb")
	fl.key("hostc")
	box := b.attach(to)
	_, ch := stranger(t, uri)
	mail := func(from string) {
		raw(t, ch, fl.names().Msg(), to, fl.letter(envelope.Send, "hosta", from, to, "strange"), nil)
	}
	ask := func(signer, from string) {
		raw(t, ch, fl.names().Msg(), to+".signal", fl.letter(envelope.Query, signer, from, to, "", func(e *envelope.Envelope) { e.InReplyTo = e.MsgID }), nil)
	}
	// At 5 s for each sender, or each nine, all this would take minutes.
	talker := nobodys()
	for range 40 {
		mail(talker)
	}
	for range 200 {
		mail(nobodys())
		ask("hosta", nobodys())
	}
	raw(t, ch, fl.names().Msg(), to, fl.letter(envelope.Send, "hostc", friend, to, "a friend's"), nil)
	ask("hostc", friend)
	box.take(t, "a friend's")
	if e := got(t, "the friend's question", b.signals); e.Signer != "hostc" {
		t.Errorf("a signal of %s was taken", e.Signer)
	}
	eventually(t, "all of it is refused", func() bool {
		b.Heard("hosta", true) // it announces itself, and none of them
		return b.Refusals()["unknown_home"] == 440
	})
	eventually(t, "none waits", func() bool { return b.Stats().Parked == 0 })
}

// A trusted gateway keeps silent and signs mail from senders that nobody knows,
// which then waits for it. Fails when it fills the window of an inbox, which
// nobody else gets through then, or when some of it is lost.
func TestMailOfAHostThatIsNotHeardLeavesRoomForOthers(t *testing.T) {
	t.Attr("threat", "G5")
	uri := rabbit.URI(t)
	fl := newFleet(t, uri)
	b := fl.up("hostb")
	fl.key("hosta")
	fl.key("hostc")
	fl.silence("hosta", true)
	friend, to := fl.entity("hostc"), fl.entity("hostb")
	box := b.attach(to, func(in *Inbox) { in.Prefetch = 16 })
	_, ch := stranger(t, uri)
	var senders []string
	for range 40 {
		gid := nobodys()
		senders = append(senders, gid)
		raw(t, ch, fl.names().Msg(), to, fl.letter(envelope.Send, "hosta", gid, to, gid), nil)
	}
	raw(t, ch, fl.names().Msg(), to, fl.letter(envelope.Send, "hostc", friend, to, "a friend's"), nil)
	box.take(t, "a friend's")
	if n := int(b.Stats().Parked); n != len(senders) {
		t.Errorf("%d wait, want %d", n, len(senders))
	}
	for _, gid := range senders {
		fl.settle(gid, "hosta")
	}
	fl.silence("hosta", false)
	b.Heard("hosta", true)
	for _, gid := range senders {
		box.take(t, gid)
	}
}

// Fails when mail that waits for a silent host takes more room than there is,
// or when for that some of it is refused, overtaken or comes without its text,
// or others' does not get through.
func TestOnlySoMuchWaitsForAHostThatIsNotHeard(t *testing.T) {
	t.Attr("threat", "G5")
	uri := rabbit.URI(t)
	fl := newFleet(t, uri)
	b := fl.gateway("hostb")
	pass, _ := clocked(b)
	b.loadBytes, b.solicitWait = 32<<10, time.Hour
	b.run().await(Connected)
	fl.key("hosta")
	fl.key("hostc")
	fl.silence("hosta", true)
	friend, to := fl.entity("hostc"), fl.entity("hostb")
	box := b.attach(to, func(in *Inbox) { in.Prefetch = 16 })
	_, ch := stranger(t, uri)
	const senders, each = 12, 5
	text := func(from string, n int) string { return fmt.Sprintf("%s %d %s", from, n, make([]byte, 4<<10)) }
	next := map[string]int{}
	for range senders {
		next[nobodys()] = 0
	}
	for n := range each {
		for from := range next {
			raw(t, ch, fl.names().Msg(), to, fl.letter(envelope.Send, "hosta", from, to, text(from, n)), nil)
		}
	}
	raw(t, ch, fl.names().Msg(), to, fl.letter(envelope.Send, "hostc", friend, to, "a friend's"), nil)
	box.take(t, "a friend's")
	if n := b.Stats().Parked; n != senders*each {
		t.Errorf("%d wait, want %d", n, senders*each)
	}
	if n := b.load.bytes.Load(); n > 2*b.loadBytes {
		t.Errorf("what waits takes %d bytes, of %d", n, b.loadBytes)
	}
	pass(refreshAfter)
	eventually(t, "it is handed back and comes again", func() bool {
		return b.Stats().HandedBack == senders*each && b.load.messages.Load() == senders*each
	})
	if n := b.load.bytes.Load(); n < 0 || n > 2*b.loadBytes {
		t.Errorf("what came again takes %d bytes, of %d", n, b.loadBytes)
	}
	fl.silence("hosta", false)
	b.Heard("hosta", false)
	eventually(t, "it is asked for its senders", func() bool { return len(b.solicited) >= senders })
	for from := range next {
		fl.settle(from, "hosta")
	}
	b.Heard("hosta", true)
	for range senders * each {
		d := got(t, "mail that waited", box.mail)
		if string(d.Body) != text(d.From, next[d.From]) || d.Redelivered {
			t.Errorf("got %.50q of %s, want message %d; redelivered: %t", d.Body, d.From, next[d.From], d.Redelivered)
		}
		next[d.From]++
		if err := d.Ack(); err != nil {
			t.Error("ack:", err)
		}
	}
	if r := b.Refusals(); len(r) != 0 {
		t.Errorf("refused: %v", r)
	}
	if n := b.load.bytes.Load(); n != 0 {
		t.Errorf("%d bytes are counted of what is done", n)
	}
}

// A host left a sender out, by an announcement that was made too early, say.
// Fails when mail of its other senders is refused before it could announce
// them, or stops the line once more.
func TestAHostThatWasLateIsHeardAgain(t *testing.T) {
	t.Attr("threat", "G5")
	uri := rabbit.URI(t)
	fl := newFleet(t, uri)
	b := fl.gateway("hostb")
	b.solicitWait = time.Hour
	b.run().await(Connected)
	fl.key("hosta")
	fl.key("hostc")
	friend, to := fl.entity("hostc"), fl.entity("hostb")
	box := b.attach(to)
	_, ch := stranger(t, uri)
	mail := func(signer, from, body string) {
		raw(t, ch, fl.names().Msg(), to, fl.letter(envelope.Send, signer, from, to, body), nil)
	}
	mail("hosta", nobodys(), "of somebody who is left out")
	eventually(t, "it is asked for", func() bool { return b.Stats().Parked == 1 })
	for range fullsMost {
		b.Heard("hosta", true)
	}
	eventually(t, "it is refused", func() bool { return b.Refusals()["unknown_home"] == 1 })
	var senders []string
	for range 2 * waitingMost {
		gid := nobodys()
		senders = append(senders, gid)
		mail("hosta", gid, gid)
	}
	mail("hostc", friend, "a friend's")
	box.take(t, "a friend's")
	for _, gid := range senders {
		fl.settle(gid, "hosta")
	}
	b.Heard("hosta", true)
	for _, gid := range senders {
		box.take(t, gid)
	}
}

// Fails when what one trusted host says of a sender holds up, or has refused,
// the mail that comes from the sender's own host.
func TestAForgeryIsNotAtTheCostOfItsSender(t *testing.T) {
	t.Attr("threat", "G1")
	uri := rabbit.URI(t)
	fl := newFleet(t, uri)
	b := fl.gateway("hostb")
	b.solicitWait = time.Hour
	b.run().await(Connected)
	fl.key("hosta")
	fl.key("hostc")
	from, to := nobodys(), fl.entity("hostb")
	box := b.attach(to)
	_, ch := stranger(t, uri)
	for _, signer := range []string{"hosta", "hostc"} {
		raw(t, ch, fl.names().Msg(), to, fl.letter(envelope.Send, signer, from, to, "signed by "+signer), nil)
		eventually(t, signer+" is asked", func() bool {
			select {
			case host := <-b.solicited:
				return host == signer
			default:
				return false
			}
		})
	}
	for range fullsMost {
		b.Heard("hosta", true) // it does not announce the sender
	}
	eventually(t, "the forgery is refused", func() bool { return b.Refusals()["unknown_home"] > 0 })
	fl.settle(from, "hostc")
	b.Heard("hostc", true)
	box.take(t, "signed by hostc")
	if n := b.Refusals()["unknown_home"]; n != 1 {
		t.Errorf("%d were refused, want the forgery alone", n)
	}
}

// lookups counts what a gateway looks up, and sees how much waits meanwhile.
type lookups struct {
	Homes
	n      atomic.Int64
	parked func() int64 // nil: it does not look
	least  int64
}

func (l *lookups) Home(gid string) (string, bool) {
	l.n.Add(1)
	if l.parked != nil {
		l.least = min(l.least, l.parked())
	}
	return l.Homes.Home(gid)
}

// Fails when a host for which much mail waits is paid for with work at every
// word of others, or at every further message; or when what is judged again
// counts as taken meanwhile.
func TestWhatWaitsCostsNothingUntilItsHostIsHeard(t *testing.T) {
	t.Attr("threat", "G5")
	fl := newFleet(t, "")
	const many = 100
	count := &lookups{least: many}
	b := fl.gateway("hostb", func(c *Config, d *Deps) {
		c.URI = "amqp://127.0.0.1" // nobody dials it
		count.Homes, d.Homes = d.Homes, count
	})
	fl.key("hosta")
	fl.silence("hosta", true)
	to := fl.entity("hostb")
	in := newInbox(b.Fabric, Inbox{GID: to})
	b.inboxes[to] = in
	r := newReader(b.Fabric, place{lane: envelope.LaneMail, gid: to}, in.awaits, nil)
	take := func(from string) {
		e := fl.letter(envelope.Send, "hosta", from, to, "")
		r.take(amqp.Delivery{Headers: amqp.Table(e.Table()), RoutingKey: to}, &hold{})
	}
	senders := make([]string, many)
	for i := range senders {
		senders[i] = nobodys()
		take(senders[i])
	}
	woken := func() bool {
		select {
		case <-in.awaits.wake:
			return true
		default:
			return false
		}
	}
	if !woken() {
		t.Error("a host that was heard while its first message was judged is missed")
	}
	count.n.Store(0)
	count.parked = func() int64 { return b.Stats().Parked }
	r.resume()
	for _, gid := range senders {
		take(gid)
	}
	if n := count.n.Load(); n != 2*many {
		t.Errorf("%d look-ups, want one a message and one for each that waited", n)
	}
	b.Heard("hostc", true)
	if woken() {
		t.Error("woken by a host for which nothing waits")
	}
	b.Heard("hosta", false)
	if !woken() {
		t.Error("not woken by the host for which mail waits")
	}
	if n := b.Stats().Parked; n != 2*many || count.least != many {
		t.Errorf("%d wait, and at one time %d did; want %d and %d", n, count.least, 2*many, many)
	}
}
