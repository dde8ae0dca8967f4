package store

import (
	"errors"
	"fmt"
	"os"
	"time"

	"fleetd/fault"

	bolt "go.etcd.io/bbolt"
)

// The library commits in two steps: it writes and syncs the pages, then writes
// and syncs one of the two meta pages, in turn. Where the last sync fails it
// reports an error, but the commit stands: readers see it, and so does the next
// start after a kill. What its caller was told to be not stored would be sent,
// shown or typed in all the same. So before anybody is answered and anything
// else is written the commit is revoked: its meta page is wiped, and what counts
// is the other one, as after a power cut at that moment.

// pageHeader is how many bytes of a page say which page it is, and what sort of.
const pageHeader = 16

// standing is a commit that failed and stands; the writer's own.
type standing struct {
	tx   int   // its number, 0 if there is none
	page int64 // of the file, in bytes
}

// noteStanding finds out whether a commit that failed stands.
func (s *Store) noteStanding(db *bolt.DB, tx int) {
	s.noteDamage(s.read(db, func(now *bolt.Tx) { // fails otherwise only if the file is closed
		if now.ID() >= tx {
			s.standing = standing{tx: tx, page: int64(db.Info().PageSize)}
		}
	}))
}

// revoke makes sure that no commit that failed stands. After an error it is to
// be called again before anything is written.
func (s *Store) revoke() error {
	if s.standing.tx == 0 && (s.db.Load() != nil || s.broken()) {
		return nil
	}
	s.file.Lock() // no reader may hold pages that are free again
	defer s.file.Unlock()
	if s.standing.tx != 0 {
		if err := s.wipeMeta(); err != nil {
			return fmt.Errorf("a failed commit cannot be taken back: %w", err)
		}
		s.standing = standing{}
		// Which pages are free the library remembers as that commit left them.
		if db := s.db.Swap(nil); db != nil {
			if err := db.Close(); err != nil {
				s.log.Warn("the store was not closed cleanly before it is opened anew", "error", err)
			}
		}
	}
	db, err := openBolt(s.path, s.opts.boltOptions())
	if err != nil {
		return fmt.Errorf("the store cannot be opened anew: %w", err)
	}
	s.db.Store(db)
	return nil
}

// wipeMeta empties the meta page of the commit that stands. Whether that
// reaches the disk at once does not matter to a kill; the next commit takes
// the same page and is not reported before it was synced.
func (s *Store) wipeMeta() (err error) {
	if hook := s.opts.hooks.wipe; hook != nil {
		if err := hook(); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(s.path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	at, size := int64(s.standing.tx%2)*s.standing.page+pageHeader, s.standing.page-pageHeader
	if _, err := f.WriteAt(make([]byte, size), at); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		s.log.Warn("until the store can be written again, a power cut can bring back a commit that was reported as failed", "error", err)
	}
	return nil
}

// fit reports whether another commit may be tried, and answers who waits to
// learn what became of the one that failed: not before that is certain, unless
// it takes too long.
func (s *Store) fit() bool {
	err := s.revoke()
	s.noteDamage(err)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.answer(s.down.fault())
	case s.down.damaged, time.Since(s.down.began) > answerBound:
		s.answer(unsure(err))
	}
	return err == nil && !s.down.damaged
}

// answer tells those who wait for the failed commit; s.mu is held.
func (s *Store) answer(err error) {
	for _, r := range s.unsure {
		r.done <- err
	}
	s.unsure = nil
}

func unsure(cause error) error {
	return fault.Wrap(cause, fault.StoreUnavailable, "the disk failed while the change was stored; it may be stored or not, ask for its state before repeating it")
}
