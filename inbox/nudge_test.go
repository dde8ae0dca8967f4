package inbox

import (
	"context"
	"fmt"
	"testing"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/store"
)

// nudging is a world whose mains' panes are told of held mail.
func nudging(t *testing.T) *world {
	w := newWorldOn(t, openStore(t))
	w.begin(tells)
	t.Cleanup(w.stop)
	return w
}

func tells(c *Config) {
	c.Nudge = func(held int, from string) string { return fmt.Sprintf("%d held, %s", held, from) }
}

// seated registers a main that runs in a pane.
func (w *world) seated(name string) store.Entity {
	w.t.Helper()
	w.panes.open("pane-" + name)
	e, _, _, err := w.in.Register(context.Background(), Registration{Name: name, Kind: Main, Pane: "pane-" + name})
	if err != nil {
		w.t.Fatalf("register: %v", err)
	}
	return e
}

// swept lets time pass and waits until every box has been looked at since.
func (w *world) swept(d time.Duration) {
	w.clock.pass(d)
	seen := w.clock.sweeps() // two looks at the clock a round
	await(w.t, "a sweep", func() bool { return w.clock.sweeps() > seen+4 })
}

func (w *world) lines(pane string, want int) {
	w.t.Helper()
	await(w.t, fmt.Sprintf("%d lines in %s", want, pane), func() bool { return len(w.panes.screen(pane)) >= want })
	if got := w.panes.screen(pane); len(got) != want {
		w.t.Fatalf("the pane shows %q, want %d lines", got, want)
	}
}

// Fails if held mail is not announced, again and again with growing pauses, or
// goes on being announced after it was drained.
func TestHeldMailIsAnnouncedWithGrowingPauses(t *testing.T) {
	w := nudging(t)
	e := w.seated("m")
	w.deliver(w.brief(e.GID, "hello"))
	w.swept(0)
	w.lines("pane-m", 0) // its client has a chance to ask
	lines := 0
	for _, pause := range []time.Duration{nudgeFirst, 30 * time.Second, 2 * time.Minute, 8 * time.Minute} {
		w.swept(pause - time.Second)
		w.lines("pane-m", lines)
		w.swept(time.Second)
		lines++
		w.lines("pane-m", lines)
	}
	w.swept(2 * time.Minute) // the life of the brief ends; what follows is mail that lives
	reply := w.mail(envelope.Reply, e.GID, "done")
	reply.InReplyTo = newID()
	w.deliver(reply)
	batch, _ := w.poll(e.GID, Filter{}, Limit{Max: 10})
	batch.Settle(true)
	w.swept(2 * time.Hour)
	w.lines("pane-m", lines)
}

// Fails if lines stack up before a closed gate, one is written although the
// mail was fetched meanwhile or its client asks, or the pane of a main is closed
// with it.
func TestOneLineWaitsAtMost(t *testing.T) {
	w := nudging(t)
	e := w.seated("m")
	w.panes.gate("pane-m", "WORKING")
	for i := range 5 {
		w.deliver(w.brief(e.GID, fmt.Sprint(i)))
		w.swept(40 * time.Second)
	}
	w.panes.gate("pane-m", "")
	w.lines("pane-m", 1)
	w.panes.gate("pane-m", "WORKING")
	w.swept(40 * time.Second) // the next line waits for the gate
	batch, got := w.poll(e.GID, Filter{}, Limit{Max: 10})
	same(t, "fetched", 5, len(got))
	batch.Settle(true)
	w.panes.gate("pane-m", "")
	w.swept(time.Second)
	w.lines("pane-m", 1)

	asks, err := w.in.Wait(e.GID, Filter{From: newID()}, Limit{})
	if err != nil {
		t.Fatal(err)
	}
	w.deliver(w.brief(e.GID, "while it asks for another's"))
	w.swept(time.Minute)
	w.lines("pane-m", 1)
	asks.Close()
	w.swept(nudgeFirst)
	w.swept(nudgeFirst)
	w.lines("pane-m", 2)
	if _, err := w.in.Unregister(t.Context(), "m"); err != nil {
		t.Fatal(err)
	}
	w.swept(time.Second)
	if w.panes.isClosed("pane-m") {
		t.Error("the pane of a person's session was closed")
	}
}

// Fails if mail that was held before a restart is not announced after it.
func TestHeldMailIsAnnouncedAfterARestart(t *testing.T) {
	w := nudging(t)
	e := w.seated("m")
	w.deliver(w.brief(e.GID, "hello"))
	w.crash()
	w.begin(tells)
	w.swept(time.Second)
	w.swept(nudgeFirst)
	w.lines("pane-m", 1)
}
