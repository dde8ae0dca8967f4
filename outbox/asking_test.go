package outbox

import (
	"errors"
	"slices"
	"testing"
	"time"

	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/fabric/roster"
	"fleetd/fault"
)

// asked lists how long after start the message was asked for, up to d.
func (w *world) asked(msgID string, d time.Duration) []time.Duration {
	var at []time.Duration
	seen := w.broker.queries(msgID)
	for t := time.Second; t <= d; t += time.Second {
		w.clock.add(time.Second)
		w.turn()
		if n := w.broker.queries(msgID); n > seen {
			at, seen = append(at, t), n
		}
	}
	return at
}

// Fault: a silent brief not asked for, or asked for on another schedule.
func TestASilentBriefIsAskedFor(t *testing.T) {
	w := newWorld(t)
	w.turn()
	s := w.sent(Request{Life: 2 * time.Hour})
	want := []time.Duration{5 * time.Second, 65 * time.Second, 305 * time.Second, 1265 * time.Second}
	if got := w.asked(s.MsgID, 30*time.Minute); !slices.Equal(got, want) {
		t.Errorf("asked after %v, want %v", got, want)
	}
	q := w.broker.sent(envelope.LaneSignal, envelope.Query)[0]
	if q.To != coder || q.From != envelope.GatewayAddress("hosta") || q.InReplyTo != s.MsgID || q.Headers["sig"] == "" {
		t.Errorf("the question is %+v", q)
	}
	w.signal(envelope.Injected, "", s.MsgID)
	if got := w.asked(s.MsgID, 3*time.Hour); got != nil {
		t.Errorf("asked after its end: %v", got)
	}
}

// Fault: the first question put although the recipient has just said why it
// waits.
func TestABriefThatIsNotSilentIsAskedForLater(t *testing.T) {
	w := newWorld(t)
	w.turn()
	s := w.sent(Request{})
	w.signal(envelope.Deferred, "BUSY", s.MsgID)
	if got := w.asked(s.MsgID, time.Minute); !slices.Equal(got, []time.Duration{time.Minute}) {
		t.Errorf("asked after %v, want 1m", got)
	}
}

// Fault: the outcome of a peer's earlier life, or of ours, never asked for.
func TestOpenBriefsAreAskedForWhenASideIsNew(t *testing.T) {
	for name, happens := range map[string]func(*world){
		"our connection": func(w *world) { w.broker.cut(); w.turn(); w.reconnect() },
		"our boot":       func(w *world) { w.crash(); w.reconnect() },
		"their boot":     func(w *world) { w.dir.host(func(h *roster.HostView) { h.Boot++ }) },
		"their connection": func(w *world) {
			w.dir.host(func(h *roster.HostView) { h.State = roster.Unknown })
			w.turn()
			w.dir.host(func(h *roster.HostView) { h.State = roster.Online })
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.turn()
			s := w.sent(Request{Life: time.Hour})
			w.after(10 * time.Minute)
			before := w.broker.queries(s.MsgID)
			happens(w)
			w.turn()
			if got := w.broker.queries(s.MsgID); got != before+1 {
				t.Fatalf("asked %d times, want once", got-before)
			}
			// and then after 1 and 4 minutes more
			if got := w.asked(s.MsgID, 6*time.Minute); !slices.Equal(got, []time.Duration{time.Minute, 5 * time.Minute}) {
				t.Errorf("then asked after %v", got)
			}
		})
	}
}

// Fault: the last word said early, without asking, or wrong.
func TestTheLastWordFollowsTheAnswerToTheLastQuestion(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(*world, string)
		want   []string
	}{
		"no answer": {func(*world, string) {}, []string{"FAILED IN_DOUBT"}},
		"unseen":    {func(w *world, id string) { w.answers(envelope.Deferred, "UNSEEN", id) }, []string{"FAILED EXPIRED"}},
		"waiting":   {func(w *world, id string) { w.answers(envelope.Deferred, "BUSY", id) }, []string{"FAILED EXPIRED"}},
		"injected":  {func(w *world, id string) { w.answers(envelope.Injected, "", id) }, []string{"INJECTED"}},
		"failed":    {func(w *world, id string) { w.answers(envelope.Failed, "NOT_INJECTED", id) }, []string{"FAILED NOT_INJECTED"}},
		"abandoned": {func(w *world, id string) { w.answers(envelope.Abandoned, "PANE_GONE", id) }, []string{"ABANDONED PANE_GONE"}},
		// a word that was on its way when the question was put is no answer to it
		"a late progress": {func(w *world, id string) { w.signal(envelope.Deferred, "BUSY", id) }, []string{"FAILED IN_DOUBT"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.turn()
			s := w.sent(Request{Life: 2 * time.Minute})
			// what was heard in its life decides nothing
			w.signal(envelope.Deferred, "BUSY", s.MsgID)
			w.answers(envelope.Deferred, "UNSEEN", s.MsgID)
			w.after(2*time.Minute + lastGrace - time.Second)
			before := w.broker.queries(s.MsgID)
			w.after(time.Second)
			if w.broker.queries(s.MsgID) != before+1 {
				t.Fatal("not asked at expiresAt + 60 s")
			}
			c.answer(w, s.MsgID)
			w.after(answerWait - time.Second)
			if got := w.local.notices(s.MsgID); name == "no answer" && got != nil {
				t.Fatalf("said %v before the answer had its 10 s", got)
			}
			w.after(time.Second)
			w.wantNotices(s.MsgID, c.want...)
			w.after(time.Hour)
			w.crash()
			w.reconnect()
			w.after(time.Hour)
			w.wantNotices(s.MsgID, c.want...)
		})
	}
}

// Fault: IN_DOUBT said of a brief to a main or of one that the caller knows to
// be in doubt never cleared up.
func TestABriefInDoubtGetsALastWordWhoeverItWasFor(t *testing.T) {
	for _, to := range []string{"coder", "chief"} {
		for _, boot := range []bool{false, true} {
			w := newWorld(t)
			w.broker.script(reply{late: true})
			var id string
			_, err := w.send(Request{To: to, Leaving: func(m, _ string) { id = m }})
			wantCode(t, err, fault.InDoubt)
			w.broker.cut()
			if boot {
				w.crash()
			}
			w.reconnect()
			w.after(17 * time.Minute)
			w.wantNotices(id, "FAILED IN_DOUBT")
		}
	}
}

// Fault: the last word said while the recipient's slower clock still lets an
// injection begin.
func TestTheLastWordWaitsForASlowClock(t *testing.T) {
	w := newWorld(t)
	w.dir.host(func(h *roster.HostView) { h.Offset = -5 * time.Minute })
	w.turn()
	s := w.sent(Request{Life: 2 * time.Minute})
	w.after(2*time.Minute + lastGrace + 5*time.Minute + answerWait - time.Second)
	w.wantNotices(s.MsgID)
	w.after(time.Second)
	w.wantNotices(s.MsgID, "FAILED IN_DOUBT")
}

// Fault: a verdict without a question where the gateway or its link was down
// when the question was due.
func TestTheLastWordWaitsForALinkToAskOver(t *testing.T) {
	for name, down := range map[string]func(*world){
		"gateway down": func(w *world) { w.broker.cut(); w.clock.add(3 * 24 * time.Hour); w.crash(); w.turn() },
		"link down":    func(w *world) { w.broker.cut(); w.after(3 * time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			s := w.sent(Request{})
			down(w)
			w.wantNotices(s.MsgID)
			w.reconnect()
			w.after(answerWait - time.Second)
			w.wantNotices(s.MsgID)
			w.answers(envelope.Deferred, "UNSEEN", s.MsgID)
			w.after(time.Second)
			w.wantNotices(s.MsgID, "FAILED EXPIRED")
		})
	}
}

// Fault: a sender who never hears the end, because the link never comes back.
func TestWithoutALinkForADayTheLastWordIsInDoubt(t *testing.T) {
	w := newWorld(t)
	s := w.sent(Request{})
	w.turn()
	w.broker.cut()
	w.after(23 * time.Hour)
	w.wantNotices(s.MsgID)
	w.after(2 * time.Hour)
	w.wantNotices(s.MsgID, "FAILED IN_DOUBT")
}

// Fault: a question that the link swallowed counted as asked.
func TestAQuestionThatDidNotLeaveIsPutAgain(t *testing.T) {
	w := newWorld(t)
	w.turn()
	s := w.sent(Request{Life: time.Minute})
	w.broker.mu.Lock()
	w.broker.answer = func(publication) reply { return reply{err: errors.New("no turn")} }
	w.broker.mu.Unlock()
	w.after(10 * time.Minute)
	w.wantNotices(s.MsgID)
	w.broker.script(reply{out: fabric.Confirmed})
	w.after(time.Second)
	if w.broker.queries(s.MsgID) != 1 {
		t.Fatalf("asked %d times", w.broker.queries(s.MsgID))
	}
	w.after(answerWait)
	w.wantNotices(s.MsgID, "FAILED IN_DOUBT")

	// The same if the link is lost before the answer can have come.
	w.turn()
	s = w.sent(Request{Life: time.Minute})
	w.after(time.Minute + lastGrace + 5*time.Second)
	w.broker.cut()
	w.after(time.Hour)
	w.reconnect()
	w.wantNotices(s.MsgID)
	w.answers(envelope.Injected, "", s.MsgID)
	w.after(time.Minute)
	w.wantNotices(s.MsgID, "INJECTED")
}

// Fault: a last word that the disk refused said never.
func TestALastWordThatCannotBeStoredIsSaidLater(t *testing.T) {
	w := newWorld(t)
	s := w.sent(Request{Life: time.Minute})
	w.local.err = fault.New(fault.StoreUnavailable, "disk full")
	w.after(10 * time.Minute)
	w.local.err = nil
	w.after(time.Second)
	w.wantNotices(s.MsgID, "FAILED IN_DOUBT")
}
