package store

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"fleetd/fault"

	bolt "go.etcd.io/bbolt"
)

// A file that was closed in good order is not read through at the next start, so
// damage may be met while the store runs: pages and records that are not what
// they say. It does not pass by itself, and what is written over it may make it
// worse, so the store takes nothing any more until it is opened anew. It is not
// sealed then: the next start reads through it, and refuses it.

// errDamage marks what is met of a damaged file.
var errDamage = errors.New("the file is damaged")

func damage(err error) bool { return errors.Is(err, errDamage) }

// noteDamage ends the store's work for this run if err speaks of damage. It is
// said once, to the log and to all who wait for their turn; a commit under way
// is answered as it ends.
func (s *Store) noteDamage(err error) {
	if !damage(err) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down == nil {
		s.down = &outage{since: s.opts.Now()}
		s.nudge() // the writer is to see it
	}
	if s.down.damaged {
		return
	}
	s.down.damaged, s.down.cause = true, err
	s.queue = slices.DeleteFunc(s.queue, func(r *request) bool {
		if r.done == nil {
			return false // lost, and counted, at the end
		}
		r.done <- s.down.fault()
		return true
	})
	s.log.Error("THE STORE IS DAMAGED: nothing is taken any more; stop the daemon, run \"bridged store check\" and restore a copy if it finds damage", "path", s.path, "error", err)
}

// broken reports whether damage was met.
func (s *Store) broken() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.down != nil && s.down.damaged
}

func (s *Store) unreadable(cause error) error {
	return fault.Wrap(cause, fault.StoreUnavailable, "the store %s cannot be read; stop the daemon, run \"bridged store check\" and restore a copy if it finds damage", s.path)
}

// giveUp is called when a transaction panicked before it had begun: neither of
// the two meta pages is valid. The library keeps its locks then, and whoever
// began another transaction, or closed the file, would wait for ever. So nobody
// uses or closes it any more.
func (s *Store) giveUp(db *bolt.DB) { s.db.CompareAndSwap(db, nil) }

// panicked makes an error of a panic, in the function that recovered it. The
// library panics on pages that are not what they say, and what they point at
// may lie outside of the file; anything else is a defect of the program.
func panicked(p any) error {
	if _, outside := p.(interface{ Addr() uintptr }); outside || inLibrary() {
		return fmt.Errorf("%w: %v", errDamage, p)
	}
	return fmt.Errorf("panic: %v", p)
}

// library is how the names of the functions of bolt and its packages begin.
const library = "go.etcd.io/bbolt"

// inLibrary reports whether the panic that is being recovered began in bolt.
func inLibrary() bool {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	panicking := false
	for {
		f, more := frames.Next()
		switch {
		case f.Function == "runtime.gopanic":
			panicking = true
		case panicking && !strings.HasPrefix(f.Function, "runtime."):
			return strings.HasPrefix(f.Function, library)
		}
		if !more {
			return false
		}
	}
}
