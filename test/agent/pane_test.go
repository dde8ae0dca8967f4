package agent_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fleetd/test/agent"
	"fleetd/test/herdrsim"

	"go.uber.org/goleak"
)

// TestMain is the agent program itself when a test starts it in a pane.
func TestMain(m *testing.M) {
	if os.Getenv("AGENT_TEST_MAIN") == "1" {
		os.Exit(agent.Main(os.Args))
	}
	goleak.VerifyTestMain(m)
}

const patience = time.Minute

// pane is an agent in a pane of a simulated herdr.
type pane struct {
	t       *testing.T
	srv     *herdrsim.Server
	kind    string
	id      string
	control string
	log     string
}

// inPane starts an agent in a pane and waits until its composer, or whatever
// it shows first, is drawn. It is read at once, without herdr's three seconds.
func inPane(t *testing.T, kind string, env map[string]string, args ...string) *pane {
	t.Helper()
	srv, err := herdrsim.Start(t.Context(), herdrsim.Options{Shell: []string{"/bin/sh"}, Timing: herdrsim.Fast(), Cols: 120, Rows: 40})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = srv.Close() })
	dir := t.TempDir()
	p := &pane{t: t, srv: srv, kind: kind, control: filepath.Join(dir, "c"), log: filepath.Join(dir, "log")}
	argv := append([]string{os.Args[0], "--kind", kind, "--control", p.control, "--log", p.log, "--work", "30ms"}, args...)
	all := map[string]string{"AGENT_TEST_MAIN": "1"}
	for k, v := range env {
		all[k] = v
	}
	place, err := srv.Run(kind, argv, all, dir)
	if err != nil {
		t.Fatal(err)
	}
	p.id = place.PaneID
	return p
}

// ready waits for the composer and for herdr to know the agent.
func (p *pane) ready() *pane {
	p.t.Helper()
	p.event("ready")
	p.status("idle")
	p.sees(map[string]string{"claude": "\n❯\u00a0", "codex": "\n› ", "opencode": "╹▀▀▀"}[p.kind])
	return p
}

func (p *pane) ask(method string, params map[string]any) map[string]any {
	p.t.Helper()
	conn, err := net.Dial("unix", p.srv.SocketPath())
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close()
	line, err := json.Marshal(map[string]any{"id": "x", "method": method, "params": params})
	if err != nil {
		p.t.Fatal(err)
	}
	_, _ = conn.Write(append(line, '\n'))
	out, err := io.ReadAll(conn)
	if err != nil {
		p.t.Fatal(err)
	}
	var answer struct {
		Result map[string]any
		Error  any
	}
	if err := json.Unmarshal(out, &answer); err != nil || answer.Error != nil {
		p.t.Fatalf("%s: %s (%v)", method, out, err)
	}
	return answer.Result
}

func (p *pane) paste(text string) {
	p.t.Helper()
	p.ask("pane.send_input", map[string]any{"pane_id": p.id, "text": text})
}

func (p *pane) keys(keys ...string) {
	p.t.Helper()
	p.ask("agent.send_keys", map[string]any{"target": p.id, "keys": keys})
}

// do sends a control command.
func (p *pane) do(command string) string {
	p.t.Helper()
	out, err := agent.Control(p.control, command, patience)
	if err != nil {
		p.t.Fatal(err)
	}
	return out
}

func (p *pane) state() agent.State {
	p.t.Helper()
	var s agent.State
	if err := json.Unmarshal([]byte(p.do("state")), &s); err != nil {
		p.t.Fatal(err)
	}
	return s
}

func (p *pane) eventually(what string, ok func() bool) {
	p.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	screen, _ := p.srv.Screen(p.id)
	log, _ := os.ReadFile(p.log)
	p.t.Fatalf("never came: %s\nscreen:\n%s\nlog:\n%s", what, screen, log)
}

func (p *pane) sees(texts ...string) {
	p.t.Helper()
	p.eventually("screen with "+strings.Join(texts, ", "), func() bool {
		screen, err := p.srv.Screen(p.id)
		return err == nil && !slices.ContainsFunc(texts, func(s string) bool { return !strings.Contains(screen, s) })
	})
}

func (p *pane) status(want string) {
	p.t.Helper()
	p.eventually("status "+want, func() bool {
		kind, got, err := p.srv.Status(p.id)
		return err == nil && kind != "" && got == want
	})
}

// events returns the log's events of one name.
func (p *pane) events(name string) []agent.Event {
	raw, err := os.ReadFile(p.log)
	if err != nil {
		return nil
	}
	all, err := agent.ReadEvents(bytes.NewReader(raw))
	if err != nil {
		p.t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(e agent.Event) bool { return e.Event != name })
}

// event waits for the first event of that name.
func (p *pane) event(name string) agent.Event {
	p.t.Helper()
	var found []agent.Event
	p.eventually("event "+name, func() bool { found = p.events(name); return len(found) > 0 })
	return found[0]
}

// prompts returns what the model has received, after waiting for n.
func (p *pane) prompts(n int) []string {
	p.t.Helper()
	var out []string
	p.eventually("prompts", func() bool {
		out = nil
		for _, e := range p.events("prompt") {
			out = append(out, e.Text)
		}
		return len(out) >= n
	})
	return out
}
