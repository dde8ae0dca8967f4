package mcp

import (
	"sync"
	"time"

	mcpgo "github.com/mark3labs/mcp-go/mcp"
)

const (
	// sessionMemory is how long a session id stays bound after its last use; far
	// longer than the library keeps the session itself.
	sessionMemory = 24 * time.Hour
	// sessionsMost and sessionsMostOf bound the sessions of all and of one
	// identity: what the library keeps of each is some 15 KiB.
	sessionsMost, sessionsMostOf = 4096, 64
)

// sessions remembers whose each MCP session is: the library lets anybody who
// knows an id use it (library facts §1). An id that is not known, as after a
// restart, belongs to whoever uses it first, so that old clients go on.
type sessions struct {
	mu     sync.Mutex
	now    func() time.Time
	bound  map[string]*boundSession
	of     map[string]int // how many are bound to a gid
	pruned time.Time
}

type boundSession struct {
	gid  string
	used time.Time
	open int // requests that are being answered
	// level is what its client wants of log messages at least; "": all of them.
	level mcpgo.LoggingLevel
}

// want notes what the client of a session asked for.
func (s *sessions) want(id string, level mcpgo.LoggingLevel) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.bound[id]; b != nil {
		b.level = level
	}
}

// takes reports whether the client of a session gets log messages of a level.
func (s *sessions) takes(id string, level mcpgo.LoggingLevel) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.bound[id]
	return b == nil || b.level == "" || level.ShouldSendTo(b.level)
}

// enter binds id to gid, or reports false if it is another's. While a request
// is being answered, until leave, the session is not idle.
func (s *sessions) enter(id, gid string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if now.Sub(s.pruned) > time.Hour {
		s.prune(now)
	}
	b := s.bound[id]
	if b == nil {
		b = &boundSession{gid: gid}
		s.bound[id] = b
		s.of[gid]++
	}
	if b.gid != gid {
		return false
	}
	b.used = now
	b.open++
	return true
}

// leave ends what enter began. It forgets and returns the sessions that are too
// many, those that are idle longest; one with an open request is none of them.
func (s *sessions) leave(id string) (over []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.bound[id]
	if b == nil {
		return nil
	}
	b.used = s.now()
	b.open--
	for {
		oldest := ""
		switch {
		case s.of[b.gid] > sessionsMostOf:
			oldest = s.oldest(b.gid)
		case len(s.bound) > sessionsMost:
			oldest = s.oldest("")
		}
		if oldest == "" {
			return over
		}
		s.forget(oldest)
		over = append(over, oldest)
	}
}

// oldest is the session of gid, "" of anybody, that is idle longest; "" if none
// is idle. mu is held.
func (s *sessions) oldest(gid string) (id string) {
	for o, b := range s.bound {
		if b.open == 0 && (gid == "" || b.gid == gid) && (id == "" || b.used.Before(s.bound[id].used)) {
			id = o
		}
	}
	return id
}

func (s *sessions) prune(now time.Time) {
	s.pruned = now
	for id, b := range s.bound {
		if b.open == 0 && now.Sub(b.used) > sessionMemory {
			s.forget(id)
		}
	}
}

// forget unbinds a session; mu is held.
func (s *sessions) forget(id string) {
	gid := s.bound[id].gid
	delete(s.bound, id)
	if s.of[gid]--; s.of[gid] == 0 {
		delete(s.of, gid)
	}
}
