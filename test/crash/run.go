package main

import (
	"context"
	"fmt"
	"time"
)

// result is one row of the table.
type result struct {
	kase
	hits int
	took time.Duration
	err  error // the case could not be played
}

const (
	// settleBound is how long a case waits for last words and answers; what
	// takes longer is waited for at the end of the run.
	settleBound = 15 * time.Second
	// darkBound is how long it waits for a message that may never have left.
	darkBound = 3 * time.Second
	// finishBound is how long the end of the run waits: faults put last words
	// off, which come when the links have been up for a while.
	finishBound = ordinaryLife + 2*time.Minute
	look        = 100 * time.Millisecond
)

// play runs one case on a fleet that is well, and leaves it well.
func (w *world) play(ctx context.Context, k kase) (r result) {
	began := time.Now()
	r.kase = k
	defer func() { r.took = time.Since(began) }()
	hit, err := scripts[k.point.Setup](w, ctx, k)
	if hit {
		r.hits = 1
	}
	if err == nil {
		err = w.well(ctx)
	}
	if err != nil {
		r.err = err
		return r
	}
	w.settle(ctx, k)
	w.retired(ctx, k)
	w.inherited(ctx, k.n)
	for _, s := range []*site{w.a, w.b} {
		for _, one := range s.workers {
			if err := one.tidy(); err != nil {
				r.err = fmt.Errorf("tidy up %s: %w", one.address, err)
			}
		}
	}
	return r
}

// settle waits until every message of k has come to its end.
func (w *world) settle(ctx context.Context, k kase) {
	for began := time.Now(); ctx.Err() == nil; pause(ctx, look) {
		open := w.rec.open(func(s *sending) bool {
			return s.Case == k.n && (time.Since(began) < darkBound || !w.rec.dark(s))
		})
		if len(open) == 0 {
			return
		}
		if time.Since(began) > settleBound {
			for _, s := range open {
				w.say("     %s from %s to %s is open for the time being; its calls: %s", s.Token, s.From, s.To, w.rec.calls(s))
			}
			return
		}
	}
}

// finish waits until no message can get another word, and until nobody pulls
// any more.
func (w *world) finish(ctx context.Context) {
	w.sends.Wait()
	for began := time.Now(); ctx.Err() == nil && time.Since(began) < finishBound; pause(ctx, look) {
		open := w.rec.open(func(s *sending) bool { return !w.rec.dark(s) || time.Now().Before(s.deadline()) })
		if len(open) == 0 {
			break
		}
	}
	w.drained(ctx)
	w.stop()
	w.pulls.Wait()
}

// drained waits for the mail that is still held, such as a notice that comes
// behind an answer.
func (w *world) drained(ctx context.Context) {
	for began, quiet := time.Now(), 0; ctx.Err() == nil && quiet < 20 && time.Since(began) < settleBound; pause(ctx, look) {
		quiet++
		for _, c := range append([]*client{w.peer}, w.mains...) {
			s := w.a
			if c == w.peer {
				s = w.b
			}
			if who, err := s.host.API(c.main.Name).Whoami(ctx); err != nil || who.Held > 0 {
				quiet = 0
			}
		}
	}
}
