package roster

import (
	"time"

	"fleetd/fault"
	"fleetd/wait"
)

// coalesce is how long changes of one entity are gathered before they are
// announced.
const coalesce = 100 * time.Millisecond

// SetLocal adds an entity that lives on this host, or changes it, and
// announces it. It fails for what may not be announced: an id or name of
// another shape (BAD_REQUEST), a gid that is at home on another host or was
// withdrawn (CONFLICT; a gid that is gone stays gone, design §9).
func (r *Roster) SetLocal(e Entity) error {
	e = e.tidy()
	if err := e.check(); err != nil {
		return err
	}
	at := r.moment()
	r.mu.Lock()
	defer r.unlock()
	old, home := r.self.records[e.GID], r.homes[e.GID]
	switch {
	case home != nil && home.Host != r.cfg.Host:
		return fault.New(fault.Conflict, "%s is at home on host %s; give the entity here a new id by registering it again", e.GID, home.Host)
	case home != nil && home.Gone:
		return fault.New(fault.Conflict, "%s was withdrawn and stays so; give the entity a new id by registering it again", e.GID)
	case old == nil && len(r.self.records) >= maxEntities:
		return fault.New(fault.TooLarge, "this host has %d entities, withdrawn ones of the last 8 days included; no more can be announced", maxEntities)
	}
	rec := &record{Entity: e, line: lineOf(e, false)}
	if old != nil && old.same(rec) {
		r.setStatus(old, e.Status, at.mono)
		return nil
	}
	r.setLocal(rec, at)
	return nil
}

// SetStatus changes what a local entity is doing. One that is not here, for
// instance because it was just withdrawn, is left alone.
func (r *Roster) SetStatus(gid string, s Status) {
	s = Entity{Status: s}.tidy().Status
	now := r.cfg.Mono()
	r.mu.Lock()
	defer r.unlock()
	if rec := r.self.records[gid]; rec != nil && !rec.gone {
		r.setStatus(rec, s, now)
	}
}

func (r *Roster) setStatus(rec *record, s Status, now time.Time) {
	if !s.sameButProgress(rec.Status) {
		r.announceSoon(rec.GID, now.Add(coalesce))
	} else if !s.Progress.Equal(rec.Status.Progress) && r.cfg.Publish != nil {
		r.out.progress[rec.GID] = struct{}{}
	}
	rec.Status = s
	r.changed()
}

// RemoveLocal withdraws a local entity. It stays in our announcements as gone
// for 8 days.
func (r *Roster) RemoveLocal(gid string) {
	at := r.moment()
	r.mu.Lock()
	defer r.unlock()
	if old := r.self.records[gid]; old != nil && !old.gone {
		r.setLocal(withdrawn(old.Entity, at.mono), at)
	}
}

func withdrawn(e Entity, at time.Time) *record {
	e.Pane, e.Capabilities, e.Status = "", nil, Status{}
	return &record{Entity: e, gone: true, goneAt: at, line: lineOf(e, true)}
}

func (r *Roster) setLocal(rec *record, at moment) {
	old := r.self.records[rec.GID]
	r.self.records[rec.GID], r.self.digest = rec, ""
	r.remember(rec.Entity, r.cfg.Host, rec.gone, at)
	if old != nil && old.line == rec.line {
		r.announceSoon(rec.GID, at.mono.Add(coalesce))
	} else { // who it is may decide whether its mail is believed
		r.announceSoon(rec.GID, at.mono)
	}
	r.changed()
}

func (r *Roster) announceSoon(gid string, at time.Time) {
	if r.cfg.Publish == nil {
		return
	}
	if before, waits := r.out.dirty[gid]; !waits || at.Before(before) {
		r.out.dirty[gid] = at
		wait.Poke(r.kick)
	}
}
