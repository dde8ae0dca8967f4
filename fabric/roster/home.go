package roster

import (
	"fmt"
	"slices"
	"time"

	"fleetd/store"
	"fleetd/wait"
)

const (
	homeLife  = 15 * 24 * time.Hour // after the last sign of life (design §4)
	goneLife  = 8 * 24 * time.Hour  // withdrawn entities and silent hosts stay that long (design §8)
	saveEvery = time.Hour           // a home of which only the last sign of life is new
	maxHomes  = 50_000              // of one host, ours excepted
)

// Home is where a gid lives, learned from signed presence: identity, not
// liveness (design §4).
type Home struct {
	GID      string
	Host     string
	Name     string
	Kind     store.EntityKind
	Groups   []string
	LastSign int64 // Unix ms by our clock
	Gone     bool  // withdrawn
}

// HomeStore keeps homes over restarts.
type HomeStore interface {
	// LoadHomes returns what is stored; homes over 15 days old are ignored.
	LoadHomes() ([]Home, error)
	// SaveHomes puts homes under their gids, in one commit.
	SaveHomes([]Home) error
}

// home is a Home with its instants on the monotonic clock.
type home struct {
	Home
	sign  time.Time // the last sign of life
	saved time.Time
	dirty bool
}

// loadHomes reads the store once. Ages are taken from the wall clock here and
// counted on the monotonic one from then on.
func (r *Roster) loadHomes() error {
	if r.cfg.Homes == nil {
		return nil
	}
	stored, err := r.cfg.Homes.LoadHomes()
	if err != nil {
		return fmt.Errorf("load homes: %w", err)
	}
	at := r.moment()
	for _, h := range stored {
		age := max(0, at.wall.Sub(time.UnixMilli(h.LastSign)))
		if age > homeLife {
			continue
		}
		sign := at.mono.Add(-age)
		r.keepHome(&home{Home: h, sign: sign, saved: sign})
		if h.Host == r.cfg.Host && h.Gone && age <= goneLife {
			r.self.records[h.GID] = withdrawn(Entity{GID: h.GID, Name: h.Name, Kind: h.Kind, Groups: h.Groups}, sign)
		}
	}
	return nil
}

func (r *Roster) keepHome(h *home) {
	r.homes[h.GID] = h
	if r.homesOf[h.Host] == nil {
		r.homesOf[h.Host] = map[string]*home{}
	}
	r.homesOf[h.Host][h.GID] = h
}

func (r *Roster) dropHome(h *home) {
	delete(r.homes, h.GID)
	delete(r.homesOf[h.Host], h.GID)
	if len(r.homesOf[h.Host]) == 0 {
		delete(r.homesOf, h.Host)
	}
}

// remember notes where e lives. The caller made sure that it is host's to say.
func (r *Roster) remember(e Entity, host string, gone bool, at moment) {
	h := r.homes[e.GID]
	if h == nil {
		h = &home{Home: Home{GID: e.GID, Host: host}}
		r.keepHome(h)
	}
	fresh := h.sign.IsZero()
	if fresh || !gone || !h.Gone { // a withdrawn one that is only listed again gave no sign
		r.sign(h, at)
	}
	if fresh || h.Name != e.Name || h.Kind != e.Kind || h.Gone != gone || !slices.Equal(h.Groups, e.Groups) {
		h.Name, h.Kind, h.Groups, h.Gone = e.Name, e.Kind, e.Groups, gone
		h.dirty = true
		wait.Poke(r.saveNow)
	}
}

func (r *Roster) sign(h *home, at moment) {
	h.sign, h.LastSign = at.mono, at.wall.UnixMilli()
	if at.mono.Sub(h.saved) >= saveEvery {
		h.dirty = true
	}
}

// vanish marks what host's full announcement no longer names: it was withdrawn
// more than 8 days ago, or that host lost its store.
func (r *Roster) vanish(host string, listed map[string]*record) {
	for gid, h := range r.homesOf[host] {
		if !h.Gone && listed[gid] == nil {
			h.Gone, h.dirty = true, true
			wait.Poke(r.saveNow)
		}
	}
}

// refreshHomes takes a live host for a sign of life of all its entities.
func (r *Roster) refreshHomes(at moment) {
	for _, h := range r.hosts {
		if h != r.self && h.state(at.mono) != Online {
			continue
		}
		for gid, rec := range h.records {
			if home := r.homes[gid]; home != nil && home.Host == h.id && !rec.refused && !rec.gone {
				r.sign(home, at)
			}
		}
	}
}

// pruneHomes forgets those that gave no sign of life for 15 days; the store
// prunes its own.
func (r *Roster) pruneHomes(now time.Time) {
	for _, h := range r.homes {
		if now.Sub(h.sign) > homeLife {
			r.dropHome(h)
		}
	}
}

// saveHomes writes what changed, in batches that a store can commit at once.
// What could not be written stays due.
func (r *Roster) saveHomes() {
	if r.cfg.Homes == nil {
		return
	}
	const batch = 1000
	for due := r.dueHomes(); len(due) > 0; {
		part := due[:min(batch, len(due))]
		if err := r.cfg.Homes.SaveHomes(part); err != nil {
			r.unsaved(due)
			if !r.saveFailed {
				r.log.Error("could not save where entities live; trying again until it works", "error", err)
			}
			r.saveFailed = true
			return
		}
		r.saveFailed = false
		due = due[len(part):]
	}
}

// dueHomes takes the homes that are to be saved and counts them as saved.
func (r *Roster) dueHomes() []Home {
	at := r.moment()
	r.mu.Lock()
	defer r.mu.Unlock()
	var due []Home
	for _, h := range r.homes {
		if h.dirty {
			h.dirty, h.saved = false, at.mono
			due = append(due, h.Home)
		}
	}
	return due
}

func (r *Roster) unsaved(homes []Home) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, lost := range homes {
		if h := r.homes[lost.GID]; h != nil {
			h.dirty = true
		}
	}
}
