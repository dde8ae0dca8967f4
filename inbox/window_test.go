package inbox

import (
	"fmt"
	"testing"

	"fleetd/store"
)

// Fails if a filter makes do with a full window, or a half-empty one is
// widened for nothing.
func TestAFilterLooksBehindAFullWindow(t *testing.T) {
	w := newWorld(t)
	e := w.main("m")
	w.window.set(func(win *window) { win.ready = 5 }) // not worth a question while the window has room
	for i := range 8 {
		if taken, bound := w.in.More(e.GID); taken || bound {
			t.Fatalf("with %d held: taken %t, bound %t", i, taken, bound)
		}
		w.broker.publish(e.GID, w.brief(e.GID, fmt.Sprint(i)))
	}
	w.window.set(func(win *window) { win.full, win.ready = true, 0 })
	if taken, bound := w.in.More(e.GID); taken || bound {
		t.Errorf("with nothing behind: taken %t, bound %t", taken, bound)
	}
	w.window.set(func(win *window) { win.ready = 5 })
	same(t, "held", 13, w.in.Held(e.GID))
	if taken, bound := w.in.More(e.GID); !taken || bound {
		t.Errorf("with mail behind: taken %t, bound %t", taken, bound)
	}
	w.poll(e.GID, Filter{}, Limit{Max: 3})
	same(t, "held while three are offered", 10, w.in.Held(e.GID))
	w.window.set(func(win *window) { win.bound = true })
	if taken, bound := w.in.More(e.GID); taken || !bound {
		t.Errorf("at the bound: taken %t, bound %t", taken, bound)
	}
}

// Fails if a blocked call waits for an answer that lies behind a full window: a
// main's behind other mail, a worker's behind the briefs that wait for its pane.
func TestABlockedCallHasMailFetchedFromBehindAFullWindow(t *testing.T) {
	for _, kind := range []store.EntityKind{store.Main, store.Worker} {
		w := newWorld(t)
		e := w.main("m")
		if kind == store.Worker {
			e = w.worker("a")
			w.panes.gate("pane-a", "BUSY")
		}
		for i := range 8 {
			w.broker.publish(e.GID, w.brief(e.GID, fmt.Sprint(i)))
		}
		w.window.mu.Lock()
		w.window.ready, w.window.full = 1, true
		w.window.mu.Unlock()
		waiter(t, w, e.GID, Filter{InReplyTo: newID()})
		await(t, "another window of a "+string(kind), func() bool { return w.window.times() > 0 })
	}
}
