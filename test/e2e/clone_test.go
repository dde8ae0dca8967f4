package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric"
	"fleetd/test/fleet"
	"fleetd/test/rabbit"
)

// §14: second gateway with the same host id or entity. A gateway that was
// copied, its host id with it, is told so and serves its own agents alone.
// Fails when it is quiet about it or ready, when its local mail suffers, or
// when the first one does.
func TestSecondGatewayIsRefused(t *testing.T) {
	t.Attr("threat", "B6")
	t.Parallel()
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
	eventually(t, ctx, func() error {
		if !strings.Contains(clone.Log(), "BRIDGED_HOST") {
			return errors.New("no line says what to change")
		}
		return nil
	})
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

// §14: second gateway with the same host id or entity. Another client holds an
// entity's inbox on the broker. Fails when the roster does not say so, when the
// other inboxes are not served, or when it is not ours again once it is free.
func TestContestedInboxIsShown(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*bound)
	defer cancel()
	f := newFleet(t, rabbit.URI(t))
	a, b := addHost(t, ctx, f, "hosta"), addHost(t, ctx, f, "hostb")
	if err := f.TrustEachOther(); err != nil {
		t.Fatal(err)
	}
	lead, alice, bob := addMain(t, ctx, a, "lead"), addMain(t, ctx, a, "alice"), addMain(t, ctx, b, "bob")
	ready(t, ctx, a, b)
	seen(t, ctx, bob, "lead@hosta", "alice@hosta")
	conn, err := amqp.DialConfig(rabbit.URI(t), amqp.Config{Heartbeat: time.Minute}) // a busy machine misses shorter ones
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) })
	names := fabric.Names{Prefix: f.Prefix}
	const day = 24 * 60 * 60 * 1000
	contract := amqp.Table{
		"x-queue-type": "classic", "x-dead-letter-exchange": names.DLX(), "x-max-length": int64(fabric.InboxCap),
		"x-overflow": "reject-publish", "x-message-ttl": int64(7 * day), "x-expires": int64(14 * day),
	}
	queue := names.Inbox(lead.GID)
	eventually(t, ctx, func() error { // who is first after the queue is gone is chance
		ch, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ch.QueueDelete(queue, false, false, false); err != nil {
			t.Fatal(err)
		}
		if _, err := ch.QueueDeclare(queue, true, false, false, false, contract); err != nil {
			return err
		}
		_, err = ch.Consume(queue, "", false, true, false, false, nil)
		return err
	})
	shows := func(want string) {
		t.Helper()
		eventually(t, ctx, func() error {
			r, err := bob.Roster(ctx)
			if err != nil {
				return err
			}
			for _, e := range r.Entities {
				if e.GID == lead.GID && e.Status == want {
					return nil
				}
			}
			return fmt.Errorf("lead is not %s: %+v", want, r.Entities)
		})
	}
	arrives := func(m *fleet.Main) {
		t.Helper()
		if r, err := bob.Send(ctx, map[string]any{"to": m.Name + "@hosta", "content": "hello"}); err != nil || r.State != "queued" {
			t.Fatalf("the send to %s came to %+v, %v", m.Name, r, err)
		}
		if got := next(t, ctx, m); got.Content != "hello" {
			t.Fatalf("%s got %+v", m.Name, got)
		}
	}
	shows("contested")
	if status, text, err := readyz(a); err != nil || status != http.StatusServiceUnavailable || !strings.Contains(text, lead.GID+" is contested") {
		t.Errorf("readyz: %d %s %v", status, text, err)
	}
	arrives(alice)
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	shows("online")
	if err := a.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	arrives(lead)
}
