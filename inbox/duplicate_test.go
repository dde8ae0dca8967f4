package inbox

import (
	"maps"
	"slices"
	"testing"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
)

// again publishes a copy of a message, changed.
func (w *world) again(gid string, env *envelope.Envelope, change ...func(*envelope.Envelope)) *message {
	copy := *env
	copy.Headers = maps.Clone(env.Headers)
	for _, c := range change {
		c(&copy)
	}
	return w.broker.publish(gid, &copy)
}

// Fails if a second copy is injected, in whatever state the first is, or stays
// on the broker.
func TestADuplicateIsNeverInjected(t *testing.T) {
	t.Attr("threat", "B2")
	w := newWorld(t)
	e := w.worker("a")
	w.panes.gate("pane-a", "BUSY")
	env := w.brief(e.GID, "x")
	first := w.broker.publish(e.GID, env)
	await(t, "DEFERRED", func() bool { return len(w.reports.told(env.MsgID)) == 1 })
	second := w.again(e.GID, env) // while it waits: the first keeps its place
	same(t, "first copy", "", w.broker.state(first))
	same(t, "second copy", "acked", w.broker.state(second))
	var third *message
	w.panes.script(func(id string) *plan {
		if id != env.MsgID {
			return nil
		}
		return &plan{do: func() {
			third = w.again(e.GID, env) // while it is injected
			same(t, "third copy", "acked", w.broker.state(third))
			same(t, "query", "DEFERRED BUSY", w.query(env, e.GID, there))
		}}
	})
	w.panes.gate("pane-a", "")
	w.awaitScreen("pane-a", env)
	w.awaitAcked(first, "acked")
	await(t, "injected", func() bool { return w.outcome(e.GID, env.MsgID) == "injected" })
	told := len(w.reports.told(env.MsgID))
	fourth := w.again(e.GID, env) // when it is in: its sender is told again
	same(t, "fourth copy", "acked", w.broker.state(fourth))
	same(t, "told", "INJECTED", w.reports.told(env.MsgID)[told])
	if err := w.in.Deliver(t.Context(), env, nil); err != nil { // and by the local way
		t.Error(err)
	}
	w.restart()
	w.again(e.GID, env)
	after := w.brief(e.GID, "after")
	w.broker.publish(e.GID, after)
	w.awaitScreen("pane-a", env, after)
}

// Fails if the broker's and the local copy of a broadcast both go in, whichever
// comes first.
func TestTheTwoCopiesOfABroadcastAreOne(t *testing.T) {
	for _, localFirst := range []bool{true, false} {
		w := newWorld(t)
		e := w.worker("a")
		w.panes.gate("pane-a", "BUSY")
		env := w.mail(envelope.Broadcast, e.GID, "to all")
		var m *message
		committed := false
		local := func() {
			err := w.in.Deliver(t.Context(), env, func(*store.Tx) error { committed = true; return nil })
			if err != nil {
				t.Fatal(err)
			}
		}
		if localFirst {
			local()
		}
		m = w.broker.publish(e.GID, env)
		if !localFirst {
			local()
		}
		after := w.brief(e.GID, "after")
		w.broker.publish(e.GID, after)
		w.panes.gate("pane-a", "")
		w.awaitScreen("pane-a", env, after)
		w.awaitAcked(m, "acked")
		same(t, "what goes with the local copy is committed", true, committed)
	}
}

// Fails if a client is shown one message twice, or a copy stays unsettled.
func TestADuplicateOfHeldMailChangesNothing(t *testing.T) {
	w := newWorld(t)
	e := w.main("m")
	env := w.brief(e.GID, "1")
	first := w.broker.publish(e.GID, env)
	w.broker.publish(e.GID, w.brief(e.GID, "2"))
	second := w.again(e.GID, env)
	same(t, "copies", []string{"", "acked"}, []string{w.broker.state(first), w.broker.state(second)})
	batch, got := w.poll(e.GID, Filter{}, Limit{})
	same(t, "poll", []string{"1", "2"}, got)
	w.broker.disconnect() // while it is offered
	w.broker.connect(w.in)
	_, got = w.poll(e.GID, Filter{}, Limit{})
	same(t, "poll of what is offered", []string(nil), got)
	batch.Settle(true)
	same(t, "the first after the drain", "acked", w.broker.state(first))
	third := w.again(e.GID, env)
	same(t, "copy of what was drained", "acked", w.broker.state(third))
	w.restart()
	fourth := w.again(e.GID, env)
	same(t, "copy after a restart", "acked", w.broker.state(fourth))
	_, got = w.poll(e.GID, Filter{}, Limit{})
	same(t, "poll", []string(nil), got)
}

// Fails if one id with two bodies passes for a duplicate.
func TestTheSameIDWithAnotherBodyIsRefused(t *testing.T) {
	t.Attr("threat", "B2")
	w := newWorld(t)
	e, f := w.main("m"), w.worker("a")
	held, drained, in := w.brief(e.GID, "held"), w.brief(e.GID, "drained"), w.brief(f.GID, "in")
	w.broker.publish(f.GID, in)
	w.awaitScreen("pane-a", in)
	w.broker.publish(e.GID, drained)
	batch, _ := w.poll(e.GID, Filter{}, Limit{})
	batch.Settle(true)
	w.broker.publish(e.GID, held)
	other := func(e *envelope.Envelope) { e.Body = []byte("other") }
	same(t, "of held mail", "rejected", w.broker.state(w.again(e.GID, held, other)))
	same(t, "of drained mail", "rejected", w.broker.state(w.again(e.GID, drained, other)))
	same(t, "of injected mail", "rejected", w.broker.state(w.again(f.GID, in, other)))
	for _, env := range []*envelope.Envelope{held, drained} {
		copy := *env
		other(&copy)
		if err := w.in.Deliver(t.Context(), &copy, nil); !fault.Is(err, fault.Refused) {
			t.Errorf("deliver: %v", err)
		}
	}
	_, got := w.poll(e.GID, Filter{}, Limit{})
	same(t, "poll", []string{"held"}, got)
}

// Fails if a message is called known that was not taken, so that it costs a
// record without being verified, or a copy of what was taken is verified anew.
func TestKnownIsWhatWasTakenWithThisBody(t *testing.T) {
	t.Attr("threat", "B8")
	w := newWorld(t)
	e := w.main("m")
	env := w.brief(e.GID, "1")
	as := func(env *envelope.Envelope, body, sig string) *envelope.Envelope {
		copy := *env
		copy.Body, copy.Headers = []byte(body), map[string]string{"sig": sig}
		return &copy
	}
	env.Headers = map[string]string{"sig": "genuine"}
	known := func(body string) bool { return w.in.Known(e.GID, as(env, body, "genuine")) }
	same(t, "before", false, known("1"))
	w.broker.publish(e.GID, env)
	same(t, "held", []bool{true, false}, []bool{known("1"), known("2")})
	same(t, "with other headers", false, w.in.Known(e.GID, as(env, "1", "forged")))
	same(t, "at somebody else", false, w.in.Known(newID(), env))
	batch, _ := w.poll(e.GID, Filter{}, Limit{})
	batch.Settle(true)
	same(t, "drained", []bool{true, false}, []bool{known("1"), known("2")})
	w.restart()
	same(t, "after a restart", []bool{true, false}, []bool{known("1"), known("2")})

	expired := w.brief(e.GID, "3")
	w.broker.publish(e.GID, expired)
	w.clock.pass(16 * time.Minute)
	await(t, "its end", func() bool { return w.in.Held(e.GID) == 0 })
	same(t, "ended, the record not committed", true, w.in.Known(e.GID, expired))
}

// A Known delivery was not verified. Fails if anything but its id and body is
// believed: its kind, its time, its sender.
func TestNothingOfAnUnverifiedCopyIsBelieved(t *testing.T) {
	t.Attr("threat", "B2 B8")
	w := newWorld(t)
	e, f := w.main("m"), w.worker("a")
	drained, failed, in := w.brief(e.GID, "drained"), w.brief(e.GID, "failed"), w.brief(f.GID, "in")
	w.broker.publish(f.GID, in)
	w.awaitScreen("pane-a", in)
	w.broker.publish(e.GID, failed)
	w.clock.pass(16 * time.Minute)
	w.awaitEnd(failed, "FAILED EXPIRED")
	w.broker.publish(e.GID, drained)
	batch, _ := w.poll(e.GID, Filter{}, Limit{})
	batch.Settle(true)
	w.disk.flush()
	victim := newID()
	forged := func(x *envelope.Envelope) {
		x.From, x.Signer, x.TS = victim, "hostc", x.TS-3*24*3600_000
	}
	for _, env := range []*envelope.Envelope{drained, failed} {
		same(t, "another sender and day", "acked", w.broker.state(w.again(e.GID, env, forged)))
		same(t, "another kind", "acked", w.broker.state(w.again(e.GID, env, func(x *envelope.Envelope) {
			x.Kind, x.InReplyTo, x.Reason = envelope.Failed, newID(), "EXPIRED"
		})))
	}
	w.again(f.GID, in, forged)
	_, got := w.poll(e.GID, Filter{}, Limit{})
	same(t, "poll", []string(nil), got)
	w.reports.set(func(r *reports) {
		same(t, "outcomes taken", []string(nil), r.outcomes)
		for _, p := range slices.Concat(r.progress, r.final) {
			if p.Sender == victim || p.SenderHost == "hostc" {
				t.Errorf("a stranger was told %v", p)
			}
		}
	})
}

// Fails if a forged copy takes the place of the genuine one: at the next
// restart it is refused, and the genuine one was acked.
func TestAForgedCopyDoesNotReplaceHeldMail(t *testing.T) {
	t.Attr("threat", "B2 B8")
	w := newWorld(t)
	e := w.main("m")
	env := w.brief(e.GID, "1")
	env.Headers = map[string]string{"sig": "genuine"}
	m := w.broker.publish(e.GID, env)
	forged := w.again(e.GID, env, func(x *envelope.Envelope) { x.Headers["sig"] = "forged" })
	same(t, "copies", []string{"", "rejected"}, []string{w.broker.state(m), w.broker.state(forged)})
}

// Whoever reads along at the broker can publish held mail again, as it is, with
// properties that nobody signed. Fails if such a copy, which may be transient or
// about to expire, is kept in place of the first, or if each costs a record.
func TestACopyCostsHeldMailNothing(t *testing.T) {
	t.Attr("threat", "B2 B8")
	w := newWorld(t)
	e := w.main("m")
	env := w.brief(e.GID, "1")
	env.Headers = map[string]string{"sig": "genuine"}
	m := w.broker.publish(e.GID, env)
	for range 50 {
		same(t, "copy", "acked", w.broker.state(w.again(e.GID, env)))
	}
	same(t, "the first", "", w.broker.state(m))
	w.disk.set(func(d *disk) {
		if n := d.steps[env.TraceID]; n > 2 {
			t.Errorf("%d steps are in the trace", n)
		}
	})
	w.broker.disconnect()
	w.broker.connect(w.in) // the first comes again, and is held anew
	batch, got := w.poll(e.GID, Filter{}, Limit{})
	same(t, "poll", []string{"1"}, got)
	batch.Settle(true)
	w.awaitAcked(m, "acked")
}

// Fails if the sender of what failed is not told again when it asks by sending
// the same once more, or an answer to a brief in doubt is not what counts.
func TestTheSenderOfAFailedBriefIsToldAgain(t *testing.T) {
	w := newWorld(t)
	e := w.main("m")
	env := w.brief(e.GID, "1")
	w.broker.publish(e.GID, env)
	w.clock.pass(16 * time.Minute)
	w.awaitEnd(env, "FAILED EXPIRED")
	await(t, "the end of it here", func() bool { return !w.holds(e.GID, env.MsgID) }) // it is told before
	w.disk.flush()
	same(t, "copy", "acked", w.broker.state(w.again(e.GID, env)))
	w.awaitEnd(env, "FAILED EXPIRED", "FAILED EXPIRED")
}

// Fails if a report that came by mail is shown as mail, or acked before it is
// committed.
func TestAReportByMailIsCommittedThenAcked(t *testing.T) {
	w := newWorld(t)
	e := w.main("m")
	env := w.mail(envelope.Failed, e.GID, "")
	w.reports.set(func(r *reports) { r.fail = errDown })
	done := make(chan *message)
	go func() { done <- w.broker.publish(e.GID, env) }()
	select {
	case <-done:
		t.Error("it was settled while it could not be committed")
	case <-time.After(100 * time.Millisecond):
	}
	w.reports.set(func(r *reports) { r.fail = nil })
	same(t, "copy", "acked", w.broker.state(<-done))
	same(t, "held", 0, w.in.Held(e.GID))
}

// Fails if an unknown kind is shown, or its sender not told: somebody was told
// that it was accepted.
func TestAnUnknownKindIsRefusedAndReported(t *testing.T) {
	w := newWorld(t)
	e := w.main("m")
	env := w.mail("FUTURE", e.GID, "x")
	same(t, "copy", "rejected", w.broker.state(w.broker.publish(e.GID, env)))
	w.awaitEnd(env, "FAILED REFUSED")
}
