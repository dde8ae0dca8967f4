package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/test/fleet"
	"fleetd/test/rabbit"
)

// A host changes its key while mail that the old one signed is under way; the
// other host trusts both for a while and then lets the old one go. Fails when
// mail of either key is refused meanwhile, when whoever has the old key is
// believed after it was revoked, or when revoking needs a restart.
func TestAHostChangesItsKey(t *testing.T) {
	t.Attr("threat", "B2 G7")
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 3*bound)
	defer cancel()
	f := newFleet(t, rabbit.URI(t))
	s := &stage{a: addHost(t, ctx, f, "hosta"), b: addHost(t, ctx, f, "hostb")}
	if err := f.TrustEachOther(); err != nil {
		t.Fatal(err)
	}
	for _, h := range []*fleet.Host{s.a, s.b} {
		if err := h.Ready(ctx); err != nil {
			t.Fatal(err)
		}
	}
	s.lead, s.bob = addMain(t, ctx, s.a, "lead"), addMain(t, ctx, s.b, "bob")
	seen(t, ctx, s.lead, "bob@hostb")
	thief := newAttacker(t, s, f.Prefix) // has the old key
	must := func(h *fleet.Host, args ...string) string {
		t.Helper()
		out, errs, err := bridged(ctx, h, args...)
		if err != nil {
			t.Fatalf("bridged %q: %v: %s", args, err, errs)
		}
		return out
	}
	send := func(content string) {
		t.Helper()
		eventually(t, ctx, func() error {
			r, err := s.lead.Send(ctx, map[string]any{"to": "bob@hostb", "content": content, "idempotency_key": content})
			if err == nil && r.State != "queued" {
				err = fmt.Errorf("it came to %+v", r)
			}
			return err
		})
	}
	keysOf := func(host string) (prints, since []string) {
		t.Helper()
		var list struct {
			Trusted []struct {
				Host                string
				Fingerprints, Since []string
			}
		}
		if err := json.Unmarshal([]byte(must(s.b, "keys", "list", "--json")), &list); err != nil {
			t.Fatal(err)
		}
		for _, one := range list.Trusted {
			if one.Host == host {
				return one.Fingerprints, one.Since
			}
		}
		return nil, nil
	}

	send("under the old key")
	file := filepath.Join(t.TempDir(), "hosta.pub")
	if err := os.WriteFile(file, []byte(must(s.a, "keys", "rotate")), 0o600); err != nil {
		t.Fatal(err)
	}
	must(s.b, "keys", "trust", "--beside", file)
	must(s.a, "keys", "rotate", "--apply")
	if err := s.a.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := s.a.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.a.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	meet(t, ctx, s.a, s.b) // each reads the folder within seconds
	refused := func(reason string) float64 { return metric(t, s.b, "bridged_refusals_total", reason) }
	before := refused("bad_signature")
	reconnect(t, ctx, s.lead)
	send("under the new key")
	for _, want := range []string{"under the old key", "under the new key"} {
		if got := polled(t, ctx, s.bob, "SEND"); got.Content != want {
			t.Fatalf("bob got %+v, want %q", got, want)
		}
	}

	prints, since := keysOf("hosta")
	if len(prints) != 2 || len(since) != 2 || since[0] == "" {
		t.Fatalf("hostb trusts hosta by %v, since %v", prints, since)
	}
	must(s.b, "keys", "revoke", "hosta", prints[0])
	// hostb reads the folder within seconds; what the thief sent before that, it believed.
	eventually(t, ctx, func() error {
		e := thief.letter(t, s.bob.GID, attackText, nil)
		thief.publish(t, ctx, thief.names.Msg(), s.bob.GID, e, nil)
		if refused("bad_signature") == before {
			return fmt.Errorf("no message of the old key was refused")
		}
		return nil
	})
	drain(t, ctx, s.bob)
	e := thief.letter(t, s.bob.GID, attackText, nil)
	thief.publish(t, ctx, thief.names.Msg(), s.bob.GID, e, nil)
	send("and the new key is good")
	if got := polled(t, ctx, s.bob, "SEND"); got.Content != "and the new key is good" {
		t.Errorf("bob got %+v", got)
	}

	before = refused("unknown_signer")
	must(s.b, "keys", "revoke", "hosta")
	eventually(t, ctx, func() error {
		if refused("unknown_signer") == before {
			return fmt.Errorf("nothing of hosta was refused")
		}
		return nil
	})
	send("of nobody any more")
	for string(grave(t, ctx, thief).Body) != "of nobody any more" {
	}
	if r, err := s.bob.Poll(ctx, map[string]any{}); err != nil || len(r.Messages) != 0 {
		t.Errorf("bob got %+v, %v", r, err)
	}
}

// grave is the next dead letter.
func grave(t *testing.T, ctx context.Context, a *attacker) amqp.Delivery {
	t.Helper()
	select {
	case d := <-a.dead:
		return d
	case <-ctx.Done():
		t.Fatal("it was not dead-lettered")
		panic("unreachable")
	}
}

// drain takes all that waits for m.
func drain(t *testing.T, ctx context.Context, m *fleet.Main) {
	t.Helper()
	for {
		r, err := m.Poll(ctx, map[string]any{})
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Messages) == 0 && r.Remaining == 0 {
			return
		}
	}
}
