package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"fleetd/fault"
	"fleetd/herdr"
	"fleetd/mcp"
	"fleetd/test/fleet"
)

// A herdr that hands over to another version of itself keeps its agents, and
// one that is restarted ends them; both number all terminals anew. Fails when
// either is taken for the other: an agent that lives must be registered again,
// or one that has ended is waited for, told of twice, or its shell given text.
func TestAgentsOverAHandoffAndARestartOfHerdr(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*bound)
	defer cancel()
	_, a, b := spawnFleet(t, ctx)
	lead, bob := addMain(t, ctx, a, "lead"), addMain(t, ctx, b, "bob")
	mine := addWorker(t, ctx, b, "mine", "--reply-with", "mine did")
	aide := spawned(t, ctx, lead, b, "aide", "")
	seen(t, ctx, lead, "mine@hostb")
	works := func(t *testing.T, when string) {
		t.Helper()
		for to, want := range map[string]string{"mine@hostb": "mine did", aide.Address: "done as asked"} {
			r, err := lead.Send(ctx, map[string]any{"to": to, "content": "work " + when, "wait_seconds": longest})
			if err != nil || r.State != "replied" || r.Reply.Content != want || r.Reply.InReplyTo != r.MsgID {
				t.Fatalf("%s, %s answered %+v, %v", when, to, r, err)
			}
			if to == aide.Address && r.Reply.FromID != aide.GID {
				t.Errorf("it is %s, was %s", r.Reply.FromID, aide.GID)
			}
		}
	}
	t.Run("handoff", func(t *testing.T) {
		if err := b.Herdr.Handoff(); err != nil {
			t.Fatal(err)
		}
		works(t, "after a handoff")
		// A gateway that is killed while an agent hands in its answer gets it twice.
		for _, pane := range []string{mine.Pane, paneOf(t, ctx, b, aide.GID)} {
			eventually(t, ctx, func() error {
				if _, now, err := b.Herdr.Status(pane); err != nil || now != "idle" && now != "done" {
					return fmt.Errorf("pane %s is %s, %v", pane, now, err)
				}
				return nil
			})
		}
		if err := b.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := b.Herdr.Handoff(); err != nil {
			t.Fatal(err)
		}
		revive(t, ctx, b)
		reconnect(t, ctx, bob)
		meet(t, ctx, a, b)
		works(t, "after a handoff that the gateway slept through")
	})
	t.Run("restart", func(t *testing.T) {
		mute := spawned(t, ctx, lead, b, "mute", "take this") // open, and never answered
		asker := spawned(t, ctx, lead, b, "asker", "")
		q, err := lead.Send(ctx, map[string]any{"to": asker.Address, "content": "ask me", "wait_seconds": longest})
		if err != nil || q.State != "ask" {
			t.Fatalf("it asked %+v, %v", q, err)
		}
		if err := mine.Control("busy"); err != nil {
			t.Fatal(err)
		}
		status(t, ctx, mine, "working")
		waiting := forOneThatWorks(t, ctx, lead, "mine@hostb", "mark-later")
		blocked := make(chan error, 1)
		go func() {
			_, err := bob.Send(ctx, map[string]any{"to": mute.GID, "content": "and this", "wait_seconds": longest})
			blocked <- err
		}()
		eventually(t, ctx, func() error { return hasOpen(ctx, b, mute.Address, 2) })
		// What went in before this one is in.
		third := injected(t, ctx, lead, mute.Address, "and last this")
		shells := map[string]string{}
		for _, e := range []mcp.SpawnResult{aide, mute, asker} {
			shells[e.Address] = paneOf(t, ctx, b, e.GID)
		}
		if err := b.Herdr.Restart(); err != nil {
			t.Fatal(err)
		}

		wantFault(t, "a send that waited for the answer", <-blocked, fault.Abandoned, "ended before it did")
		want := []string{mute.MsgID, q.MsgID, third.MsgID}
		got := endsOf(t, ctx, lead, len(want))
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("ABANDONED came for %q, want %q", got, want)
		}
		for address, pane := range shells {
			eventually(t, ctx, func() error {
				return isGone(ctx, lead, address)
			})
			if writes, err := b.Herdr.Input(pane); err != nil || len(writes) != 0 {
				t.Errorf("the shell in the pane of %s was given %v, %v", address, writes, err)
			}
		}
		_, err = lead.Answer(ctx, map[string]any{"turn_id": q.TurnID, "content": "yes"})
		wantFault(t, "an answer to one who has ended", err, fault.TooLate, "")
		if left := panes(t, ctx, b); !slices.Equal(left, []string{"mine"}) {
			t.Errorf("the panes are %q, want that of a person alone", left)
		}
		if writes := input(t, mine); len(writes) != 0 {
			t.Errorf("the shell of a person was given %v", writes)
		}
		if err := mine.Reopen(ctx); err != nil {
			t.Fatal(err)
		}
		reply := polled(t, ctx, lead, "REPLY")
		if reply.FromID != mine.GID || reply.InReplyTo != waiting || reply.Content != "mine did" {
			t.Errorf("what waited for a person's agent was answered with %+v", reply)
		}
		for _, m := range []*fleet.Main{lead, bob} {
			r, err := m.Poll(ctx, map[string]any{"wait_seconds": 2})
			if err != nil || len(r.Messages) != 0 {
				t.Errorf("%s is told more: %+v, %v", m.Name, r.Messages, err)
			}
		}
	})
	t.Run("restart under a person's agent", func(t *testing.T) {
		sent, err := bob.Send(ctx, map[string]any{"to": "mine", "content": "mark-open", "wait_seconds": longest})
		if err != nil || sent.State != "replied" {
			t.Fatalf("it came to %+v, %v", sent, err)
		}
		quiet := addWorker(t, ctx, b, "quiet", "--replies=-1")
		sent = injected(t, ctx, bob, "quiet@hostb", "never answered")
		b.Herdr.Crash() // its agents end at once, herdr comes back later
		if got := endsOf(t, ctx, bob, 1); got[0] != sent.MsgID {
			t.Errorf("ABANDONED came for %q, want %q", got, sent.MsgID)
		}
		if err := b.Herdr.Restart(); err != nil {
			t.Fatal(err)
		}
		if err := quiet.Reopen(ctx); err != nil {
			t.Fatal(err)
		}
		sent, err = bob.Send(ctx, map[string]any{"to": quiet.GID, "content": "to the next agent"})
		if err != nil || sent.State != "injected" && sent.State != "deferred" {
			t.Errorf("the next agent was given %+v, %v", sent, err)
		}
	})
}

// spawned starts an agent of that profile on h, with a task that need not be
// answered.
func spawned(t *testing.T, ctx context.Context, m *fleet.Main, h *fleet.Host, profile, task string) mcp.SpawnResult {
	t.Helper()
	args := map[string]any{"profile": profile, "host": h.Name, "timeout_seconds": 200}
	if task != "" {
		args["task"] = task
	}
	got, err := m.Spawn(ctx, args)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// injected sends a brief and waits until it is in its pane.
func injected(t *testing.T, ctx context.Context, m *fleet.Main, to, content string) mcp.SendResult {
	t.Helper()
	sent, err := m.Send(ctx, map[string]any{"to": to, "content": content})
	if err != nil {
		t.Fatal(err)
	}
	for said := sent.State == "injected"; !said; {
		said = polled(t, ctx, m, "INJECTED").InReplyTo == sent.MsgID
	}
	return sent
}

// hasOpen reports whether an entity of h has n briefs that it has not answered.
func hasOpen(ctx context.Context, h *fleet.Host, address string, n int) error {
	name, _, _ := strings.Cut(address, "@")
	me, err := h.API(name).Whoami(ctx)
	if err == nil && len(me.OpenBriefs) != n {
		err = fmt.Errorf("%s has %d open briefs, not %d", name, len(me.OpenBriefs), n)
	}
	return err
}

// endsOf takes n notices ABANDONED and returns what they are about.
func endsOf(t *testing.T, ctx context.Context, m *fleet.Main, n int) (about []string) {
	t.Helper()
	for len(about) < n {
		about = append(about, polled(t, ctx, m, "ABANDONED").InReplyTo)
	}
	return about
}

// paneOf is the pane that carries gid.
func paneOf(t *testing.T, ctx context.Context, h *fleet.Host, gid string) string {
	t.Helper()
	all, err := (&herdr.Client{Socket: h.Herdr.SocketPath()}).PaneList(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if strings.HasSuffix(p.Label, " "+gid) {
			return p.PaneID
		}
	}
	t.Fatalf("no pane of %s carries %s", h.Name, gid)
	return ""
}

// isGone reports whether m is told that an address has ended.
func isGone(ctx context.Context, m *fleet.Main, address string) error {
	r, err := m.Roster(ctx)
	for _, e := range r.Entities {
		if e.Name+"@"+e.Host == address && e.Status != "gone" {
			return fmt.Errorf("%s is %s", address, e.Status)
		}
	}
	return err
}
