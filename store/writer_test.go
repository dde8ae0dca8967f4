package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"fleetd/fault"
)

// all runs n writers at once and returns their errors once all have returned.
func all(n int, fn func(i int) error) []error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = fn(i) })
	}
	wg.Wait()
	return errs
}

// queued waits until n functions wait for the writer.
func queued(t *testing.T, s *Store, n int) {
	t.Helper()
	await(t, fmt.Sprintf("%d queued", n), func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.queue) == n
	})
}

// Fails if the writer takes one request per commit.
func TestWaitingWritersShareOneCommit(t *testing.T) {
	const n = 100
	g := &gate{}
	s := runningStore(t, Options{hooks: hooks{beforeCommit: g.pass}})
	reached, open := g.shut()
	first := make(chan error, 1)
	go func() { first <- s.Write(t.Context(), putEntity(newID(), "first")) }()
	receive(t, "the first commit", reached)

	go func() { queued(t, s, n); open() }()
	for _, err := range all(n, func(int) error { return s.Write(t.Context(), putEntity(newID(), "x")) }) {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := receive(t, "the first answer", first); err != nil {
		t.Fatal(err)
	}
	if got := s.Stats().Commits; got != 2 {
		t.Errorf("%d commits for one writer and then %d at once, want 2", got, n)
	}
}

// Fails if a batch takes more than MaxBatch.
func TestBatchIsBounded(t *testing.T) {
	s := openAt(t, Options{Dir: privateDir(t), MaxBatch: 10})
	done := make(chan []error, 1)
	go func() { done <- all(30, func(int) error { return s.Write(t.Context(), putEntity(newID(), "x")) }) }()
	queued(t, s, 30)
	start(t, s)
	for _, err := range receive(t, "answers", done) {
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := s.Stats().Commits; got != 3 {
		t.Errorf("%d commits, want 3 of 10 each", got)
	}
}

// Fails if one function's error or panic reaches another caller, or if what it
// had put before it failed stays in the file.
func TestFailureIsAnsweredToItsCallerAlone(t *testing.T) {
	boom := errors.New("boom")
	s := openAt(t, Options{Dir: privateDir(t)})
	ids := make([]string, 30)
	for i := range ids {
		ids[i] = newID()
	}
	done := make(chan []error, 1)
	go func() {
		done <- all(len(ids), func(i int) error {
			return s.Write(t.Context(), func(tx *Tx) error {
				if i%3 == 2 {
					return boom // before it wrote
				}
				if err := tx.PutEntity(Entity{GID: ids[i]}); err != nil {
					return err
				}
				switch {
				case i%6 == 0:
					return boom
				case i%6 == 3:
					panic("a defect")
				}
				return nil
			})
		})
	}()
	queued(t, s, len(ids)) // so that they are one batch
	start(t, s)
	for i, err := range receive(t, "answers", done) {
		_, found := entityNamed(s, ids[i])
		switch {
		case i%6 == 0 || i%3 == 2:
			if !errors.Is(err, boom) || found == nil {
				t.Errorf("%d: error %v, stored %v; want its own error and nothing stored", i, err, found == nil)
			}
		case i%6 == 3:
			if !fault.Is(err, fault.Internal) || found == nil {
				t.Errorf("%d: error %v, stored %v; want INTERNAL and nothing stored", i, err, found == nil)
			}
		default:
			if err != nil || found != nil {
				t.Errorf("%d: error %v, lookup %v; want it stored", i, err, found)
			}
		}
	}
}

// Fails if a value may be empty: inside one transaction it reads as absent.
func TestDuplicateInOneBatchIsSeen(t *testing.T) {
	s := openAt(t, Options{Dir: privateDir(t)})
	msg, gid := newID(), newID()
	var first atomic.Int32
	done := make(chan []error, 1)
	go func() {
		done <- all(8, func(int) error {
			var mine bool
			err := s.Write(t.Context(), func(tx *Tx) error {
				_, found, err := tx.SeenOf(0, msg, gid)
				if mine = !found; err != nil || found {
					return err
				}
				return tx.PutSeen(0, msg, gid, Seen{})
			})
			if mine {
				first.Add(1)
			}
			return err
		})
	}()
	queued(t, s, 8)
	start(t, s)
	for _, err := range receive(t, "answers", done) {
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := first.Load(); got != 1 {
		t.Errorf("%d of 8 callers were the first to put the same message, want 1", got)
	}
	if got := s.Stats().Commits; got != 1 {
		t.Errorf("%d commits, want all in one batch", got)
	}
}

// Fails if a cancelled request that nobody took is written after all.
func TestCancelledBeforeTakenIsWithdrawn(t *testing.T) {
	s := openAt(t, Options{Dir: privateDir(t)})
	gid := newID()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Write(ctx, putEntity(gid, "x")) }()
	queued(t, s, 1) // Run was not called yet
	cancel()
	if err := receive(t, "the answer", done); !errors.Is(err, context.Canceled) {
		t.Errorf("answer %v, want context.Canceled", err)
	}
	start(t, s)
	write(t, s, putEntity(newID(), "other"))
	if _, err := entityNamed(s, gid); err == nil {
		t.Error("the withdrawn write is in the file")
	}
}

// Fails if a caller who gives up is told "cancelled" about a write that is
// being committed.
func TestCancelledWhileCommittingTellsTheTruth(t *testing.T) {
	g := &gate{}
	s := runningStore(t, Options{hooks: hooks{beforeCommit: g.pass}})
	reached, open := g.shut()
	gid := newID()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Write(ctx, putEntity(gid, "x")) }()
	receive(t, "the commit", reached)
	cancel()
	open()
	if err := receive(t, "the answer", done); err != nil {
		t.Errorf("answer %v for a write that was committed, want nil", err)
	}
	if _, err := entityNamed(s, gid); err != nil {
		t.Error(err)
	}
}

// Fails if the end of Run leaves a caller waiting, or loses what was queued.
func TestEndOfRunCommitsTheQueueAndRefusesMore(t *testing.T) {
	g := &gate{}
	s := openAt(t, Options{Dir: privateDir(t), hooks: hooks{beforeCommit: g.pass}})
	reached, open := g.shut()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	first := make(chan error, 1)
	go func() { first <- s.Write(t.Context(), putEntity(newID(), "first")) }()
	receive(t, "the first commit", reached)

	later, waiting, trace := newID(), newID(), "0123456789abcdef0123456789abcdef"
	second := make(chan error, 1)
	go func() { second <- s.Write(t.Context(), putEntity(waiting, "second")) }()
	s.Later(putEntity(later, "later"))
	s.Trace(Event{TraceID: trace, Step: "sent"})
	queued(t, s, 2)
	cancel()
	open()
	for what, c := range map[string]chan error{"first": first, "second": second, "Run": ended} {
		if err := receive(t, what, c); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, gid := range []string{later, waiting} {
		if _, err := entityNamed(s, gid); err != nil {
			t.Error(err)
		}
	}
	view(t, s, func(tx *Tx) error {
		if events, err := tx.TraceOf(trace); err != nil || len(events) != 1 {
			t.Errorf("%d events (%v), want 1", len(events), err)
		}
		return nil
	})
	if err := s.Write(t.Context(), putEntity(newID(), "x")); !fault.Is(err, fault.StoreUnavailable) {
		t.Errorf("a write after the end: %v, want STORE_UNAVAILABLE", err)
	}
}

// Fails if Close does not answer those who wait for a Run that never came.
func TestCloseWithoutRunAnswersWaiters(t *testing.T) {
	s := openAt(t, Options{Dir: privateDir(t)})
	done := make(chan error, 1)
	go func() { done <- s.Write(t.Context(), putEntity(newID(), "x")) }()
	queued(t, s, 1)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, "the answer", done); !fault.Is(err, fault.StoreUnavailable) {
		t.Errorf("answer %v, want STORE_UNAVAILABLE", err)
	}
	if err := s.View(func(*Tx) error { return nil }); !fault.Is(err, fault.StoreUnavailable) {
		t.Errorf("a view of a closed store: %v, want STORE_UNAVAILABLE", err)
	}
}

// Fails if Close leaves the writer running.
func TestCloseEndsRun(t *testing.T) {
	s := openAt(t, Options{Dir: privateDir(t)})
	ended := make(chan error, 1)
	go func() { ended <- s.Run(context.Background()) }()
	write(t, s, putEntity(newID(), "x"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, "the end of Run", ended); err != nil {
		t.Error(err)
	}
}
