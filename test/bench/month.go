package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"

	"fleetd/fabric/envelope"
	"fleetd/inbox"
	"fleetd/migrations"
	"fleetd/outbox"
	"fleetd/store"
)

const (
	week       = 7
	month      = 30
	stepHours  = 6
	perStep    = 40 // of each sort of traffic, at the same time
	outboxTick = 20 * time.Millisecond
	sweepLook  = 20 * time.Millisecond // the sweepers tick in real time
	otherHost  = "hostb"
)

// storeMonth is the size of the store after a month of steady traffic, against
// the size after a week of it: briefs to a worker here and their answers, mail
// to another host and answers from there. Outbox, inbox and store are the real
// ones, with their pruning; the clocks are simulated, and broker and pane take
// everything at once. What the design keeps longest, it keeps for nine days
// after the day of it (§10), so that a week has not all of it yet.
func storeMonth(ctx context.Context, h *host) error {
	dir := filepath.Join(h.dir, "month")
	y, err := newYear(ctx, dir)
	if err != nil {
		return err
	}
	var pages, files []float64 // after the week, after the month
	for day := 1; day <= month && err == nil; day++ {
		err = y.day(ctx)
		if err == nil && (day == week || day == month) {
			var used float64
			used, err = y.used(dir)
			pages, files = append(pages, used), append(files, mebi(y.store.Stats().FileBytes))
		}
	}
	if err := errors.Join(err, y.close()); err != nil {
		return err
	}
	line{
		name: "store_month", unit: "MiB", ours: pages[1:], base: pages[:1], bars: []bar{ratioAtMost(1.2)},
		note: fmt.Sprintf("%d messages of 1 KiB a day; the files have %.0f and %.0f MiB", 4*perStep*24/stepHours, files[1], files[0]),
	}.print()
	return compacted(ctx, dir)
}

// used is the size of the store up to its last page in use, taken from a copy.
func (y *year) used(dir string) (float64, error) {
	copied := filepath.Join(dir, "copy.db")
	defer os.Remove(copied)
	from, err := os.ReadFile(y.store.Path())
	if err == nil {
		err = os.WriteFile(copied, from, 0o600)
	}
	if err != nil {
		return 0, err
	}
	size, _, err := measureFile(copied)
	return size, err
}

// compacted is the size of the compacted file against the bytes of keys and
// values that live in it.
func compacted(ctx context.Context, dir string) error {
	st, err := store.Open(ctx, store.Options{Dir: dir, Steps: migrations.Steps})
	if err != nil {
		return err
	}
	_, after, err := st.Compact(ctx)
	path := st.Path()
	if err := errors.Join(err, st.Close()); err != nil {
		return err
	}
	_, live, err := measureFile(path)
	if err != nil {
		return err
	}
	line{
		name: "store_month_compact", unit: "MiB", ours: []float64{mebi(after)}, base: []float64{live},
		note: "the file after `store compact`, against the bytes of all keys and values",
	}.print()
	return nil
}

func mebi(n int64) float64 { return float64(n) / (1 << 20) }

// measureFile returns the size of a store's file up to its last page in use,
// and that of all its keys and values, in MiB.
func measureFile(path string) (used, live float64, err error) {
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		return 0, 0, err
	}
	defer db.Close()
	var bytes int64
	var walk func(b *bolt.Bucket) error
	walk = func(b *bolt.Bucket) error {
		return b.ForEach(func(k, v []byte) error {
			bytes += int64(len(k) + len(v))
			if v == nil {
				return walk(b.Bucket(k))
			}
			return nil
		})
	}
	err = db.View(func(tx *bolt.Tx) error {
		used = mebi(tx.Size())
		return tx.ForEach(func(_ []byte, b *bolt.Bucket) error { return walk(b) })
	})
	return used, mebi(bytes), err
}

// year is a gateway on a simulated clock.
type year struct {
	now          atomic.Int64 // Unix ms
	store        *store.Store
	outbox       *outbox.Outbox
	inbox        *inbox.Inbox
	lead, worker store.Entity
	far          string // gid of a main on the other host
	stops        []func()

	mu     sync.Mutex
	latest sample
}

// sample is some of the traffic of one step.
type sample struct {
	key   string // of mail to the other host
	brief string // message id
}

func (y *year) note(fn func(*sample)) {
	y.mu.Lock()
	defer y.mu.Unlock()
	fn(&y.latest)
}

func newYear(ctx context.Context, dir string) (*year, error) {
	y := &year{far: newID()}
	y.now.Store(time.Now().UnixMilli())
	begin := y.time()
	uptime := func() time.Duration { return y.time().Sub(begin) }
	var err error
	if y.store, err = store.Open(ctx, store.Options{Dir: dir, Steps: migrations.Steps, Now: y.time}); err != nil {
		return nil, err
	}
	y.actor(y.store.Run)
	y.outbox = outbox.New(outbox.Config{
		Host: "hosta", Store: y.store, Directory: known{y}, Broker: willing{}, Sign: func(*envelope.Envelope) error { return nil },
		Tick: outboxTick, Now: y.time, Uptime: uptime, NewID: newID, NewTrace: newTrace,
	})
	y.inbox = inbox.New(inbox.Config{
		Host: "hosta", Boot: 1, Store: y.store, Injector: open{}, Reports: y.outbox, Names: known{y}, Panes: open{},
		Now: y.time, Uptime: uptime, NewID: newID, Secret: rand.Text,
	})
	y.outbox.Use(y.inbox)
	if err := y.outbox.Load(); err != nil {
		return nil, errors.Join(err, y.close())
	}
	y.actor(y.outbox.Run)
	y.actor(y.inbox.Run)
	if y.lead, _, _, err = y.inbox.Register(ctx, inbox.Registration{Name: "lead", Kind: store.Main}); err == nil {
		y.worker, _, _, err = y.inbox.Register(ctx, inbox.Registration{Name: "worker", Kind: store.Worker, Pane: "w1:p1"})
	}
	if err != nil {
		return nil, errors.Join(err, y.close())
	}
	return y, nil
}

func (y *year) actor(fn func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { _ = fn(ctx) }) // an actor that ended early shows as traffic that stands still
	y.stops = append(y.stops, func() { cancel(); done.Wait() })
}

func (y *year) close() error {
	for i := len(y.stops) - 1; i >= 0; i-- {
		y.stops[i]()
	}
	return y.store.Close()
}

func (y *year) time() time.Time { return time.UnixMilli(y.now.Load()) }

// day is 24 hours of traffic, and ends when all has been pruned that is due then.
func (y *year) day(ctx context.Context) error {
	old := y.latest // of yesterday, and more than a day old at the end
	for range 24 / stepHours {
		if err := y.step(ctx); err != nil {
			return err
		}
		y.now.Add(stepHours * time.Hour.Milliseconds())
		y.store.Later(func(tx *store.Tx) error { // as the daemon's janitor does every hour
			return errors.Join(tx.PruneHomes(y.time()), tx.PruneTrace(y.time()))
		})
	}
	ctx, cancel := context.WithTimeout(ctx, tripBound)
	defer cancel()
	return untilEvery(ctx, sweepLook, func() error {
		if err := y.store.Flush(ctx); err != nil {
			return err
		}
		return y.store.View(func(tx *store.Tx) error { return y.pruned(tx, old) })
	})
}

// pruned says what the sweepers of outbox and inbox have left of old, and of
// the intents that ended more than a day ago.
func (y *year) pruned(tx *store.Tx, old sample) error {
	if old.key == "" {
		return nil
	}
	intents, err := tx.EndedBefore(y.time().Add(-store.KeyLife))
	if err != nil {
		return err
	}
	_, key, err := tx.KeyOf(y.lead.GID, old.key)
	if err != nil {
		return err
	}
	_, brief, err := tx.BriefByMsg(y.worker.GID, old.brief)
	if err == nil && (len(intents) > 0 || key || brief) {
		err = fmt.Errorf("the sweep of a day: %d old intents, an old key %t, an old brief %t", len(intents), key, brief)
	}
	return err
}

func (y *year) step(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, tripBound)
	defer cancel()
	var all sync.WaitGroup
	errs := make(chan error, 2*perStep+1)
	for range perStep {
		all.Go(func() { errs <- y.away(ctx) })
		all.Go(func() { errs <- y.brief(ctx) })
	}
	all.Go(func() { errs <- y.drain(ctx, 2*perStep) })
	all.Wait()
	close(errs)
	var list []error
	for err := range errs {
		list = append(list, err)
	}
	return errors.Join(list...)
}

// away is mail to the main of the other host, and its answer.
func (y *year) away(ctx context.Context) error {
	key := newID()
	y.note(func(s *sample) { s.key = key })
	sent, err := y.outbox.Send(ctx, outbox.Request{From: y.lead.GID, To: y.far, Content: body, Key: key})
	if err != nil {
		return err
	}
	now := y.time()
	y.inbox.Accept(ctx, y.lead.GID, envelope.Delivery{Settler: settled{}, Envelope: &envelope.Envelope{
		V: envelope.Version, Kind: envelope.Reply, MsgID: newID(), TraceID: sent.TraceID, From: y.far, To: y.lead.GID,
		Signer: otherHost, InReplyTo: sent.MsgID, Hops: 1, TS: now.UnixMilli(),
		ExpiresAt: now.Add(envelope.Life(envelope.Reply, 0)).UnixMilli(), Body: body,
	}})
	return nil
}

// brief goes to the worker here, who answers it.
func (y *year) brief(ctx context.Context) error {
	var injected *outbox.Watch
	sent, err := y.outbox.Send(ctx, outbox.Request{
		From: y.lead.GID, To: y.worker.GID, Content: body, Leaving: func(id, _ string) { injected = y.outbox.Watch(id) },
	})
	if injected != nil {
		defer injected.Close()
	}
	if err != nil {
		return err
	}
	select {
	case <-injected.C():
	case <-ctx.Done():
		return ctx.Err()
	}
	y.note(func(s *sample) { s.brief = sent.MsgID })
	b, err := y.inbox.BriefToAnswer(y.worker.GID, sent.MsgID)
	if err != nil {
		return err
	}
	_, err = y.outbox.Reply(ctx, outbox.Answer{
		From: y.worker.GID, Brief: b, Content: body, Also: inbox.MarkReplied(b, y.time()), Undo: inbox.Reopen(b),
	})
	return err
}

// drain has the main take n answers; notices that nobody waited for come with
// them and are no answers.
func (y *year) drain(ctx context.Context, n int) error {
	for got := 0; got < n; {
		w, err := y.inbox.Wait(y.lead.GID, inbox.Filter{}, inbox.Limit{Max: mainWindow})
		if err != nil {
			return err
		}
		select {
		case batch := <-w.C():
			mails, err := batch.Messages()
			batch.Settle(err == nil)
			if err != nil {
				w.Close()
				return err
			}
			for _, m := range mails {
				if m.Kind == envelope.Reply {
					got++
				}
			}
		case <-ctx.Done():
			w.Close()
			return ctx.Err()
		}
		w.Close()
	}
	return nil
}
