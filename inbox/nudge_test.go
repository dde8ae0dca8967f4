package inbox

import (
	"context"
	"fmt"
	"slices"
	"sync"
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

// Fails if the pauses begin anew after a restart, or mail whose time came while
// the gateway was away waits for a whole pause more.
func TestThePausesGrowOnOverARestart(t *testing.T) {
	for where, give := range map[string]func(*world, *envelope.Envelope){
		"on this host":  func(w *world, e *envelope.Envelope) { w.deliver(e) },
		"on the broker": func(w *world, e *envelope.Envelope) { w.broker.publish(e.To, e) },
	} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			w := nudging(t)
			e := w.seated("m")
			answer := w.mail(envelope.Reply, e.GID, "done")
			answer.InReplyTo, answer.ExpiresAt = newID(), w.clock.now().Add(48*time.Hour).UnixMilli()
			give(w, answer)
			await(t, "the mail", func() bool { return w.in.Held(e.GID) == 1 })
			w.swept(0)
			for i, pause := range []time.Duration{nudgeFirst, 30 * time.Second, 2 * time.Minute} {
				w.swept(pause)
				w.lines("pane-m", i+1)
			}
			w.swept(0) // it is noted by then
			w.disk.flush()
			w.crash()
			w.begin(tells)
			await(t, "the mail again", func() bool { return w.in.Held(e.GID) == 1 })
			w.swept(0)
			w.swept(8*time.Minute - time.Second)
			w.lines("pane-m", 3)
			w.swept(2 * time.Second)
			w.lines("pane-m", 4)
			w.disk.flush()
			w.crash()
			w.clock.pass(24 * time.Hour) // nobody was there when it was due
			w.begin(tells)
			await(t, "the mail again", func() bool { return w.in.Held(e.GID) == 1 })
			w.swept(0)
			w.swept(nudgeFirst)
			w.lines("pane-m", 5)
		})
	}
}

// clients are those of all mains: they listen or do not, and keep what is hinted.
type clients struct {
	mu     sync.Mutex
	listen bool
	hints  []string
}

func (c *clients) Listening(string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.listen
}

func (c *clients) Hint(_ string, held int, from string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hints = append(c.hints, fmt.Sprintf("%d from %s", held, from))
}

func (c *clients) set(listen bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listen = listen
}

func (c *clients) got() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.hints)
}

func (w *world) hints(c *clients, want int) {
	w.t.Helper()
	await(w.t, fmt.Sprintf("%d hints", want), func() bool { return len(c.got()) >= want })
	if got := c.got(); len(got) != want {
		w.t.Fatalf("hinted %q, want %d times", got, want)
	}
}

// Fails if a main without a pane is not hinted at what it holds, with growing
// pauses, until it is drained; if nobody listens and that counts as told; or if
// a client that is back waits for the end of a long pause.
func TestAClientThatListensIsHintedAtHeldMail(t *testing.T) {
	w, c := newWorldOn(t, openStore(t)), &clients{}
	w.begin(func(cfg *Config) { cfg.Hints = c })
	t.Cleanup(w.stop)
	e := w.main("m")
	w.deliver(w.brief(e.GID, "hello"))
	w.swept(0)
	w.swept(time.Minute)
	w.hints(c, 0)
	c.set(true) // it is back
	w.swept(0)
	times := 0
	for _, pause := range []time.Duration{nudgeFirst, 30 * time.Second, 2 * time.Minute} {
		w.swept(pause - time.Second)
		w.hints(c, times)
		w.swept(time.Second)
		times++
		w.hints(c, times)
	}
	same(t, "the hint", "1 from "+names{}.Name(sender), c.got()[0])
	c.set(false)
	w.swept(time.Second)
	c.set(true) // it was started again, long before the next time
	w.swept(0)
	w.hints(c, times)
	w.swept(nudgeFirst)
	times++
	w.hints(c, times)
	w.swept(time.Minute)
	w.hints(c, times)
	batch, got := w.poll(e.GID, Filter{}, Limit{Max: 10})
	same(t, "fetched", 1, len(got))
	batch.Settle(true)
	w.swept(2 * time.Hour)
	w.hints(c, times)
}

// Fails if a hint waits for the pane, is repeated while the line does, or does
// not come again with the next line.
func TestAHintDoesNotWaitForThePane(t *testing.T) {
	w, c := newWorldOn(t, openStore(t)), &clients{listen: true}
	w.begin(func(cfg *Config) { tells(cfg); cfg.Hints = c })
	t.Cleanup(w.stop)
	e := w.seated("m")
	w.panes.gate("pane-m", "WORKING")
	w.swept(nudgeFirst) // there is nothing to tell
	w.swept(nudgeFirst)
	w.deliver(w.brief(e.GID, "hello"))
	w.swept(0)
	w.hints(c, 0)
	for range 3 {
		w.swept(40 * time.Second)
		w.hints(c, 1)
	}
	asks, err := w.in.Wait(e.GID, Filter{From: newID()}, Limit{})
	if err != nil {
		t.Fatal(err)
	}
	w.swept(time.Second) // the line is taken back
	asks.Close()
	w.swept(time.Second)
	w.hints(c, 1)
	w.panes.gate("pane-m", "")
	w.lines("pane-m", 1)
	w.hints(c, 1)
	w.swept(30 * time.Second)
	w.lines("pane-m", 2)
	w.hints(c, 2)
}
