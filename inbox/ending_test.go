package inbox

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleetd/fault"
	"fleetd/store"
)

// endings has what a worker's end has to do with: an open brief, one that waits
// for the gate, and one that this host sent.
func endings(t *testing.T, w *world) (e store.Entity, ends func() string) {
	e = w.worker("a")
	open, held, local := w.brief(e.GID, "open"), w.brief(e.GID, "held"), w.brief(e.GID, "local")
	w.broker.publish(e.GID, open)
	w.awaitScreen("pane-a", open)
	await(t, "the end of its injection", func() bool { return !w.in.box(e.GID).injecting() })
	w.panes.gate("pane-a", "BUSY")
	w.broker.publish(e.GID, held)
	w.deliver(local)
	return e, func() string {
		var all []string
		for _, env := range []string{open.MsgID, held.MsgID, local.MsgID} {
			all = append(all, strings.Join(w.reports.ends(env), "+"))
		}
		return strings.Join(all, ",")
	}
}

const (
	untold    = ",,"
	abandoned = "ABANDONED PANE_GONE,,"
	allTold   = "ABANDONED PANE_GONE,FAILED PANE_GONE,FAILED PANE_GONE"
)

// The end of design §9, step by step. Fails if one step overtakes another, is
// left out, or tells somebody twice.
func TestAnEndGoesInOrder(t *testing.T) {
	w := newWorld(t)
	e, ends := endings(t, w)
	var seen []string
	w.in.cfg.Changed = func(e store.Entity) { seen = append(seen, string(e.State)) }
	w.window.set(func(win *window) {
		win.refuse = 1
		win.look = func(step string) {
			closed := "open"
			if w.panes.isClosed("pane-a") {
				closed = "closed"
			}
			seen = append(seen, closed+" "+strings.Fields(step)[0]+" "+ends())
		}
	})
	if _, err := w.in.Unregister(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if gone := w.in.AwaitEnd(t.Context(), e.GID); gone.State != store.EntityGone {
		t.Fatalf("it is %+v", gone)
	}
	same(t, "the order", []string{
		"stopping", "closed unbound " + untold, "closed unbound " + allTold, "closed removed " + allTold, "gone",
	}, seen)
	same(t, "told", allTold, ends())
	same(t, "held", 0, len(w.held(e.GID)))
}

// A crash leaves an end to the next start. Fails if the entity lives again, if
// its end stays where it was, or if somebody is told twice.
func TestAnEndIsResumedAfterACrash(t *testing.T) {
	for _, away := range []func(*world, error){
		func(w *world, err error) { w.panes.set(func() { w.panes.away = err }) },
		func(w *world, err error) { w.window.set(func(win *window) { win.away = err }) },
	} {
		w := newWorld(t)
		e, ends := endings(t, w)
		away(w, errors.New("away"))
		if _, err := w.in.Unregister(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		await(t, "a round", func() bool { return w.panes.asked.Load() > 1 })
		same(t, "told while the order is kept", untold, ends())
		w.crash()
		w.assemble()
		w.run()
		if _, alive := w.in.ByName(e.GID); alive {
			t.Error("it lives again")
		}
		away(w, nil)
		w.broker.connect(w.in)
		if gone := w.in.AwaitEnd(t.Context(), e.GID); gone.State != store.EntityGone {
			t.Fatalf("it is %+v", gone)
		}
		same(t, "told", allTold, ends())
	}
}

// Fails if those who wait for a worker that ends are not told because herdr or
// the broker is away for long, or if the end is called done all the same.
func TestAnEndTellsWhoWaitsWhileOthersAreAway(t *testing.T) {
	w := newWorld(t)
	w.in.patience = 1
	e, ends := endings(t, w)
	w.panes.set(func() { w.panes.away = errors.New("herdr is away") })
	w.window.set(func(win *window) { win.away = errors.New("the broker is away") })
	if _, err := w.in.Unregister(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	await(t, "the word", func() bool { return ends() == allTold })
	same(t, "state", store.EntityStopping, w.in.box(e.GID).snapshot().State)
	w.panes.set(func() { w.panes.away = nil })
	w.window.set(func(win *window) { win.away = nil })
	same(t, "state", store.EntityGone, w.in.AwaitEnd(t.Context(), e.GID).State)
	same(t, "closed", true, w.panes.isClosed("pane-a"))
	same(t, "told", allTold, ends())
}

// Fails if the shell that a person's agent left is taken from him, or if what
// the gateway opened stays.
func TestAReapedWorkerLeavesAPersonHisPane(t *testing.T) {
	w := newWorld(t)
	theirs, ours := w.worker("theirs"), w.worker("ours")
	ours.Launched = true
	w.in.box(ours.GID).become(ours)
	for _, e := range []store.Entity{theirs, ours} {
		if err := w.in.Reap(t.Context(), e.GID, paneOf(e)); err != nil {
			t.Fatal(err)
		}
		same(t, "state", store.EntityGone, w.in.AwaitEnd(t.Context(), e.GID).State)
	}
	same(t, "theirs is closed", false, w.panes.isClosed("pane-theirs"))
	same(t, "ours is closed", true, w.panes.isClosed("pane-ours"))
}

// Fails if an end, or the word that an agent is gone, that cannot be told yet
// is logged with each try.
func TestWhatCannotBeToldYetIsSaidOnce(t *testing.T) {
	var log syncBuffer
	w := newWorldOn(t, openStore(t))
	w.begin(func(c *Config) { c.Logger = hclog.New(&hclog.LoggerOptions{Output: &log, Level: hclog.Info}) })
	t.Cleanup(w.stop)
	w.in.patience = 1
	e, ends := endings(t, w)
	w.reports.set(func(r *reports) { r.fail = errors.New("the reason why") })
	for range 5 {
		if err := w.in.Unseat(t.Context(), e.GID, paneOf(e)); err == nil || !strings.Contains(err.Error(), "the reason why") {
			t.Errorf("unseated with %v", err)
		}
	}
	same(t, "lines about it", 0, strings.Count(log.String(), "the reason why")) // its caller is told
	if _, err := w.in.Unregister(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	tried := w.reports.failed()
	await(t, "a few rounds", func() bool { return w.reports.failed() >= tried+6 })
	same(t, "lines about it", 1, strings.Count(log.String(), "the reason why"))
	w.reports.set(func(r *reports) { r.fail = nil })
	same(t, "state", store.EntityGone, w.in.AwaitEnd(t.Context(), e.GID).State)
	same(t, "told", allTold, ends())
}

// Fails if what is tried again and again, the end of a worker whose pane is gone
// or that of mail whose life is over, is logged with each try that fails.
func TestEachTryOfAnEndIsNotSaidAnew(t *testing.T) {
	var log syncBuffer
	w := newWorldOn(t, openStore(t))
	w.begin(func(c *Config) { c.Logger = hclog.New(&hclog.LoggerOptions{Output: &log, Level: hclog.Info}) })
	t.Cleanup(w.stop)
	said := func(words string) int { return strings.Count(log.String(), words) }

	m := w.main("m")
	dying := w.brief(m.GID, "dying")
	w.broker.publish(m.GID, dying)
	w.reports.set(func(r *reports) { r.fail = errors.New("the reason why") })
	w.clock.pass(16 * time.Minute)
	await(t, "a few sweeps", func() bool { return w.reports.failed() > 3 })
	same(t, "lines about the mail", 1, said("could not be reported yet"))
	w.reports.set(func(r *reports) { r.fail = nil })
	w.awaitEnd(dying, "FAILED EXPIRED")

	e := w.worker("a")
	w.panes.gate("pane-a", "BUSY")
	w.deliver(w.brief(e.GID, "waits"))
	w.disk.set(func(d *disk) { d.down = true })
	w.panes.set(func() { w.panes.all["pane-a"].gone = true })
	tried := w.disk.failures.Load()
	await(t, "a few looks at the pane", func() bool { return w.disk.failures.Load() > tried+2 })
	same(t, "lines about the worker", 1, said("could not be recorded yet"))
	w.disk.set(func(d *disk) { d.down = false })
	same(t, "state", store.EntityGone, w.in.AwaitEnd(t.Context(), e.GID).State)
}

// syncBuffer is what was logged.
type syncBuffer struct {
	mu  sync.Mutex
	all strings.Builder
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.String()
}

// Fails if who ended is kept for ever or looked at by every sweep, if he is
// forgotten while somebody may still ask for him, if a live one is, or if a
// forgotten gid or token comes back.
func TestWhoEndedLongAgoIsForgotten(t *testing.T) {
	w := newWorld(t)
	e, token, _, err := w.in.Register(t.Context(), Registration{Name: "m", Kind: store.Main})
	if err != nil {
		t.Fatal(err)
	}
	live := w.main("live")
	if _, err := w.in.Unregister(t.Context(), "m"); err != nil {
		t.Fatal(err)
	}
	same(t, "the end", store.EntityGone, w.in.AwaitEnd(t.Context(), e.GID).State)
	same(t, "who is swept", 1, len(w.in.present()))
	env := w.brief(e.GID, "x")

	w.swept(14 * 24 * time.Hour)
	w.swept(time.Second) // the prune of the one before is done
	same(t, "after 14 days", []string{"m", "live"}, w.names())
	wants(t, w.in.Deliver(t.Context(), env, nil), fault.PaneGone)

	w.clock.pass(25 * time.Hour)
	await(t, "it is forgotten", func() bool { _, found := w.in.Entity(e.GID); return !found })
	for _, when := range []string{"at once", "after a restart"} {
		same(t, when, []string{"live"}, w.names())
		_, found := w.in.Entity(e.GID)
		_, alive := w.in.ByName(e.GID)
		_, _, known := w.in.ByToken(token)
		same(t, when, []bool{false, false, false}, []bool{found, alive, known})
		if err := w.in.Deliver(t.Context(), env, nil); err == nil {
			t.Errorf("%s: mail was taken", when)
		}
		w.restart()
	}
	if again := w.main("m"); again.GID == e.GID {
		t.Error("the same gid lives again")
	}
	same(t, "the live one", live, w.in.Entities()[0])
}

// names are those whom the store knows, in the order in which they were made.
func (w *world) names() (names []string) {
	err := w.store.View(func(tx *store.Tx) error {
		all, err := tx.Entities()
		for _, e := range all {
			names = append(names, e.Name)
		}
		return err
	})
	if err != nil {
		w.t.Fatalf("entities: %v", err)
	}
	return names
}
