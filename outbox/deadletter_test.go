package outbox

import (
	"context"
	"fmt"
	"testing"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fabric/roster"
	"fleetd/fault"
)

// died is the dead letter of a message that was sent.
func (w *world) died(s Sent, to, reason string) {
	w.t.Helper()
	for _, e := range w.broker.mail() {
		if e.MsgID == s.MsgID {
			must(w.t, w.out.DeadLetter(e, reason))
			return
		}
	}
	w.t.Fatalf("%s was never published", s.MsgID)
}

// unseen is the recipient's gateway answering that a message has not arrived.
func (w *world) unseen(s Sent, gid string) {
	w.t.Helper()
	e := report(envelope.Deferred, "UNSEEN", s.MsgID)
	e.From, e.To = gid, envelope.GatewayAddress("hosta")
	must(w.t, w.out.Signal(context.Background(), e))
}

// Fault: a dead letter believed before its recipient was asked, told twice,
// or never.
func TestADeadLetterIsToldOnceItsRecipientWasAsked(t *testing.T) {
	for _, to := range []string{"coder", "chief"} {
		for reason, want := range map[string]string{"expired": "FAILED EXPIRED", "maxlen": "FAILED INBOX_FULL", "rejected": "FAILED REFUSED", "?": "FAILED REFUSED"} {
			for _, crash := range []bool{false, true} {
				w := newWorld(t)
				w.turn()
				s := w.sent(Request{To: to})
				w.died(s, to, reason)
				if crash {
					w.crash()
					w.reconnect()
				}
				w.turn()
				if w.broker.queries(s.MsgID) != 1 {
					t.Fatalf("%s: asked %d times", to, w.broker.queries(s.MsgID))
				}
				w.unseen(s, w.dir.who[to].GID)
				w.after(answerWait - time.Second)
				w.wantNotices(s.MsgID)
				w.after(time.Second)
				w.wantNotices(s.MsgID, want)
				w.died(s, to, reason)
				w.after(time.Hour)
				w.wantNotices(s.MsgID, want)
			}
		}
	}
}

// Fault: FAILED said of a brief that was injected, or that waits, because a
// copy of it died.
func TestADeadLetterMayBeACopy(t *testing.T) {
	t.Attr("threat", "B5")
	w := newWorld(t)
	w.turn()
	s := w.sent(Request{})
	w.died(s, "coder", "rejected")
	w.turn()
	w.answers(envelope.Injected, "", s.MsgID)
	w.after(time.Hour)
	w.wantNotices(s.MsgID, "INJECTED")
	w.died(s, "coder", "rejected")
	w.after(time.Hour)
	w.wantNotices(s.MsgID, "INJECTED")

	s = w.sent(Request{Life: time.Hour})
	w.died(s, "coder", "rejected")
	w.turn()
	w.answers(envelope.Deferred, "BUSY", s.MsgID)
	w.after(30 * time.Minute)
	w.wantNotices(s.MsgID)
	w.signal(envelope.Injected, "", s.MsgID)
	w.wantNotices(s.MsgID, "INJECTED")

	for _, kind := range []envelope.Kind{envelope.Injected, envelope.Deferred} { // fetched, or held
		s = w.sent(Request{To: "chief"})
		w.died(s, "chief", "rejected")
		w.turn()
		e := report(kind, "QUEUED", s.MsgID)
		e.From, e.To = chief, envelope.GatewayAddress("hosta")
		must(t, w.out.Signal(t.Context(), e))
		w.after(time.Hour)
		w.wantNotices(s.MsgID)
	}
}

// Fault: the recipient's own reason lost behind the broker's.
func TestTheRecipientsReasonOutranksTheBrokers(t *testing.T) {
	w := newWorld(t)
	w.turn()
	s := w.sent(Request{})
	w.died(s, "coder", "rejected")
	w.turn()
	w.signal(envelope.Failed, "NOT_ALLOWED", s.MsgID)
	w.after(time.Hour)
	w.wantNotices(s.MsgID, "FAILED NOT_ALLOWED")
}

// Fault: a brief called in doubt for good although its dead letter says later
// what became of it.
func TestADeadLetterClearsUpADoubt(t *testing.T) {
	w := newWorld(t)
	w.turn()
	s := w.sent(Request{Life: time.Minute})
	w.after(5 * time.Minute)
	w.wantNotices(s.MsgID, "FAILED IN_DOUBT")
	w.died(s, "coder", "expired")
	w.after(time.Minute) // no answer to that is no news
	w.wantNotices(s.MsgID, "FAILED IN_DOUBT")
	w.dir.host(func(h *roster.HostView) { h.Boot++ })
	w.turn()
	w.unseen(s, coder)
	w.after(time.Minute)
	w.wantNotices(s.MsgID, "FAILED IN_DOUBT", "FAILED EXPIRED")
	w.signal(envelope.Failed, "NOT_INJECTED", s.MsgID) // the recipient knows better, and that is seen too
	w.wantNotices(s.MsgID, "FAILED IN_DOUBT", "FAILED EXPIRED", "FAILED NOT_INJECTED")
}

// Fault: dead mail for nobody, of nobody or from long ago told to somebody.
func TestADeadLetterOfAForgottenMessage(t *testing.T) {
	w := newWorld(t)
	w.turn()
	env := func(from string, age time.Duration) *envelope.Envelope {
		at := w.clock.Now().Add(-age)
		return &envelope.Envelope{Kind: envelope.Send, MsgID: newID(), TraceID: newTrace(), From: from, To: coder, Signer: "hosta",
			TS: at.UnixMilli(), ExpiresAt: at.Add(15 * time.Minute).UnixMilli()}
	}
	late, ancient, nobodys := env(boss, 5*24*time.Hour), env(boss, 9*24*time.Hour), env(gid(99), time.Hour)
	answer := env(boss, time.Hour)
	answer.Kind = envelope.Reply
	for _, e := range []*envelope.Envelope{late, ancient, nobodys, answer} {
		must(t, w.out.DeadLetter(e, "expired"))
	}
	for _, e := range []*envelope.Envelope{ancient, nobodys, answer} {
		if _, found := w.stored(e.MsgID); found {
			t.Errorf("a dead %s of %s is kept", e.Kind, e.Sent())
		}
	}
	w.turn()
	w.unseen(Sent{MsgID: late.MsgID}, coder)
	w.after(time.Minute)
	w.wantNotices(late.MsgID, "FAILED EXPIRED")
	w.wantNotices(ancient.MsgID)
	w.wantNotices(answer.MsgID)
	if n := len(w.broker.sent(envelope.LaneSignal, envelope.Query)); n != 1 {
		t.Errorf("%d questions, want 1", n)
	}
	if host, ok := w.out.RecipientHost(late.MsgID, coder); !ok || host != "hostb" {
		t.Errorf("the noted host is %q, %v", host, ok)
	}
}

// Fault: a verdict on a dead letter while nobody can be asked.
func TestADeadLetterWaitsForTheLink(t *testing.T) {
	w := newWorld(t)
	s := w.sent(Request{})
	w.broker.cut()
	w.died(s, "coder", "expired")
	w.after(40 * time.Hour)
	w.wantNotices(s.MsgID)
	w.reconnect()
	w.unseen(s, coder)
	w.after(answerWait)
	w.wantNotices(s.MsgID, "FAILED "+string(fault.Expired))
}

// Fault: the silence of a host that may have injected a brief before it could
// ack it taken for proof that it never will; or nobody asked any more once it
// is back, also by the next run; or IN_DOUBT told twice; or its host's word taken
// for what was told already.
func TestWhoIsCutOffMayHaveInjectedWhatDied(t *testing.T) {
	for name, c := range map[string]struct {
		back func(*world, Sent)
		want []string
	}{
		"it did":          {func(w *world, s Sent) { w.answers(envelope.Injected, "", s.MsgID) }, []string{"FAILED IN_DOUBT", "INJECTED"}},
		"it never saw it": {func(w *world, s Sent) { w.unseen(s, coder) }, []string{"FAILED IN_DOUBT", "FAILED EXPIRED"}},
		"it has it still": {func(w *world, s Sent) { w.answers(envelope.Deferred, "BUSY", s.MsgID) }, []string{"FAILED IN_DOUBT", "FAILED EXPIRED"}},
		"still silent":    {func(*world, Sent) {}, []string{"FAILED IN_DOUBT"}},
		"another copy died, and it was abandoned": {func(w *world, s Sent) {
			w.died(s, "coder", "expired")
			w.answers(envelope.Abandoned, "PANE_GONE", s.MsgID)
		}, []string{"FAILED IN_DOUBT", "ABANDONED PANE_GONE"}},
		"another copy died, and it failed": {func(w *world, s Sent) {
			w.died(s, "coder", "expired")
			w.answers(envelope.Failed, "NOT_INJECTED", s.MsgID)
		}, []string{"FAILED IN_DOUBT", "FAILED NOT_INJECTED"}},
	} {
		for _, dies := range []bool{true, false} {
			for _, crash := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s dead=%v crash=%v", name, dies, crash), func(t *testing.T) {
					w := newWorld(t)
					w.turn()
					s := w.sent(Request{Life: time.Minute})
					w.signal(envelope.Deferred, "BUSY", s.MsgID)
					w.dir.host(func(h *roster.HostView) { h.State = roster.Unknown })
					w.after(time.Minute)
					if dies {
						w.died(s, "coder", "expired")
					}
					w.after(10 * time.Minute)
					w.wantNotices(s.MsgID, "FAILED IN_DOUBT")
					if crash {
						w.fall()
						w.reconnect()
					}
					w.clock.add(6 * 24 * time.Hour)
					w.after(time.Minute)
					before := w.broker.queries(s.MsgID)
					w.dir.host(func(h *roster.HostView) { h.State = roster.Online })
					w.turn()
					if got := w.broker.queries(s.MsgID); got != before+1 {
						t.Fatalf("asked %d times when it was back, want once", got-before)
					}
					c.back(w, s)
					w.after(time.Hour)
					w.wantNotices(s.MsgID, c.want...)
					w.clock.add(3 * 24 * time.Hour) // by then it is forgotten there
					w.after(time.Minute)
					must(t, w.store.Flush(t.Context()))
					w.after(time.Minute)
					if n := len(w.out.open); n != 0 {
						t.Errorf("%d intents never end", n)
					}
					w.wantNotices(s.MsgID, c.want...)
				})
			}
		}
	}
}

// Fault: IN_DOUBT said of what lay in the inbox of a host that was never there
// to take it, or a reason where it may have been while nobody here could see.
func TestWhatDiedUnderAHostThatWasNeverThere(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile func(*world)
		want      string
	}{
		"away": {func(*world) {}, "FAILED EXPIRED"},
		"back for a while": {func(w *world) {
			w.dir.host(func(h *roster.HostView) { h.State = roster.Online })
			w.turn()
			w.dir.host(func(h *roster.HostView) { h.State = roster.Unknown })
		}, "FAILED IN_DOUBT"},
		"we were away": {func(w *world) { w.broker.cut(); w.after(time.Minute); w.reconnect() }, "FAILED IN_DOUBT"},
		"we were dead": {func(w *world) { w.crash() }, "FAILED IN_DOUBT"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.dir.host(func(h *roster.HostView) { h.State = roster.Unknown })
			w.turn()
			s := w.sent(Request{Life: time.Hour, QueueIfOffline: true})
			w.turn()
			c.meanwhile(w)
			w.after(time.Hour)
			w.died(s, "coder", "expired")
			w.after(time.Minute)
			w.wantNotices(s.MsgID, c.want)
		})
	}
}

// Fault: whoever has an old letter of ours has its sender told that a brief
// failed, or may have, of which he has long known what became.
func TestAnOldLetterIsNoNewsWhileItsRecipientIsSilent(t *testing.T) {
	w := newWorld(t)
	w.turn()
	s := w.sent(Request{Life: time.Minute})
	w.signal(envelope.Injected, "", s.MsgID)
	w.wantNotices(s.MsgID, "INJECTED")
	w.after(25 * time.Hour) // and it is forgotten
	w.out.prune(w.clock.Now())
	must(t, w.store.Flush(t.Context()))
	w.dir.host(func(h *roster.HostView) { h.State = roster.Unknown })
	for _, crash := range []bool{false, true} {
		w.died(s, "coder", "expired")
		if crash {
			w.fall()
			w.reconnect()
		}
		w.after(time.Hour)
		w.wantNotices(s.MsgID, "INJECTED")
	}
}

// Fault: whoever has an old letter of ours has its sender told once more that a
// brief got in, because its recipient says so when he is asked.
func TestAnOldLetterIsNoNewsWhereItsRecipientHasIt(t *testing.T) {
	w := newWorld(t)
	w.turn()
	s := w.sent(Request{Life: time.Minute})
	w.signal(envelope.Injected, "", s.MsgID)
	w.wantNotices(s.MsgID, "INJECTED")
	w.after(25 * time.Hour) // and it is forgotten
	w.out.prune(w.clock.Now())
	must(t, w.store.Flush(t.Context()))
	w.died(s, "coder", "expired")
	w.turn()
	w.signal(envelope.Injected, "", s.MsgID)
	w.after(time.Minute)
	w.wantNotices(s.MsgID, "INJECTED")
}

// Fault: whoever was told that a main's mail is queued, which is all that is
// said of it, never hears that it lies dead, because by then it is forgotten
// here and its recipient is silent; or he hears so twice, or it ends there.
func TestAForgottenLetterToAMainIsNews(t *testing.T) {
	for _, to := range []string{"chief", "nobody known any more"} {
		for _, crash := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s crash=%v", to, crash), func(t *testing.T) {
				w := newWorld(t)
				w.dir.host(func(h *roster.HostView) { h.State = roster.Unknown })
				w.turn()
				s := w.sent(Request{To: "chief", Life: time.Hour, QueueIfOffline: true})
				w.clock.add(25 * time.Hour)
				w.out.prune(w.clock.Now())
				w.turn()
				if _, found := w.stored(s.MsgID); found {
					t.Fatal("the intent was not forgotten")
				}
				if to != "chief" {
					delete(w.dir.who, chief)
				}
				for range 2 {
					w.died(s, "chief", "expired")
					if crash {
						w.fall()
						w.reconnect()
					}
					w.after(time.Minute)
					w.wantNotices(s.MsgID, "FAILED IN_DOUBT")
				}
				if to != "chief" {
					return // nobody to ask
				}
				before := w.broker.queries(s.MsgID)
				w.dir.host(func(h *roster.HostView) { h.State = roster.Online })
				w.turn()
				if got := w.broker.queries(s.MsgID); got != before+1 {
					t.Fatalf("asked %d times when it was back, want once", got-before)
				}
				w.unseen(s, chief)
				w.after(time.Minute)
				w.wantNotices(s.MsgID, "FAILED IN_DOUBT", "FAILED EXPIRED")
			})
		}
	}
}

// Fault: of a brief that is forgotten here its sender hears twice that it
// failed: from its recipient, and again when it turns up dead.
func TestAForgottenBriefIsToldOnceThatItFailed(t *testing.T) {
	w := newWorld(t)
	w.turn()
	s := w.sent(Request{To: "chief", Life: time.Hour})
	w.clock.add(25 * time.Hour)
	w.out.prune(w.clock.Now())
	w.turn()
	if _, found := w.stored(s.MsgID); found {
		t.Fatal("the intent was not forgotten")
	}
	refused := func(to string) {
		e := report(envelope.Failed, "EXPIRED", s.MsgID)
		e.From, e.To = chief, to
		must(t, w.out.Signal(t.Context(), e))
	}
	refused(boss)
	w.died(s, "chief", "rejected")
	w.turn()
	refused(envelope.GatewayAddress("hosta"))
	w.after(time.Minute)
	w.wantNotices(s.MsgID, "FAILED EXPIRED")
}
