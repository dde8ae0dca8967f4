package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"fleetd/fault"
	"fleetd/test/fleet"
)

// Three mains on two hosts, each of which thanks the next for whatever it gets,
// are stopped, and one of them sees why; meanwhile others get through. Fails
// when an echo goes round for ever, or the stop hits somebody else.
func TestAnEchoAmongThreeIsStopped(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*bound)
	defer cancel()
	a, b := twoHosts(t, ctx)
	ring := []*fleet.Main{addMain(t, ctx, a, "ann"), addMain(t, ctx, b, "bob"), addMain(t, ctx, a, "cid")}
	next := []string{"bob@hostb", "cid@hosta", "ann@hosta"}
	other := addMain(t, ctx, a, "dee")
	for i, m := range ring {
		seen(t, ctx, m, next[i])
	}
	stopped, done := make(chan error, len(ring)), make(chan struct{})
	var wg sync.WaitGroup
	thanks := 0
	var mu sync.Mutex
	for i, m := range ring {
		wg.Go(func() {
			for ctx.Err() == nil {
				select {
				case <-done:
					return
				default:
				}
				r, err := m.Poll(ctx, map[string]any{"wait_seconds": 1})
				if err != nil {
					return
				}
				for range r.Messages {
					if _, err := m.Send(ctx, map[string]any{"to": next[i], "content": "thank you"}); err != nil {
						stopped <- err
						continue
					}
					mu.Lock()
					thanks++
					mu.Unlock()
				}
			}
		})
	}
	if _, err := ring[0].Send(ctx, map[string]any{"to": next[0], "content": "hello"}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-stopped:
		wantFault(t, "the echo", err, fault.Loop, "person")
	case <-ctx.Done():
		t.Fatalf("after %d thanks it goes on", thanks)
	}
	mu.Lock()
	if thanks != 32 {
		t.Errorf("%d thanks went round, want 32", thanks)
	}
	mu.Unlock()
	if r, err := other.Send(ctx, map[string]any{"to": "bob@hostb", "content": "are you free?"}); err != nil || r.State != "queued" {
		t.Fatalf("somebody else's message came to %+v (%v)", r, err)
	}
	close(done)
	wg.Wait()
}

// A main that hands out one task after the other, each because of the answer to
// the one before, is not stopped. Fails when answers count as a loop.
func TestALongSeriesOfTasksIsNoLoop(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*bound)
	defer cancel()
	f := newFleet(t, "")
	a := addHost(t, ctx, f, "hosta")
	m, w := addMain(t, ctx, a, "lead"), addMain(t, ctx, a, "helper")
	for i := range 40 {
		s, err := m.Send(ctx, map[string]any{"to": "helper", "content": fmt.Sprint("task ", i)})
		if err != nil {
			t.Fatalf("task %d: %v", i, err)
		}
		if p, err := w.Poll(ctx, map[string]any{"wait_seconds": 20}); err != nil || len(p.Messages) != 1 {
			t.Fatalf("task %d: %+v (%v)", i, p, err)
		}
		if err := w.Call(ctx, "bridge_reply", map[string]any{"content": "done", "in_reply_to": s.MsgID}, &struct{}{}); err != nil {
			t.Fatal(err)
		}
		if p, err := m.Poll(ctx, map[string]any{"wait_seconds": 20}); err != nil || len(p.Messages) != 1 {
			t.Fatalf("answer %d: %+v (%v)", i, p, err)
		}
	}
}
