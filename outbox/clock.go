package outbox

import (
	"sync"
	"time"
)

const (
	// A step of the wall clock against the monotonic one larger than this keeps
	// last words back for a while: by then the clocks of others, which are judged
	// by it, have been compared with it anew.
	clockStep  = 2 * time.Second
	clockPause = time.Minute
	// stepFor is how long time that a step left out is not taken for past.
	stepFor = 24 * time.Hour
)

// clock watches the wall clock for steps.
type clock struct {
	mu      sync.Mutex
	wall    time.Time     // at the latest look
	up      time.Duration // likewise, the monotonic clock
	until   time.Duration // end of the pause after a step
	ahead   time.Duration // what steps forward left out
	stepped time.Duration // when the latest of them was
	steps   int
}

// moment is one look at the clocks.
type moment struct {
	wall   time.Time
	past   time.Time // wall, without what a step of the last day left out: what is older than a day by it is
	steady bool      // no step lately
	steps  int       // so far
}

func (c *clock) look(wall time.Time, up time.Duration) moment {
	c.mu.Lock()
	defer c.mu.Unlock()
	wall = wall.Round(0)
	if step := wall.Sub(c.wall) - (up - c.up); step.Abs() > clockStep && !c.wall.IsZero() {
		c.steps++
		c.until = up + clockPause
		c.ahead = max(0, c.ahead+step)
		c.stepped = up
	}
	if up-c.stepped >= stepFor {
		c.ahead = 0
	}
	c.wall, c.up = wall, up
	return moment{wall: wall, past: wall.Add(-c.ahead), steady: up >= c.until, steps: c.steps}
}

// moment looks at the clocks.
func (o *Outbox) moment() moment { return o.clock.look(o.cfg.Now(), o.cfg.Uptime()) }
