package inbox

import (
	"strings"
	"testing"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
)

// Fails if an answer goes to a brief that was not meant.
func TestAnAnswerFindsItsBrief(t *testing.T) {
	w := newWorld(t)
	e := w.worker("a")
	_, err := w.in.BriefToAnswer(e.GID, "")
	wants(t, err, fault.BadRequest, "no open brief")
	pick := func(msgID string) string {
		t.Helper()
		b, err := w.in.BriefToAnswer(e.GID, msgID)
		if err != nil {
			t.Fatal(err)
		}
		return b.MsgID
	}
	answer := func(msgID string) {
		t.Helper()
		b, err := w.in.BriefToAnswer(e.GID, msgID)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.disk.Write(t.Context(), MarkReplied(b, w.clock.now())); err != nil {
			t.Fatal(err)
		}
	}
	one, two := w.brief(e.GID, "1"), w.brief(e.GID, "2")
	inject := func(env *envelope.Envelope) {
		t.Helper()
		w.broker.publish(e.GID, env)
		await(t, "injected", func() bool { return w.outcome(e.GID, env.MsgID) == "injected" })
	}
	inject(one)
	same(t, "the only one", one.MsgID, pick(""))
	inject(two)
	_, err = w.in.BriefToAnswer(e.GID, "")
	wants(t, err, fault.BadRequest, one.MsgID, two.MsgID, "name-of-"+sender)
	same(t, "the one named", two.MsgID, pick(two.MsgID))
	answer(one.MsgID)
	same(t, "the one left", two.MsgID, pick(""))
	same(t, "one that was answered", one.MsgID, pick(one.MsgID))
	answer(two.MsgID)
	_, err = w.in.BriefToAnswer(e.GID, "")
	wants(t, err, fault.BadRequest, "no open brief")
	_, err = w.in.BriefToAnswer(e.GID, newID())
	wants(t, err, fault.BadRequest, "you have no brief")

	// An answer that could not be sent leaves its brief open.
	b, err := w.in.BriefToAnswer(e.GID, two.MsgID)
	if err != nil {
		t.Fatal(err)
	}
	b.State = briefOpen
	if err := w.disk.Write(t.Context(), Reopen(b)); err != nil {
		t.Fatal(err)
	}
	same(t, "the one reopened", two.MsgID, pick(""))
}

// The agent answers what it was told of: fails if a brief in doubt, the only
// one it can mean, must be named, or is preferred to one that is open.
func TestABriefInDoubtCanBeAnsweredWithoutItsName(t *testing.T) {
	w := newWorld(t)
	e := w.worker("a")
	doubt := w.brief(e.GID, "doubt")
	w.panes.script(func(id string) *plan {
		if id == doubt.MsgID {
			return &plan{after: &Injection{Result: InDoubt}}
		}
		return nil
	})
	w.broker.publish(e.GID, doubt)
	w.awaitEnd(doubt, "FAILED IN_DOUBT")
	w.disk.flush()
	if b, err := w.in.BriefToAnswer(e.GID, ""); err != nil || b.MsgID != doubt.MsgID {
		t.Errorf("picked %v, %v", b, err)
	}
	open := w.brief(e.GID, "open")
	w.broker.publish(e.GID, open)
	await(t, "injected", func() bool { return w.outcome(e.GID, open.MsgID) == "injected" })
	if b, err := w.in.BriefToAnswer(e.GID, ""); err != nil || b.MsgID != open.MsgID {
		t.Errorf("picked %v, %v", b, err)
	}
}

// Fails if records are kept for ever, or forgotten while they are of use: an
// answered brief may be answered again for a day after the answer.
func TestOldRecordsAreForgotten(t *testing.T) {
	w := newWorld(t)
	e := w.worker("a")
	now := w.clock.now()
	ago := func(d time.Duration) int64 { return now.Add(-d).UnixMilli() }
	day := 24 * time.Hour
	put := map[string]store.Brief{
		"open, a week old": {State: briefOpen, At: ago(7 * day)}, "open, older": {State: briefOpen, At: ago(7*day + 1e9)},
		"answered a day ago": {State: briefReplied, At: ago(day)}, "answered before": {State: briefReplied, At: ago(day + 1e9)},
		"announced mail": {State: briefMail, At: ago(7 * day)}, "older mail": {State: briefMail, At: ago(8 * day)},
	}
	err := w.disk.Write(t.Context(), func(tx *store.Tx) error {
		for name, b := range put {
			b.GID, b.MsgID, b.Sender, b.SenderName = e.GID, newID(), sender, name
			if err := tx.PutBrief(b); err != nil {
				return err
			}
		}
		gone := heldOf(e.GID, newItem(w.brief(e.GID, "gone"), now))
		gone.Seq = 7
		gone.ExpiresAt = ago(time.Second)
		return tx.PutHeld(gone)
	})
	if err != nil {
		t.Fatal(err)
	}
	w.restart() // it prunes at its first tick
	await(t, "pruning", func() bool { return len(w.held(e.GID)) == 0 })
	left := map[string]bool{}
	_ = w.store.View(func(tx *store.Tx) error {
		all, err := tx.AllBriefs()
		for _, b := range all {
			left[b.SenderName] = true
		}
		return err
	})
	same(t, "left", map[string]bool{"open, a week old": true, "answered a day ago": true, "announced mail": true}, left)
}

// Fails if the day in which an answer may be repeated begins with the brief.
func TestAnAnswerIsDatedByItself(t *testing.T) {
	w := newWorld(t)
	e := w.worker("a")
	env := w.brief(e.GID, "x")
	w.broker.publish(e.GID, env)
	await(t, "injected", func() bool { return w.outcome(e.GID, env.MsgID) == "injected" })
	b, err := w.in.BriefToAnswer(e.GID, "")
	if err != nil {
		t.Fatal(err)
	}
	w.clock.pass(3 * 24 * time.Hour)
	if err := w.disk.Write(t.Context(), MarkReplied(b, w.clock.now())); err != nil {
		t.Fatal(err)
	}
	if b, err = w.in.BriefToAnswer(e.GID, env.MsgID); err != nil || b.At != w.clock.now().UnixMilli() {
		t.Errorf("at %d, %v", b.At, err)
	}
}

// Fails if a report reads as nothing, promises what is not known, or does not
// say what to do.
func TestAReportSaysWhatToDo(t *testing.T) {
	for _, c := range []struct {
		kind   envelope.Kind
		reason fault.Code
		word   string
	}{
		{envelope.Injected, "", "handed over"},
		{envelope.Abandoned, fault.PaneGone, "will not be answered"},
		{envelope.Failed, fault.Expired, "expired"},
		{envelope.Failed, fault.InDoubt, "Do not send it again blindly"},
		{envelope.Failed, fault.PaneGone, "ended"},
		{envelope.Failed, fault.InboxFull, "full"},
		{envelope.Failed, fault.Unroutable, "does not exist"},
		{envelope.Failed, fault.Refused, "tell whoever runs that host"},
		{envelope.Failed, fault.BadContent, "BAD_CONTENT"},
		{envelope.Failed, fault.TooLarge, "Send a shorter one"},
		{envelope.Failed, fault.RateLimited, "Wait a minute"},
		{envelope.Failed, fault.BrokerRefused, "Send it again"},
	} {
		text := Sentence(&envelope.Envelope{Kind: c.kind, Reason: string(c.reason), InReplyTo: "ID"}, "a@hosta")
		wants(t, fault.New("X", "%s", text), "X", "ID", "a@hosta", c.word)
	}
	for _, kind := range []envelope.Kind{envelope.Failed, envelope.Abandoned} { // also of a main, which has no pane
		text := Sentence(&envelope.Envelope{Kind: kind, Reason: string(fault.PaneGone)}, "m@hosta")
		if strings.Contains(text, "worker") || strings.Contains(text, "pane") || !strings.Contains(text, "its recipient") {
			t.Errorf("of a main: %q", text)
		}
	}
	same(t, "other mail", "", Sentence(&envelope.Envelope{Kind: envelope.Send}, "a"))
}

// Fails if a client that answers at once, before its mail is known to be
// drained, has nothing to answer, or if the brief is open again afterwards.
func TestABriefCanBeAnsweredBeforeItsDrainingIsRecorded(t *testing.T) {
	w := newWorld(t)
	e := w.main("m")
	env := w.brief(e.GID, "quick")
	w.broker.publish(e.GID, env)
	batch, _ := w.poll(e.GID, Filter{}, Limit{})
	brief, err := w.in.BriefToAnswer(e.GID, "")
	if err != nil || brief.MsgID != env.MsgID {
		t.Fatalf("brief: %+v, %v", brief, err)
	}
	if err := w.disk.Write(t.Context(), MarkReplied(brief, w.clock.now())); err != nil {
		t.Fatal(err)
	}
	batch.Settle(true)
	open, err := w.in.OpenBriefs(e.GID)
	if err != nil || len(open) != 0 {
		t.Errorf("open: %+v, %v", open, err)
	}
	again, err := w.in.BriefToAnswer(e.GID, env.MsgID)
	if err != nil || again.State != briefReplied {
		t.Errorf("named again: %+v, %v", again, err)
	}
}
