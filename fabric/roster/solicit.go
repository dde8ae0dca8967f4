package roster

import (
	"slices"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/wait"
)

const (
	fullEvery = time.Second     // between two full announcements, however many ask (design §8)
	askEvery  = time.Second     // between two solicitations of one host
	maxPause  = 5 * time.Minute // between two that don't help
	pulseGap  = 100 * time.Millisecond
)

// Solicit asks host for a full announcement soon, at most once a second.
// FullCount tells when one came; Changed wakes.
func (r *Roster) Solicit(host string) {
	if r.cfg.Publish == nil || host == r.cfg.Host || !envelope.ValidHost(host) {
		return
	}
	now := r.cfg.Mono()
	r.mu.Lock()
	defer r.unlock()
	h := r.known(host)
	due := later(now, h.ask.last.Add(askEvery))
	if h.ask.at.IsZero() || due.Before(h.ask.at) {
		h.ask.at = due
	}
	h.ask.demand = true
	wait.Poke(r.kick)
}

// FullCount returns how many full announcements of host came whole since our
// start.
func (r *Roster) FullCount(host string) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h := r.hosts[host]; h != nil {
		return h.fulls
	}
	return 0
}

// askLater wants a full announcement of a host whose view is not whole. Many
// hosts see the same gap, so each waits a moment of its own; one answer serves
// them all, the one to a Sync of ours too. As long as it does not help, the
// pauses grow.
func (r *Roster) askLater(h *host, now time.Time) {
	if r.cfg.Publish == nil || !h.ask.at.IsZero() || h.left {
		return
	}
	spread := time.Duration(r.jitter.Int64N(int64(r.cfg.Interval/10) + 1))
	answered := r.askedAll.Add(fullEvery + quiet)
	h.ask.at = later(later(now, answered), h.ask.last.Add(h.ask.pause)).Add(spread)
	wait.Poke(r.kick)
}

// dueAsks takes the hosts that are to be solicited now.
func (r *Roster) dueAsks(now time.Time) []string {
	var due []string
	for id, h := range r.hosts {
		if h.ask.at.IsZero() || now.Before(h.ask.at) || len(due) == maxTargets {
			continue
		}
		if h.ask.demand || h.state(now) != Unknown && !h.left && !h.settled() {
			due = append(due, id)
			if h.ask.open { // by now it was time to answer the last
				h.ask.vain++
			}
			h.ask.open = true
			h.ask.pause = min(max(askEvery, 2*h.ask.pause), maxPause)
			h.ask.last = now
		}
		h.ask.at, h.ask.demand = time.Time{}, false
	}
	slices.Sort(due)
	return due
}

func asksUs(s *solicitBody, us string) bool {
	return s != nil && (len(s.Targets) == 0 || slices.Contains(s.Targets, us))
}

// wantFull has somebody ask for our full announcement. Where it has to wait
// for its second, a heartbeat says at once that we are here.
func (r *Roster) wantFull(now time.Time) {
	if at := later(now, r.out.lastFull.Add(fullEvery)); r.out.full.IsZero() || at.Before(r.out.full) {
		r.out.full = at
	}
	if r.out.full.After(now) && now.Sub(r.out.lastBeat) >= pulseGap {
		r.out.beat = now
	}
	wait.Poke(r.kick)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
