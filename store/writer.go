package store

import (
	"context"
	"slices"
	"time"

	"fleetd/fault"
	"fleetd/wait"
)

const (
	// riderLimit is how many functions of Later wait for a commit of others
	// before they become one of their own.
	riderLimit = 1024
	// riderCap bounds what Later keeps while writes fail.
	riderCap = 64 * riderLimit
	// eventBatch is how many trace events wait before they are committed. They
	// are gathered: their keys lie all over their part of the hour, so each
	// commit that takes a few writes as many pages.
	eventBatch = 2048
	// eventCap bounds the trace that waits for a commit.
	eventCap = 4 * eventBatch
	// riderDelay is how long riders and trace wait at most.
	riderDelay = time.Second
	// answerBound is how long a caller who gave up still waits to learn what
	// became of a write already begun.
	answerBound = 30 * time.Second
)

// phase is how far the writer's life has come.
type phase int

const (
	idle     phase = iota // Run was not called yet; requests wait for it
	running               // Run takes requests
	draining              // Run commits what is queued and takes no more
	ended                 // nothing is taken any more
)

// request is one function to run in a transaction of the writer.
type request struct {
	fn     func(*Tx) error
	done   chan error // one slot; nil for a rider
	result error      // of fn, in the latest run
}

// Write runs fn in a write transaction, together with those of other callers,
// and returns after the commit that carries it: nil means durable. An error of
// fn undoes what fn did and is answered to this caller alone; a panic counts as
// one. fn may be run more than once, so it touches only its Tx and begins by
// resetting what it hands out.
//
// Before Run requests wait for it; after its end, and while writes fail, they
// get STORE_UNAVAILABLE. A ctx that ends withdraws a request that was not yet
// taken. One that was taken may be committed already, and "cancelled" would be
// a lie about it: then Write waits for the result, 30 s at most.
//
// Write must not be called from inside Write, Later or View.
func (s *Store) Write(ctx context.Context, fn func(*Tx) error) error {
	if err := ctx.Err(); err != nil {
		return withdrawn(err)
	}
	r := &request{fn: fn, done: make(chan error, 1)}
	if err := s.push(r); err != nil {
		return err
	}
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
	}
	if s.withdraw(r) {
		return withdrawn(ctx.Err())
	}
	late := time.NewTimer(answerBound)
	defer late.Stop()
	select {
	case err := <-r.done:
		return err
	case <-late.C:
		return fault.Wrap(ctx.Err(), fault.StoreUnavailable, "the disk did not answer within %s; the change may be stored or not, ask for its state before repeating it", answerBound)
	}
}

func withdrawn(cause error) error {
	return fault.Wrap(cause, fault.StoreUnavailable, "the request ended before it was stored; nothing of it was, so it may be repeated")
}

// Flush returns when all that was handed to Later and Trace before is durable.
func (s *Store) Flush(ctx context.Context) error {
	s.mu.Lock()
	s.traced = time.Time{} // they have waited long enough
	s.mu.Unlock()
	return s.Write(ctx, func(*Tx) error { return nil })
}

// Later runs fn with the next commit, after what was handed in before, without
// making anybody wait: at the latest after a second, at once when very many
// wait, and before Run ends. Its error is logged. While writes fail it is kept
// and tried again; what exceeds 64 Ki functions then is lost as in a crash,
// counted and logged. The rules for fn are those of Write.
func (s *Store) Later(fn func(*Tx) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase == ended || s.riders >= riderCap {
		s.stats.LaterLost++
		s.log.Error("a deferred write was lost", "queued", s.riders, "ended", s.phase == ended)
		return
	}
	if s.riders == 0 {
		s.since = time.Now()
		s.nudge()
	}
	s.queue = append(s.queue, &request{fn: fn})
	if s.riders++; s.riders == riderLimit {
		s.nudge()
	}
}

// Trace records ev with a later commit, at the latest after a second. It never
// waits: when too many wait already, or ev's TraceID or time cannot be a key,
// ev is dropped and counted. At 0 means now.
func (s *Store) Trace(ev Event) {
	if ev.At == 0 {
		ev.At = s.opts.Now().UnixMilli()
	}
	_, err := traceKey(ev.TraceID)
	if err == nil {
		_, err = hourOf(ev.At)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil || s.phase == ended || len(s.events) >= eventCap {
		s.stats.TraceDropped++
		return
	}
	if len(s.events) == 0 {
		s.traced = time.Now()
		s.nudge()
	}
	if s.events = append(s.events, ev); len(s.events) == eventBatch {
		s.nudge()
	}
}

// nudge makes the writer look at the queue.
func (s *Store) nudge() { wait.Poke(s.wake) }

func (s *Store) push(r *request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase >= draining {
		return errClosed()
	}
	if s.down != nil {
		return s.down.fault()
	}
	s.queue = append(s.queue, r)
	s.nudge()
	return nil
}

// withdraw takes r out of the queue and reports whether it was still there.
func (s *Store) withdraw(r *request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.queue, r)
	if i < 0 {
		return false
	}
	s.queue = slices.Delete(s.queue, i, i+1)
	return true
}

// take removes the next batch from the queue and lends the events that wait, if
// they have waited enough; they are dropped from the front once they are
// durable.
func (s *Store) take() (batch []*request, events []Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, waiting, riders := 0, 0, 0
	for n < len(s.queue) && waiting < s.opts.MaxBatch && riders < riderLimit {
		if s.queue[n].done == nil {
			riders++
		} else {
			waiting++
		}
		n++
	}
	batch = slices.Clone(s.queue[:n])
	s.queue = slices.Delete(s.queue, 0, n)
	s.riders -= riders
	s.since = time.Now() // what comes from here on waits for the next one
	if rest, some := s.eventsRest(); some && (rest <= 0 || s.phase == draining) {
		events = s.events[:len(s.events):len(s.events)]
		s.traced = s.since
	}
	return batch, events
}

// due says whether a commit should begin now, else how long riders and events
// may still wait; 0 if there are none.
func (s *Store) due() (now bool, rest time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) > s.riders || s.riders >= riderLimit {
		return true, 0
	}
	rest, some := s.eventsRest()
	if s.riders > 0 {
		if riders := riderDelay - time.Since(s.since); !some || riders < rest {
			rest, some = riders, true
		}
	}
	return some && rest <= 0, max(rest, 0)
}

// eventsRest is how long the events may still wait, if there are some; s.mu is
// held.
func (s *Store) eventsRest() (rest time.Duration, some bool) {
	switch {
	case len(s.events) == 0:
		return 0, false
	case len(s.events) >= eventBatch:
		return 0, true
	}
	return riderDelay - time.Since(s.traced), true
}
