package inbox

import (
	"context"
	"errors"
	"testing"
	"time"

	"fleetd/fault"
	"fleetd/store"
)

// Fails if anything is acked, rejected, told or injected while it cannot be
// recorded, or if the inbox needs help to go on.
func TestAnOutageOfTheStoreHoldsMailBackAndHealsByItself(t *testing.T) {
	w := newWorld(t)
	e := w.worker("a")
	before, env := w.brief(e.GID, "before"), w.brief(e.GID, "x")
	w.broker.publish(e.GID, before)
	w.awaitScreen("pane-a", before)
	w.disk.set(func(d *disk) { d.down = true })
	m := w.broker.publish(e.GID, env)
	wants(t, w.in.Deliver(t.Context(), w.brief(e.GID, "local"), nil), fault.StoreUnavailable)
	await(t, "some tries", func() bool { return w.disk.failures.Load() > 3 })
	same(t, "the broker's copy", "", w.broker.state(m))
	w.awaitScreen("pane-a", before)
	same(t, "told", []string{"DEFERRED STORE_UNAVAILABLE"}, w.reports.told(env.MsgID))
	w.disk.set(func(d *disk) { d.down = false })
	w.awaitScreen("pane-a", before, env)
	w.awaitAcked(m, "acked")
	await(t, "injected", func() bool { return w.outcome(e.GID, env.MsgID) == "injected" })
}

// Fails if a brief that herdr refused while the disk is full is dropped.
func TestAnOutageAfterThePointOfNoReturnIsWaitedFor(t *testing.T) {
	w := newWorld(t)
	e := w.worker("a")
	env := w.brief(e.GID, "x")
	tries := 0
	w.panes.script(func(string) *plan {
		if tries++; tries > 1 {
			return nil
		}
		return &plan{after: &Injection{Result: NotSent, Reason: "NOT_INJECTED"}, do: func() {
			w.disk.set(func(d *disk) { d.down = true })
		}}
	})
	w.broker.publish(e.GID, env)
	await(t, "some tries", func() bool { return w.disk.failures.Load() > 1 })
	w.disk.set(func(d *disk) { d.down = false })
	w.awaitScreen("pane-a", env)
	w.awaitEnd(env)
}

// Fails if a stop waits for a disk that does not come back.
func TestAStopDoesNotWaitForTheStore(t *testing.T) {
	w := newWorld(t)
	e := w.main("m")
	w.reports.set(func(r *reports) { r.fail = errDown })
	done := make(chan bool)
	env := w.mail("ABANDONED", e.GID, "")
	var m *message
	go func() {
		m = w.broker.publish(e.GID, env)
		close(done)
	}()
	await(t, "the wait", func() bool {
		w.broker.mu.Lock()
		defer w.broker.mu.Unlock()
		return len(w.broker.queues[e.GID]) == 1
	})
	w.stop()
	<-done
	same(t, "the broker's copy", "", w.broker.state(m))
}

// Fails if a send is in the inbox without what goes with it, or the other way
// round.
func TestWhatGoesWithADeliveryIsCommittedWithIt(t *testing.T) {
	w := newWorld(t)
	e := w.main("m")
	key := func(id string) func(*store.Tx) error {
		return func(tx *store.Tx) error {
			return tx.PutKey(e.GID, "key", store.Key{MsgID: id, At: w.clock.now().UnixMilli()})
		}
	}
	stored := func() string {
		var k store.Key
		_ = w.store.View(func(tx *store.Tx) (err error) {
			k, _, err = tx.KeyOf(e.GID, "key")
			return err
		})
		return k.MsgID
	}
	env := w.brief(e.GID, "1")
	broken := errors.New("broken")
	err := w.in.Deliver(t.Context(), env, func(tx *store.Tx) error { return errors.Join(key(env.MsgID)(tx), broken) })
	if !errors.Is(err, broken) {
		t.Errorf("deliver: %v", err)
	}
	same(t, "key and mail", []any{"", 0, 0}, []any{stored(), w.in.Held(e.GID), len(w.held(e.GID))})
	if err := w.in.Deliver(t.Context(), env, key(env.MsgID)); err != nil {
		t.Fatal(err)
	}
	same(t, "key and mail", []any{env.MsgID, 1, 1}, []any{stored(), w.in.Held(e.GID), len(w.held(e.GID))})
	// A delivery that is there already brings what goes with it all the same.
	other := newID()
	if err := w.in.Deliver(t.Context(), env, key(other)); err != nil {
		t.Fatal(err)
	}
	same(t, "key and mail", []any{other, 1, 1}, []any{stored(), w.in.Held(e.GID), len(w.held(e.GID))})
}

// Fails if the second of two who deliver one message is told that it is stored
// before it is, or because the first was.
func TestOneMessageDeliveredTwiceAtOnceIsStoredOnceForBoth(t *testing.T) {
	for _, fails := range []bool{false, true} {
		w := newWorld(t)
		e := w.main("m")
		env := w.brief(e.GID, "1")
		broken := errors.New("broken")
		w.disk.mu.Lock()
		first, second := make(chan error, 1), make(chan error, 1)
		go func() {
			first <- w.in.Deliver(context.Background(), env, func(*store.Tx) error {
				if fails {
					return broken
				}
				return nil
			})
		}()
		await(t, "the commit", func() bool { return !w.disk.idle.Load() })
		go func() { second <- w.in.Deliver(context.Background(), env, nil) }()
		select {
		case <-first:
			t.Error("the first returned before the commit")
		case <-second:
			t.Error("the second returned before the commit")
		case <-time.After(50 * time.Millisecond):
		}
		same(t, "shown before it is stored", 0, w.in.Held(e.GID))
		w.disk.mu.Unlock()
		if err := <-first; (err != nil) != fails {
			t.Errorf("first: %v", err)
		}
		if err := <-second; err != nil {
			t.Errorf("second: %v", err)
		}
		same(t, "held", []int{1, 1}, []int{w.in.Held(e.GID), len(w.held(e.GID))})
	}
}
