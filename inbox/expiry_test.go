package inbox

import (
	"testing"
	"time"

	"fleetd/fabric/envelope"
)

// Fails if only the head of a line expires, if a sender is not told, or if the
// broker's copy goes before he is.
func TestBriefsExpireAtTheHeadAndBehindIt(t *testing.T) {
	w := newWorld(t)
	e := w.worker("a")
	w.panes.gate("pane-a", "BUSY")
	head, keep, behind := w.brief(e.GID, "head"), w.brief(e.GID, "keep"), w.brief(e.GID, "behind")
	keep.ExpiresAt += 3600_000
	m := w.broker.publish(e.GID, head)
	w.broker.publish(e.GID, keep)
	w.deliver(behind)
	w.clock.pass(15*time.Minute + time.Millisecond)
	w.awaitEnd(head, "FAILED EXPIRED")
	w.awaitEnd(behind, "FAILED EXPIRED")
	w.awaitAcked(m, "rejected")
	await(t, "recorded", func() bool {
		return w.outcome(e.GID, head.MsgID) == "failed EXPIRED" && w.outcome(e.GID, behind.MsgID) == "failed EXPIRED"
	})
	same(t, "query", "FAILED EXPIRED", w.query(head, e.GID, there))
	w.panes.gate("pane-a", "")
	w.awaitScreen("pane-a", keep)
}

// Fails if a brief goes in at or after the end of its life, however it got to
// the point of no return.
func TestNoInjectionStartsAtTheEndOfALife(t *testing.T) {
	w := newWorld(t)
	e := w.worker("a")
	w.panes.gate("pane-a", "BUSY")
	env := w.brief(e.GID, "late")
	w.broker.publish(e.GID, env)
	await(t, "DEFERRED", func() bool { return len(w.reports.told(env.MsgID)) == 1 })
	w.panes.script(func(string) *plan { // the gate opens in the last moment
		w.clock.pass(15 * time.Minute)
		return nil
	})
	w.panes.gate("pane-a", "")
	w.awaitEnd(env, "FAILED EXPIRED")
	w.awaitScreen("pane-a")
}

// Fails if held mail of an abandoned sender stays in a main's window.
func TestHeldMailExpires(t *testing.T) {
	w := newWorld(t)
	e := w.main("m")
	brief, reply := w.brief(e.GID, "brief"), w.mail(envelope.Reply, e.GID, "reply")
	m, n := w.broker.publish(e.GID, brief), w.broker.publish(e.GID, reply)
	w.clock.pass(16 * time.Minute)
	w.awaitAcked(m, "rejected")
	w.awaitAcked(n, "rejected")
	w.awaitEnd(brief, "FAILED EXPIRED")
	w.awaitEnd(reply) // nobody is told of the end of a reply
	await(t, "forgotten", func() bool { return w.in.Held(e.GID) == 0 && len(w.held(e.GID)) == 0 })
}

// Fails if mail is ended while a client is being given it, or never after.
func TestMailDoesNotExpireWhileItIsOffered(t *testing.T) {
	w := newWorld(t)
	e := w.main("m")
	kept, other := w.brief(e.GID, "kept"), w.brief(e.GID, "other")
	m := w.broker.publish(e.GID, kept)
	back := w.broker.publish(e.GID, other)
	first, _ := w.poll(e.GID, Filter{}, Limit{Max: 1})
	second, _ := w.poll(e.GID, Filter{}, Limit{Max: 1})
	tracer := w.brief(e.GID, "tracer")
	w.deliver(tracer)
	w.clock.pass(16 * time.Minute)
	w.awaitEnd(tracer, "FAILED EXPIRED") // the sweeper was here
	first.Settle(true)
	same(t, "the broker's copy", "acked", w.broker.state(m))
	w.awaitEnd(kept)
	second.Settle(false)
	w.awaitEnd(other, "FAILED EXPIRED")
	w.awaitAcked(back, "rejected")
}

// §14: clock jumps. Fails if a jump of the wall clock ends lives, or the pause never ends.
func TestAJumpOfTheClockEndsNoLives(t *testing.T) {
	w := newWorld(t)
	e, f := w.main("m"), w.worker("a")
	w.panes.gate("pane-a", "BUSY")
	held, brief := w.brief(e.GID, "held"), w.brief(f.GID, "brief")
	w.broker.publish(e.GID, held)
	w.broker.publish(f.GID, brief)
	await(t, "DEFERRED", func() bool { return len(w.reports.told(brief.MsgID)) == 1 })
	w.clock.jump(24 * time.Hour)
	w.panes.gate("pane-a", "DRAFT") // the loop looks at once
	before := w.clock.sweeps()
	await(t, "some sweeps", func() bool { return w.clock.sweeps() > before+3 })
	w.awaitEnd(held)
	w.awaitEnd(brief)
	w.clock.jump(-24 * time.Hour)
	w.panes.gate("pane-a", "")
	w.awaitScreen("pane-a", brief)
	await(t, "the end of the pause", func() bool {
		w.clock.pass(time.Minute)
		return len(w.reports.ends(held.MsgID)) == 1
	})
}

// Fails if a store that cannot be written keeps the sweeper from telling the
// senders of others that they wait, or lets mail go unreported.
func TestAnOutageDelaysEndsAndLosesNone(t *testing.T) {
	w := newWorld(t)
	e, f := w.main("m"), w.worker("a")
	w.panes.gate("pane-a", "SETTLING")
	dying := w.brief(e.GID, "dying")
	m := w.broker.publish(e.GID, dying)
	w.reports.set(func(r *reports) { r.fail = errDown })
	w.clock.pass(16 * time.Minute)
	await(t, "a failing report", func() bool { return w.reports.failed() > 0 })
	waiting := w.brief(f.GID, "waiting")
	w.broker.publish(f.GID, waiting)
	w.clock.pass(5 * time.Second)
	await(t, "DEFERRED", func() bool { return len(w.reports.told(waiting.MsgID)) > 0 })
	same(t, "the broker's copy", "", w.broker.state(m))
	w.reports.set(func(r *reports) { r.fail = nil })
	w.awaitEnd(dying, "FAILED EXPIRED")
	w.awaitAcked(m, "rejected")
}
