package inbox

import "testing"

// Fails if mail that the broker takes back and gives again is shown twice, in
// another order or marked, or if a reader's ack of it is lost.
func TestMailThatIsHandedBackIsReadOnce(t *testing.T) {
	w := newWorld(t)
	e := w.main("m")
	one, two := w.broker.publish(e.GID, w.brief(e.GID, "one")), w.broker.publish(e.GID, w.brief(e.GID, "two"))
	w.broker.handBack(one)
	w.broker.again(e.GID, one) // behind the second
	same(t, "held", 2, w.in.Held(e.GID))
	w.broker.handBack(two)
	batch, got := w.poll(e.GID, Filter{}, Limit{})
	same(t, "read", []string{"one", "two"}, got)
	batch.Settle(true)
	same(t, "states", []string{"acked", ""}, []string{w.broker.state(one), w.broker.state(two)})
	w.broker.again(e.GID, two) // the ack waited for this
	same(t, "the broker's copy", "acked", w.broker.state(two))
	_, got = w.poll(e.GID, Filter{}, Limit{})
	same(t, "read again", 0, len(got))
}

// Fails if a brief goes in twice, or stays on the broker, because it was handed
// back while it waited for its pane.
func TestABriefThatIsHandedBackGoesInOnce(t *testing.T) {
	w := newWorld(t)
	e := w.worker("a")
	w.panes.gate("pane-a", "BUSY")
	one, two := w.brief(e.GID, "one"), w.brief(e.GID, "two")
	first, second := w.broker.publish(e.GID, one), w.broker.publish(e.GID, two)
	for _, m := range []*message{first, second} {
		w.broker.handBack(m)
	}
	w.broker.again(e.GID, first)
	w.panes.gate("pane-a", "")
	w.awaitScreen("pane-a", one, two)
	w.awaitAcked(first, "acked")
	w.broker.again(e.GID, second)
	w.awaitAcked(second, "acked")
	w.awaitScreen("pane-a", one, two)
}

// Fails if what a client is being given would be handed back, or what merely
// waits would not.
func TestWhatIsOfferedIsInHand(t *testing.T) {
	w := newWorld(t)
	e := w.main("m")
	env := w.brief(e.GID, "one")
	w.broker.publish(e.GID, env)
	hand := func(want bool) {
		t.Helper()
		same(t, "in hand", want, w.in.InHand(e.GID, env.MsgID))
	}
	hand(false)
	batch, _ := w.poll(e.GID, Filter{}, Limit{})
	hand(true)
	batch.Settle(false)
	hand(false)
	batch, _ = w.poll(e.GID, Filter{}, Limit{})
	batch.Settle(true)
	hand(false)
}

// Fails if mail that the broker may have pushed out is shown or goes in before
// it comes again, if local mail is dropped with it, or if what came again has
// lost its mark or its place on record.
func TestWhatMayHaveBeenPushedOutWaitsForTheBroker(t *testing.T) {
	w := newWorld(t)
	e, f := w.main("m"), w.worker("a")
	w.panes.gate("pane-a", "BUSY")
	shown, gone, brief := w.brief(e.GID, "shown"), w.brief(e.GID, "gone"), w.brief(f.GID, "brief")
	one := w.broker.publish(e.GID, shown)
	batch, _ := w.poll(e.GID, Filter{}, Limit{})
	batch.Settle(false)
	two, three := w.broker.publish(e.GID, gone), w.broker.publish(f.GID, brief)
	w.deliver(w.brief(e.GID, "local"))
	await(t, "DEFERRED", func() bool { return len(w.reports.told(brief.MsgID)) == 1 })
	for _, m := range []*message{one, two, three} {
		w.broker.handBack(m)
	}
	w.in.Forget(e.GID)
	w.in.Forget(f.GID)
	same(t, "held", []int{1, 3}, []int{w.in.Held(e.GID), len(w.held(e.GID))})
	w.panes.gate("pane-a", "")
	w.broker.again(e.GID, one)
	w.broker.again(f.GID, three)
	w.awaitScreen("pane-a", brief)
	_, got := w.poll(e.GID, Filter{}, Limit{})
	same(t, "read", []string{"local", "shown!"}, got)
}
