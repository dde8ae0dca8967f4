package store

import (
	"os"
	"time"
)

// counters are kept under the store's mutex.
type counters struct {
	Commits      uint64
	Failures     uint64
	LaterLost    uint64
	TraceDropped uint64
}

// Stats is what the store says of itself, for metrics and doctor.
type Stats struct {
	Path         string
	FileBytes    int64     // of the file, holes included
	FreeBytes    int64     // of it, in pages that can be used again
	Commits      uint64    // since Open
	Failures     uint64    // commits that failed
	Queued       int       // functions that wait for a commit
	LaterLost    uint64    // functions of Later that were lost
	TraceDropped uint64    // events that were dropped
	DownSince    time.Time // zero while writes work
}

// Stats returns the present figures.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	st := Stats{
		Path:    s.path,
		Commits: s.stats.Commits, Failures: s.stats.Failures,
		Queued:    len(s.queue),
		LaterLost: s.stats.LaterLost, TraceDropped: s.stats.TraceDropped,
	}
	if s.down != nil {
		st.DownSince = s.down.since
	}
	s.mu.Unlock()
	if info, err := os.Stat(s.path); err == nil {
		st.FileBytes = info.Size()
	}
	s.file.RLock()
	defer s.file.RUnlock()
	if db := s.db.Load(); db != nil {
		st.FreeBytes = int64(db.Stats().FreePageN) * int64(db.Info().PageSize)
	}
	return st
}
