package inbox

import (
	"slices"
	"strings"
	"testing"

	"fleetd/fault"
	"fleetd/store"
)

func nothing(*store.Tx, store.Entity) error { return nil }

// A worker that is being launched has its name and its token, and is told to
// nobody. Fails when it is announced, when its name can be had twice, or when
// it gets no mail once it lives.
func TestAReservedWorkerLivesOnceItIsLaunched(t *testing.T) {
	w := newWorld(t)
	var told []string
	w.in.cfg.Changed = func(e store.Entity) { told = append(told, e.Name+" "+string(e.State)) }
	first := newID()
	e, token, err := w.in.Reserve(t.Context(), Reservation{GID: first, Base: "aide", Groups: []string{"night"}}, nothing)
	if err != nil || e.GID != first || e.Name != "aide" {
		t.Fatalf("%+v, %v", e, err)
	}
	if who, _, ok := w.in.ByToken(token); !ok || who.GID != first {
		t.Errorf("the token is that of %+v", who)
	}
	same(t, "told before it is ready", []string(nil), told)
	_, _, err = w.in.Reserve(t.Context(), Reservation{GID: newID(), Name: "aide", Base: "aide"}, nothing)
	wants(t, err, fault.Conflict, "aide")
	_, _, _, err = w.in.Register(t.Context(), Registration{Name: "aide", Kind: store.Worker})
	wants(t, err, fault.Conflict, "launched")
	second, _, err := w.in.Reserve(t.Context(), Reservation{GID: newID(), Base: "aide"}, nothing)
	if err != nil || second.Name != "aide-2" {
		t.Errorf("the second is %+v, %v", second, err)
	}
	w.panes.open("p")
	got, err := w.in.Launched(t.Context(), first, Pane{ID: "p", Terminal: "term-p", Kind: "agent"}, func(*store.Tx) error { return nil })
	if err != nil || got.State != store.EntityLive || !slices.Equal(got.Groups, []string{"night"}) {
		t.Fatalf("launched %+v, %v", got, err)
	}
	same(t, "told", []string{"aide live"}, told)
	env := w.brief(first, "x")
	w.broker.publish(first, env)
	w.awaitScreen("p", env)
}

// Fails when a worker is reserved that could be announced to nobody, or when
// something of one that is refused is stored.
func TestAReservedWorkerCanBeAnnounced(t *testing.T) {
	w := newWorld(t)
	stored := false
	also := func(*store.Tx, store.Entity) error { stored = true; return nil }
	_, _, err := w.in.Reserve(t.Context(), Reservation{GID: newID(), Base: "aide", Groups: many(33)}, also)
	wants(t, err, fault.TooLarge, "33 groups")
	same(t, "stored", false, stored)
	same(t, "entities", 0, len(w.in.Entities()))
	longest := strings.Repeat("a", 63)
	for _, want := range []string{longest, longest[:61] + "-2", longest[:61] + "-3"} {
		e, _, err := w.in.Reserve(t.Context(), Reservation{GID: newID(), Base: longest, Groups: many(32)}, also)
		if err != nil || e.Name != want {
			t.Errorf("it is %s, want %s (%v)", e.Name, want, err)
		}
	}
}

// Fails when a launch that failed leaves a token, a name or a record, or when
// one that is discarded late takes a living worker along.
func TestADiscardedWorkerNeverWas(t *testing.T) {
	w := newWorld(t)
	also := func(*store.Tx) error { return nil }
	e, token, err := w.in.Reserve(t.Context(), Reservation{GID: newID(), Base: "aide"}, nothing)
	if err != nil {
		t.Fatal(err)
	}
	w.deliver(w.brief(e.GID, "an answer to what it sent too soon"))
	if err := w.in.Discard(t.Context(), e.GID, also); err != nil {
		t.Fatal(err)
	}
	_, _, known := w.in.ByToken(token)
	same(t, "its token counts", false, known)
	same(t, "its mail", 0, len(w.held(e.GID)))
	w.restart()
	same(t, "entities after a restart", 0, len(w.in.Entities()))

	living := w.worker("b")
	if err := w.in.Discard(t.Context(), living.GID, also); err != nil {
		t.Fatal(err)
	}
	_, alive := w.in.ByName("b")
	same(t, "a living one lives on", true, alive)
}

// Fails when a worker that is stopped before it is ready comes to live, or its
// pane stays.
func TestAWorkerThatIsStoppedBeforeItIsReady(t *testing.T) {
	w := newWorld(t)
	e, _, err := w.in.Reserve(t.Context(), Reservation{GID: newID(), Base: "aide"}, nothing)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.in.Unregister(t.Context(), "aide"); err != nil {
		t.Fatal(err)
	}
	_, err = w.in.Launched(t.Context(), e.GID, Pane{ID: "p"}, func(*store.Tx) error { return nil })
	wants(t, err, fault.SpawnFailed)
	same(t, "state", store.EntityGone, w.in.AwaitEnd(t.Context(), e.GID).State)
	if w.panes.asked.Load() == 0 {
		t.Error("herdr was not asked to close its pane")
	}
}
