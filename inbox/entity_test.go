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
	"fleetd/fault"
	"fleetd/store"
)

// wants checks that err carries code and names every word.
func wants(t *testing.T, err error, code fault.Code, words ...string) {
	t.Helper()
	if !fault.Is(err, code) {
		t.Errorf("error %v, want %s", err, code)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not say %q", err, word)
		}
	}
}

// many is n names of groups.
func many(n int) (groups []string) {
	for i := range n {
		groups = append(groups, fmt.Sprintf("g%d", i))
	}
	return groups
}

// Fails if a wrong registration is taken, or refused without the reason.
func TestARegistrationIsChecked(t *testing.T) {
	w := newWorld(t)
	w.worker("a")
	for _, c := range []struct {
		r    Registration
		code fault.Code
		word string
	}{
		{Registration{Name: "Upper", Kind: store.Main}, fault.BadRequest, `"Upper"`},
		{Registration{Name: "all", Kind: store.Main}, fault.BadRequest, `"all"`},
		{Registration{Name: "x", Kind: "boss"}, fault.BadRequest, `"boss"`},
		{Registration{Name: "x", Kind: store.Main, Groups: []string{"fine", "not fine"}}, fault.BadRequest, `"not fine"`},
		{Registration{Name: "x", Kind: store.Main, Groups: many(33)}, fault.TooLarge, "33 groups"},
		{Registration{Name: "a", Kind: store.Worker, Groups: many(33)}, fault.TooLarge, "33 groups"},
		{Registration{Name: "x", Kind: store.Main, Pane: "pane-a"}, fault.Conflict, "belongs to a"},
		{Registration{Name: "x", Kind: store.Worker, Pane: "nowhere"}, fault.BadRequest, "nowhere"},
		{Registration{Name: "x", Kind: store.Worker, Pane: "pane-a"}, fault.Conflict, "belongs to a"},
		{Registration{Name: "a", Kind: store.Main}, fault.Conflict, "registered as worker"},
	} {
		_, _, _, err := w.in.Register(t.Context(), c.r)
		wants(t, err, c.code, c.word)
	}
	same(t, "entities", 1, len(w.in.Entities()))
}

// Fails if what a token opened outlives the token or its entity, or if another
// registration, or a new token for somebody else, ends it.
func TestALeaseEndsWithItsToken(t *testing.T) {
	t.Attr("threat", "U4")
	w := newWorld(t)
	register := func(r Registration) string {
		t.Helper()
		r.Kind = store.Main
		_, token, _, err := w.in.Register(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	lease := func(token string) context.Context {
		t.Helper()
		_, lease, ok := w.in.ByToken(token)
		if !ok {
			t.Fatal("the token is not known")
		}
		return lease
	}
	ended := func(leases ...context.Context) (all []bool) {
		for _, l := range leases {
			all = append(all, l.Err() != nil)
		}
		return all
	}
	old := lease(register(Registration{Name: "m"}))
	e, _ := w.in.ByName("m")
	life := w.in.Life(e.GID)
	register(Registration{Name: "m", Groups: []string{"g"}})
	register(Registration{Name: "other"})
	register(Registration{Name: "other", NewToken: true})
	same(t, "registered again", []bool{false, false}, ended(old, life))
	young := lease(register(Registration{Name: "m", NewToken: true}))
	same(t, "a new token", []bool{true, false, false}, ended(old, young, life))
	if _, err := w.in.Unregister(t.Context(), "m"); err != nil {
		t.Fatal(err)
	}
	same(t, "unregistered", []bool{true, true}, ended(young, life))
}

// Fails if an entity is another one when it is registered again, or its token
// is given away twice.
func TestATokenIsGivenOnceAndANewOneReplacesIt(t *testing.T) {
	t.Attr("threat", "U4")
	w := newWorld(t)
	register := func(r Registration) (store.Entity, string, bool) {
		t.Helper()
		e, token, created, err := w.in.Register(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		return e, token, created
	}
	e, first, created := register(Registration{Name: "m", Kind: store.Main, Groups: []string{"g"}})
	again, none, recreated := register(Registration{Name: "m", Kind: store.Main})
	same(t, "the second registration", []any{e, "", false, true}, []any{again, none, recreated, created})
	owner := func(token string) string {
		e, _, _ := w.in.ByToken(token)
		return e.Name
	}
	same(t, "owner", "m", owner(first))
	_, second, _ := register(Registration{Name: "m", Kind: store.Main, NewToken: true})
	same(t, "owners", []string{"", "m", "", ""}, []string{owner(first), owner(second), owner(""), owner("else")})
	w.restart()
	same(t, "owners after a restart", []string{"", "m"}, []string{owner(first), owner(second)})
	same(t, "member", []bool{true, false, false},
		[]bool{w.in.Member(e.GID, "g"), w.in.Member(e.GID, "h"), w.in.Member(e.GID, "all")})
	same(t, "worker in all", true, w.in.Member(w.worker("a").GID, "all"))
	if _, err := w.in.Unregister(t.Context(), "m"); err != nil {
		t.Fatal(err)
	}
	same(t, "owner after the end", "", owner(second))
}

// Fails if two who register one name at the same time become two.
func TestANameIsOneEntity(t *testing.T) {
	w := newWorld(t)
	var all sync.Map
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			e, _, _, err := w.in.Register(context.Background(), Registration{Name: "m", Kind: store.Main})
			if err != nil {
				t.Error(err)
			}
			all.Store(e.GID, true)
		})
	}
	wg.Wait()
	n := 0
	all.Range(func(any, any) bool { n++; return true })
	same(t, "gids", 1, n)
}

// Fails if an ended name cannot be taken anew, or comes back under its old gid.
func TestAGidThatIsGoneNeverLivesAgain(t *testing.T) {
	w := newWorld(t)
	var told []store.EntityState
	w.in.cfg.Changed = func(e store.Entity) { told = append(told, e.State) }
	e := w.worker("a")
	if _, err := w.in.Unregister(t.Context(), "a"); err != nil {
		t.Errorf("unregister: %v", err)
	}
	gone := w.in.AwaitEnd(t.Context(), e.GID)
	if gone.State != store.EntityGone || gone.GoneAt != w.clock.now().UnixMilli() {
		t.Errorf("unregistered: %+v", gone)
	}
	_, err := w.in.Unregister(t.Context(), "a")
	wants(t, err, fault.UnknownRecipient, `"a"`)
	again := w.worker("a")
	if again.GID == e.GID {
		t.Error("the same gid lives again")
	}
	same(t, "told", []store.EntityState{store.EntityLive, store.EntityStopping, store.EntityGone, store.EntityLive}, told)
	w.restart()
	_, alive := w.in.ByName(e.GID)
	same(t, "alive after a restart", false, alive)
	_, err = w.in.Wait(e.GID, Filter{}, Limit{})
	wants(t, err, fault.NotAuthenticated)
	wants(t, w.in.Deliver(t.Context(), w.brief(e.GID, "x"), nil), fault.PaneGone)
	late := w.brief(e.GID, "late")
	w.awaitAcked(w.broker.publish(e.GID, late), "acked")
	w.awaitEnd(late, "FAILED PANE_GONE")
}

// Fails if the end is told but not on record: after a restart it would live.
func TestAnEndThatCannotBeRecordedDidNotHappen(t *testing.T) {
	w := newWorld(t)
	e := w.worker("a")
	w.disk.set(func(d *disk) { d.down = true })
	_, err := w.in.Unregister(t.Context(), "a")
	wants(t, err, fault.StoreUnavailable)
	_, alive := w.in.ByName("a")
	same(t, "alive", true, alive)
	w.disk.set(func(d *disk) { d.down = false })
	env := w.brief(e.GID, "x")
	w.broker.publish(e.GID, env)
	w.awaitScreen("pane-a", env)
}

// Fails if anybody who waits for a worker whose pane ended is not told, or is
// told something else than the truth.
func TestAWorkerWhosePaneEndsLeavesNobodyWaiting(t *testing.T) {
	w := newWorld(t)
	e := w.worker("a")
	open, doubt := w.brief(e.GID, "open"), w.brief(e.GID, "doubt")
	w.panes.script(func(id string) *plan {
		if id == doubt.MsgID {
			return &plan{after: &Injection{Result: InDoubt}}
		}
		return nil
	})
	replied := w.brief(e.GID, "replied")
	for _, env := range []*envelope.Envelope{replied, open, doubt} {
		w.broker.publish(e.GID, env)
	}
	w.awaitEnd(doubt, "FAILED IN_DOUBT")
	w.disk.flush()
	brief, err := w.in.BriefToAnswer(e.GID, replied.MsgID)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.disk.Write(t.Context(), MarkReplied(brief, w.clock.now())); err != nil {
		t.Fatal(err)
	}
	w.panes.gate("pane-a", "BUSY")
	remote, local, reply := w.brief(e.GID, "remote"), w.brief(e.GID, "local"), w.mail(envelope.Reply, e.GID, "reply")
	m := w.broker.publish(e.GID, remote)
	w.deliver(local)
	n := w.broker.publish(e.GID, reply)
	w.panes.set(func() { w.panes.all["pane-a"].gone = true })

	w.awaitEnd(remote, "FAILED PANE_GONE")
	w.awaitEnd(local, "FAILED PANE_GONE")
	w.awaitEnd(open, "ABANDONED PANE_GONE")
	w.awaitEnd(doubt, "FAILED IN_DOUBT", "ABANDONED PANE_GONE")
	w.awaitEnd(replied)
	w.awaitAcked(m, "acked")
	w.awaitAcked(n, "acked")
	same(t, "query of the open one", "ABANDONED PANE_GONE", w.answers(open, e.GID))
	same(t, "query of the waiting one", "FAILED PANE_GONE", w.answers(remote, e.GID))
	same(t, "held", 0, len(w.held(e.GID)))
	w.restart()
	w.awaitEnd(open) // once was enough
	if left, err := w.in.OpenBriefs(e.GID); err != nil || len(left) != 0 {
		t.Errorf("open briefs: %v, %v", left, err)
	}
}

func (w *world) answers(env *envelope.Envelope, gid string) string {
	w.disk.flush()
	return w.query(env, gid, there)
}

// Fails if a crash in the middle of an end leaves somebody waiting for ever.
func TestAnEndGoesOnAfterACrash(t *testing.T) {
	w := newWorld(t)
	e, m := w.worker("a"), w.main("m")
	open := w.brief(e.GID, "open")
	w.broker.publish(e.GID, open)
	w.awaitScreen("pane-a", open)
	await(t, "injected", func() bool { return w.outcome(e.GID, open.MsgID) == "injected" })
	w.panes.gate("pane-a", "BUSY")
	local, mains := w.brief(e.GID, "local"), w.brief(m.GID, "main's")
	w.deliver(local)
	w.deliver(mains)
	w.reports.set(func(r *reports) { r.fail = errDown })
	for _, name := range []string{"a", "m"} {
		if _, err := w.in.Unregister(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "reports that fail", func() bool { return w.reports.failed() > 1 })
	w.restart()
	w.awaitEnd(local, "FAILED PANE_GONE")
	w.awaitEnd(mains, "FAILED PANE_GONE")
	w.awaitEnd(open, "ABANDONED PANE_GONE")
}

// Fails if the end of a worker overtakes an injection that is under way, and
// its brief is called abandoned and failed, or neither.
func TestAnEndWaitsForTheInjectionThatIsUnderWay(t *testing.T) {
	for _, refused := range []bool{false, true} {
		t.Run(fmt.Sprint(refused), func(t *testing.T) {
			w := newWorld(t)
			e := w.worker("a")
			env := w.brief(e.GID, "x")
			w.panes.script(func(string) *plan {
				p := &plan{do: func() {
					if _, err := w.in.Unregister(context.Background(), "a"); err != nil {
						t.Error(err)
					}
				}}
				if refused {
					p.after = &Injection{Result: NotSent, Reason: "NOT_INJECTED"}
				}
				return p
			})
			w.broker.publish(e.GID, env)
			if refused {
				w.awaitEnd(env, "FAILED PANE_GONE")
			} else {
				w.awaitEnd(env, "ABANDONED PANE_GONE")
			}
			await(t, "nothing left", func() bool {
				open, err := w.in.OpenBriefs(e.GID)
				w.disk.flush()
				return err == nil && len(open) == 0
			})
		})
	}
}

// Fails if mail that comes in the moment of the end stays in the box.
func TestMailThatMeetsTheEndIsAnswered(t *testing.T) {
	w := newWorld(t)
	e := w.main("m")
	offered, coming := w.brief(e.GID, "offered"), w.brief(e.GID, "coming")
	m := w.broker.publish(e.GID, offered)
	batch, _ := w.poll(e.GID, Filter{}, Limit{})
	w.disk.mu.Lock() // a delivery is being stored
	done := make(chan error, 1)
	go func() { done <- w.in.Deliver(context.Background(), coming, nil) }()
	await(t, "the commit", func() bool { return !w.disk.idle.Load() })
	ended := make(chan error, 1)
	go func() {
		_, err := w.in.Unregister(context.Background(), "m")
		ended <- err
	}()
	w.disk.mu.Unlock()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil {
		w.awaitEnd(coming, "FAILED PANE_GONE")
	}
	same(t, "what is being written", "", w.broker.state(m))
	batch.Settle(false)
	w.awaitEnd(offered, "FAILED PANE_GONE")
	w.awaitAcked(m, "acked")
}

// Fails if a foreground child of the agent costs the worker its life, or a
// pane without an agent keeps its mail for ever.
func TestAnAgentThatIsNotSeenGetsSomeTime(t *testing.T) {
	w := newWorld(t)
	e := w.worker("a")
	w.panes.set(func() { w.panes.all["pane-a"].agent = false })
	env := w.brief(e.GID, "x")
	w.broker.publish(e.GID, env)
	await(t, "DEFERRED", func() bool { return slices.Equal(w.reports.told(env.MsgID), []string{"DEFERRED AGENT_GONE"}) })
	w.clock.pass(59 * time.Second)
	w.panes.set(func() { w.panes.all["pane-a"].agent = true })
	w.awaitScreen("pane-a", env)

	w.panes.set(func() { w.panes.all["pane-a"].agent = false })
	last := w.brief(e.GID, "last")
	w.broker.publish(e.GID, last)
	look := func() {
		t.Helper()
		looks := w.panes.absent.Load()
		await(t, "a look", func() bool { return w.panes.absent.Load() > looks })
	}
	look()
	look() // what the one before noted is noted at this time
	w.clock.pass(40 * time.Second)
	look()
	look() // what the one before decided is done
	w.awaitEnd(last)
	w.clock.pass(40 * time.Second)
	w.awaitEnd(last, "FAILED PANE_GONE")
	w.awaitEnd(env, "ABANDONED PANE_GONE")
	_, alive := w.in.ByName("a")
	same(t, "alive", false, alive)
}

// Fails if two looks far apart count as an absence in between.
func TestAnAbsenceIsOnlyWhatWasSeen(t *testing.T) {
	var a absence
	now := time.Now()
	note := func(after, want time.Duration) {
		t.Helper()
		now = now.Add(after)
		same(t, "absent", want, a.note(now, time.Minute))
	}
	note(0, 0)
	note(40*time.Second, 40*time.Second)
	note(40*time.Second, 80*time.Second)
	note(time.Hour, 0)
	note(time.Second, time.Second)
}
