package inbox

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleetd/fabric/envelope"
)

// Fails if a brief in doubt is written again, or not reported.
func TestABriefInDoubtIsReportedAndNeverWrittenAgain(t *testing.T) {
	w := newWorld(t)
	e := w.worker("a")
	env, next := w.brief(e.GID, "x"), w.brief(e.GID, "next")
	w.panes.script(func(id string) *plan {
		if id == env.MsgID {
			return &plan{after: &Injection{Result: InDoubt, Reason: "IN_DOUBT"}}
		}
		return nil
	})
	w.broker.publish(e.GID, env)
	w.broker.publish(e.GID, next)
	w.awaitScreen("pane-a", next)
	w.awaitEnd(env, "FAILED IN_DOUBT")
	await(t, "failed", func() bool { return w.outcome(e.GID, env.MsgID) == "failed IN_DOUBT" })
	w.restart()
	w.broker.publish(e.GID, env)
	if got := w.query(env, e.GID, there); got != "FAILED IN_DOUBT" {
		t.Errorf("a query says %s", got)
	}
	// An answer proves that it was in the pane.
	brief, err := w.in.BriefToAnswer(e.GID, env.MsgID)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.disk.Write(t.Context(), MarkReplied(brief, w.clock.now())); err != nil {
		t.Fatal(err)
	}
	if got := w.query(env, e.GID, there); got != "INJECTED" {
		t.Errorf("a query after the answer says %s", got)
	}
	w.awaitScreen("pane-a", next)
}

// Fails if mail that is no brief is lost when its pane is in doubt, or is
// pasted twice.
func TestAReplyInDoubtIsLeftToThePoll(t *testing.T) {
	w := newWorld(t)
	e := w.worker("a")
	env := w.mail(envelope.Reply, e.GID, "answer")
	w.panes.script(func(id string) *plan {
		return &plan{after: &Injection{Result: InDoubt, Reason: "IN_DOUBT"}, text: true}
	})
	m := w.broker.publish(e.GID, env)
	w.awaitScreen("pane-a", env)
	await(t, "held", func() bool { return w.in.Held(e.GID) == 1 })
	batch, got := w.poll(e.GID, Filter{}, Limit{})
	if diff := cmp.Diff([]string{"answer!"}, got); diff != "" {
		t.Fatalf("poll (-want +got):\n%s", diff)
	}
	batch.Settle(true)
	w.awaitAcked(m, "acked")
	w.awaitScreen("pane-a", env)
}
