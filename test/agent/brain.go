package agent

import (
	"context"
	"time"
)

// Brain is the model: it gets every prompt that reaches it and returns what is
// printed in the transcript. ctx ends when the turn is broken off.
type Brain interface {
	OnPrompt(ctx context.Context, text string, log *EventLog) (said string)
}

// Pause is a brain that only takes its time.
type Pause time.Duration

// OnPrompt waits.
func (d Pause) OnPrompt(ctx context.Context, _ string, _ *EventLog) string {
	sleep(ctx, time.Duration(d))
	return ""
}

// sleep waits for d; false: ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
