package inbox

import (
	"sync"
	"time"
)

const (
	// A jump of the wall clock against the monotonic one larger than this
	// stops expiry for a while: time, not mail, is wrong (design §6).
	clockJump  = 2 * time.Second
	clockPause = time.Minute
)

// clock watches the wall clock for jumps.
type clock struct {
	mu    sync.Mutex
	wall  time.Time     // at the latest look
	up    time.Duration // likewise
	until time.Duration // uptime at which the pause ends
}

func newClock(wall time.Time, up time.Duration) clock {
	return clock{wall: wall.Round(0), up: up}
}

// look compares the clocks. steady is false for a minute after a jump; jump is
// the size of one that was seen just now.
func (c *clock) look(wall time.Time, up time.Duration) (steady bool, jump time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wall = wall.Round(0)
	jump = wall.Sub(c.wall) - (up - c.up)
	if jump.Abs() <= clockJump {
		jump = 0
	} else {
		c.until = up + clockPause
	}
	c.wall, c.up = wall, up
	return up >= c.until, jump
}

// Steady reports whether the wall clock may end lives: not for a minute after
// it jumped against the monotonic one.
func (in *Inbox) Steady() bool {
	steady, jump := in.clock.look(in.cfg.Now(), in.cfg.Uptime())
	if jump != 0 {
		in.log.Warn("the wall clock jumped; expiry pauses for a minute", "by", jump)
	}
	return steady
}
