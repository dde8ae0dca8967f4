package outbox

import (
	"context"
	"testing"
	"time"

	"fleetd/fabric/envelope"
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
// a life longer than this host now allows keeps it from going.
func TestAForgottenBriefIsSentAnew(t *testing.T) {
	w := newWorld(t)
	w.turn()
	w.out.cfg.MaxLife = time.Hour
	now := w.clock.Now().UnixMilli()
	dead := &envelope.Envelope{
		Kind: envelope.Send, MsgID: newID(), TraceID: newTrace(), From: boss, To: coder, Signer: "hosta",
		TS: now - 7200_000, ExpiresAt: now - 1, Body: []byte("long ago"),
	}
	_, err := w.anew(dead)
	must(t, err)
	if mail := w.broker.mail(); len(mail) != 1 || mail[0].ExpiresAt-mail[0].TS != time.Hour.Milliseconds() {
		t.Errorf("sent %+v", mail)
	}
}
