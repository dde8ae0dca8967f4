package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"fleetd/test/rabbit"
)

// §14: second gateway with the same host id or entity. A gateway that was
// copied, its host id with it, is told so and serves its own agents alone.
// Fails when it is quiet about it or ready, when its local mail suffers, or
// when the first one does.
func TestSecondGatewayIsRefused(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*bound)
	defer cancel()
	f := newFleet(t, rabbit.URI(t))
	a, b := addHost(t, ctx, f, "hosta"), addHost(t, ctx, f, "hostb")
	if err := f.TrustEachOther(); err != nil {
		t.Fatal(err)
	}
	lead, bob := addMain(t, ctx, a, "lead"), addMain(t, ctx, b, "bob")
	ready(t, ctx, a, b)
	seen(t, ctx, bob, "lead@hosta")

	clone := addHost(t, ctx, f, "clone", "BRIDGED_HOST=hosta")
	alice, carol := addMain(t, ctx, clone, "alice"), addMain(t, ctx, clone, "carol")
	eventually(t, ctx, func() error {
		r, err := alice.Roster(ctx)
		if err == nil && (r.Broker != "connecting" || !strings.Contains(r.Reason, "hosta is in use by another gateway")) {
			err = fmt.Errorf("the broker is %s because of %q", r.Broker, r.Reason)
		}
		return err
	})
	if status, text, err := readyz(clone); err != nil || status != http.StatusServiceUnavailable || !strings.Contains(text, "in use by another gateway") {
		t.Errorf("readyz: %d %s %v", status, text, err)
	}
	if !strings.Contains(clone.Log(), "BRIDGED_HOST") {
		t.Error("no line says what to change")
	}
	if r, err := alice.Send(ctx, map[string]any{"to": "carol", "content": "hello"}); err != nil || r.State != "queued" {
		t.Fatalf("the clone's local send came to %+v, %v", r, err)
	}
	if m := next(t, ctx, carol); m.Content != "hello" {
		t.Fatalf("carol got %+v", m)
	}

	if r, err := bob.Send(ctx, map[string]any{"to": "lead@hosta", "content": "undisturbed?"}); err != nil || r.State != "queued" {
		t.Fatalf("the send to the first one came to %+v, %v", r, err)
	}
	if m := next(t, ctx, lead); m.Content != "undisturbed?" {
		t.Fatalf("lead got %+v", m)
	}
	if status, text, err := readyz(a); err != nil || status != http.StatusOK {
		t.Errorf("readyz of the first one: %d %s %v", status, text, err)
	}
}
