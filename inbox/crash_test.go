package inbox

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleetd/fabric/envelope"
	"fleetd/fault"
)

// Fails if a brief is lost or written twice when the gateway dies before it
// recorded anything.
func TestACrashBeforeTheRecordCostsNothing(t *testing.T) {
	w := newWorld(t)
	e := w.worker("a")
	w.panes.gate("pane-a", "BUSY")
	remote, local := w.brief(e.GID, "remote"), w.brief(e.GID, "local")
	w.broker.publish(e.GID, remote)
	w.deliver(local)
	await(t, "DEFERRED", func() bool { return len(w.reports.told(remote.MsgID)) == 1 })
	w.restart()
	w.panes.gate("pane-a", "")
	w.awaitScreen("pane-a", local, remote) // the broker's copy arrives after the restart
}

// Fails if the scan at the start forgets one, tells it twice, or lets it be
// written.
func TestABriefThatWasBeingInjectedAtACrashIsInDoubtOnce(t *testing.T) {
	for _, written := range []bool{false, true} {
		w := newWorld(t)
		e := w.worker("a")
		env := w.brief(e.GID, "x")
		died := make(chan struct{})
		w.panes.script(func(string) *plan {
			return &plan{text: written, after: &Injection{Result: Injected}, do: func() {
				if written {
					return
				}
				w.life.alive(func() { w.dead = true })
				close(died)
			}}
		})
		w.panes.onWritten(func(string) {
			w.panes.set(func() { w.panes.all["pane-a"].text = append(w.panes.all["pane-a"].text, env.MsgID) })
			w.life.alive(func() { w.dead = true })
			close(died)
		})
		m := w.broker.publish(e.GID, env)
		<-died
		w.panes.script(nil)
		w.panes.onWritten(nil)
		screen := w.panes.screen("pane-a")
		w.restart()
		w.awaitEnd(env, "FAILED IN_DOUBT")
		await(t, "failed", func() bool { return w.outcome(e.GID, env.MsgID) == "failed IN_DOUBT" })
		w.broker.publish(e.GID, env) // a replay
		after := w.brief(e.GID, "after")
		w.broker.publish(e.GID, after)
		await(t, "the next", func() bool { return slices.Contains(w.panes.screen("pane-a"), after.MsgID) })
		if diff := cmp.Diff(append(screen, after.MsgID), w.panes.screen("pane-a")); diff != "" {
			t.Errorf("screen (-want +got):\n%s", diff)
		}
		w.restart()
		w.awaitAcked(m, "acked")
		same(t, "record", "in_doubt", w.stored(e.GID, env.MsgID))
		w.awaitEnd(env) // not told again
	}
}

// Fails if what an earlier run was injecting is called waiting until the start
// has reported it, which a store that is down holds up: its sender would hear
// that it expired, and it may be in the pane.
func TestAnOldInjectionIsInDoubtBeforeItIsReported(t *testing.T) {
	w := newWorld(t)
	e := w.worker("a")
	env := w.brief(e.GID, "x")
	died := make(chan struct{})
	w.panes.onWritten(func(string) {
		w.life.alive(func() { w.dead = true })
		close(died)
	})
	w.broker.publish(e.GID, env)
	<-died
	w.panes.onWritten(nil)
	w.crash()
	w.assemble()
	same(t, "query", "FAILED IN_DOUBT", w.query(env, e.GID, there))
	w.run()
	w.awaitEnd(env, "FAILED IN_DOUBT")
}

// Fails if the outcome is only known to the signal that was lost.
func TestAnInjectionWhoseSignalWasLostIsFoundByAQuery(t *testing.T) {
	w := newWorld(t)
	e := w.worker("a")
	env := w.brief(e.GID, "x")
	w.broker.publish(e.GID, env)
	w.awaitScreen("pane-a", env)
	await(t, "injected", func() bool { return w.outcome(e.GID, env.MsgID) == "injected" })
	w.restart()
	if got := w.query(env, e.GID, there); got != "INJECTED" {
		t.Errorf("a query says %s", got)
	}
	for _, to := range []string{e.GID, envelope.GatewayAddress(w.in.cfg.Host)} { // of a gateway it asks whether we hear and believe
		if got := w.query(w.brief(e.GID, "never sent"), to, there); got != "DEFERRED UNSEEN" {
			t.Errorf("a query to %s for a message that never came says %s", to, got)
		}
	}
}

// Fails if a copy is acked although nothing of the message is on disk: then
// the disk fails, the gateway dies, and nobody has it.
func TestARedeliveryDuringTheRecordIsNotAckedBeforeTheRecordStands(t *testing.T) {
	w := newWorld(t)
	e := w.worker("a")
	w.panes.gate("pane-a", "BUSY")
	env := w.brief(e.GID, "x")
	m := w.broker.publish(e.GID, env)
	await(t, "DEFERRED", func() bool { return len(w.reports.told(env.MsgID)) == 1 })
	w.disk.mu.Lock() // the commit hangs
	w.panes.gate("pane-a", "")
	await(t, "the commit", func() bool { return !w.disk.idle.Load() })
	w.broker.disconnect()
	w.broker.connect(w.in)
	w.disk.down = true // and then fails
	w.disk.mu.Unlock()
	await(t, "the failure", func() bool { return w.disk.failures.Load() > 0 })
	if got := w.broker.state(m); got != "" {
		t.Errorf("the broker's copy is %s", got)
	}
	w.restart()
	w.awaitScreen("pane-a", env)
}

// Fails likewise for a message that is being ended.
func TestARedeliveryDuringTheEndIsNotAckedBeforeTheEndStands(t *testing.T) {
	w := newWorld(t)
	e := w.main("m")
	env := w.brief(e.GID, "x")
	w.reports.set(func(r *reports) { r.fail = errDown })
	m := w.broker.publish(e.GID, env)
	w.clock.pass(16 * 60e9)
	await(t, "the sweeper", func() bool { return w.reports.failed() > 0 })
	w.broker.disconnect()
	w.broker.connect(w.in)
	if got := w.broker.state(m); got != "" {
		t.Errorf("the broker's copy is %s", got)
	}
	w.restart()
	w.awaitEnd(env, "FAILED EXPIRED")
	w.awaitAcked(m, "rejected")
}

// Fails if a failed commit that reached the disk after all makes the brief its
// own duplicate, and nobody injects or reports it.
func TestACommitThatOnlySeemedToFailDoesNotLoseTheBrief(t *testing.T) {
	w := newWorld(t)
	e := w.worker("a")
	env := w.brief(e.GID, "x")
	w.disk.set(func(d *disk) { d.lie = true })
	m := w.broker.publish(e.GID, env)
	w.awaitScreen("pane-a", env)
	w.awaitAcked(m, "acked")
	await(t, "injected", func() bool { return w.outcome(e.GID, env.MsgID) == "injected" })
	if open, err := w.in.OpenBriefs(e.GID); err != nil || len(open) != 1 {
		t.Errorf("open briefs: %v, %v", open, err)
	}
}

// Fails if mail that its sender was told to be not taken is shown after a
// restart, next to the copy that he sent anew.
func TestMailThatTheStoreRefusedIsNotThereAfterARestart(t *testing.T) {
	var sick atomic.Bool
	w := newWorldOn(t, openSynced(t, func() error {
		if sick.Load() {
			return errors.New("the disk is sick")
		}
		return nil
	}))
	t.Cleanup(w.stop)
	w.begin()
	e := w.main("m")
	sick.Store(true)
	refused := w.brief(e.GID, "1")
	if err := w.in.Deliver(context.Background(), refused, nil); !fault.Is(err, fault.StoreUnavailable) {
		t.Fatalf("deliver: %v", err)
	}
	sick.Store(false)
	await(t, "the disk is well", func() bool { return w.store.Healthy() == nil })
	w.deliver(w.brief(e.GID, "1 again"))
	w.restart()
	batch, got := w.poll(e.GID, Filter{}, Limit{})
	same(t, "poll", []string{"1 again"}, got)
	batch.Settle(true)
}

// Fails if mail other than briefs is acked before it is in, or lost.
func TestAReplyThatWasBeingInjectedAtACrashIsNotLost(t *testing.T) {
	w := newWorld(t)
	e := w.worker("a")
	remote, local := w.mail(envelope.Reply, e.GID, "remote"), w.mail(envelope.Reply, e.GID, "local")
	died := make(chan struct{})
	once := sync.OnceFunc(func() { close(died) }) // it tries again as long as it is let
	w.panes.script(func(string) *plan {
		return &plan{after: &Injection{Result: NotSent}, do: func() {
			w.life.alive(func() { w.dead = true })
			once()
		}}
	})
	w.deliver(local)
	<-died
	w.broker.publish(e.GID, remote)
	w.panes.script(nil)
	w.restart()
	await(t, "both", func() bool { return len(w.panes.screen("pane-a")) == 2 })
}
