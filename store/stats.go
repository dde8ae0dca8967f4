package store

import "os"

// counters are kept under the store's mutex.
type counters struct {
	Commits      uint64 // since Open
	Failures     uint64 // commits that failed
	LaterLost    uint64 // functions of Later that were lost
	TraceDropped uint64 // events that were dropped
}

// Stats is what the store says of itself, for metrics.
type Stats struct {
	counters
	FileBytes int64 // of the file, holes included
	FreeBytes int64 // of it, in pages that can be used again
}

// Stats returns the present figures.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	st := Stats{counters: s.stats}
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
