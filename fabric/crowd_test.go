package fabric

import (
	"testing"
	"time"

	"github.com/google/uuid"

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
	if n := b.Stats().Parked; n != 0 {
		t.Errorf("%d wait", n)
	}
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

// Fails when mail that waits for a silent host takes more room than there is.
func TestOnlySoMuchWaitsForAHostThatIsNotHeard(t *testing.T) {
	t.Attr("threat", "G5")
	uri := rabbit.URI(t)
	fl := newFleet(t, uri)
	b := fl.gateway("hostb")
	b.loadBytes, b.lookEvery = 32<<10, 10*time.Millisecond
	b.run().await(Connected)
	fl.key("hosta")
	fl.key("hostc")
	fl.silence("hosta", true)
	friend, to := fl.entity("hostc"), fl.entity("hostb")
	box := b.attach(to, func(in *Inbox) { in.Prefetch = 16 })
	_, ch := stranger(t, uri)
	const flood = 60
	for range flood {
		raw(t, ch, fl.names().Msg(), to, fl.letter(envelope.Send, "hosta", nobodys(), to, string(make([]byte, 4<<10))), nil)
	}
	raw(t, ch, fl.names().Msg(), to, fl.letter(envelope.Send, "hostc", friend, to, "a friend's"), nil)
	box.take(t, "a friend's")
	refused, waits := int(b.Refusals()["unknown_home"]), int(b.Stats().Parked)
	if refused+waits != flood || refused < flood/2 {
		t.Errorf("%d were refused and %d wait, of %d", refused, waits, flood)
	}
}
