package agent

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// State is what the control command "state" answers.
type State struct {
	Ready    bool   `json:"ready"`
	Working  bool   `json:"working"`
	Dialog   string `json:"dialog,omitempty"`
	Composer string `json:"composer,omitempty"` // what Enter would submit
	Shown    string `json:"shown,omitempty"`    // what is drawn
	Queue    int    `json:"queue"`
	Turns    int    `json:"turns"`
}

// listen serves the control socket: one command per line, answered by "ok", a
// JSON object (state) or "error: …".
func (p *program) listen(path string) (stop func(), err error) {
	_ = os.Remove(path)
	ln, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen for control commands: %w", err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]struct{}{}
	wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open[conn] = struct{}{}
			mu.Unlock()
			wg.Go(func() {
				p.serve(conn)
				mu.Lock()
				delete(open, conn)
				mu.Unlock()
			})
		}
	})
	return func() {
		_ = ln.Close()
		mu.Lock()
		for conn := range open {
			_ = conn.Close()
		}
		mu.Unlock()
		wg.Wait()
	}, nil
}

func (p *program) serve(conn net.Conn) {
	defer conn.Close()
	lines := bufio.NewScanner(conn)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		answer := make(chan string, 1)
		line := lines.Text()
		if !p.post(func() { answer <- p.command(line) }) {
			return
		}
		if _, err := fmt.Fprintln(conn, <-answer); err != nil {
			return
		}
	}
}

// Commands lists the control commands with what they do.
var Commands = map[string]string{
	"dialog":               "[name]: open a dialog (permission, mcp-tool, trust, mcp-server, question, picker, transcript, strange)",
	"close-dialog":         "take the dialog away, unanswered",
	"draft":                "TEXT: a person has typed this",
	"clear":                "empty the composer",
	"say":                  "TEXT: print this in the transcript",
	"busy":                 "work until idle is commanded",
	"idle":                 "end the turn",
	"login":                "on|off: not logged in",
	"swallow-enter":        "N: the next N Enters have no effect",
	"swallow-joined-enter": "on|off: Enter in one read with a paste has no effect",
	"enter-delay":          "D: Enter takes effect D later",
	"late-draw":            "D: every change is drawn D later",
	"dialog-after-paste":   "[name]: a dialog opens right after the next paste",
	"exit-after-paste":     "on|off: end right after the next paste",
	"bracketed-paste":      "on|off: the terminal mode 2004",
	"exit":                 "[code]: end in good order",
	"crash":                "end at once, leaving the terminal as it is",
	"state":                "answer what is going on, as JSON",
}

func (p *program) command(line string) string {
	name, arg, _ := strings.Cut(line, " ")
	if _, known := Commands[name]; !known {
		return "error: unknown command " + name
	}
	if err := p.act(name, arg); err != nil {
		return "error: " + err.Error()
	}
	if name == "state" {
		return p.state()
	}
	p.redraw()
	return "ok"
}

func (p *program) act(name, arg string) error {
	var err error
	switch name {
	case "dialog":
		p.open(arg)
	case "close-dialog":
		if p.dialog() != nil {
			p.dialogs = p.dialogs[:len(p.dialogs)-1]
		}
	case "draft":
		p.composer.typed(arg)
	case "clear":
		p.composer.clear()
	case "say":
		p.say("● " + arg)
	case "busy":
		if !p.working {
			p.turns++
			p.working, p.turnBegan, p.turnTexts = true, p.opts.Now(), nil
		}
		p.manual = true
	case "idle":
		if p.working {
			if p.cancelTurn != nil {
				p.cancelTurn()
			}
			p.finish()
		}
	case "crash":
		os.Exit(3)
	case "exit":
		code := 0
		if arg != "" {
			code, err = strconv.Atoi(arg)
		}
		if err == nil {
			p.exit(code)
		}
	default:
		err = p.set(name, arg)
	}
	return err
}

// set changes one of the faults of Options.
func (p *program) set(name, arg string) error {
	var err error
	switch name {
	case "login":
		p.opts.Login, err = onOff(arg)
	case "swallow-enter":
		p.opts.SwallowEnter, err = strconv.Atoi(arg)
	case "swallow-joined-enter":
		p.opts.SwallowJoinedEnter, err = onOff(arg)
	case "enter-delay":
		p.opts.EnterDelay, err = time.ParseDuration(arg)
	case "late-draw":
		p.opts.LateDraw, err = time.ParseDuration(arg)
	case "dialog-after-paste":
		if p.opts.DialogAfterPaste = arg; arg == "" {
			p.opts.DialogAfterPaste = "permission"
		}
	case "exit-after-paste":
		p.opts.ExitAfterPaste, err = onOff(arg)
	case "bracketed-paste":
		var on bool
		if on, err = onOff(arg); err == nil {
			p.opts.NoBracketedPaste = !on
			seq := map[bool]string{true: "\x1b[?2004h", false: "\x1b[?2004l"}[on]
			_, err = fmt.Fprint(p.out, seq)
		}
	}
	return err
}

func onOff(s string) (bool, error) {
	switch s {
	case "on", "":
		return true, nil
	case "off":
		return false, nil
	}
	return false, fmt.Errorf("%q is neither on nor off", s)
}

func (p *program) state() string {
	s := State{Ready: p.ready, Working: p.working, Composer: p.composer.text(), Shown: p.composer.shown(), Queue: len(p.queue), Turns: p.turns}
	if d := p.dialog(); d != nil {
		s.Dialog = d.name
	}
	out, err := json.Marshal(s)
	if err != nil {
		return "error: " + err.Error()
	}
	return string(out)
}

// Control sends one command to the control socket of a running agent and
// returns its answer; an "error: …" answer is an error. The socket may still
// be missing: it waits up to patience for it.
func Control(path, command string, patience time.Duration) (string, error) {
	end := time.Now().Add(patience)
	conn, err := net.Dial("unix", path)
	for ; err != nil; conn, err = net.Dial("unix", path) {
		if time.Now().After(end) {
			return "", fmt.Errorf("reach the agent's control socket: %w", err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	defer conn.Close()
	_ = conn.SetDeadline(end)
	if _, err := fmt.Fprintln(conn, command); err != nil {
		return "", fmt.Errorf("send the command %s: %w", command, err)
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		if strings.HasPrefix(command, "exit") || command == "crash" {
			return "", nil // it did
		}
		return "", fmt.Errorf("read the answer to %s: %w", command, err)
	}
	answer = strings.TrimSuffix(answer, "\n")
	if msg, failed := strings.CutPrefix(answer, "error: "); failed {
		return "", fmt.Errorf("the agent refused %s: %s", command, msg)
	}
	return answer, nil
}
