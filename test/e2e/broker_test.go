package e2e

import (
	"context"
	"testing"
	"time"

	"fleetd/fault"
	"fleetd/test/fleet"
	"fleetd/test/rabbit"
)

// With the broker gone, a local brief and its reply still work and a remote
// send fails at once; with the broker back all of it comes back by itself.
// Fails when local traffic touches the broker, or a remote send waits for it.
func TestLocalTrafficSurvivesTheBroker(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 3*bound)
	defer cancel()
	node := rabbit.Private(t)
	f := newFleet(t, node.URI)
	a, b := addHost(t, ctx, f, "hosta"), addHost(t, ctx, f, "hostb")
	if err := f.TrustEachOther(); err != nil {
		t.Fatal(err)
	}
	addWorker(t, ctx, a, "near", "--reply-with", "near answer")
	addWorker(t, ctx, b, "far", "--reply-with", "far answer")
	m := addMain(t, ctx, a, "lead")
	seen(t, ctx, m, "near@hosta", "far@hostb")

	node.Down()
	eventually(t, ctx, func() error {
		r, err := m.Roster(ctx)
		if err == nil && r.Broker == "connected" {
			return fault.New(fault.Internal, "still connected")
		}
		return err
	})
	r, err := m.Send(ctx, map[string]any{"to": "near", "content": "still there?", "wait_seconds": longest})
	if err != nil || r.State != "replied" || r.Reply.Content != "near answer" {
		t.Fatalf("the local brief came to %+v, %v", r, err)
	}
	began := time.Now()
	_, err = m.Send(ctx, map[string]any{"to": "far@hostb", "content": "and you?", "wait_seconds": longest})
	if !fault.Is(err, fault.BrokerDown) {
		t.Fatalf("the remote send came to %v, want BROKER_DOWN", err)
	}
	t.Logf("BROKER_DOWN after %s", time.Since(began))

	if err := node.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	seen(t, ctx, m, "far@hostb")
	eventually(t, ctx, func() error {
		r, err = m.Send(ctx, map[string]any{"to": "far@hostb", "content": "back?", "wait_seconds": longest})
		return err
	})
	if r.State != "replied" || r.Reply.Content != "far answer" {
		t.Fatalf("after the restart the remote brief came to %+v", r)
	}
}

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
