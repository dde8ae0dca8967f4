package outbox

import (
	"context"
	"testing"
	"time"

	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/fabric/roster"
	"fleetd/fault"
)

// letter is the envelope of a message as it lies among the dead letters.
func (w *world) letter(s Sent) *envelope.Envelope {
	w.t.Helper()
	for _, e := range w.broker.mail() {
		if e.MsgID == s.MsgID {
			return e
		}
	}
	w.t.Fatalf("%s was never published", s.MsgID)
	return nil
}

// expired sends to coder, lets it die unread and has its sender told.
func (w *world) expired() Sent {
	w.t.Helper()
	w.turn()
	s := w.sent(Request{Content: []byte("the task"), Life: 10 * time.Minute})
	w.after(10*time.Minute + time.Second)
	w.died(s, "coder", "expired")
	w.turn()
	w.unseen(s, coder)
	w.after(answerWait)
	w.wantNotices(s.MsgID, "FAILED EXPIRED")
	return s
}

func (w *world) anew(dead *envelope.Envelope) (Sent, error) {
	return w.out.Anew(context.Background(), dead, false)
}

// Fault: the new message is the old one, says something else, has another
// sender or life; or a repetition, also after a crash, sends a third.
func TestAnExpiredBriefIsSentAnewOnce(t *testing.T) {
	w := newWorld(t)
	dead := w.letter(w.expired())
	before := len(w.broker.mail())
	s, err := w.anew(dead)
	must(t, err)
	mail := w.broker.mail()
	if len(mail) != before+1 {
		t.Fatalf("%d messages left", len(mail)-before)
	}
	e := mail[before]
	if e.MsgID != s.MsgID || e.MsgID == dead.MsgID || e.From != boss || e.To != coder || string(e.Body) != "the task" || e.Signer != "hosta" ||
		e.TS != w.clock.Now().UnixMilli() || e.ExpiresAt-e.TS != (10*time.Minute).Milliseconds() {
		t.Errorf("it left as %+v", e)
	}
	if in, found := w.stored(s.MsgID); !found || in.From != boss {
		t.Errorf("its intent: %+v, %v", in, found)
	}
	for _, crash := range []bool{false, true} {
		if crash {
			w.crash()
		}
		again, err := w.anew(dead)
		must(t, err)
		if again.MsgID != s.MsgID || len(w.broker.mail()) != before+1 {
			t.Errorf("a repetition sent %s; %d left", again.MsgID, len(w.broker.mail())-before)
		}
	}
	w.signal(envelope.Failed, "PANE_GONE", s.MsgID)
	_, err = w.anew(dead)
	wantCode(t, err, fault.Conflict)
}

// Fault: a brief is sent a second time that its recipient has, or may have or
// get; or in the name of somebody who is not here.
func TestWhatMayHaveArrivedIsNotSentAnew(t *testing.T) {
	w := newWorld(t)
	w.turn()
	want := func(what string, dead *envelope.Envelope, code fault.Code) {
		t.Helper()
		before := len(w.broker.mail())
		if _, err := w.anew(dead); fault.CodeOf(err) != code {
			t.Errorf("%s: %v, want %s", what, err, code)
		}
		if n := len(w.broker.mail()); n != before {
			t.Errorf("%s: %d messages left", what, n-before)
		}
	}
	s := w.sent(Request{})
	want("open", w.letter(s), fault.Conflict)
	w.died(s, "coder", "expired")
	want("being asked", w.letter(s), fault.Conflict)
	w.signal(envelope.Injected, "", s.MsgID)
	want("injected", w.letter(s), fault.Conflict)
	w.signal(envelope.Abandoned, "PANE_GONE", s.MsgID)
	want("abandoned", w.letter(s), fault.Conflict)

	s = w.sent(Request{})
	w.signal(envelope.Failed, "IN_DOUBT", s.MsgID)
	want("in doubt", w.letter(s), fault.InDoubt)
	w.out.Arrived(&envelope.Envelope{Kind: envelope.Reply, InReplyTo: s.MsgID, From: coder, To: boss})
	want("answered", w.letter(s), fault.Conflict)

	s = w.sent(Request{To: "coder", Life: time.Minute})
	w.after(time.Hour) // and no word from its host
	want("never answered for", w.letter(s), fault.InDoubt)

	dead := *w.letter(w.expired())
	w.local.owned[boss] = false
	want("its sender is gone", &dead, fault.NotAllowed)
	w.local.owned[boss] = true
	dead.Kind = envelope.Broadcast
	want("a broadcast", &dead, fault.BadRequest)
	dead.Kind, w.broker.down = envelope.Send, "no link"
	want("no link", &dead, fault.BrokerDown)
	w.broker.down = ""
	if _, err := w.anew(&dead); err != nil {
		t.Errorf("and then: %v", err)
	}
}

// Fault: what was forgotten here, as after a restore, cannot be sent anew; or
// it is although its recipient was given it, which he was not asked; or a life
// longer than this host now allows keeps it from going.
func TestAForgottenBriefIsSentAnewOnceItsRecipientSaysHeHasItNot(t *testing.T) {
	answers := func(kind envelope.Kind, reason string) func(*world, string) {
		return func(w *world, id string) { w.answers(kind, reason, id) }
	}
	for name, c := range map[string]struct {
		answer func(*world, string)
		before func(*world)
		age    time.Duration
		code   fault.Code // "": it is sent
	}{
		"unseen":           {answer: answers(envelope.Deferred, "UNSEEN")},
		"expired there":    {answer: answers(envelope.Failed, "EXPIRED")},
		"injected":         {answer: answers(envelope.Injected, ""), code: fault.Conflict},
		"abandoned":        {answer: answers(envelope.Abandoned, "PANE_GONE"), code: fault.Conflict},
		"in doubt there":   {answer: answers(envelope.Failed, "IN_DOUBT"), code: fault.InDoubt},
		"waits there":      {answer: answers(envelope.Deferred, "BUSY"), code: fault.Conflict},
		"no answer":        {code: fault.Unconfirmed},
		"another's answer": {answer: func(w *world, id string) { w.unseen(Sent{MsgID: id}, critic) }, code: fault.Unconfirmed},
		"its host is away": {before: func(w *world) { w.dir.host(func(h *roster.HostView) { h.State = roster.Unknown }) }, code: fault.HostOffline},
		"no link":          {before: func(w *world) { w.broker.down = "no link" }, code: fault.BrokerDown},
		"too long ago":     {age: 9 * 24 * time.Hour, code: fault.InDoubt},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.turn()
			w.out.cfg.MaxLife = time.Hour
			sent := w.clock.Now().Add(-max(c.age, 3*time.Hour))
			dead := &envelope.Envelope{
				Kind: envelope.Send, MsgID: newID(), TraceID: newTrace(), From: boss, To: coder, Signer: "hosta",
				TS: sent.UnixMilli(), ExpiresAt: sent.Add(2 * time.Hour).UnixMilli(), Body: []byte("long ago"),
			}
			if c.before != nil {
				c.before(w)
			}
			w.broker.answer = func(p publication) reply {
				if p.env.Kind == envelope.Query && p.env.InReplyTo == dead.MsgID && c.answer != nil {
					c.answer(w, dead.MsgID)
				}
				return reply{out: fabric.Confirmed}
			}
			ctx := t.Context()
			if c.code == fault.Unconfirmed {
				var cancel func()
				ctx, cancel = context.WithTimeout(ctx, 200*time.Millisecond) // nothing comes, however long
				defer cancel()
			}
			_, err := w.out.Anew(ctx, dead, true)
			mail := w.broker.mail()
			if c.code != "" {
				if fault.CodeOf(err) != c.code || len(mail) != 0 {
					t.Errorf("%v, %d sent; want %s", err, len(mail), c.code)
				}
				return
			}
			must(t, err)
			if len(mail) != 1 || mail[0].ExpiresAt-mail[0].TS != time.Hour.Milliseconds() {
				t.Errorf("sent %+v", mail)
			}
			w.dir.host(func(h *roster.HostView) { h.State = roster.Unknown }) // a repetition asks nobody
			if _, err := w.out.Anew(ctx, dead, true); err != nil || len(w.broker.mail()) != 1 {
				t.Errorf("repeated: %v, %d sent", err, len(w.broker.mail()))
			}
			w.wantNotices(dead.MsgID)
		})
	}
}

// Fault: mail to a main, of which nothing is heard once it is in its inbox, sent
// anew although it was fetched.
func TestWhatAMainMayHaveFetchedIsNotSentAnewUnasked(t *testing.T) {
	w := newWorld(t)
	w.turn()
	s := w.sent(Request{To: "chief", Life: time.Minute})
	w.after(time.Hour)
	w.broker.answer = func(p publication) reply {
		if p.env.Kind == envelope.Query {
			e := of(chief, envelope.Injected, "", s.MsgID)
			e.To = envelope.GatewayAddress("hosta")
			must(t, w.out.Signal(t.Context(), e))
		}
		return reply{out: fabric.Confirmed}
	}
	_, err := w.anew(w.letter(s))
	wantCode(t, err, fault.Conflict)
}
