// Package clock watches the wall clock for steps: somebody set it, or the host
// slept. Then time is wrong, not what is measured by it.
package clock

import (
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
	mu      sync.Mutex
	wall    time.Time     // at the latest look
	up      time.Duration // likewise, the monotonic clock
	until   time.Duration // end of the pause after a step
	ahead   time.Duration // what steps forward left out
	stepped time.Duration // when the latest of them was
	steps   int
}

// Moment is one look at the clocks.
type Moment struct {
	Wall   time.Time
	Past   time.Time     // Wall, without what a step of the last day left out: what is older than a day by it is
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
		w.ahead = max(0, w.ahead+step)
		w.stepped = up
	}
	if up-w.stepped >= leftOut {
		w.ahead = 0
	}
	w.wall, w.up = wall, up
	return Moment{Wall: wall, Past: wall.Add(-w.ahead), Step: step, Steady: up >= w.until, Steps: w.steps}
}

// Uptime returns a monotonic clock that begins now.
func Uptime() func() time.Duration {
	start := time.Now()
	return func() time.Duration { return time.Since(start) }
}
