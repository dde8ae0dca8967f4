package outbox

import (
	"fmt"
	"testing"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fabric/roster"
	"fleetd/fault"
)

// Fault: a brief that its recipient may still inject called EXPIRED or in doubt
// because somebody set the clock of the sender's host.
func TestAStepOfTheClockEndsNoBrief(t *testing.T) {
	for _, step := range []time.Duration{time.Hour, 30 * time.Hour, 9 * 24 * time.Hour, -time.Hour} {
		for _, many := range []bool{false, true} {
			t.Run(fmt.Sprintf("by %v, broadcast %v", step, many), func(t *testing.T) {
				w := newWorld(t)
				w.turn()
				var id string
				if many {
					id = w.cast(t)
				} else {
					id = w.sent(Request{}).MsgID
				}
				w.signal(envelope.Deferred, "BUSY", id)
				w.after(time.Minute)
				w.clock.step(step)
				for range 10 { // the first minutes
					w.turn()
					w.answers(envelope.Deferred, "BUSY", id)
					w.after(11 * time.Second)
					w.dir.host(func(h *roster.HostView) { h.Offset = -step }) // as its heartbeats show by now
				}
				w.wantNotices(id)
				w.signal(envelope.Injected, "", id)
				w.after(time.Hour)
				w.wantNotices(id, "INJECTED")
			})
		}
	}
}

// cast sends a broadcast to the one worker elsewhere.
func (w *world) cast(t *testing.T) string {
	t.Helper()
	delete(w.dir.who, critic)
	s, err := w.out.Broadcast(t.Context(), Broadcast{From: boss, Group: "all", Content: []byte("all of you")})
	must(t, err)
	return s.MsgID
}

// Fault: a last word that was due when the clock stepped said by the wrong
// clock, or never.
func TestAStepDuringTheLastQuestionPutsItAnew(t *testing.T) {
	for _, step := range []time.Duration{-time.Hour, time.Hour} {
		w := newWorld(t)
		w.turn()
		s := w.sent(Request{Life: time.Minute})
		w.after(time.Minute + lastGrace)
		w.answers(envelope.Deferred, "BUSY", s.MsgID)
		w.clock.step(step)
		w.dir.host(func(h *roster.HostView) { h.Offset = -step })
		w.after(answerWait + 2*time.Second)
		w.wantNotices(s.MsgID)
		for range 2 * 60 * 6 { // that is two hours
			w.answers(envelope.Deferred, "BUSY", s.MsgID)
			w.after(answerWait)
		}
		w.wantNotices(s.MsgID, "FAILED EXPIRED")
	}
}

// Fault: a last word by the clock of a recipient that was not compared with ours
// since our start, which is behind.
func TestTheLastWordWaitsUntilTheOtherClockIsKnown(t *testing.T) {
	w := newWorld(t)
	w.turn()
	s := w.sent(Request{Life: time.Minute})
	w.after(time.Minute)
	w.dir.host(func(h *roster.HostView) { h.Age = -1 })
	w.crash()
	w.reconnect()
	w.after(lastGrace)
	w.answers(envelope.Deferred, "BUSY", s.MsgID)
	w.after(answerWait)
	w.wantNotices(s.MsgID)
	w.dir.host(func(h *roster.HostView) { h.Age, h.Offset = 0, -5*time.Minute })
	w.after(time.Minute)
	w.wantNotices(s.MsgID)
	w.signal(envelope.Injected, "", s.MsgID)
	w.wantNotices(s.MsgID, "INJECTED")
}

// Fault: a key voided or forgotten by a step of the clock, so that a repeated
// call sends twice; or one that stands for ever after a step.
func TestAStepOfTheClockVoidsNoKey(t *testing.T) {
	w := newWorld(t)
	w.turn()
	w.out.tidy()
	first := w.sent(Request{Key: "key"})
	cast := Broadcast{From: boss, Group: "all", Content: []byte("all of you"), Key: "cast"}
	spread, err := w.out.Broadcast(t.Context(), cast)
	must(t, err)
	w.signal(envelope.Injected, "", first.MsgID)
	w.turn()
	w.clock.step(48 * time.Hour)
	for range 12 {
		w.after(time.Hour)
		w.out.tidy()
	}
	must(t, w.store.Flush(t.Context()))
	if s := w.sent(Request{Key: "key"}); s.MsgID != first.MsgID {
		t.Errorf("the key stands for %s after a step, want %s", s.MsgID, first.MsgID)
	}
	if s, err := w.out.Broadcast(t.Context(), cast); err != nil || s.MsgID != spread.MsgID {
		t.Errorf("the key of a broadcast stands for %s, %v after a step; want %s", s.MsgID, err, spread.MsgID)
	}
	if _, err := w.send(Request{Key: "key", Content: []byte("something else")}); !fault.Is(err, fault.Conflict) {
		t.Errorf("other content under the key: %v", err)
	}
	w.after(25 * time.Hour)
	w.out.tidy()
	must(t, w.store.Flush(t.Context()))
	if s := w.sent(Request{Key: "key"}); s.MsgID == first.MsgID {
		t.Error("the key stands for ever")
	}
}

// Fault: the end of a message forgotten by a step of the clock, so that a word
// on it is taken for one about nothing.
func TestAStepOfTheClockForgetsNoEnd(t *testing.T) {
	w := newWorld(t)
	w.turn()
	w.out.tidy()
	s := w.sent(Request{Life: time.Minute})
	w.signal(envelope.Failed, "NOT_INJECTED", s.MsgID)
	w.after(time.Minute)
	w.clock.step(48 * time.Hour)
	w.after(10 * time.Minute)
	w.out.tidy()
	if _, found := w.stored(s.MsgID); !found {
		t.Error("its intent is gone")
	}
}

// Fault: a day without a link taken for one because the clock says so.
func TestAStepOfTheClockIsNoDayWithoutALink(t *testing.T) {
	w := newWorld(t)
	w.turn()
	s := w.sent(Request{Life: time.Minute})
	w.broker.cut()
	w.after(time.Minute)
	w.clock.step(30 * time.Hour)
	w.after(10 * time.Minute)
	w.wantNotices(s.MsgID)
	w.after(24 * time.Hour)
	w.wantNotices(s.MsgID, "FAILED IN_DOUBT")
}
