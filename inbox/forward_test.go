package inbox

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
)

func ids(envs []*envelope.Envelope) []string {
	var all []string
	for _, e := range envs {
		all = append(all, e.MsgID)
	}
	return all
}

// awaitScreen waits until the pane shows exactly these messages.
func (w *world) awaitScreen(pane string, want ...*envelope.Envelope) {
	w.t.Helper()
	await(w.t, fmt.Sprintf("%d messages in %s", len(want), pane), func() bool { return len(w.panes.screen(pane)) >= len(want) })
	if diff := cmp.Diff(ids(want), w.panes.screen(pane)); diff != "" {
		w.t.Errorf("screen (-want +got):\n%s", diff)
	}
}

func (w *world) awaitEnd(env *envelope.Envelope, want ...string) {
	w.t.Helper()
	await(w.t, "the end of "+string(env.Body), func() bool { return len(w.reports.ends(env.MsgID)) >= len(want) })
	if diff := cmp.Diff(want, w.reports.ends(env.MsgID)); diff != "" {
		w.t.Errorf("reports (-want +got):\n%s", diff)
	}
}

func (w *world) awaitAcked(m *message, want string) {
	w.t.Helper()
	await(w.t, string(m.env.Body)+" "+want, func() bool { return w.broker.state(m) == want })
}

// Fails if the loop takes anything but the oldest waiting message.
func TestBriefsGoIntoThePaneInTheOrderOfTheirArrival(t *testing.T) {
	w := newWorld(t)
	e := w.worker("a")
	w.panes.gate("pane-a", "BUSY")
	var all []*envelope.Envelope
	for i := range 40 {
		env := w.brief(e.GID, fmt.Sprint(i))
		all = append(all, env)
		if i%3 == 0 {
			w.deliver(env)
		} else {
			w.broker.publish(e.GID, env)
		}
	}
	w.panes.gate("pane-a", "")
	w.awaitScreen("pane-a", all...)
	for _, env := range all {
		await(t, "INJECTED", func() bool { return slices.Contains(w.reports.told(env.MsgID), "INJECTED") })
	}
}

// Fails if the ack goes out before the commit of the record, or the first byte
// before the ack.
func TestABriefIsRecordedBeforeItIsAckedAndAckedBeforeItIsWritten(t *testing.T) {
	w := newWorld(t)
	e := w.worker("a")
	env := w.brief(e.GID, "x")
	var steps []string
	w.broker.onAck(func(env *envelope.Envelope) {
		_ = w.store.View(func(tx *store.Tx) error {
			s, _, err := tx.FindSeen(env.MsgID, e.GID)
			steps = append(steps, "ack of "+string(s.Outcome))
			return err
		})
	})
	var m *message
	published := make(chan struct{})
	w.panes.onWritten(func(string) {
		<-published
		steps = append(steps, "byte of "+w.broker.state(m))
	})
	m = w.broker.publish(e.GID, env)
	close(published)
	w.awaitScreen("pane-a", env)
	if diff := cmp.Diff([]string{"ack of injecting", "byte of acked"}, steps); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
}

// Fails if a brief leaves the broker while its gate is closed.
func TestABriefForABusyWorkerStaysOnTheBroker(t *testing.T) {
	w := newWorld(t)
	e := w.worker("a")
	w.panes.gate("pane-a", "BUSY")
	env := w.brief(e.GID, "x")
	m := w.broker.publish(e.GID, env)
	await(t, "DEFERRED", func() bool { return slices.Equal(w.reports.told(env.MsgID), []string{"DEFERRED BUSY"}) })
	if got := w.broker.state(m); got != "" {
		t.Errorf("the broker's copy is %s", got)
	}
	if got := w.query(env, e.GID, there); got != "DEFERRED BUSY" {
		t.Errorf("a query says %s", got)
	}
	w.panes.gate("pane-a", "DRAFT")
	await(t, "the next reason", func() bool {
		return slices.Equal(w.reports.told(env.MsgID), []string{"DEFERRED BUSY", "DEFERRED DRAFT"})
	})
	w.panes.gate("pane-a", "")
	w.awaitScreen("pane-a", env)
	w.awaitAcked(m, "acked")
}

// Fails if only the head of the line is told, or if settling counts as told.
func TestEverySenderIsToldWithinFiveSecondsThatItsBriefWaits(t *testing.T) {
	w := newWorld(t)
	e := w.worker("a")
	w.panes.gate("pane-a", "SETTLING")
	first, second := w.brief(e.GID, "1"), w.brief(e.GID, "2")
	w.broker.publish(e.GID, first)
	w.deliver(second)
	await(t, "the gate", func() bool { return len(w.gates.seen()) == 1 })
	same(t, "told at once", []string(nil), w.reports.told(first.MsgID))
	w.clock.pass(4900 * time.Millisecond)
	await(t, "DEFERRED", func() bool {
		return slices.Equal(w.reports.told(first.MsgID), []string{"DEFERRED SETTLING"}) &&
			slices.Equal(w.reports.told(second.MsgID), []string{"DEFERRED QUEUED"})
	})
}

// Fails if the roster shows a gate as open that is closed, or as closed at which
// nobody waits any more.
func TestTheRosterIsToldWhyAGateIsClosedAndWhenItIsNot(t *testing.T) {
	w := newWorld(t)
	e := w.worker("a")
	w.panes.gate("pane-a", "BUSY")
	w.broker.publish(e.GID, w.brief(e.GID, "x"))
	told := func(want ...string) {
		t.Helper()
		await(t, "the gate", func() bool { return len(w.gates.seen()) >= len(want) })
		same(t, "gate", want, w.gates.seen())
	}
	told("BUSY")
	w.panes.gate("pane-a", "")
	told("BUSY", "")
	w.panes.gate("pane-a", "DRAFT")
	dying := w.brief(e.GID, "dying")
	w.broker.publish(e.GID, dying)
	told("BUSY", "", "DRAFT")
	w.clock.pass(16 * time.Minute)
	told("BUSY", "", "DRAFT", "")
	w.awaitEnd(dying, "FAILED EXPIRED")
	w.broker.publish(e.GID, w.brief(e.GID, "next"))
	told("BUSY", "", "DRAFT", "", "DRAFT")
}

// Fails if the worker without a pane is not told of, or not injected into once
// it has one.
func TestAWorkerWithoutAPaneGetsItsMailWhenItHasOne(t *testing.T) {
	w := newWorld(t)
	e, _, _, err := w.in.Register(t.Context(), Registration{Name: "a", Kind: store.Worker})
	if err != nil {
		t.Fatal(err)
	}
	env := w.brief(e.GID, "x")
	w.broker.publish(e.GID, env)
	await(t, "DEFERRED", func() bool { return slices.Equal(w.reports.told(env.MsgID), []string{"DEFERRED NO_PANE"}) })
	w.worker("a")
	w.awaitScreen("pane-a", env)
}

// Fails if the loop goes on waiting for the pane that the worker had before.
func TestAWorkerThatIsRegisteredAnewGetsItsMailInItsNewPane(t *testing.T) {
	w := newWorld(t)
	e := w.worker("a")
	w.panes.gate("pane-a", "PANE_CHANGED")
	env := w.brief(e.GID, "x")
	w.broker.publish(e.GID, env)
	await(t, "DEFERRED", func() bool { return len(w.reports.told(env.MsgID)) == 1 })
	w.panes.open("pane-b")
	if _, _, _, err := w.in.Register(t.Context(), Registration{Name: "a", Kind: store.Worker, Pane: "pane-b"}); err != nil {
		t.Fatal(err)
	}
	w.awaitScreen("pane-b", env)
}

// Fails if the text goes in under a record that is not open, or INJECTED is
// told to somebody else.
func TestAnInjectedBriefIsOpenUntilItIsAnswered(t *testing.T) {
	w := newWorld(t)
	e := w.worker("a")
	env := w.brief(e.GID, "x")
	w.broker.publish(e.GID, env)
	w.awaitScreen("pane-a", env)
	await(t, "injected", func() bool { return w.outcome(e.GID, env.MsgID) == "injected" })
	brief, err := w.in.BriefToAnswer(e.GID, "")
	if err != nil {
		t.Fatal(err)
	}
	want := store.Brief{
		GID: e.GID, Seq: brief.Seq, MsgID: env.MsgID, TraceID: env.TraceID, Sender: sender, SenderHost: there,
		SenderName: "name-of-" + sender, Kind: "SEND", TS: env.TS, ExpiresAt: env.ExpiresAt, At: w.clock.now().UnixMilli(),
		State: brief.State, Boot: w.boot,
	}
	if diff := cmp.Diff(want, brief); diff != "" {
		t.Errorf("brief (-want +got):\n%s", diff)
	}
	if got := w.query(env, e.GID, there); got != "INJECTED" {
		t.Errorf("a query says %s", got)
	}
	if got := w.query(env, e.GID, "hostc"); got != "no answer" {
		t.Errorf("a stranger's query says %s", got)
	}
	w.restart() // it was in, and known to be: not in doubt
	await(t, "open after a restart", func() bool {
		b, err := w.in.BriefToAnswer(e.GID, "")
		return err == nil && b.State == "open"
	})
	w.awaitEnd(env)
	if _, err := w.in.Unregister(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	w.awaitEnd(env, "ABANDONED PANE_GONE")
}

// Fails if a long brief is not kept for bridge_read, also over a restart.
func TestAnAnnouncedBriefCanBeReadWhole(t *testing.T) {
	w := newWorld(t)
	e := w.worker("a")
	env := w.brief(e.GID, strings.Repeat("long ", long))
	w.broker.publish(e.GID, env)
	w.awaitScreen("pane-a", env)
	await(t, "injected", func() bool { return w.outcome(e.GID, env.MsgID) == "injected" })
	w.restart()
	m, err := w.in.Read(e.GID, env.MsgID)
	if err != nil || string(m.Body) != string(env.Body) {
		t.Errorf("read %d bytes, %v", len(m.Body), err)
	}
	if _, err := w.in.Read(w.main("m").GID, env.MsgID); !fault.Is(err, fault.BadRequest) {
		t.Errorf("somebody else read it: %v", err)
	}
}

// Fails if the announcement of a reply is all that is left of it after a
// restart.
func TestAnAnnouncedReplyCanBeReadWholeAfterARestart(t *testing.T) {
	w := newWorld(t)
	e := w.worker("a")
	env := w.mail(envelope.Reply, e.GID, strings.Repeat("long ", long))
	var atAck string
	w.broker.onAck(func(*envelope.Envelope) { atAck = w.stored(e.GID, env.MsgID) })
	m := w.broker.publish(e.GID, env)
	w.awaitScreen("pane-a", env)
	w.awaitAcked(m, "acked")
	same(t, "on record at the ack", "mail", atAck)
	w.restart()
	got, err := w.in.Read(e.GID, env.MsgID)
	if err != nil || string(got.Body) != string(env.Body) {
		t.Errorf("read %d bytes, %v", len(got.Body), err)
	}
	if open, err := w.in.OpenBriefs(e.GID); err != nil || len(open) != 0 {
		t.Errorf("open briefs: %v, %v", open, err)
	}
}

// Fails if a text that herdr refused is lost, or goes in without a record.
func TestABriefThatWasRefusedUnwrittenWaitsAndGoesInLater(t *testing.T) {
	w := newWorld(t)
	e := w.worker("a")
	env := w.brief(e.GID, "x")
	tries := 0
	w.panes.script(func(string) *plan {
		if tries++; tries <= 2 {
			return &plan{after: &Injection{Result: NotSent, Reason: "NOT_INJECTED"}}
		}
		return nil
	})
	m := w.broker.publish(e.GID, env)
	w.awaitScreen("pane-a", env)
	if !slices.Contains(w.reports.told(env.MsgID), "DEFERRED NOT_INJECTED") {
		t.Errorf("its sender was told %v", w.reports.told(env.MsgID))
	}
	w.awaitAcked(m, "acked")
	await(t, "injected", func() bool { return w.outcome(e.GID, env.MsgID) == "injected" && len(w.held(e.GID)) == 0 })
	if open, err := w.in.OpenBriefs(e.GID); err != nil || len(open) != 1 {
		t.Errorf("open briefs: %v, %v", open, err)
	}
}

// Fails if a brief that was put back has no body any more after a restart.
func TestABriefThatWasPutBackOutlivesARestart(t *testing.T) {
	w := newWorld(t)
	e := w.worker("a")
	env := w.brief(e.GID, "x")
	w.panes.script(func(string) *plan {
		w.panes.gate("pane-a", "BUSY")
		return &plan{after: &Injection{Result: NotSent, Reason: "NOT_INJECTED"}}
	})
	m := w.broker.publish(e.GID, env)
	w.awaitAcked(m, "acked")
	await(t, "put back", func() bool { return len(w.held(e.GID)) == 1 })
	if got := string(w.held(e.GID)[0].Body); got != "x" {
		t.Errorf("the body on disk is %q", got)
	}
	w.panes.script(nil)
	w.restart()
	w.panes.gate("pane-a", "")
	w.awaitScreen("pane-a", env)
	await(t, "injected", func() bool { return w.outcome(e.GID, env.MsgID) == "injected" })
}

// Fails if one message that no pane can take holds up all behind it.
func TestABriefThatCannotBePastedFailsAndTheNextGoesIn(t *testing.T) {
	for _, when := range []string{"before", "after"} {
		t.Run(when, func(t *testing.T) {
			w := newWorld(t)
			e := w.worker("a")
			bad, good := w.brief(e.GID, "bad"), w.brief(e.GID, "good")
			w.panes.script(func(id string) *plan {
				switch got := (&Injection{Result: NotSent, Reason: "BAD_CONTENT"}); {
				case id != bad.MsgID:
					return nil
				case when == "before":
					return &plan{before: got}
				default:
					return &plan{after: got}
				}
			})
			w.broker.publish(e.GID, bad)
			w.broker.publish(e.GID, good)
			w.awaitScreen("pane-a", good)
			w.awaitEnd(bad, "FAILED BAD_CONTENT")
			if open, err := w.in.OpenBriefs(e.GID); err != nil || len(open) != 1 {
				t.Errorf("open briefs: %v, %v", open, err)
			}
		})
	}
}

// Fails if the gate is only looked at once local mail is stored, or anything is
// recorded or written before it is.
func TestTheGateIsWaitedForWhileLocalMailIsStored(t *testing.T) {
	w := newWorld(t)
	e := w.worker("w")
	looked, refused := make(chan string, 2), errors.New("refused by what goes with it")
	w.panes.script(func(msgID string) *plan { looked <- msgID; return nil })
	for _, also := range []error{refused, nil} {
		env := w.brief(e.GID, "x")
		// The commit is made only after the gate was found open.
		err := w.in.Deliver(t.Context(), env, func(tx *store.Tx) error {
			select {
			case id := <-looked:
				same(t, "at the gate", env.MsgID, id)
			case <-time.After(hang):
				t.Error("the gate was not looked at")
			}
			if _, found, err := tx.BriefByMsg(e.GID, env.MsgID); found || err != nil {
				t.Errorf("on record before it is stored: %v, %v", found, err)
			}
			same(t, "pane", 0, len(w.panes.screen("pane-w")))
			return also
		})
		if !errors.Is(err, also) {
			t.Fatalf("deliver: %v, want %v", err, also)
		}
		if also == nil {
			await(t, "injected", func() bool { return w.outcome(e.GID, env.MsgID) == "injected" })
			same(t, "pane", []string{env.MsgID}, w.panes.screen("pane-w"))
		}
	}
}

// Fails if a message that could not be stored keeps its place at a closed gate:
// nobody behind it would learn why he waits.
func TestMailThatCouldNotBeStoredLeavesTheGate(t *testing.T) {
	w := newWorld(t)
	e := w.worker("w")
	w.panes.gate("pane-w", "BUSY")
	refused := errors.New("refused by what goes with it")
	first, next := w.brief(e.GID, "1"), w.brief(e.GID, "2")
	err := w.in.Deliver(t.Context(), first, func(*store.Tx) error {
		await(t, "a look at the gate", func() bool { return len(w.reports.told(first.MsgID)) == 1 })
		return refused
	})
	if !errors.Is(err, refused) {
		t.Fatalf("deliver: %v", err)
	}
	w.deliver(next)
	await(t, "the next at the gate", func() bool { return len(w.reports.told(next.MsgID)) == 1 })
	same(t, "told", []string{"DEFERRED BUSY"}, w.reports.told(next.MsgID))
}
