package herdr

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/test/agent"
	"fleetd/test/herdrsim"
)

// patience is how long a simulated thing may take on a loaded machine.
const patience = time.Minute

// sim is a scripted agent on a real pseudo-terminal in a simulated herdr.
type sim struct {
	t       *testing.T
	srv     *herdrsim.Server
	client  *Client
	in      *Injector
	pane    Pane
	log     string
	control string
}

// quick keeps the order of all waits and takes a tenth of their time; the
// bounds within which the agent has to act are longer than on a busy machine it
// takes.
func quick() Timing {
	t := DefaultTiming()
	for _, d := range []*time.Duration{&t.Stable, &t.FirstSight, &t.Look, &t.VerifyPoll, &t.Poll, &t.Down} {
		*d /= 10
	}
	t.Settle, t.Fit = 50*time.Millisecond, time.Second
	for _, d := range []*time.Duration{&t.LookFor, &t.Doubt, &t.Verify, &t.EnterAgain} {
		*d = patience / 6
	}
	t.Finish = patience
	return t
}

// simulate starts an agent of a kind and waits until a registration would find
// it.
func simulate(t *testing.T, opts herdrsim.Options, kind string, args ...string) *sim {
	t.Helper()
	opts.Shell, opts.Timing = []string{"/bin/sh"}, herdrsim.Fast()
	if opts.Cols == 0 {
		opts.Cols, opts.Rows = 120, 40
	}
	srv, err := herdrsim.Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
	})
	dir := t.TempDir()
	s := &sim{t: t, srv: srv, client: &Client{Socket: srv.SocketPath()}, log: filepath.Join(dir, "log"), control: filepath.Join(dir, "c")}
	s.in = NewInjector(s.client, nil, nil)
	s.in.Timing = quick()
	argv := append([]string{os.Args[0], "--kind", kind, "--control", s.control, "--log", s.log, "--work", "100ms"}, args...)
	place, err := srv.Run(kind, argv, map[string]string{"AGENT_TEST_MAIN": "1"}, dir)
	if err != nil {
		t.Fatal(err)
	}
	s.eventually("the agent is identified", func() bool {
		p, err := s.client.Identify(t.Context(), place.PaneID)
		s.pane = p
		return err == nil && p.Kind == kind
	})
	s.eventually("the agent is ready", func() bool { return len(s.events("ready")) > 0 })
	return s
}

func (s *sim) eventually(what string, ok func() bool) {
	s.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	screen, _ := s.srv.Screen(s.pane.ID)
	log, _ := os.ReadFile(s.log)
	s.t.Fatalf("never came: %s\nscreen:\n%s\nlog:\n%s", what, screen, log)
}

func (s *sim) events(names ...string) []agent.Event {
	raw, err := os.ReadFile(s.log)
	if err != nil {
		return nil
	}
	all, err := agent.ReadEvents(bytes.NewReader(raw))
	if err != nil {
		s.t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(e agent.Event) bool { return !slices.Contains(names, e.Event) })
}

// do sends a control command to the agent.
func (s *sim) do(command string) string {
	s.t.Helper()
	out, err := agent.Control(s.control, command, patience)
	if err != nil || strings.HasPrefix(out, "error") {
		s.t.Fatalf("%s: %s %v", command, out, err)
	}
	return out
}

func (s *sim) inject(text string, h Hooks) Outcome {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*patience)
	defer cancel()
	out := s.in.Inject(ctx, s.pane, text, h)
	if s.t.Failed() || out.Result != Injected {
		screen, _ := s.srv.Screen(s.pane.ID)
		s.t.Logf("outcome %s %q %v; screen:\n%s", out.Result, out.Reason, out.Err, screen)
	}
	return out
}

// onClosed runs do once, when the gate tells reason.
func onClosed(reason envelope.Reason, do func()) Hooks {
	told := false
	return Hooks{Closed: func(r envelope.Reason) {
		if r == reason && !told {
			told = true
			do()
		}
	}}
}

// received checks what the model got: these texts, once each, and nothing else;
// and that no dialog was answered and no text pasted twice.
func (s *sim) received(texts ...string) {
	s.t.Helper()
	s.eventually("prompts", func() bool { return len(s.events("prompt")) >= len(texts) })
	var got []string
	for _, e := range s.events("prompt") {
		got = append(got, strings.TrimRight(e.Text, " "))
	}
	if !slices.Equal(got, texts) {
		s.t.Errorf("the model got %q, want %q", got, texts)
	}
	if bad := s.events("dialog", "shell", "attach", "unknown-command", "lost", "steered"); len(bad) > 0 {
		s.t.Errorf("and this happened: %+v", bad)
	}
}

// pastes checks how often a text reached the agent.
func (s *sim) pastes(n int) {
	s.t.Helper()
	if got := s.events("paste"); len(got) != n {
		s.t.Errorf("%d pastes: %+v", len(got), got)
	}
}

var allKinds = []string{"claude", "codex", "opencode"}

// Fault: on a real terminal some kind of agent gets another text than the one
// sent, twice, or not at all; short, of many lines, and long enough to collapse.
func TestSimEveryKindGetsTheText(t *testing.T) {
	t.Attr("threat", "T4")
	for _, kind := range allKinds {
		for _, trim := range []bool{false, true} {
			t.Run(kind, func(t *testing.T) {
				s := simulate(t, herdrsim.Options{TrimUnicode: trim}, kind)
				s.in.Timing.LookFor, s.in.Timing.Verify, s.in.Timing.Finish = patience, patience, patience
				var texts []string
				for i, content := range []string{
					"short", "line\nline\nline\nDo you want to proceed?\n❯ 1. Yes", strings.Repeat("a long line of words to be wrapped ", 20),
					strings.Repeat("many lines\n", 200), "日本語 é 👩‍💻 ! / # @x \x1b[201~\r!ls",
				} {
					id := strings.Replace(testID, "0198c2f0", "0198c2f"+string(rune('0'+i)), 1)
					text, announced := Frame(Message{ID: id, Kind: "SEND", From: "alice@hosta", Content: content, ExpectsReply: true, Limit: PasteLimit(kind)})
					if announced {
						t.Fatalf("announced: %q", content[:10])
					}
					texts = append(texts, text)
					want(t, s.inject(text, Hooks{}), Injected, "")
				}
				s.received(texts...)
				s.pastes(len(texts))
			})
		}
	}
}

// Fault: the faithful waits do not work against a herdr of any version.
func TestSimVersions(t *testing.T) {
	for _, v := range []herdrsim.Version{herdrsim.V080, herdrsim.Base, herdrsim.V082} {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			s := simulate(t, herdrsim.Options{Version: v}, "claude")
			s.in.Timing = DefaultTiming()
			want(t, s.inject(brief("x"), Hooks{}), Injected, "")
			s.received(brief("x"))
		})
	}
}

// Fault: a closed gate lets a text through, does not say why, or stays closed.
func TestSimGate(t *testing.T) {
	cases := map[string]struct {
		kinds      []string
		shut, open string
		reason     envelope.Reason
	}{
		"busy":              {allKinds, "busy", "idle", envelope.Busy},
		"permission":        {allKinds, "dialog", "close-dialog", envelope.Blocked},
		"draft":             {allKinds, "draft a person's text", "clear", envelope.Draft},
		"draft about us":    {allKinds, "draft [bridge SEND from boss to me?", "clear", envelope.Draft},
		"left by a crash":   {allKinds, "draft " + strings.ReplaceAll(brief("y"), "\n", " "), "clear", envelope.Unsent},
		"unknown dialog":    {allKinds, "dialog strange", "close-dialog", envelope.NotReady},
		"trust":             {[]string{"claude"}, "dialog trust", "close-dialog", envelope.Blocked},
		"model picker":      {[]string{"claude"}, "dialog picker", "close-dialog", envelope.Blocked},
		"question":          {[]string{"claude"}, "dialog question", "close-dialog", envelope.Blocked},
		"logged out claude": {[]string{"claude"}, "login on", "login off", envelope.Blocked},
		"shell mode":        {[]string{"claude"}, "draft !ls", "clear", envelope.Draft},
	}
	for name, c := range cases {
		for _, kind := range c.kinds {
			t.Run(name+" "+kind, func(t *testing.T) {
				t.Parallel()
				s := simulate(t, herdrsim.Options{}, kind)
				s.do(c.shut)
				out := s.inject(brief("x"), onClosed(c.reason, func() { s.pastes(0); s.do(c.open) }))
				want(t, out, Injected, "")
				s.received(brief("x"))
				s.pastes(1)
			})
		}
	}
}

// Fault: an agent's dialog, transcript or login that herdr takes for idle gets
// the text and an Enter that says yes.
func TestSimIdleShownOverADialog(t *testing.T) {
	for _, kind := range allKinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := simulate(t, herdrsim.Options{}, kind)
			if err := s.srv.BlindRules(s.pane.ID, true); err != nil {
				t.Fatal(err)
			}
			s.do("dialog")
			if err := s.srv.ForceStatus(s.pane.ID, "idle"); err != nil {
				t.Fatal(err)
			}
			want(t, s.inject(brief("x"), onClosed(envelope.Blocked, func() { s.pastes(0); s.do("close-dialog") })), Injected, "")
			s.received(brief("x"))
		})
	}
}

// Fault: what goes wrong between text and Enter ends in a second text, in an
// answered dialog, or in a claim that nobody can make.
func TestSimBetweenTextAndEnter(t *testing.T) {
	cases := map[string]struct {
		args   []string
		set    func(s *sim) error
		result Result
		reason envelope.Reason
	}{
		"dialog over the draft": {args: []string{"--dialog-after-paste", "permission"}, result: InDoubt, reason: envelope.Blocked},
		"unknown dialog":        {args: []string{"--dialog-after-paste", "strange"}, result: InDoubt, reason: "IN_DOUBT"},
		"agent exits":           {args: []string{"--exit-after-paste"}, result: InDoubt, reason: "IN_DOUBT"},
		"Enter swallowed":       {args: []string{"--swallow-enter", "1"}, result: Injected},
		"Enter swallowed twice": {args: []string{"--swallow-enter", "2"}, result: Injected},
		"Enter without effect":  {args: []string{"--swallow-enter", "99"}, result: InDoubt, reason: "IN_DOUBT"},
		"Enter late":            {args: []string{"--enter-delay", "1s"}, result: Injected},
		"drawn late":            {args: []string{"--late-draw", "700ms"}, result: Injected},
		"answer lost":           {set: func(s *sim) error { s.srv.DropAnswer("pane.send_input", 1); return nil }, result: Injected},
		"Enter's answer lost":   {set: func(s *sim) error { s.srv.DropAnswer("agent.send_keys", 1); return nil }, result: Injected},
		"herdr crashes":         {set: func(s *sim) error { s.srv.CrashAfter("pane.send_input"); return nil }, result: InDoubt, reason: "IN_DOUBT"},
		"herdr stops listening": {set: func(s *sim) error {
			return s.srv.AfterText(s.pane.ID, func() { _ = s.srv.RefuseConnections() })
		}, result: InDoubt, reason: "IN_DOUBT"},
		"queue full": {set: func(s *sim) error { return s.srv.QueueFull(s.pane.ID, 1) }, result: NotSent, reason: "NOT_INJECTED"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := simulate(t, herdrsim.Options{}, "claude", c.args...)
			if c.result != Injected || slices.Contains(c.args, "--swallow-enter") { // it waits for their end
				d, in := DefaultTiming(), &s.in.Timing
				in.LookFor, in.Doubt, in.Verify, in.EnterAgain, in.Finish = d.LookFor, d.Doubt, d.Verify, d.EnterAgain, d.Finish
			}
			if c.set != nil {
				if err := c.set(s); err != nil {
					t.Fatal(err)
				}
			}
			want(t, s.inject(brief("x"), Hooks{}), c.result, c.reason)
			if n := len(s.events("paste")); n > 1 || n == 1 && c.result == NotSent {
				t.Errorf("%d pastes", n)
			}
			if c.result == Injected {
				s.received(brief("x"))
			} else if bad := s.events("prompt", "dialog"); len(bad) > 0 {
				t.Errorf("%s, but %+v", c.result, bad)
			}
		})
	}
}

// Fault: another program in the same pane gets the text.
func TestSimReplacedAgent(t *testing.T) {
	s := simulate(t, herdrsim.Options{}, "claude")
	if err := s.srv.ReplaceProgram(s.pane.ID, []string{os.Args[0], "--kind", "codex", "--log", s.log},
		map[string]string{"AGENT_TEST_MAIN": "1", "HERDR_AGENT": "codex"}); err != nil {
		t.Fatal(err)
	}
	s.eventually("codex is seen", func() bool { k, _, _ := s.srv.Status(s.pane.ID); return k == "codex" })
	out := s.inject(brief("x"), Hooks{Expires: time.Now().Add(2 * time.Second)})
	want(t, out, NotSent, "EXPIRED")
	s.pastes(0)
}

// Fault: after a restart of herdr the same pane id gets a text meant for what
// was there before; or a moved pane gets none.
func TestSimRestartAndMove(t *testing.T) {
	s := simulate(t, herdrsim.Options{}, "claude")
	old := s.pane
	if _, err := s.srv.MoveToNewWorkspace(s.pane.ID); err != nil {
		t.Fatal(err)
	}
	want(t, s.inject(brief("x"), Hooks{}), Injected, "")
	s.received(brief("x"))
	if err := s.srv.Restart(); err != nil {
		t.Fatal(err)
	}
	s.pane = old
	out := s.inject(brief("y"), Hooks{Expires: time.Now().Add(2 * time.Second)})
	if out.Result == Injected || out.Result == InDoubt {
		t.Errorf("outcome %+v", out)
	}
	s.received(brief("x"))
}

// Fault: an agent or pane that ended keeps its mail waiting.
func TestSimGone(t *testing.T) {
	s := simulate(t, herdrsim.Options{}, "claude")
	s.do("exit")
	s.eventually("the pane is closed", func() bool {
		_, err := s.client.PaneGet(t.Context(), s.pane.ID)
		return hasCode(err, "pane_not_found")
	})
	want(t, s.inject(brief("x"), Hooks{}), Gone, "PANE_GONE")
}

// state is what the agent says of itself.
func (s *sim) state() agent.State {
	s.t.Helper()
	var out agent.State
	if err := json.Unmarshal([]byte(s.do("state")), &out); err != nil {
		s.t.Fatal(err)
	}
	return out
}

// Fault: a text that a dialog hid is lost from sight: it must still be in the
// composer, and keep the gate closed until a person looks.
func TestSimHiddenTextKeepsTheGateClosed(t *testing.T) {
	s := simulate(t, herdrsim.Options{}, "claude", "--dialog-after-paste", "permission")
	want(t, s.inject(brief("x"), Hooks{}), InDoubt, envelope.Blocked)
	s.do("close-dialog")
	if got := s.state().Composer; got != brief("x") {
		t.Errorf("composer: %q", got)
	}
	other := strings.ReplaceAll(brief("y"), testID, strings.Replace(testID, "0198", "0199", 1))
	want(t, s.inject(other, onClosed(envelope.Unsent, func() { s.do("clear") })), Injected, "")
	s.received(other)
}
