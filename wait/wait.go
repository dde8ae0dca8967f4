// Package wait holds the two ways in which goroutines wait for each other and
// for time, beside a plain receive.
package wait

import (
	"context"
	"time"
)

// Poke wakes whoever receives from c, a channel of capacity one: at once, or
// with its next receive. It never blocks.
func Poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // it is awake already
	}
}

// Pause waits for d or for the end of ctx, whose error it then returns.
func Pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
