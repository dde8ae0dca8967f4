package inbox

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
)

// asker is a worker of the other host, and stranger another one.
var asker, stranger = newID(), newID()

// question is an ASK of asker for to, about brief, that lives for a minute.
func (w *world) question(to, brief string) *envelope.Envelope {
	e := w.mail(envelope.Ask, to, "left or right?")
	e.From, e.TurnID, e.InReplyTo = asker, newID(), brief
	e.ExpiresAt = e.TS + time.Minute.Milliseconds()
	return e
}

// over lists what askers were told, as "KIND REASON".
func (w *world) over() (list []string) {
	w.reports.set(func(r *reports) {
		for _, s := range r.over {
			list = append(list, s[:strings.LastIndex(s, " ")])
		}
	})
	return list
}

// got is the question that a call has; nil if it has none.
func got(e *Ears) *Question {
	select {
	case q := <-e.C():
		return q
	default:
		return nil
	}
}

func wantCode(t TB, what string, err error, code fault.Code) {
	t.Helper()
	if fault.CodeOf(err) != code {
		t.Errorf("%s: got %v, want %s", what, err, code)
	}
}

// Fails if a question goes to another call than the one that it should: the
// send of its brief, another send to the asker, then polls that admit him, each
// time the one that waits longest; never a send to somebody else.
func TestAQuestionGoesToTheCallThatSuitsItBest(t *testing.T) {
	t.Attr("threat", "G3")
	w := newWorld(t)
	m, brief := w.main("m"), newID()
	calls := map[string]*Ears{}
	listen := func(name, gid, about, from string) { calls[name] = w.in.Listen(gid, about, from) }
	listen("a send to another", m.GID, newID(), stranger)
	listen("a send to another that he says it is about", m.GID, brief, stranger)
	listen("a poll for another", m.GID, "", stranger)
	listen("a poll of somebody else", w.main("n").GID, "", "")
	listen("poll", m.GID, "", "")
	listen("poll for the asker", m.GID, "", asker)
	listen("a send to the asker", m.GID, newID(), asker)
	listen("the send of the brief", m.GID, brief, asker)
	for _, want := range []string{"the send of the brief", "a send to the asker", "poll", "poll for the asker"} {
		ask := w.question(m.GID, brief)
		if !w.in.Ask(ask) {
			t.Fatalf("no call took the question that is for %s", want)
		}
		q := got(calls[want])
		if q == nil || q.Ask.TurnID != ask.TurnID {
			t.Fatalf("%s did not get the question", want)
		}
		q.Settle(true)
	}
	same(t, "told before anybody was missing", []string(nil), w.over())
	if w.in.Ask(w.question(m.GID, brief)) {
		t.Error("a call took a question that is none of its")
	}
	same(t, "told when nobody listened", []string{"NO_WAITER"}, w.over())
}

// Fails if a question whose response was lost, or whose call ended first, is
// lost with it instead of going to the next call, and to nobody in the end.
func TestAQuestionThatWasNotWrittenGoesToTheNext(t *testing.T) {
	w := newWorld(t)
	m := w.main("m")
	first, second, third := w.in.Listen(m.GID, "", ""), w.in.Listen(m.GID, "", ""), w.in.Listen(m.GID, "", "")
	ask := w.question(m.GID, "")
	w.in.Ask(ask)
	got(first).Settle(false)
	second.Close() // it had the question and never took it
	q := got(third)
	if q == nil {
		t.Fatal("the last call did not get the question")
	}
	same(t, "told meanwhile", []string(nil), w.over())
	q.Settle(false)
	q.Settle(true) // only the first word counts
	same(t, "told in the end", []string{"NO_WAITER"}, w.over())
	_, _, err := w.in.TurnToAnswer(m.GID, ask.TurnID)
	wantCode(t, "an answer to it", err, fault.TooLate)
}

// Fails if the same question, delivered again, is put twice.
func TestAQuestionIsPutOnce(t *testing.T) {
	w := newWorld(t)
	m := w.main("m")
	first, second := w.in.Listen(m.GID, "", ""), w.in.Listen(m.GID, "", "")
	ask := w.question(m.GID, "")
	w.in.Ask(ask)
	w.in.Ask(ask)
	if got(first) == nil || got(second) != nil {
		t.Error("not exactly one call has the question")
	}
}

// Fails if a question of a host whose clock is behind ours or ahead does not
// surface, or lives by our clock: it would be over at once, or too long open.
func TestAQuestionLivesByTheClockOfItsAsker(t *testing.T) {
	for _, off := range []time.Duration{-25 * time.Second, 25 * time.Second} {
		w := newWorld(t)
		m := w.main("m")
		ears := w.in.Listen(m.GID, "", "")
		ask := w.question(m.GID, "")
		ask.TS += off.Milliseconds()
		ask.ExpiresAt = ask.TS + (20 * time.Second).Milliseconds()
		w.in.Ask(ask)
		q := got(ears)
		if q == nil {
			t.Fatalf("a question of a clock that is %s off did not surface", off)
		}
		q.Settle(true)
		w.clock.pass(15 * time.Second)
		_, left, err := w.in.TurnToAnswer(m.GID, ask.TurnID)
		wantCode(t, "the answer", err, "")
		same(t, "left of its life", 5*time.Second, left)
	}
}

// Fails if a turn takes a second answer, one while another is on its way, one
// of somebody else, one after its time, or none after nothing left.
func TestATurnTakesOneAnswer(t *testing.T) {
	w := newWorld(t)
	m, n := w.main("m"), w.main("n")
	open := func() *envelope.Envelope {
		ears := w.in.Listen(m.GID, "", "")
		ask := w.question(m.GID, "")
		w.in.Ask(ask)
		got(ears).Settle(true)
		return ask
	}
	try := func(gid, id string) error {
		_, _, err := w.in.TurnToAnswer(gid, id)
		return err
	}
	ask := open()
	same(t, "open questions", []*envelope.Envelope{ask}, w.in.Questions(m.GID))
	wantCode(t, "a stranger's answer", try(n.GID, ask.TurnID), fault.NotAllowed)
	_, left, err := w.in.TurnToAnswer(m.GID, ask.TurnID)
	wantCode(t, "the answer", err, "")
	same(t, "left of its life", time.Minute, left)
	wantCode(t, "an answer beside it", try(m.GID, ask.TurnID), fault.Conflict)
	w.in.Answered(ask.TurnID, "")
	wantCode(t, "after nothing left", try(m.GID, ask.TurnID), "")
	w.in.Answered(ask.TurnID, "it was answered")
	wantCode(t, "a second answer", try(m.GID, ask.TurnID), fault.TooLate)
	wantCode(t, "an unknown turn", try(m.GID, newID()), fault.TooLate)
	wantCode(t, "no turn at all", try(m.GID, "7"), fault.BadRequest)

	// The asker's gateway decides by its clock: half a minute longer an answer
	// is sent, though nobody is urged to give one.
	ask = open()
	w.clock.pass(time.Minute + 29*time.Second)
	same(t, "open questions", 0, len(w.in.Questions(m.GID)))
	_, left, err = w.in.TurnToAnswer(m.GID, ask.TurnID)
	wantCode(t, "within the skew of clocks", err, "")
	same(t, "left of its life", -29*time.Second, left)
	w.in.Answered(ask.TurnID, "")
	w.clock.pass(2 * time.Second)
	wantCode(t, "after it", try(m.GID, ask.TurnID), fault.TooLate)
}

// Fails if an asker is left waiting for somebody who has ended or whose host
// takes nothing from his, or a main is urged to answer an asker that is gone.
func TestATurnEndsWithEitherSide(t *testing.T) {
	w := newWorld(t)
	m := w.main("m")
	ears := w.in.Listen(m.GID, "", "")
	ask := w.question(m.GID, "")
	w.in.Ask(ask)
	got(ears).Settle(true)
	gone := *ask
	gone.Kind, gone.From = envelope.Abandoned, stranger
	w.in.Withdrawn(&gone)
	same(t, "open after a stranger's word", 1, len(w.in.Questions(m.GID)))
	gone.From = asker
	w.in.Withdrawn(&gone)
	same(t, "open after the asker's end", 0, len(w.in.Questions(m.GID)))

	ears = w.in.Listen(m.GID, "", "")
	w.in.Ask(w.question(m.GID, ""))
	got(ears).Settle(true)
	if _, err := w.in.Unregister(t.Context(), "m"); err != nil {
		t.Fatal(err)
	}
	w.in.AwaitEnd(t.Context(), m.GID)
	same(t, "told at the end", []string{"ABANDONED PANE_GONE"}, w.over())
	w.in.Ask(w.question(m.GID, ""))
	same(t, "told after it", []string{"ABANDONED PANE_GONE", "ABANDONED PANE_GONE"}, w.over())

	v := newWorldOn(t, openStore(t))
	v.begin(func(c *Config) { c.Allowed = func(string) bool { return false } })
	t.Cleanup(v.stop)
	n := v.main("n")
	v.in.Listen(n.GID, "", "")
	v.in.Ask(v.question(n.GID, ""))
	same(t, "told by a host that takes nothing", []string{"FAILED NOT_ALLOWED"}, v.over())
}

// Fails if a brief in doubt stays so after its worker asked about it, or one
// that was answered becomes open again.
func TestAQuestionSettlesABriefInDoubt(t *testing.T) {
	w := newWorld(t)
	e := w.worker("w")
	in := func(state string) store.Brief {
		b := store.Brief{GID: e.GID, MsgID: newID(), TraceID: "0123456789abcdef0123456789abcdef", Sender: newID(), TS: w.clock.now().UnixMilli(), State: state}
		err := w.store.Write(t.Context(), func(tx *store.Tx) error {
			if err := tx.PutSeen(b.TS, b.MsgID, b.GID, store.Seen{Outcome: store.Failed, Reason: string(fault.InDoubt)}); err != nil {
				return err
			}
			return tx.PutBrief(b)
		})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	b := in(briefInDoubt)
	if err := w.store.Write(t.Context(), MarkAsked(b, w.clock.now())); err != nil {
		t.Fatal(err)
	}
	same(t, "outcome", "injected", w.outcome(e.GID, b.MsgID))
	open, err := w.in.OpenBriefs(e.GID)
	if err != nil || !slices.ContainsFunc(open, func(o store.Brief) bool { return o.MsgID == b.MsgID && o.State == briefOpen }) {
		t.Errorf("open briefs: %+v (%v)", open, err)
	}
	if MarkAsked(in(briefReplied), w.clock.now()) != nil {
		t.Error("a question changes a brief that was answered")
	}
}

// opens puts a question of from, who has a host of his own, to gid that an open
// call takes; nil if it is refused.
func (w *world) opens(gid, from string, change ...func(*envelope.Envelope)) *envelope.Envelope {
	ears := w.in.Listen(gid, "", "")
	defer ears.Close()
	ask := w.question(gid, "")
	ask.From, ask.Signer = from, "host-"+from[24:]
	for _, c := range change {
		c(ask)
	}
	if !w.in.Ask(ask) {
		return nil
	}
	got(ears).Settle(true)
	return ask
}

// Fails if a question that was open is forgotten because many others came to
// nothing, or if those are all remembered.
func TestAnOpenQuestionOutlivesManyThatEnded(t *testing.T) {
	w := newWorld(t)
	m, n := w.main("m"), w.main("n")
	ask := w.opens(m.GID, asker)
	for range endedTurnsMost + 300 {
		w.in.Ask(w.question(n.GID, ""))
	}
	same(t, "open questions", []*envelope.Envelope{ask}, w.in.Questions(m.GID))
	same(t, "turns remembered", endedTurnsMost+1, len(w.in.turns.byID))
	same(t, "turns in order", endedTurnsMost+1, len(w.in.turns.list))
	_, _, err := w.in.TurnToAnswer(m.GID, ask.TurnID)
	wantCode(t, "the answer", err, "")
}

// Fails if a question that is over keeps its text in memory, or one that ran
// out does though no other comes.
func TestAnEndedQuestionKeepsNoText(t *testing.T) {
	w := newWorld(t)
	m := w.main("m")
	lost := w.question(m.GID, "")
	w.in.Ask(lost)
	open := w.opens(m.GID, asker)
	held := func() (n int) {
		w.in.turns.mu.Lock()
		defer w.in.turns.mu.Unlock()
		for _, o := range w.in.turns.byID {
			n += len(o.ask.Body)
		}
		return n
	}
	same(t, "bytes held", len(open.Body), held())
	w.clock.pass(time.Minute + turnSkew + time.Second)
	await(t, "the end of one that ran out", func() bool { return held() == 0 })
	_, _, err := w.in.TurnToAnswer(m.GID, open.TurnID)
	wantCode(t, "an answer to it", err, fault.TooLate)
	if len(lost.Body) == 0 || len(open.Body) == 0 {
		t.Error("the question that others read lost its text")
	}
}

// Fails if more questions can be open than the bounds say, of one asker, to one
// entity or in all, if a full entity takes none any more once there is room, or
// if one beyond the bounds ends another or is refused without a word.
func TestOpenQuestionsAreBounded(t *testing.T) {
	t.Attr("threat", "G5")
	fill := func(w *world, of, to int) (open int) {
		for i := range of {
			from := newID()
			for range to {
				if w.opens(w.main("m"+string(rune('a'+i*to/openMostTo))).GID, from) != nil {
					open++
				}
			}
		}
		return open
	}
	w := newWorld(t)
	same(t, "open of one asker", openMostOf, fill(w, 1, openMostOf+1))
	same(t, "told", []string{"FAILED RATE_LIMITED"}, w.over())
	w.clock.pass(time.Minute + turnSkew + time.Second)
	m := w.main("ma")
	for range openMostTo {
		if w.opens(m.GID, newID()) == nil {
			t.Fatal("one within the bound was refused")
		}
	}
	first := w.in.Questions(m.GID)[0]
	if w.opens(m.GID, newID()) != nil {
		t.Error("one entity was asked more than the bound")
	}
	same(t, "open", openMostTo, len(w.in.Questions(m.GID)))
	_, _, err := w.in.TurnToAnswer(m.GID, first.TurnID)
	wantCode(t, "the answer to the first", err, "")
	w.in.Answered(first.TurnID, "it was answered")
	if w.opens(m.GID, newID()) == nil {
		t.Error("an answer makes no room")
	}

	w = newWorld(t)
	same(t, "open in all", openMost, fill(w, openMost/openMostOf, openMostOf))
	same(t, "told", []string(nil), w.over())
	if w.opens(w.main("last").GID, newID()) != nil {
		t.Error("more are open than the bound in all")
	}
}

// A trusted gateway makes up askers, and ends of life. Fails if its questions take
// the room of others', or are open for as long as it says.
func TestOneHostsQuestionsLeaveRoomForOthers(t *testing.T) {
	t.Attr("threat", "G5")
	w := newWorld(t)
	m := w.main("m")
	forEver := func(e *envelope.Envelope) { e.Signer, e.ExpiresAt = there, math.MaxInt64 }
	for range 2 * openMostTo {
		w.opens(m.GID, newID(), forEver)
	}
	if w.opens(m.GID, newID()) == nil {
		t.Error("a question of another host is refused")
	}
	for i := range openMost / openMostTo * 2 {
		n := w.main(fmt.Sprint("n", i))
		for range openMostTo / 2 {
			w.opens(n.GID, newID(), forEver)
		}
	}
	if w.opens(w.main("last").GID, newID()) == nil {
		t.Error("a question of another host to somebody else is refused")
	}
	w.clock.pass(turnMost + turnSkew + time.Second)
	if open := w.in.Questions(m.GID); len(open) != 0 {
		t.Errorf("%d are open after an hour", len(open))
	}
	if w.opens(m.GID, newID(), forEver) == nil {
		t.Error("its own are refused for ever")
	}
}

// Fails if a question longer than any may be is kept, or its asker not told.
func TestALongQuestionIsRefused(t *testing.T) {
	w := newWorld(t)
	m := w.main("m")
	w.in.Listen(m.GID, "", "")
	ask := w.question(m.GID, "")
	ask.Body = make([]byte, envelope.AskBytes+1)
	if w.in.Ask(ask) || len(w.in.turns.byID) != 0 {
		t.Error("it was taken")
	}
	same(t, "told", []string{"FAILED TOO_LARGE"}, w.over())
}
