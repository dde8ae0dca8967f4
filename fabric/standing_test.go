package fabric

import (
	"testing"

	"fleetd/fabric/envelope"
	"fleetd/test/rabbit"
)

// standing is an inbox of hostb, whose clock stands still, with a window of
// prefetch in which mail waits for hosta. Its load is the test's to change.
func standing(t *testing.T, prefetch, waiting int, change func(*load)) (in *inbox, box *mailbox, looked func()) {
	fl := newFleet(t, rabbit.URI(t))
	b := fl.gateway("hostb")
	_, looked = clocked(b)
	b.run().await(Connected)
	fl.key("hosta")
	fl.key("hostc")
	fl.silence("hosta", true)
	to := fl.entity("hostb")
	box = b.attach(to, func(in *Inbox) { in.Prefetch = prefetch })
	b.Fabric.mu.Lock()
	in = b.inboxes[to]
	b.Fabric.mu.Unlock()
	change(&in.load)
	_, ch := stranger(t, fl.uri)
	for range waiting {
		raw(t, ch, fl.names().Msg(), to, fl.letter(envelope.Send, "hosta", nobodys(), to, "waits"), nil)
	}
	raw(t, ch, fl.names().Msg(), to, fl.letter(envelope.Send, "hostc", fl.entity("hostc"), to, "a friend's"), nil)
	eventually(t, "it waits", func() bool { return b.Stats().Parked == int64(waiting) })
	return in, box, looked
}

// Fails when a window full of mail that waits for a silent host is not left for
// another one once there is room: nothing comes into it that would tell.
func TestAWindowThatStandsIsTurnedOnceThereIsRoom(t *testing.T) {
	in, box, _ := standing(t, 4, 4, func(l *load) { l.add(windowMessages, 0) })
	in.load.add(-windowMessages, 0)
	box.take(t, "a friend's")
}

// Fails when the window of an inbox that holds as many bytes as it may is
// widened again by the clock, or not once it has room.
func TestANarrowWindowStaysNarrowWithoutRoom(t *testing.T) {
	const wide = 2 * narrowWindow
	in, box, looked := standing(t, wide, wide/2+1, func(l *load) { l.add(0, windowBytes) })
	box.take(t, "a friend's")
	for range 3 {
		looked()
		if n := in.consumer().prefetch; n != narrowWindow {
			t.Errorf("the window takes %d, want %d", n, narrowWindow)
		}
	}
	in.load.add(0, -windowBytes)
	eventually(t, "a wide window again", func() bool { return in.consumer().prefetch == wide })
}
