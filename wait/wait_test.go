package wait

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// Fails when a wake-up blocks or is lost while nobody receives, or when several
// of them wake more than once.
func TestPokeKeepsOne(t *testing.T) {
	c := make(chan struct{}, 1)
	for range 3 {
		Poke(c)
	}
	<-c
	select {
	case <-c:
		t.Error("it woke twice")
	default:
	}
}

// Fails when a pause ends early, outlives its context or hides why it ended.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if err := Pause(t.Context(), time.Minute); err != nil || time.Since(start) != time.Minute {
			t.Errorf("it ended after %s with %v", time.Since(start), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		if err := Pause(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("it outlived its context by %s with %v", time.Since(start)-time.Second, err)
		}
	})
}
