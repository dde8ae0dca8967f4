package roster

import (
	"slices"
	"strings"
	"time"

	"fleetd/store"
)

// HostView is one gateway as seen from here.
type HostView struct {
	Host     string
	State    string // Online, Unknown, Offline
	Local    bool
	Age      time.Duration // since it was last heard, by our clock; -1: not since our start
	Boot     uint64
	Interval time.Duration
	Profiles []string
	Entities int           // that live there, withdrawn ones not counted
	Offset   time.Duration // estimate of how far its clock is ahead of ours
	Complete bool          // all that it announces is known here
	Silent   bool          // it is not, and the host does not answer this one
}

// EntityView is one entity as seen from here. Where its host is not online,
// Status.State is the host's state: what it is doing is not known.
type EntityView struct {
	Entity
	Host      string
	HostState string
	Local     bool
	Gone      bool // withdrawn; only listed where asked for
}

// Filter narrows Entities; empty fields do not.
type Filter struct {
	Host, Group string
	Kind        store.EntityKind
	Status      State

	Gone bool // list withdrawn ones too, as Withdrawn
}

// Hosts lists the hosts that were heard in the last 8 days, or of whose
// entities one is still remembered, by id.
func (r *Roster) Hosts() []HostView {
	now := r.cfg.Mono()
	r.mu.Lock()
	defer r.mu.Unlock()
	var views []HostView
	for _, id := range r.hostIDs() {
		if state := r.stateOf(id, now); state != Never {
			views = append(views, r.hostView(id, state, now))
		}
	}
	return views
}

// hostIDs lists heard and remembered hosts in order.
func (r *Roster) hostIDs() []string {
	ids := sortedKeys(r.hosts)
	for id := range r.homesOf {
		if r.hosts[id] == nil {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

func (r *Roster) hostView(id, state string, now time.Time) HostView {
	h := r.hosts[id]
	if h == nil {
		h = newHost(id, r.cfg.Interval)
	}
	v := HostView{
		Host: id, State: state, Local: h == r.self, Age: -1, Boot: h.boot, Interval: h.interval,
		Profiles: slices.Clone(h.profiles), Offset: h.offset.estimate(), Complete: h.settled(), Silent: h.silent(),
	}
	switch {
	case v.Local:
		v.Age = 0
	case !h.heard.IsZero():
		v.Age = now.Sub(h.heard)
	}
	r.eachOf(id, now, func(e *resident) {
		if !e.gone {
			v.Entities++
		}
	})
	return v
}

// Entities lists those that f admits, by name, host and gid. Entities of hosts
// that were not heard since our start are listed from memory.
func (r *Roster) Entities(f Filter) []EntityView {
	now := r.cfg.Mono()
	r.mu.Lock()
	defer r.mu.Unlock()
	var views []EntityView
	for _, id := range r.hostIDs() {
		if f.Host != "" && f.Host != id {
			continue
		}
		state := r.stateOf(id, now)
		r.eachOf(id, now, func(e *resident) {
			if v := e.view(id, state, id == r.cfg.Host); f.admits(v) {
				views = append(views, v)
			}
		})
	}
	slices.SortFunc(views, func(a, b EntityView) int {
		return strings.Compare(a.Name+"@"+a.Host+" "+a.GID, b.Name+"@"+b.Host+" "+b.GID)
	})
	return views
}

func (f Filter) admits(v EntityView) bool {
	return (!v.Gone || f.Gone || f.Status == Withdrawn) &&
		(f.Kind == "" || f.Kind == v.Kind) &&
		(f.Group == "" || slices.Contains(v.Groups, f.Group)) &&
		(f.Status == "" || f.Status == v.Status.State)
}

// resident is an entity of a host, announced or only remembered.
type resident struct {
	Entity
	gone bool
	at   time.Time // its last sign of life
}

func (e *resident) view(host, state string, local bool) EntityView {
	v := EntityView{Entity: e.Entity, Host: host, HostState: state, Local: local, Gone: e.gone}
	v.Groups, v.Capabilities = slices.Clone(e.Groups), slices.Clone(e.Capabilities)
	switch {
	case e.gone:
		v.Status.State = Withdrawn
	case state != Online:
		v.Status.State = State(state)
	}
	return v
}

// eachOf calls f for everyone on host: those it announced and we believe, then
// those who are only remembered, for 8 days. What this host remembers of its
// own and has no record of is gone.
func (r *Roster) eachOf(host string, now time.Time, f func(*resident)) {
	announced := map[string]*record{}
	if h := r.hosts[host]; h != nil {
		announced = h.records
	}
	homes := r.homesOf[host]
	for gid, rec := range announced {
		if rec.refused {
			continue
		}
		e := resident{Entity: rec.Entity, gone: rec.gone}
		if home := homes[gid]; home != nil {
			e.at = home.sign
		}
		f(&e)
	}
	for gid, home := range homes {
		if announced[gid] == nil && now.Sub(home.sign) <= goneLife {
			f(r.remembered(home))
		}
	}
}

func (r *Roster) remembered(h *home) *resident {
	return &resident{
		Entity: Entity{GID: h.GID, Name: h.Name, Kind: h.Kind, Groups: h.Groups},
		gone:   h.Gone || h.Host == r.cfg.Host, at: h.sign,
	}
}
