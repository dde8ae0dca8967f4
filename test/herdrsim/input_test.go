package herdrsim_test

import (
	"strings"
	"testing"
	"time"

	"fleetd/test/herdrsim"

	"github.com/google/go-cmp/cmp"
)

// mirror makes an agent pane whose screen is what a test types into it.
func mirror(t *testing.T, srv *herdrsim.Server, kind string) string {
	t.Helper()
	place := run(t, srv, "stty raw -echo; printf 'ready\r\n'; cat", map[string]string{"HERDR_AGENT": kind})
	seesScreen(t, srv, place.PaneID, "ready")
	eventually(t, "the agent", func() bool { k, _, _ := srv.Status(place.PaneID); return k == kind })
	return place.PaneID
}

// draw puts text on a mirror's screen; rows end in LF.
func draw(t *testing.T, srv *herdrsim.Server, pane, text string) {
	t.Helper()
	if err := srv.Type(pane, "\x1b[2J\x1b[H"+strings.ReplaceAll(text, "\n", "\r\n")); err != nil {
		t.Fatal(err)
	}
}

// written lists the writes of API methods since the last n.
func written(t *testing.T, srv *herdrsim.Server, pane string) []string {
	t.Helper()
	writes, err := srv.Input(pane)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, w := range writes {
		if w.Method != "person" {
			out = append(out, w.Method+" "+string(w.Bytes))
		}
	}
	return out
}

// Fails if a method writes other bytes, or in another number of writes, than
// the table of reference §5.5 says.
func TestBytesAndWritesOfEveryMethod(t *testing.T) {
	srv := start(t)
	pane := mirror(t, srv, "claude")
	both := func() {
		must(t, srv, "pane.send_text", object{"pane_id": pane, "text": "a\nb"})
		must(t, srv, "pane.send_keys", object{"pane_id": pane, "keys": []string{"Enter", "ctrl+c"}})
		must(t, srv, "pane.send_input", object{"pane_id": pane, "text": "x\ny"})
		must(t, srv, "pane.send_input", object{"pane_id": pane, "text": "z", "keys": []string{"enter", "esc"}})
		must(t, srv, "agent.send_keys", object{"target": pane, "keys": []string{"1", "enter"}})
	}
	both()
	if err := srv.Type(pane, "\x1b[?2004h."); err != nil {
		t.Fatal(err)
	}
	seesScreen(t, srv, pane, ".")
	both()
	want := []string{
		"pane.send_text a\nb", "pane.send_keys \r", "pane.send_keys \x03", "pane.send_input x\ny", "pane.send_input z\r\x1b", "agent.send_keys 1\r",
		"pane.send_text a\nb", "pane.send_keys \r", "pane.send_keys \x03", "pane.send_input \x1b[200~x\ny\x1b[201~",
		"pane.send_input \x1b[200~z\x1b[201~\r\x1b", "agent.send_keys 1\r",
	}
	if diff := cmp.Diff(want, written(t, srv, pane)); diff != "" {
		t.Fatalf("writes (-want +got):\n%s", diff)
	}
	refused(t, srv, "invalid_key", "pane.send_keys", object{"pane_id": pane, "keys": []string{"enter", "PageUp"}})
	refused(t, srv, "invalid_key", "pane.send_input", object{"pane_id": pane, "text": "t", "keys": []string{"home"}})
	if got := written(t, srv, pane); len(got) != len(want) {
		t.Fatalf("a refused request wrote %q", got[len(want):])
	}
}

// Fails if agent.prompt does not send text and Enter as two writes, or checks
// in another order, or the versions do not differ for blocked agents.
func TestPrompt(t *testing.T) {
	for _, v := range []herdrsim.Version{herdrsim.Base, herdrsim.V082} {
		srv := start(t, version(v))
		pane := mirror(t, srv, "claude")
		refused(t, srv, "empty_agent_prompt", "agent.prompt", object{"target": "nobody", "text": ""})
		refused(t, srv, "agent_not_found", "agent.prompt", object{"target": "nobody", "text": "x"})
		if err := srv.ForceStatus(pane, "blocked"); err != nil {
			t.Fatal(err)
		}
		if v == herdrsim.V082 {
			refused(t, srv, "agent_blocked", "agent.prompt", object{"target": pane, "text": "go"})
			if got := written(t, srv, pane); len(got) != 0 {
				t.Fatalf("a refused prompt wrote %q", got)
			}
			continue
		}
		r := must(t, srv, "agent.prompt", object{"target": pane, "text": "go"})
		if at(r, "type") != "agent_prompted" || at(r, "agent", "agent_status") != "blocked" {
			t.Fatalf("answer: %v", r)
		}
		eventually(t, "Enter", func() bool { return len(written(t, srv, pane)) == 2 })
		if diff := cmp.Diff([]string{"agent.prompt go", "agent.prompt \r"}, written(t, srv, pane)); diff != "" {
			t.Fatalf("writes (-want +got):\n%s", diff)
		}
	}
}

// Fails if input reaches a program that only stands where the agent stood.
func TestAgentMustHoldTheForeground(t *testing.T) {
	srv := start(t, func(o *herdrsim.Options) { o.Timing.TickAgent, o.Timing.Reprobe = time.Hour, time.Hour })
	pane := at(must(t, srv, "workspace.create", object{}), "root_pane", "pane_id").(string)
	must(t, srv, "pane.send_text", object{"pane_id": pane, "text": "HERDR_AGENT=codex sh -c 'echo up; read x'\r"})
	eventually(t, "the agent", func() bool { k, _, _ := srv.Status(pane); return k == "codex" })
	must(t, srv, "agent.send_keys", object{"target": pane, "keys": []string{"enter"}})
	eventually(t, "refusal of keys for the shell", func() bool {
		r := ask(t, srv, "agent.send_keys", object{"target": pane, "keys": []string{"space"}})
		return r.Error != nil && r.Error.Code == "agent_not_ready"
	})
	refused(t, srv, "agent_not_ready", "agent.prompt", object{"target": pane, "text": "rm -rf /"})
}

// Fails if one of the faults of a pane does not do what it says.
func TestFaultsOfAPane(t *testing.T) {
	srv := start(t)
	pane := mirror(t, srv, "claude")
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	enter := func() { must(t, srv, "agent.send_keys", object{"target": pane, "keys": []string{"enter"}}) }
	check(srv.SwallowEnter(pane, 1))
	enter()
	enter()
	writes, _ := srv.Input(pane)
	if len(writes) != 2 || !writes[0].Dropped || writes[1].Dropped {
		t.Fatalf("swallowed Enter: %+v", writes)
	}
	check(srv.QueueFull(pane, 3))
	refused(t, srv, "pane_send_failed", "pane.send_input", object{"pane_id": pane, "text": "x"})
	refused(t, srv, "agent_send_keys_failed", "agent.send_keys", object{"target": pane, "keys": []string{"enter"}})
	refused(t, srv, "agent_prompt_failed", "agent.prompt", object{"target": pane, "text": "x"})

	check(srv.DelayEnter(pane, 2*time.Second)) // longer than a busy machine takes for the next request
	enter()
	must(t, srv, "pane.send_text", object{"pane_id": pane, "text": "overtakes"})
	eventually(t, "the late Enter", func() bool { writes, _ = srv.Input(pane); return len(writes) == 4 })
	if string(writes[2].Bytes) != "overtakes" || string(writes[3].Bytes) != "\r" {
		t.Fatalf("late Enter: %+v", writes[2:])
	}

	came := make(chan struct{})
	check(srv.AfterText(pane, func() { check(srv.ForceStatus(pane, "blocked")); close(came) }))
	enter()
	select {
	case <-came:
		t.Fatal("Enter counts as text")
	default:
	}
	must(t, srv, "pane.send_input", object{"pane_id": pane, "text": "x"})
	<-came
	if _, status, _ := srv.Status(pane); status != "blocked" {
		t.Fatalf("between text and Enter: %s", status)
	}
}

// Fails if the sources of reads are mixed up, or lines are cut otherwise than
// herdr cuts them.
func TestReads(t *testing.T) {
	srv := start(t)
	place := run(t, srv, `i=0; while [ $i -lt 120 ]; do echo "line $i  "; i=$((i+1)); done; printf '\033[2mdim\033[m wide 漢字\n'; sleep 60`, nil)
	seesScreen(t, srv, place.PaneID, "wide 漢字")
	read := func(p object) object {
		p["pane_id"] = place.PaneID
		return at(must(t, srv, "pane.read", p), "read").(object)
	}
	lines := func(r object) []string { return strings.Split(strings.TrimSuffix(r["text"].(string), "\n"), "\n") }
	detection := read(object{"source": "detection"})
	if l := lines(detection); l[len(l)-1] != "dim wide 漢字" || detection["truncated"] != false || detection["revision"] != 0.0 {
		t.Fatalf("detection: %v", detection)
	}
	recent := read(object{"source": "recent"})
	if l := lines(recent); len(l) != 80 || l[0] != "line 41" || recent["truncated"] != true {
		t.Fatalf("recent: %d lines, %v", len(l), recent)
	}
	if l := lines(read(object{"source": "recent_unwrapped", "lines": 5000})); len(l) != 121 || l[0] != "line 0" {
		t.Fatalf("recent_unwrapped: %d lines from %q", len(l), l[0])
	}
	if r := read(object{"source": "visible", "lines": 0}); r["text"] != "" || r["truncated"] != true {
		t.Fatalf("no lines: %v", r)
	}
	if l := lines(read(object{"source": "visible", "lines": 1, "format": "ansi"})); !strings.Contains(l[0], "\x1b[2mdim") {
		t.Fatalf("colours are lost: %q", l)
	}
	if err := srv.ScrollUp(place.PaneID, 50); err != nil {
		t.Fatal(err)
	}
	if l := lines(read(object{"source": "visible"})); strings.Contains(strings.Join(l, "\n"), "wide") || len(l) != 24 {
		t.Fatalf("visible ignores the user's scrolling: %q", l)
	}
	if diff := cmp.Diff(detection, read(object{"source": "detection"})); diff != "" {
		t.Fatalf("detection follows the user's scrolling: %s", diff)
	}
}
