// Package clock watches the wall clock for steps: somebody set it, or the host
// slept. Then time is wrong, not what is measured by it.
package clock

import (
	"slices"
	"sync"
	"time"
)

const (
	// A step of the wall clock against the monotonic one larger than this is no
	// correction of its rate.
	least = 2 * time.Second
	// Pause is how long after a step nothing may end by the wall clock: by then the
	// clocks of others, which are judged by it, have been compared with it anew.
	Pause = time.Minute
	// leftOut is how long time that a step left out is not taken for past.
	leftOut = 24 * time.Hour
)

// Watch compares the wall clock with the monotonic one. The zero Watch has not
// looked yet; its first look sees no step.
type Watch struct {
	mu    sync.Mutex
	wall  time.Time     // at the latest look
	up    time.Duration // likewise, the monotonic clock
	until time.Duration // end of the pause after a step
	ahead []leap        // what steps forward left out, oldest first
	steps int
}

// leap is what the steps forward of one hour left out. Each counts for a day of
// its own: a host that sleeps every night never has a day without one.
type leap struct {
	at   time.Duration // of the latest, by the monotonic clock
	left time.Duration
}

// Moment is one look at the clocks.
type Moment struct {
	Wall   time.Time
	Past   time.Time     // Wall, without what steps of the last day left out: what is older than a day by it is
	Step   time.Duration // that was seen just now; 0: none
	Steady bool          // no step within the last Pause
	Steps  int           // so far
}

// Look compares the wall clock with up, the time since any fixed instant by the
// monotonic one.
func (w *Watch) Look(wall time.Time, up time.Duration) Moment {
	w.mu.Lock()
	defer w.mu.Unlock()
	wall = wall.Round(0)
	step := wall.Sub(w.wall) - (up - w.up)
	if w.wall.IsZero() || step.Abs() <= least {
		step = 0
	} else {
		w.steps++
		w.until = up + Pause
		w.leap(up, step)
	}
	w.ahead = slices.DeleteFunc(w.ahead, func(l leap) bool { return up-l.at >= leftOut })
	w.wall, w.up = wall, up
	past := wall
	for _, l := range w.ahead {
		past = past.Add(-l.left)
	}
	return Moment{Wall: wall, Past: past, Step: step, Steady: up >= w.until, Steps: w.steps}
}

// leap notes a step; one back takes back what the latest ones forward left out.
func (w *Watch) leap(up, step time.Duration) {
	n := len(w.ahead)
	if step > 0 && n > 0 && up.Truncate(time.Hour) == w.ahead[n-1].at.Truncate(time.Hour) {
		w.ahead[n-1] = leap{up, w.ahead[n-1].left + step}
		return
	}
	if step > 0 {
		w.ahead = append(w.ahead, leap{up, step})
		return
	}
	for ; n > 0 && step < 0; n-- {
		l := &w.ahead[n-1]
		took := min(l.left, -step)
		l.left, step = l.left-took, step+took
	}
}

// Uptime returns a monotonic clock that begins now.
func Uptime() func() time.Duration {
	start := time.Now()
	return func() time.Duration { return time.Since(start) }
}
