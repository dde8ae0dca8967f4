package inbox

import (
	"strings"
	"testing"

	"fleetd/store"
)

// An agent that is gone while its worker stays. Fails if whoever waits for its
// answer is not told, or twice; if mail that it did not get is lost with it; if
// the worker ends; or if a new agent is taken for the old one.
func TestAWorkerWhoseAgentIsGoneKeepsItsMail(t *testing.T) {
	w := newWorld(t)
	e, ends := endings(t, w)
	e.Leader = "1 1 boot"
	was := paneOf(e)
	if err := w.in.Reseat(t.Context(), e.GID, paneOf(w.in.box(e.GID).snapshot()), was); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := w.in.Unseat(t.Context(), e.GID, was); err != nil {
			t.Fatal(err)
		}
		same(t, "told", abandoned, ends())
	}
	now := w.in.box(e.GID).snapshot()
	same(t, "state", store.EntityLive, now.State)
	same(t, "what proves the agent", "", now.Leader)
	w.crash()
	w.assemble()
	w.run()
	same(t, "what proves the agent after a restart", "", w.in.box(e.GID).snapshot().Leader)
	w.broker.connect(w.in)
	w.panes.open("pane-b")
	e, _, created, err := w.in.Register(t.Context(), Registration{Name: "a", Kind: store.Worker, Pane: "pane-b"})
	if err != nil || created {
		t.Fatalf("registered anew: %+v, %v", e, err)
	}
	await(t, "its mail", func() bool {
		w.disk.flush()
		given, err := w.in.given(e.GID)
		return err == nil && len(given) == 2 && len(w.panes.screen("pane-b")) == 2
	})
	if err := w.in.Unseat(t.Context(), e.GID, was); err != nil {
		t.Fatal(err)
	}
	for _, end := range strings.Split(ends(), ",")[1:] {
		same(t, "told of what the new agent has", "", end)
	}
}

// Fails if the mail of a worker whose pane is found elsewhere stays, or if news
// of an old pane move or end a worker that was registered in another one since.
func TestAWorkerIsFollowedToWhereItsPaneIs(t *testing.T) {
	w := newWorld(t)
	e := w.worker("a")
	w.panes.gate("pane-a", "PANE_CHANGED")
	brief := w.brief(e.GID, "x")
	w.deliver(brief)
	w.panes.open("pane-b")
	was, at := paneOf(e), Pane{ID: "pane-b", Terminal: "term-pane-b", Kind: "agent", Leader: "1 1 boot"}
	if err := w.in.Reseat(t.Context(), e.GID, was, at); err != nil {
		t.Fatal(err)
	}
	w.awaitScreen("pane-b", brief)
	if err := w.in.Reseat(t.Context(), e.GID, was, Pane{ID: "pane-c"}); err != nil {
		t.Fatal(err)
	}
	if err := w.in.Reap(t.Context(), e.GID, was); err != nil {
		t.Fatal(err)
	}
	same(t, "state", store.EntityLive, w.in.box(e.GID).snapshot().State)
	same(t, "the pane", at, paneOf(w.in.box(e.GID).snapshot()))
	w.crash()
	w.assemble()
	w.run()
	same(t, "the pane after a restart", at, paneOf(w.in.box(e.GID).snapshot()))
}

// Fails if a brief that is going in when its agent ends is forgotten: told
// before it is open, it would stay open for good.
func TestABriefThatGoesInAsItsAgentEnds(t *testing.T) {
	w := newWorld(t)
	e := w.worker("a")
	committed, release := make(chan struct{}), make(chan struct{})
	w.panes.script(func(string) *plan {
		return &plan{do: func() { close(committed); <-release }}
	})
	brief := w.brief(e.GID, "x")
	w.broker.publish(e.GID, brief)
	<-committed
	if err := w.in.Unseat(t.Context(), e.GID, paneOf(e)); err == nil {
		t.Error("nobody is waited for")
	}
	close(release)
	w.awaitScreen("pane-a", brief)
	await(t, "the agent's end is told", func() bool { return w.in.Unseat(t.Context(), e.GID, paneOf(e)) == nil })
	same(t, "told", "ABANDONED PANE_GONE", w.reports.ends(brief.MsgID)[0])
}
