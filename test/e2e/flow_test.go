package e2e

import (
	"context"
	"testing"
)

// What a worker sends while it works on a brief belongs to the same flow, so
// that one trace id shows all of it. Fails when such a message begins a flow
// of its own.
func TestAWorkersMessageContinuesTheFlowOfItsBrief(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	f := newFleet(t, "")
	a := addHost(t, ctx, f, "hosta")
	addWorker(t, ctx, a, "relay", "--reply-with", "passed on", "--call", `bridge_send {"to": "ann", "content": "please look"}`)
	lead, ann := addMain(t, ctx, a, "lead"), addMain(t, ctx, a, "ann")
	sent, err := lead.Send(ctx, map[string]any{"to": "relay", "content": "ask ann", "wait_seconds": longest})
	if err != nil || sent.State != "replied" {
		t.Fatalf("the brief came to %+v, %v", sent, err)
	}
	got, err := ann.Poll(ctx, map[string]any{"wait_seconds": longest})
	if err != nil || len(got.Messages) != 1 {
		t.Fatalf("ann got %+v, %v", got, err)
	}
	if got.Messages[0].TraceID != sent.TraceID {
		t.Errorf("the worker's message has the trace %s, its brief %s", got.Messages[0].TraceID, sent.TraceID)
	}
}
