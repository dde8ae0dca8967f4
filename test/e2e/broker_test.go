package e2e

import (
	"context"
	"testing"

	"fleetd/test/fleet"
)

// Without any broker and any file, one host serves its own entities. Fails when
// something on the local path needs what only a broker or a file gives.
func TestOneHostAlone(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	f := newFleet(t, "")
	a := addHost(t, ctx, f, "hosta")
	var alice, bob *fleet.Main = addMain(t, ctx, a, "alice"), addMain(t, ctx, a, "bob")
	sent, err := alice.Send(ctx, map[string]any{"to": "bob", "content": "hello"})
	if err != nil || sent.State != "queued" {
		t.Fatalf("the send came to %+v, %v", sent, err)
	}
	got, err := bob.Poll(ctx, map[string]any{"wait_seconds": longest})
	if err != nil || len(got.Messages) != 1 || got.Messages[0].Content != "hello" {
		t.Fatalf("bob got %+v, %v", got, err)
	}
	var reply struct{ State string }
	if err := bob.Call(ctx, "bridge_reply", map[string]any{"content": "hi", "in_reply_to": sent.MsgID}, &reply); err != nil {
		t.Fatal(err)
	}
	pullReply(t, ctx, alice, sent, "hi")
}
