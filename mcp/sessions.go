package mcp

import (
	"sync"
	"time"
)

// sessionMemory is how long a session id stays bound after its last use; far
// longer than the library keeps the session itself.
const sessionMemory = 24 * time.Hour

// sessions remembers whose each MCP session is: the library lets anybody who
// knows an id use it (library facts §1). An id that is not known, as after a
// restart, belongs to whoever uses it first, so that old clients go on.
type sessions struct {
	mu     sync.Mutex
	now    func() time.Time
	bound  map[string]boundSession
	pruned time.Time
}

type boundSession struct {
	gid  string
	used time.Time
}

// admit binds id to gid, or reports false if it is another's.
func (s *sessions) admit(id, gid string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if now.Sub(s.pruned) > time.Hour {
		s.prune(now)
	}
	if b, ok := s.bound[id]; ok && b.gid != gid {
		return false
	}
	s.bound[id] = boundSession{gid: gid, used: now}
	return true
}

func (s *sessions) prune(now time.Time) {
	s.pruned = now
	for id, b := range s.bound {
		if now.Sub(b.used) > sessionMemory {
			delete(s.bound, id)
		}
	}
}
