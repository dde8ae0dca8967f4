package main

import (
	"sync"
	"time"

	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/fabric/roster"
	"fleetd/herdr"
	"fleetd/store"
)

// statuses joins what is known of each local entity into its status in the
// roster: what herdr sees of its pane, and why its gate stays closed.
type statuses struct {
	roster *roster.Roster
	mu     sync.Mutex
	view   herdr.View
	known  map[string]*status // by gid
}

type status struct {
	entity  store.Entity
	trouble roster.State // what keeps its inbox from being attached
	now     roster.Status
}

func newStatuses(r *roster.Roster) *statuses {
	return &statuses{roster: r, known: map[string]*status{}}
}

// follow begins or changes what is watched of an entity.
func (s *statuses) follow(e store.Entity) {
	s.mu.Lock()
	known := s.known[e.GID]
	if known == nil {
		known = &status{}
		s.known[e.GID] = known
	}
	known.entity = e
	now := s.look(known)
	s.mu.Unlock()
	s.roster.SetStatus(e.GID, now)
}

// inbox takes whether the entity's inbox is ours.
func (s *statuses) inbox(gid string, state fabric.InboxStatus) {
	var trouble roster.State
	switch state {
	case fabric.InboxContested:
		trouble = roster.Contested
	case fabric.InboxMismatched:
		trouble = roster.Mismatched
	}
	s.mu.Lock()
	known := s.known[gid]
	if known == nil || known.trouble == trouble {
		s.mu.Unlock()
		return
	}
	known.trouble = trouble
	now := s.look(known)
	s.mu.Unlock()
	s.roster.SetStatus(gid, now)
}

func (s *statuses) forget(gid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, gid)
}

// seen takes what herdr shows now.
func (s *statuses) seen(v herdr.View) {
	changed := map[string]roster.Status{}
	s.mu.Lock()
	s.view = v
	for gid, known := range s.known {
		before := known.now
		if now := s.look(known); now != before {
			changed[gid] = now
		}
	}
	s.mu.Unlock()
	for gid, now := range changed {
		s.roster.SetStatus(gid, now)
	}
}

// gate takes whether a worker's gate is closed, and why.
func (s *statuses) gate(gid string, reason envelope.Reason, since time.Time) {
	s.mu.Lock()
	known := s.known[gid]
	if known == nil {
		s.mu.Unlock()
		return
	}
	known.now.Refusing, known.now.RefusingSince = string(reason), since
	if reason == "" {
		known.now.RefusingSince = time.Time{}
		known.now.Progress = since
	}
	now := known.now
	s.mu.Unlock()
	s.roster.SetStatus(gid, now)
}

// look derives the state of one entity; mu is held.
func (s *statuses) look(known *status) roster.Status {
	e, now := known.entity, &known.now
	state, since := roster.Reachable, time.Time{}
	if e.Kind == store.Worker {
		pane, found := s.view.Panes[e.Pane]
		switch {
		case e.Pane == "":
			state = roster.NoPane
		case !s.view.Up:
			state = roster.HerdrDown
		case !found || pane.Terminal != e.Terminal:
			state = roster.PaneChanged
		default:
			state, since = roster.State(pane.Status), pane.Since
		}
	}
	if known.trouble != "" {
		state, since = known.trouble, time.Time{}
	}
	if now.State != state {
		now.State, now.Since, now.Progress = state, since, time.Now()
		if since.IsZero() {
			now.Since = time.Now()
		}
	}
	return *now
}
