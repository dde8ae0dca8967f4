package store

import (
	"context"
	"runtime"
	"time"

	"fleetd/fault"
)

// Run is the one writer. It commits what Write, Later and Trace hand in until
// ctx ends or Close is called, then commits what is queued and returns. It
// returns an error only if it runs or ran already, or if what was queued at
// the end could not be written.
func (s *Store) Run(ctx context.Context) error {
	s.mu.Lock()
	if s.phase != idle {
		s.mu.Unlock()
		return fault.New(fault.Internal, "the writer of the store was started twice; this is a defect of the program")
	}
	s.phase, s.begun = running, true
	s.mu.Unlock()
	defer close(s.over)

	for s.step(ctx) {
	}
	return s.drain()
}

// step does the next thing that the writer has to do; false when it is to end.
func (s *Store) step(ctx context.Context) bool {
	if s.Healthy() != nil {
		return s.awaitWrites(ctx)
	}
	now, rest := s.due()
	if now {
		runtime.Gosched() // a commit costs much the same however many it carries: let in who is about to ask
		s.commitNext()
		return !s.stopping(ctx)
	}
	var timer <-chan time.Time
	if rest > 0 {
		t := time.NewTimer(rest)
		defer t.Stop()
		timer = t.C
	}
	select {
	case <-s.wake:
	case <-timer:
	case <-ctx.Done():
	case <-s.stop:
	}
	return !s.stopping(ctx)
}

func (s *Store) stopping(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return true
	case <-s.stop:
		return true
	default:
		return false
	}
}

// drain commits all that is queued, then lets nothing in any more.
func (s *Store) drain() error {
	s.setPhase(draining)
	if s.Healthy() != nil && s.fit() && s.probe() == nil {
		s.recovered()
	}
	for s.Healthy() == nil && s.pending() {
		s.commitNext()
	}
	return s.finish()
}

func (s *Store) setPhase(p phase) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.phase = p
}

func (s *Store) pending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue) > 0 || len(s.events) > 0
}

// finish refuses whatever is still queued and counts what is lost of it.
func (s *Store) finish() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.finishLocked()
}

func (s *Store) finishLocked() error {
	s.phase = ended
	lost, events := s.riders, len(s.events)
	if s.down != nil {
		s.answer(unsure(s.down.cause))
	}
	for _, r := range s.queue {
		if r.done != nil {
			r.done <- errClosed()
		}
	}
	s.queue, s.riders, s.events = nil, 0, nil
	s.stats.LaterLost += uint64(lost)
	s.stats.TraceDropped += uint64(events)
	if lost == 0 && events == 0 {
		return nil
	}
	s.log.Error("the store could not be written at the end", "deferred_writes_lost", lost, "trace_events_lost", events)
	return fault.New(fault.StoreUnavailable, "%d deferred writes and %d trace events could not be written before the end; what they said is asked for again at the next start", lost, events)
}

// retire ends a writer that never began, and reports whether one did.
func (s *Store) retire() (began bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.begun {
		return true
	}
	_ = s.finishLocked() // what is lost stands in the log
	return false
}
