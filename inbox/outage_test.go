package inbox

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleetd/fabric/envelope"
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

// Fails if mail that waits for the store outlives the channel that it came by,
// so that the link cannot come back before the disk does; if it is settled all
// the same; or if the wait is silent, or said again at each try.
func TestMailThatWaitsForTheStoreLetsItsChannelGo(t *testing.T) {
	w := newWorldOn(t, openStore(t))
	t.Cleanup(w.stop)
	var log lines
	w.begin(func(c *Config) { c.Logger = hclog.New(&hclog.LoggerOptions{Output: &log}) })
	e := w.main("m")
	w.reports.set(func(r *reports) { r.fail = errDown })
	w.broker.disconnect() // it comes by a channel of its own
	m := w.broker.publish(e.GID, w.mail("FAILED", e.GID, ""))
	h := &hold{b: w.broker, gen: w.broker.gen, m: m}
	channel, cut := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.in.Accept(channel, e.GID, envelope.Delivery{Envelope: m.env, Settler: h})
	}()
	await(t, "some tries", func() bool { return w.reports.tries() > 3 })
	cut()
	select {
	case <-done:
	case <-time.After(hang):
		t.Fatal("it waits on")
	}
	same(t, "the broker's copy", "", w.broker.state(m))
	same(t, "said", []int{1, 1}, []int{log.count("waits for the store;"), log.count("waits for the store no more")})
	w.reports.set(func(r *reports) { r.fail = nil })
	w.broker.connect(w.in)
	w.awaitAcked(m, "acked")
}

// lines is a log that tests can look into.
type lines struct {
	mu  sync.Mutex
	all strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *lines) count(words string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.all.String(), words)
}
