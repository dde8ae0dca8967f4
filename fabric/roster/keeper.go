package roster

import (
	"context"
	"sync"
	"time"
)

const (
	pruneEvery   = time.Hour   // one digest change for all that went meanwhile
	refreshEvery = time.Minute // of the homes' last signs of life
)

// Run publishes and keeps the view until ctx ends; then it says farewell, for
// at most 2 s, and saves the homes. It is to run once, and returns nil.
func (r *Roster) Run(ctx context.Context) error {
	var speaker sync.WaitGroup
	speaker.Go(func() { r.speak(ctx) })
	r.keep(ctx)
	speaker.Wait()

	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewellWait)
	defer cancel()
	r.leave(last)
	r.saveHomes()
	r.keepBoot()
	return nil
}

// leave is the farewell of a speaker that has ended.
func (r *Roster) leave(ctx context.Context) {
	r.mu.Lock()
	r.out.leaving = true
	r.unlock()
	r.publishDue(ctx)
}

// keep notices what no message says: hosts that fell silent, entities and
// homes whose time is over. It is also the one that writes homes and boots.
func (r *Roster) keep(ctx context.Context) {
	tick := time.NewTicker(r.cfg.Interval)
	defer tick.Stop()
	pruned, refreshed := r.cfg.Mono(), r.cfg.Mono()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.saveNow:
		case <-tick.C:
			at := r.moment()
			r.expire(at.mono)
			if at.mono.Sub(refreshed) >= refreshEvery {
				r.refresh(at)
				refreshed = at.mono
			}
			if at.mono.Sub(pruned) >= pruneEvery {
				r.prune(at.mono)
				pruned = at.mono
			}
		}
		r.saveHomes()
		r.keepBoot()
	}
}

// expire reports hosts whose state changed by silence. HostState knows it
// already; this wakes those who wait for it.
func (r *Roster) expire(now time.Time) {
	r.mu.Lock()
	defer r.unlock()
	for _, h := range r.hosts {
		before := h.reported
		r.report(h, now)
		if h.reported != before {
			r.changed()
		}
	}
}

func (r *Roster) refresh(at moment) {
	r.mu.Lock()
	defer r.unlock()
	r.refreshHomes(at)
}

// prune drops what was withdrawn here 8 days ago, hosts that have been silent
// for 8 days, and homes after 15 (design §4, §8).
func (r *Roster) prune(now time.Time) {
	r.mu.Lock()
	defer r.unlock()
	for gid, rec := range r.self.records {
		if rec.gone && now.Sub(rec.goneAt) > goneLife {
			delete(r.self.records, gid)
			r.self.digest = ""
		}
	}
	for id, h := range r.hosts {
		if h != r.self && now.Sub(later(h.heard, r.started)) > goneLife {
			delete(r.hosts, id)
		}
	}
	r.pruneHomes(now)
	r.changed()
}
