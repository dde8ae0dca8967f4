package herdrsim_test

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fleetd/test/herdrsim"

	"github.com/google/go-cmp/cmp"
)

// The screens of claude that detection tells apart (agent-facts §2, §6).
var (
	rule    = strings.Repeat("─", 80)
	atRest  = "❯ old prompt\n\n" + rule + "\n❯\u00a0\n" + rule + "\n  ? for shortcuts"
	turning = "❯ old prompt\n\n✻ Baking…\n" + rule + "\n❯\u00a0\n" + rule + "\n  esc to interrupt"
	asking  = rule + "\n Do you want to proceed?\n ❯ 1. Yes\n   3. No\n Esc to cancel · Tab to amend"
	nothing = "Welcome"
	viewer  = "● Reading\n Showing detailed transcript · ctrl+o to toggle"
)

func hasStatus(t *testing.T, srv *herdrsim.Server, pane, want string) {
	t.Helper()
	last := ""
	defer func() {
		if t.Failed() {
			t.Logf("status is %s", last)
		}
	}()
	eventually(t, "status "+want, func() bool { _, last, _ = srv.Status(pane); return last == want })
}

// Fails if the first sight of an agent is not told as its version tells it.
func TestFirstSight(t *testing.T) {
	long := func(o *herdrsim.Options) { o.Timing.FirstSight = time.Hour }
	for v, want := range map[herdrsim.Version]string{herdrsim.Base: "idle", herdrsim.V080: "idle", herdrsim.V082: "unknown"} {
		srv := start(t, version(v), long)
		place := run(t, srv, "printf 'Quick safety check'; sleep 60", map[string]string{"HERDR_AGENT": "claude"})
		eventually(t, "the agent", func() bool { k, _, _ := srv.Status(place.PaneID); return k == "claude" })
		if _, got, _ := srv.Status(place.PaneID); got != want {
			t.Errorf("%s: %s, want %s", v, got, want)
		}
	}
}

// Fails if the screen is read otherwise than herdr's rules read it, or explain
// does not say how sure it is.
func TestStatusFromTheScreen(t *testing.T) {
	srv := start(t)
	pane := mirror(t, srv, "claude")
	explain := func() object { return at(must(t, srv, "agent.explain", object{"target": pane}), "explain").(object) }
	draw(t, srv, pane, turning)
	hasStatus(t, srv, pane, "working")
	if e := explain(); e["visible_working"] != true || at(e, "matched_rule", "id") != "interrupt_hint" {
		t.Fatalf("working: %v", e)
	}
	draw(t, srv, pane, asking)
	seesScreen(t, srv, pane, "Tab to amend")
	hasStatus(t, srv, pane, "blocked")
	if e := explain(); e["visible_blocker"] != true || e["visible_idle"] != false {
		t.Fatalf("blocked: %v", e)
	}
	draw(t, srv, pane, viewer)
	seesScreen(t, srv, pane, "detailed transcript")
	if e := explain(); e["skip_state_update"] != true || e["state"] != "blocked" {
		t.Fatalf("frozen: %v", e)
	}
	draw(t, srv, pane, atRest)
	seesScreen(t, srv, pane, "? for shortcuts") // half of it may look idle, too
	hasStatus(t, srv, pane, "idle")
	if e := explain(); e["visible_idle"] != true || e["fallback_reason"] != nil {
		t.Fatalf("idle: %v", e)
	}
	if err := srv.BlindRules(pane, true); err != nil {
		t.Fatal(err)
	}
	draw(t, srv, pane, asking)
	seesScreen(t, srv, pane, "Do you want")
	if e := explain(); e["state"] != "idle" || e["fallback_reason"] != "default_known_agent_idle_fallback" {
		t.Fatalf("idle over a dialog: %v", e)
	}
	refused(t, srv, "agent_not_found", "agent.explain", object{"target": "w9:p9"})
}

// Fails if a weak change from working to idle is not held back.
func TestDamping(t *testing.T) {
	srv := start(t, func(o *herdrsim.Options) { o.Timing.Damping = 40 * time.Millisecond })
	pane := mirror(t, srv, "claude")
	draw(t, srv, pane, turning)
	hasStatus(t, srv, pane, "working")
	began := time.Now()
	draw(t, srv, pane, nothing)
	hasStatus(t, srv, pane, "idle")
	if held := time.Since(began); held < 120*time.Millisecond {
		t.Fatalf("held back for %v only", held)
	}
}

// Fails if done and idle are mixed up: an agent that ends its turn where nobody
// looks is done until someone does, without a new sequence number.
func TestDoneUntilSeen(t *testing.T) {
	srv := start(t)
	looked := mirror(t, srv, "claude") // in the active tab
	away := mirror(t, srv, "claude")
	seq := func(pane string) float64 {
		return at(must(t, srv, "agent.get", object{"target": pane}), "agent", "state_change_seq").(float64)
	}
	for _, pane := range []string{looked, away} {
		draw(t, srv, pane, turning)
		hasStatus(t, srv, pane, "working")
		draw(t, srv, pane, atRest)
		hasStatus(t, srv, pane, map[string]string{looked: "idle", away: "done"}[pane])
	}
	before := seq(away)
	refused(t, srv, "timeout", "agent.wait", object{"target": away, "until": []string{"idle"}, "timeout_ms": 30})
	must(t, srv, "agent.wait", object{"target": away, "timeout_ms": patience.Milliseconds()})
	must(t, srv, "agent.focus", object{"target": away})
	hasStatus(t, srv, away, "idle")
	if after := seq(away); after != before {
		t.Fatalf("looking moved the sequence from %v to %v", before, after)
	}
	if seq(looked) >= before {
		t.Fatalf("the sequence is not the server's: %v, then %v", seq(looked), before)
	}
}

// Fails if the end of an agent in a shell is not told, or the pane goes on
// showing it.
func TestAgentEndsShellStays(t *testing.T) {
	srv := start(t)
	pane := at(must(t, srv, "workspace.create", object{}), "root_pane", "pane_id").(string)
	must(t, srv, "pane.send_text", object{"pane_id": pane, "text": "HERDR_AGENT=codex sh -c 'read x'\r"})
	eventually(t, "the agent", func() bool { k, _, _ := srv.Status(pane); return k == "codex" })
	if n := len(must(t, srv, "agent.list", object{})["agents"].([]any)); n != 1 {
		t.Fatalf("%d agents", n)
	}
	must(t, srv, "pane.send_text", object{"pane_id": pane, "text": "\r"})
	events := subscribe(t, srv, object{"type": "pane.agent_detected"})
	if e := next(t, events); at(e, "data", "released") != nil || at(e, "data", "agent") != "codex" {
		t.Fatalf("first event: %v", e)
	}
	if e := next(t, events); at(e, "data", "released") != true || at(e, "data", "final_status") != "idle" {
		t.Fatalf("second event: %v", e)
	}
	refused(t, srv, "agent_not_found", "agent.get", object{"target": pane})
	hasStatus(t, srv, pane, "unknown")
}

// Fails if another agent in the same pane is not seen as another one.
func TestAgentReplaced(t *testing.T) {
	srv := start(t)
	pane := mirror(t, srv, "claude")
	if err := srv.ReplaceProgram(pane, []string{"/bin/sh", "-c", "echo other; cat"}, map[string]string{"HERDR_AGENT": "codex"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the other agent", func() bool { k, _, _ := srv.Status(pane); return k == "codex" })
	seesScreen(t, srv, pane, "other")
	if err := srv.ReplaceProgram(pane, []string{"/bin/sh", "-c", "echo twin; cat"}, map[string]string{"HERDR_AGENT": "codex"}); err != nil {
		t.Fatal(err)
	}
	seesScreen(t, srv, pane, "twin")
	events := subscribe(t, srv, object{"type": "pane.agent_detected"})
	for i, want := range []string{"claude", "claude released", "codex", "codex released", "codex"} {
		e := next(t, events)
		got := at(e, "data", "agent").(string)
		if at(e, "data", "released") == true {
			got += " released"
		}
		if got != want {
			t.Fatalf("event %d: %s, want %s", i, got, want)
		}
	}
}

// Fails if status follows a script when told, sticks and flaps.
func TestScriptedStatus(t *testing.T) {
	srv := start(t)
	pane := mirror(t, srv, "claude")
	draw(t, srv, pane, atRest)
	if err := srv.ForceStatus(pane, "working"); err != nil {
		t.Fatal(err)
	}
	refused(t, srv, "timeout", "agent.wait", object{"target": pane, "timeout_ms": 80})
	_ = srv.ForceStatus(pane, "")
	hasStatus(t, srv, pane, "idle")
	if err := srv.FlapStatus(pane, 5*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"working", "idle", "working"} {
		hasStatus(t, srv, pane, s)
	}
}

// Fails if the wait of a prompt ends otherwise than reference §5.5 says.
func TestPromptWait(t *testing.T) {
	prompt := func(pane string, wait object) object {
		return object{"target": pane, "text": "go", "wait": wait}
	}
	quick := start(t, func(o *herdrsim.Options) { o.Timing.PromptStall = 50 * time.Millisecond })
	still := mirror(t, quick, "claude")
	draw(t, quick, still, atRest)
	refused(t, quick, "agent_prompt_stalled", "agent.prompt", prompt(still, object{"timeout_ms": patience.Milliseconds()}))

	srv := start(t, func(o *herdrsim.Options) { o.Timing.PromptStall = patience })
	pane := mirror(t, srv, "claude")
	draw(t, srv, pane, atRest)
	refused(t, srv, "agent_not_found", "agent.prompt", object{"target": "nobody", "text": "", "wait": object{}})
	refused(t, srv, "timeout", "agent.prompt", prompt(pane, object{"timeout_ms": 50}))
	if err := srv.AfterText(pane, func() { draw(t, srv, pane, turning) }); err != nil {
		t.Fatal(err)
	}
	r := must(t, srv, "agent.prompt", prompt(pane, object{"until": []string{"working", "blocked", "idle", "done"}, "timeout_ms": patience.Milliseconds()}))
	if at(r, "agent", "agent_status") != "working" {
		t.Fatalf("first change: %v", r)
	}
	closed := make(chan struct{})
	if err := srv.AfterText(pane, func() {
		defer close(closed)
		must(t, srv, "pane.close", object{"pane_id": pane})
	}); err != nil {
		t.Fatal(err)
	}
	refused(t, srv, "agent_not_running", "agent.prompt", prompt(pane, object{"timeout_ms": patience.Milliseconds()}))
	<-closed // the prompt may be answered before the close is
}

// Fails if output or status waits miss what is there, or answer in another
// form.
func TestWaits(t *testing.T) {
	srv := start(t)
	pane := mirror(t, srv, "claude")
	match := func(kind, value string) object {
		return object{"pane_id": pane, "source": "recent", "match": object{"type": kind, "value": value}, "timeout_ms": 60} // for what is there it looks at least once
	}
	draw(t, srv, pane, "ok  fleetd/store 0.41s")
	seesScreen(t, srv, pane, "ok")
	r := must(t, srv, "pane.wait_for_output", match("regex", `^ok\s`))
	if r["matched_line"] != "ok  fleetd/store 0.41s" || at(r, "read", "source") != "recent_unwrapped" {
		t.Fatalf("output: %v", r)
	}
	refused(t, srv, "timeout", "pane.wait_for_output", match("substring", "FAIL"))
	refused(t, srv, "invalid_regex", "pane.wait_for_output", match("regex", "("))
	refused(t, srv, "unsupported_event_wait_match", "events.wait", object{"match_event": object{"event": "pane_closed"}})
	w := must(t, srv, "events.wait", object{"match_event": object{"event": "pane_agent_status_changed", "pane_id": pane, "agent_status": "idle"}, "timeout_ms": patience.Milliseconds()})
	if at(w, "event", "data", "type") != "pane_agent_status_changed" || at(w, "event", "data", "agent_status") != "idle" {
		t.Fatalf("events.wait: %v", w)
	}
	bad := ask(t, srv, "events.wait", object{"match_event": object{"event": "pane_agent_status_changed", "pane_id": "w9:p9", "agent_status": "idle"}})
	if bad.ID != "t1:sub:0:probe" || bad.Error.Code != "pane_not_found" {
		t.Fatalf("events.wait without a pane: %+v", bad)
	}
}

// Fails if subscriptions do not replay (plain), start now (scoped), or name
// events and errors as herdr does.
func TestSubscriptions(t *testing.T) {
	srv := start(t)
	pane := mirror(t, srv, "claude")
	other := mirror(t, srv, "claude")
	bad := ask(t, srv, "events.subscribe", object{"subscriptions": []object{{"type": "pane.closed"}, {"type": "pane.scroll_changed", "pane_id": "w9:p9"}}})
	if bad.ID != "t1:sub:1:probe" || bad.Error.Code != "pane_not_found" {
		t.Fatalf("unknown pane: %+v", bad)
	}
	must(t, srv, "pane.close", object{"pane_id": other})
	old := subscribe(t, srv, object{"type": "pane.created"}, object{"type": "pane.closed"})
	for i, want := range []string{"pane_created", "pane_closed", "pane_created"} { // the closing overtakes the second creation
		if e := next(t, old); e["event"] != want || at(e, "data", "type") != want {
			t.Fatalf("event %d: %v, want %s", i, e, want)
		}
	}
	draw(t, srv, pane, atRest)
	scoped := subscribe(t, srv, object{"type": "pane.agent_status_changed", "pane_id": pane},
		object{"type": "pane.output_matched", "pane_id": pane, "source": "visible", "match": object{"type": "substring", "value": "proceed"}})
	draw(t, srv, pane, asking)
	seen := map[any]object{}
	for range 2 {
		e := next(t, scoped)
		seen[e["event"]] = e
	}
	if e := seen["pane.agent_status_changed"]; at(e, "data", "agent_status") != "blocked" || at(e, "data", "type") != nil {
		t.Fatalf("status: %v", seen)
	}
	if e := seen["pane.output_matched"]; at(e, "data", "matched_line") != " Do you want to proceed?" {
		t.Fatalf("output: %v", seen)
	}
	now := subscribe(t, srv, object{"type": "pane.agent_status_changed", "pane_id": pane, "agent_status": "blocked"})
	draw(t, srv, pane, asking+"\n ") // matches on: no second event
	draw(t, srv, pane, atRest)
	if e := next(t, scoped); at(e, "data", "agent_status") != "idle" {
		t.Fatalf("output that goes on matching is told again: %v", e)
	}
	if e := next(t, now); at(e, "data", "agent_status") != "blocked" {
		t.Fatalf("the state that already holds: %v", e)
	}
}

// Fails if the ring remembers more than herdr's 512 events.
func TestRingForgets(t *testing.T) {
	srv := start(t)
	must(t, srv, "workspace.create", object{})
	for range 512 {
		must(t, srv, "tab.rename", object{"tab_id": "w1:t1", "label": "x"})
	}
	events := subscribe(t, srv, object{"type": "pane.created"}, object{"type": "tab.renamed"})
	if e := next(t, events); e["event"] != "tab_renamed" {
		t.Fatalf("remembered: %v", e)
	}
}

// Fails if a hook's state does not take the place of the screen, or can be
// overtaken by an older report.
func TestHooks(t *testing.T) {
	srv := start(t)
	pane := mirror(t, srv, "opencode")
	report := func(source, state string, seq int) {
		must(t, srv, "pane.report_agent", object{"pane_id": pane, "source": source, "agent": "opencode", "state": state, "seq": seq, "agent_session_id": "ses_41"})
	}
	report("herdr:opencode", "working", 2)
	report("herdr:opencode", "blocked", 1)
	got := at(must(t, srv, "agent.get", object{"target": pane}), "agent").(object)
	want := object{"source": "herdr:opencode", "agent": "opencode", "kind": "id", "value": "ses_41"}
	if diff := cmp.Diff(any(want), got["agent_session"]); diff != "" || got["agent_status"] != "working" || got["screen_detection_skipped"] != true {
		t.Fatalf("agent: %v %s", got, diff)
	}
	e := at(must(t, srv, "agent.explain", object{"target": pane}), "explain").(object)
	if e["screen_detection_skip_reason"] != "full_lifecycle_hook_authority" {
		t.Fatalf("explain: %v", e)
	}
}

// Fails if agent.start does not go through its states: busy shell, pending,
// ready under its name, nameless after the timeout.
func TestAgentStart(t *testing.T) {
	bin := t.TempDir()
	script := "#!/bin/sh\nprintf '\\033[2J\\033[H" + strings.ReplaceAll(atRest, "\n", `\n`) + "\\n'\nread x\n"
	if err := os.WriteFile(filepath.Join(bin, "claude"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	const settle = 400 * time.Millisecond
	srv := start(t, func(o *herdrsim.Options) { o.Timing.StartSettle = settle })
	r := must(t, srv, "workspace.create", object{"env": object{"PATH": bin + ":" + os.Getenv("PATH")}})
	pane := at(r, "root_pane", "pane_id").(string)
	begin := func(name string) object {
		return object{"name": name, "kind": "claude", "pane_id": pane, "args": []string{"--model", "x 1"}, "timeout_ms": patience.Milliseconds()}
	}
	refused(t, srv, "invalid_agent_name", "agent.start", begin("Bad Name"))
	refused(t, srv, "agent_pane_not_found", "agent.start", object{"name": "a", "kind": "claude", "pane_id": "w9:p9"})
	refused(t, srv, "unsupported_agent_kind", "agent.start", object{"name": "a", "kind": "qwen", "pane_id": pane})
	refused(t, srv, "invalid_agent_timeout", "agent.start", object{"name": "a", "kind": "claude", "pane_id": pane, "timeout_ms": 1})
	must(t, srv, "pane.send_text", object{"pane_id": pane, "text": "head -n 1\r"})
	eventually(t, "a busy shell", func() bool {
		r := ask(t, srv, "pane.process_info", object{"pane_id": pane})
		group, shell := at(r.Result, "process_info", "foreground_process_group_id"), at(r.Result, "process_info", "shell_pid")
		return group != shell
	})
	refused(t, srv, "agent_pane_busy", "agent.start", begin("reviewer"))
	must(t, srv, "pane.send_text", object{"pane_id": pane, "text": "\r"}) // what head waits for
	var started object
	var began time.Time
	eventually(t, "a free shell", func() bool {
		began = time.Now()
		r := ask(t, srv, "agent.start", begin("reviewer"))
		started = r.Result
		return r.Error == nil
	})
	if at(started, "agent", "launch_pending") != true || at(started, "agent", "agent") != nil || len(started["argv"].([]any)) != 3 {
		t.Fatalf("started: %v", started)
	}
	refused(t, srv, "agent_name_taken", "agent.start", begin("reviewer"))
	refused(t, srv, "agent_pane_busy", "agent.start", begin("second"))
	eventually(t, "readiness", func() bool {
		return at(must(t, srv, "agent.get", object{"target": "reviewer"}), "agent", "interactive_ready") == true
	})
	if took := time.Since(began); took < settle {
		t.Fatalf("ready after %v", took)
	}
	if got := written(t, srv, pane); got[len(got)-1] != "agent.start claude --model 'x 1'\r" {
		t.Fatalf("typed %q", got)
	}
	must(t, srv, "agent.send_keys", object{"target": "reviewer", "keys": []string{"enter"}})
	eventually(t, "loss of the name with the agent", func() bool { return ask(t, srv, "agent.get", object{"target": "reviewer"}).Error != nil })
}

// Fails if agents can be renamed to what is taken or not valid.
func TestAgentRename(t *testing.T) {
	srv := start(t)
	one, two := mirror(t, srv, "claude"), mirror(t, srv, "codex")
	must(t, srv, "agent.rename", object{"target": one, "name": "reviewer-2"})
	refused(t, srv, "agent_name_taken", "agent.rename", object{"target": two, "name": "reviewer-2"})
	refused(t, srv, "invalid_agent_name", "agent.rename", object{"target": two, "name": "2nd"})
	if got := must(t, srv, "agent.get", object{"target": "reviewer-2"}); at(got, "agent", "pane_id") != one {
		t.Fatalf("by name: %v", got)
	}
	must(t, srv, "agent.rename", object{"target": "reviewer-2", "name": nil})
	refused(t, srv, "agent_not_found", "agent.get", object{"target": "reviewer-2"})
}

// Fails if server.stop leaves the socket, or connections do not end with it.
func TestServerStop(t *testing.T) {
	srv := start(t)
	held := dial(t, srv)
	_, _ = io.WriteString(held, line("events.subscribe", object{"subscriptions": []object{{"type": "pane.closed"}}}))
	must(t, srv, "server.stop", object{})
	if _, err := io.ReadAll(held); err != nil {
		t.Fatalf("the subscription did not end: %v", err)
	}
	eventually(t, "the socket to go", func() bool { _, err := os.Stat(srv.SocketPath()); return os.IsNotExist(err) })
	refusedMethod := start(t)
	refused(t, refusedMethod, "not_implemented", "worktree.list", object{})
}
