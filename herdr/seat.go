package herdr

import (
	"context"
	"sync"
	"time"
)

// seat is what the injector remembers of one terminal between injections. Its
// fields belong to the holder of its lock.
type seat struct {
	lock chan struct{} // holds one token

	users int // waiting for the lock or holding it; guarded by seats
	used  time.Time

	occupant string    // kind and session of who sits there
	first    time.Time // seen first
	composer time.Time // its empty composer was seen first
	status   string
	seq      uint64
	since    time.Time // status and seq are these since
	misses   int       // successive looks that found no agent
}

// meet notes an agent as it was seen at now.
func (s *seat) meet(a AgentInfo, now time.Time) {
	who := a.Agent
	if a.Session != nil {
		who += " " + a.Session.Value
	}
	if s.occupant != who {
		s.occupant, s.first, s.composer, s.status = who, now, time.Time{}, ""
	}
	if s.status != a.AgentStatus || s.seq != a.StateChangeSeq {
		s.status, s.seq, s.since = a.AgentStatus, a.StateChangeSeq, now
	}
}

// seatLife is how long a terminal that nobody injects into is remembered.
const seatLife = time.Hour

// seats are the seats by terminal.
type seats struct {
	mu   sync.Mutex
	byID map[string]*seat
}

// take waits for the lock of a terminal. busy is called once if it was not free.
func (ss *seats) take(ctx context.Context, terminal string, now time.Time, busy func()) (*seat, error) {
	s := ss.join(terminal, now)
	select {
	case <-s.lock:
		return s, nil
	default:
	}
	busy()
	select {
	case <-s.lock:
		return s, nil
	case <-ctx.Done():
		ss.leave(s, now)
		return nil, ctx.Err()
	}
}

func (ss *seats) join(terminal string, now time.Time) *seat {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.byID == nil {
		ss.byID = map[string]*seat{}
	}
	s, ok := ss.byID[terminal]
	if !ok {
		for id, old := range ss.byID {
			if old.users == 0 && now.Sub(old.used) > seatLife {
				delete(ss.byID, id)
			}
		}
		s = &seat{lock: make(chan struct{}, 1)}
		s.lock <- struct{}{}
		ss.byID[terminal] = s
	}
	s.users++
	return s
}

func (ss *seats) leave(s *seat, now time.Time) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	s.users--
	s.used = now
}

// give returns the lock.
func (ss *seats) give(s *seat, now time.Time) {
	s.lock <- struct{}{}
	ss.leave(s, now)
}
