package herdrsim_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"fleetd/test/herdrsim"

	"github.com/google/go-cmp/cmp"
)

// Fails if a pane's program does not get the environment, terminal and
// directory that herdr gives it.
func TestEnvironmentOfAPane(t *testing.T) {
	srv := start(t, func(o *herdrsim.Options) { o.Env = append(os.Environ(), "HERDR_AGENT=codex", "CODEX_THREAD_ID=7") })
	dir := t.TempDir()
	r := must(t, srv, "workspace.create", object{"cwd": dir, "label": "fleet",
		"env": object{"BRIDGE_GID": "0198c2", "HERDR_PANE_ID": "mine", "TERM": "dumb"}})
	pane := at(r, "root_pane", "pane_id").(string)
	must(t, srv, "pane.send_text", object{"pane_id": pane, "text": "stty size; pwd; env | sort | grep -E '^(BRIDGE|HERDR|TERM|COLORTERM|CODEX)'\r"})
	seesScreen(t, srv, pane, "TERM=xterm-256color")
	screen, _ := srv.Screen(pane)
	for _, want := range []string{
		"24 80", dir, "BRIDGE_GID=0198c2", "COLORTERM=truecolor", "HERDR_ENV=1", "HERDR_PANE_ID=w1:p1", "HERDR_TAB_ID=w1:t1",
		"HERDR_WORKSPACE_ID=w1", "HERDR_SOCKET_PATH=" + srv.SocketPath()[:30],
	} {
		if !strings.Contains(screen, want) {
			t.Errorf("%s is missing in:\n%s", want, screen)
		}
	}
	for _, leak := range []string{"HERDR_AGENT", "CODEX_THREAD_ID"} {
		if strings.Contains(screen, leak) {
			t.Errorf("%s of the server leaks:\n%s", leak, screen)
		}
	}
}

// Fails if a pane that is to run no words, as of `herdrsim --pane third=`, ends
// the server or runs no shell.
func TestAPaneWithoutWordsIsAShell(t *testing.T) {
	srv := start(t)
	for _, argv := range [][]string{nil, {}} {
		place, err := srv.Run("third", argv, nil, "")
		if err != nil {
			t.Fatal(err)
		}
		must(t, srv, "pane.send_text", object{"pane_id": place.PaneID, "text": "echo $((6*7))-here\r"})
		seesScreen(t, srv, place.PaneID, "42-here")
	}
}

// Fails if answers of the making methods lack what a client keeps, or ids are
// not counted as herdr counts them.
func TestMakingPlaces(t *testing.T) {
	srv := start(t)
	refused(t, srv, "workspace_not_found", "tab.create", object{})
	ws := must(t, srv, "workspace.create", object{"label": "fleet"})
	if got := at(ws, "workspace", "workspace_id"); got != "w1" || at(ws, "root_pane", "pane_id") != "w1:p1" || at(ws, "tab", "tab_id") != "w1:t1" {
		t.Fatalf("workspace.create: %v", ws)
	}
	tab := must(t, srv, "tab.create", object{"label": "reviewer"})
	split := must(t, srv, "pane.split", object{"target_pane_id": at(tab, "root_pane", "pane_id"), "direction": "down"})
	if at(split, "pane", "pane_id") != "w1:p3" || at(split, "pane", "tab_id") != "w1:t2" || at(split, "pane", "agent_status") != "unknown" {
		t.Fatalf("pane.split: %v", split)
	}
	must(t, srv, "pane.close", object{"pane_id": "w1:p3"})
	again := must(t, srv, "pane.split", object{"direction": "right"})
	if at(again, "pane", "pane_id") != "w1:p4" {
		t.Fatalf("the closed pane's id was given out again: %v", again)
	}
	refused(t, srv, "pane_not_found", "pane.split", object{"direction": "right", "target_pane_id": "w9:p9"})
	refused(t, srv, "invalid_env", "tab.create", object{"env": object{"A=B": "x"}})
	home := must(t, srv, "tab.create", object{"cwd": "/does/not/exist"})
	if at(home, "root_pane", "cwd") != os.Getenv("HOME") {
		t.Fatalf("a missing directory is not replaced by HOME: %v", home)
	}
	snap := must(t, srv, "session.snapshot", object{})
	for list, want := range map[string]int{"workspaces": 1, "tabs": 3, "panes": 4, "layouts": 3, "agents": 0} {
		if got, _ := at(snap, "snapshot", list).([]any); len(got) != want {
			t.Errorf("snapshot has %d %s, want %d", len(got), list, want)
		}
	}
}

// Fails if layout.apply runs something through a shell, or makes anything when
// it refuses.
func TestLayoutApply(t *testing.T) {
	srv := start(t)
	must(t, srv, "workspace.create", object{})
	leaf := func(extra object) object {
		root := object{"type": "pane"}
		for k, v := range extra {
			root[k] = v
		}
		return object{"root": root}
	}
	refused(t, srv, "invalid_layout", "layout.apply", leaf(object{"command": []string{}}))
	refused(t, srv, "invalid_layout", "layout.apply", leaf(object{"env": object{"": "x"}}))
	refused(t, srv, "layout_apply_failed", "layout.apply", leaf(object{"command": []string{"no-such-program-at-all"}}))
	refused(t, srv, "layout_apply_failed", "layout.apply", leaf(object{"command": []string{"tool"}}))
	if panes := must(t, srv, "pane.list", object{})["panes"].([]any); len(panes) != 1 {
		t.Fatalf("a refused layout left panes: %v", panes)
	}
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "tool"), []byte("#!/bin/sh\necho \"got $1 $GID\"; sleep 60\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	r := must(t, srv, "layout.apply", leaf(object{"label": "builder", "command": []string{"tool", "$HOME"}, "env": object{"PATH": bin + ":" + os.Getenv("PATH"), "GID": "7"}}))
	pane, _ := at(r, "layout", "root", "pane_id").(string)
	seesScreen(t, srv, pane, "got $HOME 7")
	if got := must(t, srv, "pane.get", object{"pane_id": pane}); at(got, "pane", "label") != "builder" {
		t.Fatalf("no label: %v", got)
	}
}

// Fails if the table of reference §2 is not kept, the events that do not come
// included.
func TestHowPanesGoAway(t *testing.T) {
	srv := start(t)
	must(t, srv, "workspace.create", object{}) // w1:p1
	must(t, srv, "pane.split", object{"direction": "right"})
	must(t, srv, "tab.create", object{}) // w1:p3
	must(t, srv, "tab.create", object{}) // w1:p4
	must(t, srv, "workspace.create", object{})
	kinds := []string{"pane.closed", "pane.exited", "tab.closed", "workspace.closed"}
	const rounds = 6 // more than there are events of one kind
	seen := func() (out []string) {
		for range rounds {
			must(t, srv, "workspace.rename", object{"workspace_id": "w1", "label": "marker"})
		}
		for _, k := range kinds { // per round one event of the kind and one marker
			events := subscribe(t, srv, object{"type": k}, object{"type": "workspace.renamed"})
			for markers := 0; markers < rounds; {
				e := next(t, events)
				if e["event"] == "workspace_renamed" {
					markers++
					continue
				}
				id, _ := at(e, "data", "pane_id").(string)
				out = append(out, e["event"].(string)+" "+id)
			}
		}
		return out
	}
	must(t, srv, "pane.send_text", object{"pane_id": "w1:p2", "text": "exit\r"})
	eventually(t, "exit of the shell", func() bool { return ask(t, srv, "pane.get", object{"pane_id": "w1:p2"}).Error != nil })
	must(t, srv, "pane.close", object{"pane_id": "w1:p3"}) // last pane of a tab: no tab.closed
	must(t, srv, "tab.close", object{"tab_id": "w1:t3"})   // no pane event
	must(t, srv, "workspace.close", object{"workspace_id": "w2"})
	want := []string{"pane_closed w1:p3", "pane_exited w1:p2", "tab_closed ", "workspace_closed "}
	if diff := cmp.Diff(want, seen()); diff != "" {
		t.Fatalf("events (-want +got):\n%s", diff)
	}
}

// Fails if a child outlives the server, whatever it does about signals.
func TestChildrenEndWithTheServer(t *testing.T) {
	srv := start(t)
	place := run(t, srv, "trap '' HUP TERM INT; echo stubborn; sleep 1000 & while :; do sleep 1; done", nil)
	seesScreen(t, srv, place.PaneID, "stubborn")
	pid, err := srv.PID(place.PaneID)
	if err != nil {
		t.Fatal(err)
	}
	if err := srv.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "end of the child", func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH })
}

// Fails if tokens and labels are not kept, shown, cut or deleted as herdr does.
func TestLabelsAndTokens(t *testing.T) {
	srv := start(t)
	pane := at(must(t, srv, "workspace.create", object{}), "root_pane", "pane_id")
	report := func(tokens object, more ...object) {
		p := object{"pane_id": pane, "source": "bridge", "tokens": tokens}
		for _, m := range more {
			for k, v := range m {
				p[k] = v
			}
		}
		must(t, srv, "pane.report_metadata", p)
	}
	report(object{"gid": "0198c2", "long": strings.Repeat("x", 100), "old": "y"}, object{"seq": 5})
	report(object{"gid": "stale"}, object{"seq": 5})
	report(object{"gid": "without seq"})
	report(object{"old": nil}, object{"seq": 6})
	must(t, srv, "pane.rename", object{"pane_id": pane, "label": "review"})
	got := must(t, srv, "pane.get", object{"pane_id": pane})
	want := object{"gid": "0198c2", "long": strings.Repeat("x", 80)}
	if diff := cmp.Diff(any(want), at(got, "pane", "tokens")); diff != "" {
		t.Fatalf("tokens (-want +got):\n%s", diff)
	}
	if at(got, "pane", "label") != "review" || at(got, "pane", "revision") != 2.0 {
		t.Fatalf("pane: %v", got)
	}
	refused(t, srv, "invalid_metadata_token", "pane.report_metadata", object{"pane_id": pane, "source": "b", "tokens": object{"a b": "x"}})
	refused(t, srv, "invalid_metadata_source", "pane.report_metadata", object{"pane_id": pane, "source": "a b"})
	must(t, srv, "pane.rename", object{"pane_id": pane})
	if got := must(t, srv, "pane.get", object{"pane_id": pane}); at(got, "pane", "label") != nil {
		t.Fatalf("label not cleared: %v", got)
	}
}

// Fails if a restart keeps what herdr forgets, or forgets what it keeps.
func TestRestart(t *testing.T) {
	srv := start(t)
	must(t, srv, "workspace.create", object{"label": "fleet"})
	must(t, srv, "pane.rename", object{"pane_id": "w1:p1", "label": "review"})
	must(t, srv, "pane.report_metadata", object{"pane_id": "w1:p1", "source": "bridge", "tokens": object{"gid": "7"}})
	before := at(must(t, srv, "pane.get", object{"pane_id": "w1:p1"}), "pane", "terminal_id")
	srv.Crash()
	if err := srv.Restart(); err != nil {
		t.Fatal(err)
	}
	pane := at(must(t, srv, "pane.get", object{"pane_id": "w1:p1"}), "pane").(object)
	if pane["label"] != "review" || pane["tokens"] != nil || pane["terminal_id"] == before {
		t.Fatalf("after a restart: %v (terminal before: %v)", pane, before)
	}
	if next := must(t, srv, "workspace.create", object{}); at(next, "workspace", "workspace_id") != "w2" {
		t.Fatalf("the counter did not go on: %v", next)
	}
	if err := srv.RestartForgetful(); err != nil {
		t.Fatal(err)
	}
	refused(t, srv, "pane_not_found", "pane.get", object{"pane_id": "w1:p1"})
	if reused := must(t, srv, "workspace.create", object{}); at(reused, "root_pane", "pane_id") != "w1:p1" {
		t.Fatalf("the id was not reused: %v", reused)
	}
}

// Fails if a live handoff ends programs, or keeps terminal ids.
func TestHandoff(t *testing.T) {
	srv := start(t)
	place := run(t, srv, "echo alive; read x; echo got $x; read y", nil)
	seesScreen(t, srv, place.PaneID, "alive")
	if err := srv.Handoff(); err != nil {
		t.Fatal(err)
	}
	pane := at(must(t, srv, "pane.get", object{"pane_id": place.PaneID}), "pane").(object)
	if pane["terminal_id"] == place.TerminalID {
		t.Fatal("the terminal id survived")
	}
	must(t, srv, "pane.send_text", object{"pane_id": place.PaneID, "text": "input\r"})
	seesScreen(t, srv, place.PaneID, "got input")
	must(t, srv, "pane.send_text", object{"pane_id": place.PaneID, "text": "\r"})
	eventually(t, "a shell after the program", func() bool {
		r := ask(t, srv, "pane.get", object{"pane_id": place.PaneID})
		return r.Error == nil && at(r.Result, "pane", "terminal_id") != pane["terminal_id"]
	})
}

// Fails if a moved pane keeps its id in another workspace, or its old id stops
// working for pane.* methods.
func TestMoveToAnotherWorkspace(t *testing.T) {
	srv := start(t)
	place := run(t, srv, "cat", map[string]string{"HERDR_AGENT": "claude"})
	eventually(t, "the agent", func() bool { kind, _, _ := srv.Status(place.PaneID); return kind == "claude" })
	id, err := srv.MoveToNewWorkspace(place.PaneID)
	if err != nil || id == place.PaneID {
		t.Fatalf("moved to %q, %v", id, err)
	}
	if got := must(t, srv, "pane.get", object{"pane_id": place.PaneID}); at(got, "pane", "pane_id") != id {
		t.Fatalf("the alias gives %v", got)
	}
	refused(t, srv, "agent_not_found", "agent.get", object{"target": place.PaneID})
	must(t, srv, "agent.get", object{"target": id})
	current := must(t, srv, "pane.current", object{"caller_pane_id": place.PaneID})
	if at(current, "pane", "terminal_id") != place.TerminalID {
		t.Fatalf("pane.current: %v", current)
	}
	e := next(t, subscribe(t, srv, object{"type": "pane.moved"}))
	if at(e, "data", "previous_pane_id") != place.PaneID || at(e, "data", "pane", "pane_id") != id {
		t.Fatalf("event: %v", e)
	}
}

// Fails if the panes of the newest herdr without a user interface are not
// 120x40.
func TestSizeOfNewPanes(t *testing.T) {
	srv := start(t, version(herdrsim.V082))
	place := run(t, srv, "stty size; sleep 60", nil)
	seesScreen(t, srv, place.PaneID, "40 120")
}

// Fails if the options' defaults are not herdr's own times.
func TestDefaultTimes(t *testing.T) {
	srv, err := herdrsim.Start(t.Context(), herdrsim.Options{Shell: []string{"/bin/sh"}})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	place := run(t, srv, "stty raw -echo; printf ready; cat", map[string]string{"HERDR_AGENT": "claude"})
	seesScreen(t, srv, place.PaneID, "ready")
	eventually(t, "the agent", func() bool { kind, _, _ := srv.Status(place.PaneID); return kind == "claude" })
	must(t, srv, "agent.prompt", object{"target": place.PaneID, "text": "x"})
	var writes []herdrsim.Write
	eventually(t, "Enter", func() bool { writes, _ = srv.Input(place.PaneID); return len(writes) == 2 })
	if gap := writes[1].At.Sub(writes[0].At); gap < 300*time.Millisecond {
		t.Fatalf("Enter came after %v", gap)
	}
}
