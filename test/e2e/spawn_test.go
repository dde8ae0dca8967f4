package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fleetd/herdr"
	"fleetd/mcp"
	"fleetd/test/fleet"
	"fleetd/test/rabbit"
)

// profiles are those of every host of these tests. What an agent of "mute" does
// is said at the socket muteControl, so that there is one of them at a time.
func profiles(f *fleet.Fleet) string {
	shell := func(script string) string { return fmt.Sprintf("[/bin/sh, -c, %q]", script) }
	return "BRIDGED_PROFILES={" + strings.Join([]string{
		fmt.Sprintf("aide: {argv: [%s, --reply-with, 'done as asked'], env: {BRIDGED_TOKEN: mine}, groups: [aides], remote: true}", f.Agent()),
		fmt.Sprintf("silent: {argv: [%s, --replies, '-1', --work, 1h], remote: true}", f.Agent()),
		fmt.Sprintf("mute: {argv: [%s, --replies, '-1', --control, %s], remote: true}", f.Agent(), muteControl(f)),
		fmt.Sprintf("asker: {argv: [%s, --ask, 'may I?'], remote: true}", f.Agent()),
		fmt.Sprintf("private: {argv: [%s]}", f.Agent()),
		"missing: {argv: [no-such-agent-anywhere], remote: true}",
		"ends: {argv: " + shell("exit 0") + ", remote: true}",
		"fails: {argv: " + shell("exit 1") + ", remote: true}",
		fmt.Sprintf("login: {argv: [%s, --trust], ready_timeout: 4s, remote: true}", f.Agent()),
		"idle: {argv: " + shell("sleep 3600") + ", ready_timeout: 2s, remote: true}",
		fmt.Sprintf("lost: {argv: [%s], cwd: /no/such/directory, remote: true}", f.Agent()),
	}, ", ") + "}"
}

func muteControl(f *fleet.Fleet) string { return filepath.Join(f.Dir, "mute.ctl") }

// spawnFleet is hosta and hostb, both with profiles. hostb lets hosta spawn and
// stop; hosta lets nobody.
func spawnFleet(t *testing.T, ctx context.Context) (f *fleet.Fleet, a, b *fleet.Host) {
	t.Helper()
	f = newFleet(t, rabbit.URI(t))
	a = addHost(t, ctx, f, "hosta", profiles(f))
	b = addHost(t, ctx, f, "hostb", profiles(f), "BRIDGED_CONTROL_ALLOW={hosta: [send, spawn, stop]}")
	if err := f.TrustEachOther(); err != nil {
		t.Fatal(err)
	}
	meet(t, ctx, a, b)
	return f, a, b
}

// panes are the labels of the panes of h.
func panes(t *testing.T, ctx context.Context, h *fleet.Host) (labels []string) {
	t.Helper()
	all, err := (&herdr.Client{Socket: h.Herdr.SocketPath()}).PaneList(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		labels = append(labels, p.Label)
	}
	return labels
}

// anywhere reports whether a pane of h carries gid.
func anywhere(t *testing.T, ctx context.Context, h *fleet.Host, gid string) bool {
	t.Helper()
	return slices.ContainsFunc(panes(t, ctx, h), func(label string) bool { return strings.Contains(label, gid) })
}

// polled takes the next mail of that kind.
func polled(t *testing.T, ctx context.Context, m *fleet.Main, kind string) mcp.Message {
	t.Helper()
	for ctx.Err() == nil {
		r, err := m.Poll(ctx, map[string]any{"wait_seconds": longest, "max": 1})
		if err != nil {
			t.Fatal(err)
		}
		for _, msg := range r.Messages {
			if msg.Kind == kind {
				return msg
			}
			t.Logf("%s got %+v", m.Name, msg)
		}
	}
	t.Fatalf("%s got no %s", m.Name, kind)
	return mcp.Message{}
}

// A person's pane that was there before the daemon is registered, and keeps its
// gid over restarts of the daemon; a restart of herdr gives plain shells, into
// which nothing is typed. Fails when the gid changes, or text goes to a shell.
func TestAPaneFromBeforeKeepsItsGid(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 3*bound)
	defer cancel()
	f := newFleet(t, "")
	h, err := f.AddHost(ctx, "hosta")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(h.Herdr.SocketPath())
	place, err := h.Herdr.Run("mine", []string{f.Agent()}, nil, dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(ctx); err != nil {
		t.Fatal(err)
	}
	register := func(pane string) (r mcp.RegisterResult) {
		t.Helper()
		eventually(t, ctx, func() (err error) {
			r, err = h.Register(ctx, mcp.RegisterArgs{Name: "mine", Kind: "worker", Pane: pane})
			return err
		})
		return r
	}
	gid := register(place.PaneID).GID
	restart(t, ctx, h)
	if again := register(place.PaneID); again.GID != gid || again.Created {
		t.Fatalf("after a restart of the daemon it is %+v, was %s", again, gid)
	}
	lead := addMain(t, ctx, h, "lead")
	if err := h.Herdr.Restart(); err != nil {
		t.Fatal(err)
	}
	sent, err := lead.Send(ctx, map[string]any{"to": "mine", "content": "who is there?"})
	if err != nil || sent.State != "deferred" {
		t.Fatalf("after a restart of herdr: %+v, %v", sent, err)
	}
	eventually(t, ctx, func() error { // at first herdr may be away still
		r, err := lead.Roster(ctx)
		for _, e := range r.Entities {
			if e.GID == gid && strings.HasPrefix(e.Refusing, "PANE_CHANGED ") {
				return nil
			}
		}
		return fmt.Errorf("it does not refuse: %+v, %v", r.Entities, err)
	})
	if writes, err := h.Herdr.Input(place.PaneID); err != nil || len(writes) != 0 {
		t.Fatalf("the shell was given %v, %v", writes, err)
	}
	next, err := h.Herdr.Run("mine", []string{f.Agent()}, nil, dir)
	if err != nil {
		t.Fatal(err)
	}
	if again := register(next.PaneID); again.GID != gid || again.Created {
		t.Fatalf("in another pane it is %+v, was %s", again, gid)
	}
	told(t, ctx, lead, sent, "INJECTED")
}
