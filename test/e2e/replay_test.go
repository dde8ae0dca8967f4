package e2e

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fabric/envelope"
	"fleetd/fabric/keys"
	"fleetd/mcp"
	"fleetd/test/fleet"
	"fleetd/test/rabbit"
)

// Whoever has a login at the broker has captured two messages that arrived, and
// kept a third one back. Fails when one of the first two is shown or typed in
// again, by whatever way and whenever it comes; when the third counts although
// its key does not any more; when what is refused leaves a step in the trace of
// its victim; or when a friend's mail does not arrive after it.
func TestAReplayChangesNothing(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 4*bound)
	defer cancel()
	f := newFleet(t, rabbit.URI(t))
	s := &stage{a: addHost(t, ctx, f, "hosta"), b: addHost(t, ctx, f, "hostb")}
	if err := f.TrustEachOther(); err != nil {
		t.Fatal(err)
	}
	ready(t, ctx, s.a, s.b)
	s.lead, s.bob = addMain(t, ctx, s.a, "lead"), addMain(t, ctx, s.b, "bob")
	carol := addMain(t, ctx, s.b, "carol")
	seen(t, ctx, s.lead, "bob@hostb", "carol@hostb")
	w := s.worker(t, ctx, "reviewer")
	a := newAttacker(t, s, f.Prefix)
	n := a.names
	long := func(e *envelope.Envelope) { e.ExpiresAt = time.Now().Add(24 * time.Hour).UnixMilli() } // its age is not what stops it
	mail, brief, kept := a.letter(t, s.bob.GID, "captured mail", long), a.letter(t, w.GID, "mark-captured", long), a.letter(t, s.bob.GID, attackText, long)
	a.publish(t, ctx, n.Msg(), s.bob.GID, mail, nil)
	a.publish(t, ctx, n.Msg(), w.GID, brief, nil)
	carried(t, ctx, s.bob, mail)
	prompted(t, ctx, w, "mark-captured")

	marks := 0
	unchanged := func(t *testing.T) {
		t.Helper()
		s.nothingFor(t, ctx, s.bob)
		s.nothingFor(t, ctx, carol)
		marks++
		mark := fmt.Sprintf("mark-friend-%d.", marks)
		if _, err := s.lead.Send(ctx, map[string]any{"to": w.GID, "content": mark}); err != nil {
			t.Fatal(err)
		}
		prompted(t, ctx, w, mark)
		wrote(t, w, "mark-captured", 1)
	}
	again := func(t *testing.T) {
		t.Helper()
		a.publish(t, ctx, n.Msg(), s.bob.GID, mail, nil)
		a.publish(t, ctx, n.Msg(), w.GID, brief, nil)
		unchanged(t)
	}
	restart := func(t *testing.T, h *fleet.Host, mains ...*fleet.Main) {
		t.Helper()
		if err := h.Stop(); err != nil {
			t.Fatal(err)
		}
		revive(t, ctx, h)
		for _, m := range mains {
			reconnect(t, ctx, m)
		}
	}
	for _, c := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"same inbox", again},
		{"other inbox", func(t *testing.T) {
			a.publish(t, ctx, n.Msg(), carol.GID, mail, nil)
			a.buried(t, ctx, mail)
			a.publish(t, ctx, "", n.Inbox(carol.GID), brief, nil)
			a.buried(t, ctx, brief)
			unchanged(t)
		}},
		{"other kind", func(t *testing.T) {
			reply := *mail
			reply.Headers = map[string]string{}
			for name, value := range mail.Headers {
				reply.Headers[name] = value
			}
			reply.Headers["kind"], reply.Headers["inReplyTo"] = "REPLY", brief.MsgID
			a.publish(t, ctx, n.Msg(), s.bob.GID, &reply, nil) // of a message that is known nothing else is believed
			reply.MsgID = uuid.Must(uuid.NewV7()).String()
			reply.Headers["msgId"] = reply.MsgID
			a.publish(t, ctx, n.Msg(), s.bob.GID, &reply, nil)
			a.buried(t, ctx, &reply)
			unchanged(t)
		}},
		{"other lane", func(t *testing.T) {
			before := metric(t, s.b, "bridged_refusals_total", "wrong_lane")
			a.publish(t, ctx, n.Msg(), s.bob.GID+".signal", mail, nil)
			a.publish(t, ctx, n.Control(), "hostb", brief, nil)
			a.buried(t, ctx, brief)
			eventually(t, ctx, func() error {
				if got := metric(t, s.b, "bridged_refusals_total", "wrong_lane"); got != before+2 {
					return fmt.Errorf("%v were refused for their lane, want 2", got-before)
				}
				return nil
			})
			unchanged(t)
		}},
		{"after a restart", func(t *testing.T) {
			restart(t, s.b, s.bob, carol)
			seen(t, ctx, s.lead, "bob@hostb", "carol@hostb", "reviewer@hostb")
			again(t)
		}},
		{"after a change of keys", func(t *testing.T) {
			if err := s.a.Stop(); err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(filepath.Join(f.Dir, "hosta", "data", "gateway.key")); err != nil {
				t.Fatal(err)
			}
			revive(t, ctx, s.a) // makes a key
			key, err := s.a.Key()
			if err != nil {
				t.Fatal(err)
			}
			line := keys.PublicLine("hosta", key.Public().(ed25519.PublicKey))
			if err := os.WriteFile(filepath.Join(f.Dir, "hostb", "trust", "hosta.pub"), []byte(line), 0o600); err != nil {
				t.Fatal(err)
			}
			restart(t, s.b, s.bob, carol) // else the old key would count for some seconds
			reconnect(t, ctx, s.lead)
			sees(t, ctx, s.b, s.a)
			seen(t, ctx, s.lead, "bob@hostb", "carol@hostb", "reviewer@hostb")
			again(t)
			a.publish(t, ctx, n.Msg(), s.bob.GID, kept, nil)
			a.buried(t, ctx, kept)
			unchanged(t)
			if r, err := s.b.API("bob").Trace(ctx, mcp.TraceArgs{TraceID: kept.TraceID}); err == nil && len(r.Hops) > 0 {
				t.Errorf("a refused message left the steps %+v", r.Hops)
			}
		}},
	} {
		if !t.Run(c.name, func(t *testing.T) {
			t.Attr("threat", "B2 B8")
			c.run(t)
		}) {
			return
		}
	}
}
