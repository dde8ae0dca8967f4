package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fleetd/fault"
	"fleetd/herdr"
	"fleetd/mcp"
	"fleetd/test/fleet"
	"fleetd/test/rabbit"
)

// profiles are those of every host of these tests. A file at start.fail in dir
// has the program of "fails" end at once with the code that it holds.
func profiles(f *fleet.Fleet) string {
	shell := func(script string) string { return fmt.Sprintf("[/bin/sh, -c, %q]", script) }
	return "BRIDGED_PROFILES={" + strings.Join([]string{
		fmt.Sprintf("aide: {argv: [%s, --reply-with, 'done as asked'], env: {BRIDGED_TOKEN: mine}, groups: [aides], remote: true}", f.Agent()),
		fmt.Sprintf("silent: {argv: [%s, --replies, '-1', --work, 1h], remote: true}", f.Agent()),
		fmt.Sprintf("mute: {argv: [%s, --replies, '-1'], remote: true}", f.Agent()),
		fmt.Sprintf("asker: {argv: [%s, --ask, 'may I?'], remote: true}", f.Agent()),
		fmt.Sprintf("private: {argv: [%s]}", f.Agent()),
		"missing: {argv: [no-such-agent-anywhere], remote: true}",
		"ends: {argv: " + shell("exit 0") + ", remote: true}",
		"fails: {argv: " + shell("exit 1") + ", remote: true}",
		fmt.Sprintf("login: {argv: [%s, --trust], ready_timeout: 5s, remote: true}", f.Agent()),
		"idle: {argv: " + shell("sleep 3600") + ", ready_timeout: 2s, remote: true}",
		fmt.Sprintf("lost: {argv: [%s], cwd: /no/such/directory, remote: true}", f.Agent()),
	}, ", ") + "}"
}

// spawnFleet is hosta and hostb, both with profiles. hostb lets hosta spawn and
// stop; hosta lets nobody.
func spawnFleet(t *testing.T, ctx context.Context) (f *fleet.Fleet, a, b *fleet.Host) {
	t.Helper()
	f = newFleet(t, rabbit.URI(t))
	a = addHostWith(t, ctx, f, "hosta", profiles(f))
	b = addHostWith(t, ctx, f, "hostb", profiles(f), "BRIDGED_CONTROL_ALLOW={hosta: [send, spawn, stop]}")
	if err := f.TrustEachOther(); err != nil {
		t.Fatal(err)
	}
	sees(t, ctx, a, b)
	sees(t, ctx, b, a)
	return f, a, b
}

func addHostWith(t *testing.T, ctx context.Context, f *fleet.Fleet, name string, env ...string) *fleet.Host {
	t.Helper()
	h, err := f.AddHost(ctx, name, env...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of %s:\n%s", name, tail(h.Log(), 12000))
		}
	})
	if err := h.Start(ctx); err != nil {
		t.Fatal(err)
	}
	return h
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

// An agent is started where it was asked for, does its task as the one whose
// identity it was given, and ends without a trace. Fails when any of it is not
// so, on this host or on another one.
func TestAnAgentIsSpawnedWorksAndIsStopped(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 4*bound)
	defer cancel()
	_, a, b := spawnFleet(t, ctx)
	lead := addMain(t, ctx, a, "lead")
	for _, h := range []*fleet.Host{a, b} {
		t.Run(h.Name, func(t *testing.T) {
			args := map[string]any{"profile": "aide", "host": h.Name, "groups": []string{"night"}, "task": "please do it", "idempotency_key": "one " + h.Name, "timeout_seconds": 200}
			got, err := lead.Spawn(ctx, args)
			if err != nil {
				t.Fatal(err)
			}
			if got.State != "spawned" || got.Address != "aide@"+h.Name || !slices.Equal(got.Groups, []string{"aides", "night"}) || got.MsgID == "" {
				t.Fatalf("spawned %+v", got)
			}
			if !anywhere(t, ctx, h, got.GID) {
				t.Errorf("no pane carries %s: %q", got.GID, panes(t, ctx, h))
			}
			again, err := lead.Spawn(ctx, args)
			if err != nil || again.GID != got.GID || again.MsgID != got.MsgID {
				t.Errorf("once more under the same key: %+v, %v", again, err)
			}
			if n := len(panes(t, ctx, h)); n != 1 {
				t.Errorf("%d panes: %q", n, panes(t, ctx, h))
			}
			args["task"] = "something else"
			if _, err := lead.Spawn(ctx, args); !fault.Is(err, fault.Conflict) {
				t.Errorf("another task under the same key: %v", err)
			}
			// Its reply is signed with the token of its pane, not with the profile's.
			reply := polled(t, ctx, lead, "REPLY")
			if reply.FromID != got.GID || reply.InReplyTo != got.MsgID || reply.Content != "done as asked" {
				t.Fatalf("the task was answered with %+v", reply)
			}
			end, err := lead.Stop(ctx, got.Address)
			if err != nil || end.State != "stopped" || end.GID != got.GID {
				t.Fatalf("stopped: %+v, %v", end, err)
			}
			if anywhere(t, ctx, h, got.GID) {
				t.Errorf("its pane is there: %q", panes(t, ctx, h))
			}
			eventually(t, ctx, func() error {
				_, err := lead.Send(ctx, map[string]any{"to": got.GID, "content": "still there?"})
				if !fault.Is(err, fault.PaneGone) {
					return fmt.Errorf("a brief to it came to %v", err)
				}
				return nil
			})
			if end, err := lead.Stop(ctx, got.GID); err != nil || end.State != "stopped" {
				t.Errorf("stopped again: %+v, %v", end, err)
			}
		})
	}
}

// polled takes the next mail of that kind.
func polled(t *testing.T, ctx context.Context, m *fleet.Main, kind string) mcp.Message {
	t.Helper()
	for ctx.Err() == nil {
		r, err := m.Poll(ctx, map[string]any{"wait_seconds": 20, "max": 1})
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

// Each way to fail has its true answer, from here and from afar, and leaves
// nothing. Fails when one is told for another, or a pane, a name or an entity
// stays.
func TestAFailedSpawnSaysWhyAndLeavesNothing(t *testing.T) {
	t.Attr("threat", "G4 G8")
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 4*bound)
	defer cancel()
	_, a, b := spawnFleet(t, ctx)
	lead, other := addMain(t, ctx, a, "lead"), addMain(t, ctx, b, "other")
	cases := []struct {
		by      *fleet.Main
		host    string
		profile string
		code    fault.Code
		says    string
	}{
		{lead, "hostb", "private", fault.ProfileUnknown, "no profile private"},
		{other, "hosta", "aide", fault.NotAllowed, "control.allow"},
		{lead, "hostc", "aide", fault.UnknownRecipient, "hostc"},
	}
	for _, host := range []string{"hosta", "hostb"} {
		for _, c := range []struct {
			profile string
			code    fault.Code
			says    string
		}{
			{"nothing", fault.ProfileUnknown, "no profile nothing"},
			{"missing", fault.SpawnFailed, "not installed"},
			{"ends", fault.SpawnFailed, "ended before it was ready"},
			{"fails", fault.SpawnFailed, "ended before it was ready"},
			{"idle", fault.SpawnFailed, "did not come to take input"},
			{"login", fault.SpawnFailed, "BLOCKED"},
			{"lost", fault.SpawnFailed, "working directory"},
		} {
			cases = append(cases, struct {
				by      *fleet.Main
				host    string
				profile string
				code    fault.Code
				says    string
			}{lead, host, c.profile, c.code, c.says})
		}
	}
	for _, c := range cases {
		t.Run(c.by.Name+" "+c.profile+" "+c.host, func(t *testing.T) {
			got, err := c.by.Spawn(ctx, map[string]any{"profile": c.profile, "host": c.host, "name": "doomed"})
			if !fault.Is(err, c.code) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%+v, %v; want %s that says %q", got, err, c.code, c.says)
			}
		})
	}
	for _, h := range []*fleet.Host{a, b} {
		if all := panes(t, ctx, h); len(all) != 0 {
			t.Errorf("panes of %s are left: %q", h.Name, all)
		}
	}
	r, err := lead.Roster(ctx)
	if err != nil || slices.ContainsFunc(r.Entities, func(e mcp.RosterEntity) bool { return e.Kind == "worker" }) {
		t.Errorf("the roster has %+v, %v", r.Entities, err)
	}
	// hosta's no to the other host is on record at both.
	for _, h := range []*fleet.Host{a, b} {
		eventually(t, ctx, func() error {
			log, err := h.Audit()
			for line := range strings.Lines(log) {
				if strings.Contains(line, `"verb":"spawn","who":"`+other.GID+`","from":"hostb","host":"hosta"`) && strings.Contains(line, `"outcome":"refused","code":"NOT_ALLOWED"`) {
					return nil
				}
			}
			return fmt.Errorf("the audit log of %s has %s (%v)", h.Name, log, err)
		})
	}
	// The name is free, and then it is not.
	if _, err := lead.Spawn(ctx, map[string]any{"profile": "aide", "host": "hostb", "name": "doomed", "timeout_seconds": 200}); err != nil {
		t.Fatal(err)
	}
	if _, err := lead.Spawn(ctx, map[string]any{"profile": "aide", "host": "hostb", "name": "doomed"}); !fault.Is(err, fault.Conflict) {
		t.Errorf("a name in use: %v", err)
	}
	for target, code := range map[string]fault.Code{"other@hostb": fault.NotAllowed, "lead": fault.NotAllowed, "nobody": fault.UnknownRecipient} {
		if _, err := lead.Stop(ctx, target); !fault.Is(err, code) {
			t.Errorf("stop of %s: %v, want %s", target, err, code)
		}
	}
	if _, err := a.Register(ctx, mcp.RegisterArgs{Name: "near", Kind: "worker"}); err != nil {
		t.Fatal(err)
	}
	seen(t, ctx, other, "near@hosta")
	if _, err := other.Stop(ctx, "near@hosta"); !fault.Is(err, fault.NotAllowed) {
		t.Errorf("stop on a host that lets nobody: %v", err)
	}
}

// A gateway that is killed in a launch undoes it at its next start. Fails when
// the pane stays, when the outcome is another one, or when the same key starts
// it again.
func TestALaunchThatACrashMetIsUndone(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 4*bound)
	defer cancel()
	for _, where := range []string{"hosta", "hostb"} {
		for _, method := range []string{"layout.apply", "agent.explain"} {
			t.Run(where+" "+method, func(t *testing.T) {
				_, a, b := spawnFleet(t, ctx)
				lead := addMain(t, ctx, a, "lead")
				doomed := a
				if where == b.Name {
					doomed = b
				}
				struck := make(chan struct{}, 1)
				remove, err := doomed.TapHerdr(func(m string) bool {
					if m == method {
						select {
						case struck <- struct{}{}:
							return true
						default:
						}
					}
					return true
				})
				if err != nil {
					t.Fatal(err)
				}
				args := map[string]any{"profile": "aide", "host": where, "idempotency_key": "k", "timeout_seconds": 200}
				answered := make(chan error, 1)
				go func() {
					_, err := lead.Spawn(ctx, args)
					answered <- err
				}()
				<-struck
				if err := doomed.Kill(); err != nil {
					t.Fatal(err)
				}
				if err := remove(); err != nil {
					t.Fatal(err)
				}
				revive(t, ctx, doomed)
				if where == a.Name {
					<-answered // its connection broke
					reconnect(t, ctx, lead)
					_, err = lead.Spawn(ctx, args)
				} else {
					err = <-answered
				}
				if !fault.Is(err, fault.SpawnFailed) || !strings.Contains(err.Error(), "ended during the launch") {
					t.Errorf("the launch came to %v", err)
				}
				eventually(t, ctx, func() error {
					if all := panes(t, ctx, doomed); len(all) != 0 {
						return fmt.Errorf("panes are left: %q", all)
					}
					return nil
				})
			})
		}
	}
}

// The caller's patience ends and the launch goes on. Fails when SPAWN_TIMEOUT
// does not lead to the agent that came, or its task is lost or done twice.
func TestASpawnThatTakesLongIsAskedForAgain(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 3*bound)
	defer cancel()
	_, a, b := spawnFleet(t, ctx)
	lead := addMain(t, ctx, a, "lead")
	release := make(chan struct{})
	remove, err := b.TapHerdr(func(m string) bool {
		if m == "agent.explain" {
			<-release
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = lead.Spawn(ctx, map[string]any{"profile": "aide", "host": "hostb", "task": "do it", "timeout_seconds": 2})
	if !fault.Is(err, fault.SpawnTimeout) {
		t.Fatalf("it came to %v", err)
	}
	_, key, found := strings.Cut(err.Error(), `idempotency_key "`)
	key, _, _ = strings.Cut(key, `"`)
	if !found {
		t.Fatalf("no key is named: %v", err)
	}
	close(release)
	got, err := lead.Spawn(ctx, map[string]any{"profile": "aide", "host": "hostb", "task": "do it", "timeout_seconds": 200, "idempotency_key": key})
	if err != nil || got.GID != key {
		t.Fatalf("asked again with %q: %+v, %v", key, got, err)
	}
	if err := remove(); err != nil {
		t.Fatal(err)
	}
	reply := polled(t, ctx, lead, "REPLY")
	if reply.FromID != got.GID || reply.InReplyTo != got.MsgID {
		t.Errorf("the task was answered with %+v", reply)
	}
	if n := len(panes(t, ctx, b)); n != 1 {
		t.Errorf("%d panes: %q", n, panes(t, ctx, b))
	}
}

// A worker that is stopped with a brief open abandons it, once. Fails when its
// sender waits on, or is told twice.
func TestAStopAbandonsWhatIsOpen(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 3*bound)
	defer cancel()
	_, a, _ := spawnFleet(t, ctx)
	lead := addMain(t, ctx, a, "lead")
	got, err := lead.Spawn(ctx, map[string]any{"profile": "silent", "host": "hostb", "task": "take your time", "timeout_seconds": 200})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, ctx, func() error {
		r, err := lead.Roster(ctx)
		for _, e := range r.Entities {
			if e.GID == got.GID && e.Status == "working" {
				return nil
			}
		}
		return fmt.Errorf("it does not work: %+v, %v", r.Entities, err)
	})
	if end, err := lead.Stop(ctx, got.Address); err != nil || end.State != "stopped" {
		t.Fatalf("%+v, %v", end, err)
	}
	if msg := polled(t, ctx, lead, "ABANDONED"); msg.InReplyTo != got.MsgID {
		t.Errorf("told %+v", msg)
	}
	r, err := lead.Poll(ctx, map[string]any{"wait_seconds": 2})
	if err != nil || len(r.Messages) != 0 {
		t.Errorf("told more: %+v, %v", r.Messages, err)
	}
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
	if err != nil || sent.Reason != "PANE_CHANGED" {
		t.Fatalf("after a restart of herdr: %+v, %v", sent, err)
	}
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
