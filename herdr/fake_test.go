package herdr

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"fleetd/test/agent"
)

// TestMain is the scripted agent itself when a test starts it in a pane of the
// simulated herdr.
func TestMain(m *testing.M) {
	if os.Getenv("AGENT_TEST_MAIN") == "1" {
		os.Exit(agent.Main(os.Args))
	}
	goleak.VerifyTestMain(m)
}

const (
	testPane = "w7:p3"
	testTerm = "term_6f3a91c40be21"
	testID   = "0198c2f0-7a7b-7c3d-8e4f-5a6b7c8d9e0f"
)

var pinned = Pane{ID: testPane, Terminal: testTerm, Kind: "claude"}

// fake is a herdr with one pane whose agent draws what the measured claude
// draws. What a test wants to go wrong, it scripts in the on… functions, which
// run under the lock, and in fail.
type fake struct {
	mu sync.Mutex

	down     bool
	version  string
	protocol int

	id, terminal, kind, status string
	seq                        uint64
	shell, closed, launching   bool // no agent; no pane; launch pending
	explain                    map[string]any
	shellPID                   int // 0: it cannot be had

	transcript []string
	composer   string
	dialog     string // drawn instead of the composer
	hint       string
	screen     func(f *fake) string // instead of all that
	ansi       string               // what a visible read in colours shows

	onInput func(f *fake, text string)
	onEnter func(f *fake)
	onCall  func(f *fake, method string, n int) // n counts the calls of method from 1
	// fail scripts a method's next answers: "" as ever, "eof" executed and then
	// silent, "lost" not executed and silent, "hang" never answered, "slow" as
	// ever but 2 s later, else a code.
	fail map[string][]string

	inputs []string // every text written to the pane
	enters int
	count  map[string]int
}

func newFake() *fake {
	return &fake{version: "0.8.2", protocol: 20, id: testPane, terminal: testTerm, kind: "claude", status: "idle", seq: 7,
		explain: map[string]any{"state": "idle", "visible_idle": true}, hint: "  ? for shortcuts",
		fail: map[string][]string{}, count: map[string]int{}}
}

func (f *fake) client() *Client {
	return &Client{Socket: "/run/herdr.sock", dial: func(context.Context) (net.Conn, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.down {
			return nil, syscall.ECONNREFUSED
		}
		here, there := net.Pipe()
		go f.serve(there)
		return here, nil
	}}
}

func (f *fake) serve(conn net.Conn) {
	defer conn.Close()
	line, err := bufio.NewReader(conn).ReadBytes('\n')
	if err != nil {
		return
	}
	var req struct {
		Method string
		Params map[string]any
	}
	if err := json.Unmarshal(line, &req); err != nil {
		return
	}
	answer, ok := f.answer(req.Method, req.Params)
	if !ok {
		return
	}
	if answer == nil { // hang until the client gives up
		_, _ = conn.Read(make([]byte, 1))
		return
	}
	if late, ok := answer.(slow); ok {
		time.Sleep(2 * time.Second) // of the test's bubble
		answer = late.answer
	}
	b, _ := json.Marshal(answer)
	_, _ = conn.Write(append(b, '\n'))
}

func (f *fake) answer(method string, params map[string]any) (any, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count[method]++
	if f.onCall != nil {
		f.onCall(f, method, f.count[method])
	}
	mode := ""
	if q := f.fail[method]; len(q) > 0 {
		mode, f.fail[method] = q[0], q[1:]
	}
	switch mode {
	case "lost":
		return nil, false
	case "hang":
		return nil, true
	case "", "eof", "slow":
	default:
		return refusal(mode), true
	}
	result, err := f.do(method, params)
	if mode == "eof" {
		return nil, false
	}
	if err != nil {
		return refusal(err.Error()), true
	}
	var answer any = map[string]any{"id": "", "result": result}
	if mode == "slow" {
		answer = slow{answer}
	}
	return answer, true
}

// slow is an answer that comes later.
type slow struct{ answer any }

// meanwhile has change happen while the answer to the next call of method is on
// its way.
func (f *fake) meanwhile(method string, change func(f *fake)) {
	f.fail[method] = []string{"slow"}
	time.AfterFunc(time.Second, func() { f.mu.Lock(); defer f.mu.Unlock(); change(f) })
}

func (f *fake) asked(method string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count[method]
}

func refusal(code string) any {
	return map[string]any{"id": "", "error": map[string]any{"code": code, "message": "scripted"}}
}

func (f *fake) do(method string, params map[string]any) (any, error) {
	switch method {
	case "ping":
		return map[string]any{"type": "pong", "version": f.version, "protocol": f.protocol}, nil
	case "agent.get":
		if f.closed || f.shell || params["target"] != f.id {
			return nil, errors.New("agent_not_found")
		}
		return map[string]any{"agent": f.agent()}, nil
	case "agent.list":
		if f.closed || f.shell {
			return map[string]any{"agents": []any{}}, nil
		}
		return map[string]any{"agents": []any{f.agent()}}, nil
	case "pane.get":
		if f.closed {
			return nil, errors.New("pane_not_found")
		}
		return map[string]any{"pane": f.pane()}, nil
	case "pane.list":
		if f.closed {
			return map[string]any{"panes": []any{}}, nil
		}
		return map[string]any{"panes": []any{f.pane()}}, nil
	case "pane.process_info":
		if f.shellPID == 0 {
			return nil, errors.New("internal_error")
		}
		return map[string]any{"process_info": map[string]any{"shell_pid": f.shellPID}}, nil
	case "agent.explain":
		if f.closed || f.shell {
			return nil, errors.New("agent_explain_unavailable")
		}
		return map[string]any{"explain": f.explain}, nil
	case "pane.read":
		if f.closed {
			return nil, errors.New("pane_not_found")
		}
		if params["format"] == "ansi" {
			return map[string]any{"read": map[string]any{"text": f.ansi}}, nil
		}
		return map[string]any{"read": map[string]any{"text": f.draw()}}, nil
	case "pane.send_input":
		return f.input(params["text"].(string))
	case "agent.send_keys":
		return f.enter()
	}
	return nil, errors.New("invalid_request")
}

func (f *fake) input(text string) (any, error) {
	if f.closed {
		return nil, errors.New("pane_not_found")
	}
	f.inputs = append(f.inputs, text)
	switch {
	case f.onInput != nil:
		f.onInput(f, text)
	case f.dialog == "":
		f.composer += text
	}
	return map[string]any{"type": "ok"}, nil
}

func (f *fake) enter() (any, error) {
	if f.closed || f.shell {
		return nil, errors.New("agent_not_found")
	}
	f.enters++
	if f.onEnter != nil {
		f.onEnter(f)
	} else {
		f.submit()
	}
	return map[string]any{"type": "ok"}, nil
}

// submit moves the composer into the transcript and starts a turn.
func (f *fake) submit() {
	for i, l := range strings.Split(f.composer, "\n") {
		if i == 0 {
			f.transcript = append(f.transcript, "❯ "+l)
		} else {
			f.transcript = append(f.transcript, "  "+l)
		}
	}
	f.composer = ""
	f.set("working")
}

func (f *fake) set(status string) { f.status, f.seq = status, f.seq+1 }

func (f *fake) agent() map[string]any {
	a := f.pane()
	if f.launching {
		a["launch_pending"] = true
	}
	a["state_change_seq"] = f.seq
	return a
}

func (f *fake) pane() map[string]any {
	p := map[string]any{"pane_id": f.id, "terminal_id": f.terminal, "agent_status": f.status}
	if !f.shell {
		p["agent"] = f.kind
	} else {
		p["agent_status"] = "unknown"
	}
	return p
}

func (f *fake) draw() string {
	if f.screen != nil {
		return f.screen(f)
	}
	return drawClaude(f)
}

// drawClaude draws the measured claude.
func drawClaude(f *fake) string {
	rows := append([]string{"✻ Welcome"}, f.transcript...)
	if f.dialog != "" {
		return strings.Join(append(rows, f.dialog), "\n") + "\n"
	}
	rule := strings.Repeat("─", 60)
	rows = append(rows, "", rule)
	for i, l := range strings.Split(f.composer, "\n") {
		if i == 0 {
			rows = append(rows, "❯"+nbsp+l)
		} else {
			rows = append(rows, "  "+l)
		}
	}
	hint := f.hint
	if f.status == "working" {
		hint = "  esc to interrupt · ? for shortcuts"
	}
	return strings.Join(append(rows, rule, hint), "\n") + "\n"
}

// permission is a dialog as claude draws it.
const permission = " Do you want to proceed?\n ❯ 1. Yes\n   2. No\n\n Esc to cancel · Tab to amend"

// brief is an ordinary framed text.
func brief(content string) string {
	s, _ := Frame(Message{ID: testID, Kind: "SEND", From: "alice@hosta", Content: content, ExpectsReply: true})
	return s
}

// assertOnce fails if a text was written to the pane other than as often as
// wanted, whatever else the outcome is.
func (f *fake) assertWrites(t *testing.T, texts, enters int) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.inputs) != texts || f.enters != enters {
		t.Errorf("%d texts and %d Enters were written, want %d and %d: %s", len(f.inputs), f.enters, texts, enters, fmt.Sprint(f.count))
	}
}
