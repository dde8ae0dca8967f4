package e2e

import (
	"context"
	"testing"

	"fleetd/mcp"
	"fleetd/test/fleet"
)

// §14: worker's pane gone. A main whose brief is with a worker that ends is told so, without anybody
// writing to that worker again. Fails when the end of a pane is only noticed
// with the next message for it.
func TestAWorkerThatEndsAbandonsItsBriefs(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*bound)
	defer cancel()
	a, b := twoHosts(t, ctx)
	w := addWorker(t, ctx, b, "reviewer", "--replies=-1", "--work", "60s")
	m := addMain(t, ctx, a, "lead")
	seen(t, ctx, m, "reviewer@hostb")
	sent, err := m.Send(ctx, map[string]any{"to": "reviewer@hostb", "content": "take your time"})
	if err != nil || sent.State != "injected" && sent.State != "deferred" {
		t.Fatalf("the brief came to %+v, %v", sent, err)
	}
	if sent.State == "deferred" {
		told(t, ctx, m, sent, "INJECTED")
	}
	if err := w.Control("exit"); err != nil {
		t.Fatal(err)
	}
	told(t, ctx, m, sent, "ABANDONED")
}

// told demands that the next mail of m is a notice of that kind about sent.
func told(t *testing.T, ctx context.Context, m *fleet.Main, sent mcp.SendResult, kind string) {
	t.Helper()
	for {
		r, err := m.Poll(ctx, map[string]any{"wait_seconds": longest, "max": 1})
		if err != nil {
			t.Fatal(err)
		}
		for _, msg := range r.Messages {
			if msg.Kind != kind || msg.InReplyTo != sent.MsgID {
				t.Fatalf("%s got %+v, want %s of %s", m.Name, msg, kind, sent.MsgID)
			}
			return
		}
	}
}
