package outbox

import (
	"bytes"
	"context"
	"testing"
	"time"

	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/fabric/roster"
	"fleetd/fault"
	"fleetd/store"
)

// asks has aide ask about a brief of chief's, for a minute.
func (w *world) asks(change ...func(*Question)) (*Turn, error) {
	q := Question{From: aide, Brief: brief(), Content: []byte("left or right?"), Timeout: time.Minute}
	for _, c := range change {
		c(&q)
	}
	return w.out.Ask(context.Background(), q)
}

func (w *world) asking() *Turn {
	w.t.Helper()
	turn, err := w.asks()
	must(w.t, err)
	return turn
}

// answers the question as chief's gateway would.
func answerTo(ask *envelope.Envelope) *envelope.Envelope {
	return &envelope.Envelope{
		Kind: envelope.Answer, MsgID: newID(), TraceID: ask.TraceID, TurnID: ask.TurnID, From: ask.To, To: ask.From,
		Signer: "hostb", InReplyTo: ask.MsgID, Body: []byte("left"),
	}
}

// words lists what was signalled about a message, as "KIND REASON".
func (w *world) words(msgID string) (list []string) {
	w.turn()
	for _, e := range w.broker.sent(envelope.LaneSignal) {
		if e.InReplyTo == msgID {
			list = append(list, string(e.Kind))
		}
	}
	return list
}

func wantWords(t tester, what string, got []string, want ...string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: told %q, want %q", what, got, want)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("%s: told %q, want %q", what, got, want)
		}
	}
}

func taken(turn *Turn) *envelope.Envelope {
	select {
	case env := <-turn.C():
		return env
	default:
		return nil
	}
}

// Fault: a question that leaves by the durable lane, without what it is about,
// or with a life of its own.
func TestAQuestionLeavesAsALiveSignal(t *testing.T) {
	w := newWorld(t)
	turn := w.asking()
	defer turn.Close()
	if n := len(w.broker.mail()); n != 0 {
		t.Errorf("%d messages went by mail", n)
	}
	sent := w.broker.sent(envelope.LaneSignal, envelope.Ask)
	if len(sent) != 1 {
		t.Fatalf("%d questions left", len(sent))
	}
	e := sent[0]
	if e.To != chief || e.From != aide || e.TurnID == "" || e.InReplyTo != turn.Ask.InReplyTo || e.Hops != 1 || e.ExpiresAt-e.TS != time.Minute.Milliseconds() {
		t.Errorf("the question is %+v", e)
	}
}

// Fault: an answer that meets another turn, or its own twice, or is said to
// have arrived before its asker had it.
func TestAnAnswerMeetsItsOwnTurnOnce(t *testing.T) {
	w := newWorld(t)
	one, two := w.asking(), w.asking()
	defer one.Close()
	defer two.Close()
	a := answerTo(two.Ask)
	w.out.Turn(a)
	if taken(one) != nil {
		t.Fatal("the other turn got the answer")
	}
	if got := taken(two); got != a {
		t.Fatalf("its turn got %v", got)
	}
	wantWords(t, "before it was handed over", w.words(a.MsgID))
	two.Met(a, true)
	wantWords(t, "after", w.words(a.MsgID), "INJECTED")
	again := answerTo(two.Ask)
	w.out.Turn(again)
	wantWords(t, "a second answer", w.words(again.MsgID), "TOO_LATE")
}

// Fault: an answer that is delivered, or said to be, when its turn is over: it
// ran out by this host's clock, its call ended, its client never got it, this
// gateway was restarted, or somebody else gave it.
func TestAnAnswerAfterItsTurnIsTooLate(t *testing.T) {
	for name, over := range map[string]func(*world, *Turn, *envelope.Envelope){
		"its time is over": func(w *world, turn *Turn, a *envelope.Envelope) {
			w.clock.add(time.Minute + time.Millisecond)
			w.out.Turn(a)
		},
		"its call has ended": func(w *world, turn *Turn, a *envelope.Envelope) {
			turn.Close()
			w.out.Turn(a)
		},
		"its call ends with it": func(w *world, turn *Turn, a *envelope.Envelope) {
			w.out.Turn(a)
			turn.Close()
		},
		"its client never got it": func(w *world, turn *Turn, a *envelope.Envelope) {
			w.out.Turn(a)
			turn.Met(taken(turn), false)
		},
		"the gateway was restarted": func(w *world, turn *Turn, a *envelope.Envelope) {
			w.crash()
			w.out.Turn(a)
		},
		"somebody else gives it": func(w *world, turn *Turn, a *envelope.Envelope) {
			a.From = critic
			w.out.Turn(a)
			turn.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			turn := w.asking()
			a := answerTo(turn.Ask)
			over(w, turn, a)
			if got := taken(turn); got != nil {
				t.Errorf("the asker got %v", got)
			}
			wantWords(t, "the one who answered", w.words(a.MsgID), "TOO_LATE")
		})
	}
}

// Fault: a question that cannot be put, or is refused, and says so only when
// its time is over.
func TestAQuestionThatCannotBePutFailsAtOnce(t *testing.T) {
	to := func(address string) func(*Question) { return func(q *Question) { q.To = address } }
	for _, c := range []struct {
		name string
		set  func(*world)
		ask  func(*Question)
		code fault.Code
	}{
		{"no link", func(w *world) { w.broker.cut() }, nil, fault.BrokerDown},
		{"host away", func(w *world) { w.dir.host(func(h *roster.HostView) { h.State = roster.Offline }) }, nil, fault.HostOffline},
		{"gateway away", func(w *world) { w.broker.answer = func(publication) reply { return reply{out: fabric.Returned} } }, nil, fault.HostOffline},
		{"refused", func(w *world) { w.broker.answer = func(publication) reply { return reply{out: fabric.Nacked} } }, nil, fault.BrokerRefused},
		{"nobody", func(*world) {}, to("nobody"), fault.UnknownRecipient},
		{"himself", func(*world) {}, to("aide"), fault.BadRequest},
		{"nothing", func(*world) {}, func(q *Question) { q.Content = nil }, fault.BadContent},
		{"for the 33rd time", func(*world) {}, func(q *Question) { q.Brief.Hops = 32 }, fault.Loop},
	} {
		w := newWorld(t)
		c.set(w)
		if c.ask == nil {
			c.ask = func(*Question) {}
		}
		_, err := w.asks(c.ask)
		if fault.CodeOf(err) != c.code {
			t.Errorf("%s: got %v, want %s", c.name, err, c.code)
		}
		if n := len(w.out.turns.asks); n != 0 {
			t.Errorf("%s: %d turns are left", c.name, n)
		}
	}
}

// Fault: NO_WAITER, a refusal or the end of the one who was asked not reaching
// the one who asks; a stranger's word doing so.
func TestAWordEndsAQuestion(t *testing.T) {
	for _, kind := range []envelope.Kind{envelope.NoWaiter, envelope.Failed, envelope.Abandoned} {
		w := newWorld(t)
		turn := w.asking()
		e := answerTo(turn.Ask)
		e.Kind, e.Body, e.From = kind, nil, critic
		if w.out.Turn(e) || taken(turn) != nil {
			t.Errorf("%s of a stranger ended the turn", kind)
		}
		e.From = chief
		must(t, w.out.Signal(context.Background(), e))
		if got := taken(turn); got == nil || got.Kind != kind {
			t.Errorf("%s: the asker got %v", kind, got)
		}
		w.wantNotices(turn.Ask.MsgID)
	}
}

// Fault: whom a worker had asked is not told when it ends, or its call goes on.
func TestTheEndOfAnAskerIsTold(t *testing.T) {
	w := newWorld(t)
	turn := w.asking()
	local, err := w.asks(func(q *Question) { q.To = "boss" })
	must(t, err)
	w.out.EndTurns(aide)
	wantWords(t, "the one of another host", w.words(turn.Ask.MsgID), "ABANDONED")
	for _, one := range []*Turn{turn, local} {
		if got := taken(one); got == nil || got.Kind != envelope.Abandoned {
			t.Errorf("the call of the asker got %v", got)
		}
	}
	if n := len(w.local.turns); n != 2 || w.local.turns[1].Kind != envelope.Abandoned {
		t.Errorf("the one of this host was told %+v", w.local.turns)
	}
}

// Fault: an answer whose life ends before an asker with another clock has stopped
// waiting: it would be refused as expired although he waits.
func TestAnAnswerLivesAsLongAsClocksMayDiffer(t *testing.T) {
	for _, left := range []time.Duration{time.Minute, -29 * time.Second} {
		w := newWorld(t)
		ask := &envelope.Envelope{
			Kind: envelope.Ask, MsgID: newID(), TraceID: newTrace(), TurnID: newID(), From: coder, To: boss, Signer: "hostb",
		}
		var life time.Duration
		w.broker.answer = func(p publication) reply {
			if e := p.env; e.Kind == envelope.Answer {
				life = time.Duration(e.ExpiresAt-e.TS) * time.Millisecond
				w.out.Turn(&envelope.Envelope{Kind: envelope.Injected, InReplyTo: e.MsgID, TurnID: e.TurnID, From: coder, To: boss})
			}
			return reply{out: fabric.Confirmed}
		}
		_, err := w.out.AnswerTurn(context.Background(), TurnAnswer{Ask: ask, Left: left, Content: []byte("left")})
		must(t, err)
		if want := max(left, 0) + 30*time.Second; life != want {
			t.Errorf("with %s left it lives for %s, want %s", left, life, want)
		}
	}
}

// Fault: an answer said to have arrived without a word, by a stranger's word,
// or lost with the link although nothing had left; or held up as a loop.
func TestAnAnswerIsConfirmedByItsAsker(t *testing.T) {
	ask := &envelope.Envelope{
		Kind: envelope.Ask, MsgID: newID(), TraceID: newTrace(), TurnID: newID(), From: coder, To: boss, Signer: "hostb",
	}
	for _, c := range []struct {
		name string
		word func(*envelope.Envelope) *envelope.Envelope
		code fault.Code
	}{
		{"confirmed", func(e *envelope.Envelope) *envelope.Envelope { e.Kind = envelope.Injected; return e }, ""},
		{"too late", func(e *envelope.Envelope) *envelope.Envelope { e.Kind = envelope.TooLate; return e }, fault.TooLate},
	} {
		w := newWorld(t)
		w.broker.answer = func(p publication) reply {
			if p.env.Kind == envelope.Answer {
				word := &envelope.Envelope{InReplyTo: p.env.MsgID, TurnID: p.env.TurnID, From: critic, To: boss, Kind: envelope.Injected}
				w.out.Turn(word) // a stranger's counts for nothing
				word.From = coder
				w.out.Turn(c.word(word))
			}
			return reply{out: fabric.Confirmed}
		}
		_, err := w.out.AnswerTurn(context.Background(), TurnAnswer{Ask: ask, Left: time.Minute, Content: []byte("left")})
		if fault.CodeOf(err) != c.code {
			t.Errorf("%s: got %v", c.name, err)
		}
	}
	w := newWorld(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	ask.Hops = maxHops // whoever is asked may answer
	_, err := w.out.AnswerTurn(ctx, TurnAnswer{Ask: ask, Content: []byte("left")})
	wantCode(t, err, fault.Unconfirmed)
	w.broker.cut()
	_, err = w.out.AnswerTurn(context.Background(), TurnAnswer{Ask: ask, Content: []byte("left")})
	wantCode(t, err, fault.BrokerDown)
	if len(w.out.turns.answers) != 0 {
		t.Error("an answer is still waited for")
	}
}

// Fault: an answer to one who has ended is said to be worth another try.
func TestAnAnswerToOneWhoHasEndedIsTooLate(t *testing.T) {
	w := newWorld(t)
	w.broker.answer = func(publication) reply { return reply{out: fabric.Returned} }
	ask := &envelope.Envelope{
		Kind: envelope.Ask, MsgID: newID(), TraceID: newTrace(), TurnID: newID(), From: coder, To: boss, Signer: "hostb",
	}
	for gone, code := range map[bool]fault.Code{false: fault.HostOffline, true: fault.TooLate} {
		who := w.dir.who[coder]
		who.Gone = gone
		w.dir.who[coder] = who
		_, err := w.out.AnswerTurn(context.Background(), TurnAnswer{Ask: ask, Left: time.Minute, Content: []byte("left")})
		wantCode(t, err, code)
	}
}

// Fault: the sender of a brief told that it is in doubt although its worker
// asked about it, or told of it twice: by the question and by a notice.
func TestAQuestionAboutABriefProvesThatItIsIn(t *testing.T) {
	for _, taken := range []bool{true, false} {
		w := newWorld(t)
		s := w.sent(Request{})
		w.signal(envelope.Failed, "IN_DOUBT", s.MsgID)
		ask := &envelope.Envelope{Kind: envelope.Ask, MsgID: newID(), TraceID: newTrace(), From: coder, To: boss, Signer: "hostb", InReplyTo: s.MsgID}
		must(t, w.out.Asked(context.Background(), ask, taken))
		if in, _ := w.stored(s.MsgID); in.State != store.IntentEnded || in.Outcome != store.EndInjected {
			t.Errorf("taken=%v: the brief is %s %s", taken, in.State, in.Outcome)
		}
		want := []string{"FAILED IN_DOUBT"}
		if !taken {
			want = append(want, "INJECTED")
		}
		w.wantNotices(s.MsgID, want...)
		w.signal(envelope.Injected, "", s.MsgID)
		w.wantNotices(s.MsgID, want...)
	}
}

// Fault: a signal about a question believed from a host that it did not go to.
func TestWhoMaySpeakAboutATurn(t *testing.T) {
	t.Attr("threat", "G3")
	w := newWorld(t)
	turn := w.asking()
	defer turn.Close()
	if host, ok := w.out.RecipientHost(turn.Ask.MsgID, chief); !ok || host != "hostb" {
		t.Errorf("the question went to %q (%v)", host, ok)
	}
	if _, ok := w.out.RecipientHost(turn.Ask.MsgID, critic); ok {
		t.Error("the question is said to have gone to somebody else")
	}
}

// Fails if a question longer than any may be leaves, or its asker does not hear
// what the bound is.
func TestALongQuestionDoesNotLeave(t *testing.T) {
	w := newWorld(t)
	_, err := w.asks(func(q *Question) { q.Content = bytes.Repeat([]byte("x"), envelope.AskBytes+1) })
	wantCode(t, err, fault.TooLarge)
	if n := len(w.broker.sent(envelope.LaneSignal)); n != 0 {
		t.Errorf("%d questions left", n)
	}
	_, err = w.asks(func(q *Question) { q.Content = bytes.Repeat([]byte("x"), envelope.AskBytes) })
	must(t, err)
}
