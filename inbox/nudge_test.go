package inbox

import (
	"context"
	"fmt"
	"slices"
	"strings"
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
	e, _, _, err := w.in.Register(context.Background(), Registration{Name: name, Kind: store.Main, Pane: "pane-" + name})
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

// announced waits until no announcement is under way.
func (w *world) announced(gid string) {
	w.t.Helper()
	await(w.t, "the end of an announcement", func() bool {
		b := w.in.box(gid)
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.announcing == nil
	})
}

// lines demands so many lines in the pane of a main, and waits until it is noted
// when the last was written: the next pause is reckoned from there.
func (w *world) lines(pane string, want int) {
	w.t.Helper()
	await(w.t, fmt.Sprintf("%d lines in %s", want, pane), func() bool { return len(w.panes.screen(pane)) >= want })
	if got := w.panes.screen(pane); len(got) != want {
		w.t.Fatalf("the pane shows %q, want %d lines", got, want)
	}
	e, _ := w.in.ByName(strings.TrimPrefix(pane, "pane-"))
	w.announced(e.GID)
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
		w.announced(e.GID) // the next pause is reckoned from there
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
	w.announced(e.GID)
	w.swept(time.Minute)
	w.hints(c, times)
	batch, got := w.poll(e.GID, Filter{}, Limit{Max: 10})
	same(t, "fetched", 1, len(got))
	batch.Settle(true)
	w.swept(2 * time.Hour)
	w.hints(c, times)
}

// Fails if a client whose stream ends and begins again all the time is hinted
// at the same mail each time, and not with growing pauses; or if mail that came
// after a drain waits for the end of such a pause.
func TestAClientThatComesAndGoesIsHintedWithGrowingPauses(t *testing.T) {
	w, c := newWorldOn(t, openStore(t)), &clients{}
	w.assemble(func(cfg *Config) { cfg.Hints = c }) // it does not run: the test looks itself
	e := w.main("m")
	look := func() {
		w.in.nudge(t.Context(), w.in.box(e.GID))
		w.in.loops.Wait()
	}
	again := func() { // a stream that lives for nudgeFirst
		c.set(false)
		look()
		c.set(true)
		look()
		w.clock.pass(nudgeFirst)
		look()
	}
	for range 2 {
		told := len(c.got())
		w.deliver(w.brief(e.GID, "hello"))
		var seen []int // after 3 s, 30 s, 1 min, 2 min, 4 min
		for i := range 80 {
			if again(); slices.Contains([]int{0, 9, 19, 39, 79}, i) {
				seen = append(seen, len(c.got())-told)
			}
		}
		same(t, "hints", []int{1, 1, 2, 2, 3}, seen) // the pauses are of 30 s, 2 min and 8 min
		batch, got := w.poll(e.GID, Filter{}, Limit{Max: 10})
		same(t, "fetched", 1, len(got))
		batch.Settle(true)
		look()
	}
}

// Where the pane of a main is not what it was. Fails if a line that waited for
// it keeps every further hint and line back: it would for good.
func TestAPaneThatIsAnotherKeepsNothingBack(t *testing.T) {
	for name, lose := range map[string]func(p *pane){
		"another terminal": func(p *pane) { p.reason = "PANE_CHANGED" },
		"closed":           func(p *pane) { p.gone = true },
		"no agent":         func(p *pane) { p.agent = false },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, c := newWorldOn(t, openStore(t)), &clients{listen: true}
			w.begin(func(cfg *Config) { tells(cfg); cfg.Hints = c })
			t.Cleanup(w.stop)
			e := w.seated("m")
			w.panes.gate("pane-m", "WORKING")
			w.deliver(w.brief(e.GID, "hello"))
			w.swept(0)
			w.swept(nudgeFirst) // the line waits, and its hint is given
			w.hints(c, 1)
			w.panes.set(func() { lose(w.panes.all["pane-m"]) })
			w.announced(e.GID) // the line was given up
			for i, pause := range []time.Duration{30 * time.Second, 2 * time.Minute} {
				w.swept(pause - time.Second)
				w.hints(c, i+1)
				w.swept(time.Second)
				w.hints(c, i+2)
				w.announced(e.GID)
			}
			w.lines("pane-m", 0)
			w.panes.open("pane-m") // and is registered
			w.swept(8 * time.Minute)
			w.lines("pane-m", 1)
		})
	}
}

// Fails if a line that waits for a terminal goes on waiting for it although the
// same terminal has another name now, as after herdr's handoff.
func TestALineFollowsItsPane(t *testing.T) {
	w := nudging(t)
	e := w.seated("m")
	w.panes.gate("pane-m", "WORKING")
	w.deliver(w.brief(e.GID, "hello"))
	w.swept(0)
	w.swept(nudgeFirst)
	at := paneOf(e)
	at.Terminal = "another name"
	w.panes.set(func() { w.panes.all["pane-m"] = &pane{agent: true, terminal: at.Terminal} }) // idle by now
	if err := w.in.Reseat(t.Context(), e.GID, paneOf(e), at); err != nil {
		t.Fatal(err)
	}
	w.announced(e.GID) // it may have met the old name first
	w.swept(nudgeAgain)
	w.lines("pane-m", 1)
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
