package e2e

import (
	"context"
	"fmt"
	"testing"
)

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
		if p, err := w.Poll(ctx, map[string]any{"wait_seconds": longest}); err != nil || len(p.Messages) != 1 {
			t.Fatalf("task %d: %+v (%v)", i, p, err)
		}
		if err := w.Call(ctx, "bridge_reply", map[string]any{"content": "done", "in_reply_to": s.MsgID}, &struct{}{}); err != nil {
			t.Fatal(err)
		}
		if p, err := m.Poll(ctx, map[string]any{"wait_seconds": longest}); err != nil || len(p.Messages) != 1 {
			t.Fatalf("answer %d: %+v (%v)", i, p, err)
		}
	}
}
