package store

import (
	"errors"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"fleetd/fault"
	"fleetd/test/failpoint"

	bolt "go.etcd.io/bbolt"
)

var (
	// errAgain rolls a transaction back because a function failed halfway.
	errAgain = errors.New("a function failed; run the others again")
	// errNothing rolls a transaction back because it changed nothing.
	errNothing = errors.New("nothing to commit")
)

// commitNext makes one commit of what waits and answers everybody in it.
func (s *Store) commitNext() {
	batch, events := s.take()
	failpoint.Hit("store.commit.before")
	err := s.commit(batch, events)
	failpoint.Hit("store.commit.after")
	if err != nil {
		s.failed(batch, err)
		return
	}
	s.dropEvents(len(events))
	for _, r := range batch {
		switch {
		case r.done != nil:
			r.done <- r.result
		case r.result != nil:
			s.log.Error("a deferred write failed", "error", r.result)
		}
	}
}

// commit runs the functions of batch in one transaction. A function that fails
// after it wrote spoils the transaction for all: it is left out and the others
// run again. Results stand in the requests; the error is that of the disk.
func (s *Store) commit(batch []*request, events []Event) error {
	live := slices.Clone(batch)
	for {
		spoiler := -1
		err := s.update(func(tx *Tx) error {
			if spoiler = runAll(s, tx, live); spoiler >= 0 {
				return errAgain
			}
			s.putEvents(tx, events)
			if tx.changes == 0 {
				return errNothing
			}
			return nil
		})
		switch {
		case err == nil:
			s.countCommit()
			return nil
		case errors.Is(err, errNothing):
			return nil
		case errors.Is(err, errAgain):
			live = slices.Delete(live, spoiler, spoiler+1)
		default:
			return err
		}
	}
}

// runAll runs the functions in order and returns the index of the first that
// failed after it had written, -1 if none did. One that failed before it wrote
// needs no rollback.
func runAll(s *Store, tx *Tx, live []*request) int {
	for i, r := range live {
		before := tx.changes
		r.result = s.call(tx, r.fn)
		s.noteDamage(r.result)
		if r.result != nil && tx.changes != before {
			return i
		}
	}
	return -1
}

// call runs fn and turns a panic into an error, so that one caller's defect is
// not everybody's end.
func (s *Store) call(tx *Tx, fn func(*Tx) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			tx.changes++ // who knows how far it came
			s.log.Error("a function panicked inside a transaction", "panic", p, "stack", string(debug.Stack()))
			if err = panicked(p); damage(err) {
				err = s.unreadable(err)
				return
			}
			err = fault.Wrap(err, fault.Internal, "the gateway met an error of its own and stored nothing of this request; see its log")
		}
	}()
	return fn(tx)
}

// putEvents writes them in the order of their keys: many fall on one page.
func (s *Store) putEvents(tx *Tx, events []Event) {
	order := make([]*Event, len(events)) // they are lent, and large
	for i := range events {
		order[i] = &events[i]
	}
	slices.SortStableFunc(order, func(a, b *Event) int { return strings.Compare(a.TraceID, b.TraceID) })
	for _, ev := range order {
		if err := tx.putEvent(*ev); err != nil { // Trace let only good ones in
			s.log.Error("a trace event could not be stored", "error", err)
		}
	}
}

// update is bolt's Update with the tests' hook and without its panics, which
// mean a damaged file: that stops writes, not the daemon.
func (s *Store) update(fn func(*Tx) error) (err error) {
	db := s.db.Load()
	if db == nil { // a reader gave it up this very moment
		return s.errNotOpen()
	}
	s.committing(time.Now())
	defer s.committing(time.Time{})
	tried := 0 // the number of the transaction, once it is to be committed
	err = s.transact(db, func(btx *bolt.Tx) error {
		tx := &Tx{bolt: btx}
		err := fn(tx)
		s.lastBytes = tx.bytes
		if err == nil && s.opts.hooks.beforeCommit != nil {
			err = s.opts.hooks.beforeCommit()
		}
		if err == nil {
			tried = btx.ID()
		}
		return err
	})
	if err == nil && s.opts.Synced != nil {
		err = s.opts.Synced()
	}
	if err != nil && tried != 0 {
		s.noteStanding(db, tried)
	}
	return err
}

// transact is bolt's Update. After a panic that one looks for free pages in the
// whole file, in a goroutine whose own panic on a damaged page ends the process.
func (s *Store) transact(db *bolt.DB, fn func(*bolt.Tx) error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	var btx *bolt.Tx
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		err = panicked(p)
		if btx == nil {
			s.giveUp(db)
			return
		}
		_ = btx.Rollback() // fails only if it has ended
	}()
	if btx, err = db.Begin(true); err != nil {
		return err
	}
	if err := fn(btx); err != nil {
		_ = btx.Rollback()
		return err
	}
	return btx.Commit()
}

func (s *Store) countCommit() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Commits++
}

// dropEvents forgets the first n events, which are durable now.
func (s *Store) dropEvents(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = slices.Delete(s.events, 0, n)
}
