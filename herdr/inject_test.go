package herdr

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
)

// inject runs one injection against f in fake time, with the real waits.
func inject(t *testing.T, f *fake, p Pane, text string, h Hooks) (out Outcome) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		out = NewInjector(f.client(), nil, nil).Inject(ctx, p, text, h)
		synctest.Wait()
	})
	return out
}

func want(t *testing.T, out Outcome, r Result, reason envelope.Reason) {
	t.Helper()
	if out.Result != r || out.Reason != reason {
		t.Errorf("outcome is %s %q (%v), want %s %q", out.Result, out.Reason, out.Err, r, reason)
	}
	if (out.Err == nil) != (r == Injected) {
		t.Errorf("error is %v with result %s", out.Err, r)
	}
}

// after runs f once when method is called for the n-th time.
func after(method string, n int, do func(f *fake)) func(*fake, string, int) {
	return func(f *fake, m string, k int) {
		if m == method && k == n {
			do(f)
		}
	}
}

// Fault: the text is not what was given, is submitted twice, or Commit comes
// late or more than once.
func TestTextGoesInOnceAndAfterCommit(t *testing.T) {
	f := newFake()
	text := brief("please review parser.go\nand lexer.go")
	commits := 0
	out := inject(t, f, pinned, text, Hooks{Commit: func() error {
		commits++
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(f.inputs) != 0 {
			t.Error("something was written before Commit")
		}
		return nil
	}})
	want(t, out, Injected, "")
	f.assertWrites(t, 1, 1)
	if f.inputs[0] != text || commits != 1 {
		t.Errorf("written: %q, commits: %d", f.inputs[0], commits)
	}
}

// Fault: an injection that nothing disturbs asks herdr more often than its
// promises need, which every message pays for; or less often.
func TestCallsOfOneInjection(t *testing.T) {
	f := newFake()
	var gate map[string]int
	synctest.Test(t, func(t *testing.T) {
		in := NewInjector(f.client(), nil, nil)
		in.Timing.Settle = 0
		want(t, in.Inject(t.Context(), pinned, brief("x"), Hooks{Commit: func() error {
			f.mu.Lock()
			defer f.mu.Unlock()
			gate, f.count = f.count, map[string]int{}
			return nil
		}}), Injected, "")
	})
	// The first look sees the agent and waits until it is idle for long enough.
	if want := map[string]int{"ping": 1, "agent.get": 1 + 2, "agent.explain": 1, "pane.read": 2}; !maps.Equal(gate, want) {
		t.Errorf("calls of the gate: %v, want %v", gate, want)
	}
	if want := map[string]int{"pane.send_input": 1, "agent.get": 2, "pane.read": 3, "agent.send_keys": 1}; !maps.Equal(f.count, want) {
		t.Errorf("calls from the paste on: %v, want %v", f.count, want)
	}
}

// Fault: a failed Commit does not keep the text out of the pane.
func TestFailedCommitWritesNothing(t *testing.T) {
	f := newFake()
	out := inject(t, f, pinned, brief("x"), Hooks{Commit: func() error { return fault.New(fault.StoreUnavailable, "disk full") }})
	want(t, out, NotSent, "STORE_UNAVAILABLE")
	f.assertWrites(t, 0, 0)
}

// Fault: a gate that must be closed lets the text through, or tells another
// reason; each case opens by itself at the end, so a gate stuck closed fails too.
func TestGateWaitsAndSaysWhy(t *testing.T) {
	cases := map[string]struct {
		shut   func(f *fake)
		open   func(f *fake)
		reason envelope.Reason
	}{
		"working":   {func(f *fake) { f.status = "working" }, func(f *fake) { f.set("done") }, envelope.Busy},
		"blocked":   {func(f *fake) { f.status = "blocked" }, func(f *fake) { f.set("idle") }, envelope.Blocked},
		"unknown":   {func(f *fake) { f.status = "unknown" }, func(f *fake) { f.set("idle") }, envelope.NotReady},
		"launching": {func(f *fake) { f.launching = true }, func(f *fake) { f.launching = false }, envelope.NotReady},
		"terminal":  {func(f *fake) { f.terminal = "term_2" }, func(f *fake) { f.terminal = testTerm }, envelope.PaneChanged},
		"kind":      {func(f *fake) { f.kind = "codex" }, func(f *fake) { f.kind = "claude" }, envelope.PaneChanged},
		"no agent field": {func(f *fake) { f.kind = "" }, func(f *fake) { f.kind = "claude" },
			envelope.NotReady},
		"down":   {func(f *fake) { f.down = true }, func(f *fake) { f.down = false }, "HERDR_DOWN"},
		"old":    {func(f *fake) { f.protocol = 16 }, func(f *fake) { f.protocol = 17 }, envelope.Unfit},
		"silent": {func(f *fake) { f.fail["agent.get"] = []string{"lost", "hang"} }, func(f *fake) {}, "HERDR_DOWN"},
		"shutting down": {func(f *fake) { f.fail["agent.get"] = []string{"server_unavailable"} }, func(f *fake) {},
			"HERDR_DOWN"},
		"draft":      {func(f *fake) { f.composer = "human draft" }, func(f *fake) { f.composer = "" }, envelope.Draft},
		"shell mode": {func(f *fake) { f.screen = shellMode }, func(f *fake) { f.screen = nil }, envelope.Draft},
		"dialog herdr takes for idle": {func(f *fake) { f.dialog = permission }, func(f *fake) { f.dialog = "" },
			envelope.Blocked},
		"login": {func(f *fake) { f.hint = "  ? for shortcuts        Not logged in · Run /login" }, func(f *fake) { f.hint = "" },
			envelope.Blocked},
		"turn herdr takes for idle": {func(f *fake) { f.hint = "  esc to interrupt" }, func(f *fake) { f.hint = "" }, envelope.Busy},
		"no composer":               {func(f *fake) { f.screen = func(*fake) string { return "$ \n" } }, func(f *fake) { f.screen = nil }, envelope.NotReady},
		"blocker seen by herdr": {func(f *fake) { f.explain = map[string]any{"state": "idle", "visible_blocker": true} },
			func(f *fake) { f.explain = map[string]any{"state": "idle"} }, envelope.Blocked},
		"view over the composer": {func(f *fake) { f.explain = map[string]any{"state": "idle", "skip_state_update": true} },
			func(f *fake) { f.explain = map[string]any{"state": "idle"} }, envelope.NotReady},
		"explain says unknown": {func(f *fake) { f.explain = map[string]any{"state": 3} },
			func(f *fake) { f.explain = map[string]any{"state": "idle"} }, envelope.NotReady},
		"explain unavailable": {func(f *fake) { f.fail["agent.explain"] = []string{"agent_explain_unavailable"} }, func(f *fake) {}, envelope.NotReady},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			c.shut(f)
			var reasons []envelope.Reason
			out := inject(t, f, pinned, brief("x"), Hooks{Closed: func(r envelope.Reason) {
				reasons = append(reasons, r)
				if r == c.reason {
					f.assertWrites(t, 0, 0)
					time.AfterFunc(3*time.Second, func() {
						f.mu.Lock()
						defer f.mu.Unlock()
						c.open(f)
					})
				}
			}})
			want(t, out, Injected, "")
			f.assertWrites(t, 1, 1)
			if !slices.Contains(reasons, c.reason) {
				t.Errorf("reasons told: %v, want %s among them", reasons, c.reason)
			}
			if len(slices.Compact(slices.Clone(reasons))) != len(reasons) {
				t.Errorf("a reason was told twice: %v", reasons)
			}
		})
	}
}

func shellMode(*fake) string {
	rule := strings.Repeat("─", 40)
	return rule + "\n!" + nbsp + "\n" + rule + "\n  ! for shell mode\n"
}

// Fault: two looks at a composer that changes in between count as idle, and a
// person's half-typed text is sent with ours.
func TestTypingPersonKeepsGateClosed(t *testing.T) {
	f := newFake()
	var reasons []envelope.Reason
	f.onCall = after("pane.read", 2, func(f *fake) {
		f.composer = "hel"
		time.AfterFunc(2*time.Second, func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.composer = ""
		})
	})
	out := inject(t, f, pinned, brief("x"), Hooks{Closed: func(r envelope.Reason) { reasons = append(reasons, r) }})
	want(t, out, Injected, "")
	if !slices.Contains(reasons, envelope.Draft) || strings.Contains(strings.Join(f.transcript, ""), "hel[") {
		t.Errorf("reasons %v, transcript %q", reasons, f.transcript)
	}
}

// Fault: who changes while the screen is read gets a text that was meant for
// what was there before, and its screen looks as before.
func TestAgentThatChangesDuringTheLooks(t *testing.T) {
	for name, c := range map[string]struct {
		change func(f *fake)
		reason envelope.Reason
		slowly bool // while the answer to the second look at the screen is on its way
	}{
		"a dialog that herdr sees": {func(f *fake) { f.set("blocked") }, envelope.Blocked, false},
		"a turn begins":            {func(f *fake) { f.set("working"); f.hint = "" }, envelope.Busy, false},
		"a turn came and went":     {func(f *fake) { f.seq += 2 }, envelope.Settling, false},
		"another terminal":         {func(f *fake) { f.terminal = "term_2" }, envelope.PaneChanged, false},
		"another agent":            {func(f *fake) { f.kind = "codex" }, envelope.PaneChanged, false},
		"while the screen is slow": {func(f *fake) { f.set("working") }, envelope.Busy, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			calm := drawClaude(f)
			f.screen = func(*fake) string { return calm }
			opened := 0 // at which look
			f.onCall = after("agent.explain", 1, c.change)
			if c.slowly {
				f.onCall = after("pane.read", 2, func(f *fake) { f.meanwhile("pane.read", c.change) })
			}
			var reasons []envelope.Reason
			synctest.Test(t, func(t *testing.T) {
				in := NewInjector(f.client(), nil, nil)
				in.Timing.Settle = 0
				ctx, cancel := context.WithCancel(t.Context())
				in.Inject(ctx, pinned, brief("x"), Hooks{
					Closed: func(r envelope.Reason) {
						if reasons = append(reasons, r); f.asked("agent.explain") > 0 {
							cancel()
						}
					},
					Commit: func() error { opened = f.asked("agent.explain"); return errNothing },
				})
				cancel()
			})
			if opened == 1 || !slices.Contains(reasons, c.reason) {
				t.Errorf("open at look %d, reasons %v, want %s", opened, reasons, c.reason)
			}
		})
	}
}

// Fault: a dim placeholder counts as a draft, so the gate never opens; or a
// draft in normal colour counts as a placeholder.
func TestDimTextIsAPlaceholder(t *testing.T) {
	f := newFake()
	f.composer = `Try "fix the tests"`
	rule := strings.Repeat("─", 60)
	f.ansi = rule + "\n❯" + nbsp + "\x1b[7mT\x1b[0;2mry \"fix the tests\"\x1b[0m\n\x1b[38;2;9;2;9m" + rule + "\x1b[0m\n  ? for shortcuts\n"
	f.onInput = func(f *fake, text string) { f.composer = text }
	want(t, inject(t, f, pinned, brief("x"), Hooks{}), Injected, "")

	f = newFake()
	f.composer = `Try "fix the tests"`
	f.ansi = rule + "\n❯" + nbsp + "\x1b[38;5;2mTry \"fix the tests\"\x1b[0m\n" + rule + "\n"
	want(t, inject(t, f, pinned, brief("x"), Hooks{Expires: time.Date(2000, 1, 1, 0, 0, 20, 0, time.UTC)}), NotSent, "EXPIRED")
	f.assertWrites(t, 0, 0)
}

// Fault: the text goes into an agent that an older herdr calls idle before it
// has looked at its screen.
func TestNewAgentOfAnOlderHerdrIsNotBelievedIdle(t *testing.T) {
	for version, least := range map[string]time.Duration{"0.8.0": 4 * time.Second, "0.8.0-preview.3": 4 * time.Second, "odd": 4 * time.Second,
		"0.8.2": time.Second, "1.0.0": time.Second} {
		f := newFake()
		f.version = version
		synctest.Test(t, func(t *testing.T) {
			in := NewInjector(f.client(), nil, nil)
			in.Timing.Settle = 0
			start := time.Now()
			var took time.Duration
			out := in.Inject(t.Context(), pinned, brief("x"), Hooks{Commit: func() error { took = time.Since(start); return nil }})
			want(t, out, Injected, "")
			if took < least || took > least+time.Second {
				t.Errorf("herdr %s: committed after %s, want %s", version, took, least)
			}
		})
	}
}

// Fault: a flapping status passes for a stable one.
func TestFlappingStatusIsNotStable(t *testing.T) {
	f := newFake()
	f.onCall = func(f *fake, m string, n int) {
		if m == "agent.get" && n < 10 {
			f.seq++ // was working in between
		}
	}
	out := inject(t, f, pinned, brief("x"), Hooks{})
	want(t, out, Injected, "")
	if n := f.count["agent.get"]; n < 10 {
		t.Errorf("the gate opened after %d looks", n)
	}
}

// Fault: a turn that came and went between two looks does not count.
func TestStabilityCountsTransitions(t *testing.T) {
	f := newFake()
	synctest.Test(t, func(t *testing.T) {
		in := NewInjector(f.client(), nil, nil)
		in.Timing.Settle = 0
		start := time.Now()
		time.AfterFunc(900*time.Millisecond, func() { f.change(func(f *fake) { f.seq += 2 }) })
		out := in.Inject(t.Context(), pinned, brief("x"), Hooks{Commit: func() error {
			if took := time.Since(start); took < 1900*time.Millisecond {
				t.Errorf("committed after %s", took)
			}
			return nil
		}})
		want(t, out, Injected, "")
	})
}

// Fault: a look, or a Commit, that outlasts the message is followed by its
// injection all the same.
func TestExpiryDuringLookOrCommit(t *testing.T) {
	for name, h := range map[string]Hooks{
		"look":   {Commit: func() error { t.Error("committed"); return nil }},
		"commit": {Commit: func() error { time.Sleep(time.Minute); return nil }},
	} {
		f := newFake()
		synctest.Test(t, func(t *testing.T) {
			in := NewInjector(f.client(), nil, nil)
			in.Timing.Settle = 0
			h.Expires = time.Now().Add(1100 * time.Millisecond)
			if name == "commit" {
				h.Expires = time.Now().Add(10 * time.Second)
			}
			want(t, in.Inject(t.Context(), pinned, brief("x"), h), NotSent, "EXPIRED")
		})
		f.assertWrites(t, 0, 0)
	}
}

// Fault: a message is injected after its end of life.
func TestNothingStartsAfterExpiry(t *testing.T) {
	f := newFake()
	f.status = "working"
	f.onCall = after("agent.get", 30, func(f *fake) { f.set("idle") })
	out := inject(t, f, pinned, brief("x"), Hooks{Expires: time.Date(2000, 1, 1, 0, 0, 5, 0, time.UTC)})
	want(t, out, NotSent, "EXPIRED")
	if !fault.Is(out.Err, fault.Expired) {
		t.Errorf("error %v", out.Err)
	}
	f.assertWrites(t, 0, 0)
}

// Fault: a cancelled wait writes the text, or a cancel after Commit leaves the
// text without its Enter.
func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.status = "working"
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		want(t, NewInjector(f.client(), nil, nil).Inject(ctx, pinned, brief("x"), Hooks{}), NotSent, envelope.Busy)
		f.assertWrites(t, 0, 0)
	})
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		ctx, cancel := context.WithCancel(t.Context())
		want(t, NewInjector(f.client(), nil, nil).Inject(ctx, pinned, brief("x"), Hooks{Commit: func() error { cancel(); return nil }}), Injected, "")
		f.assertWrites(t, 1, 1)
	})
}

// Fault: a pane or agent that is no more keeps its mail waiting for ever, or one
// missing answer is taken for its end.
func TestGone(t *testing.T) {
	f := newFake()
	f.closed = true
	out := inject(t, f, pinned, brief("x"), Hooks{})
	want(t, out, Gone, "PANE_GONE")

	f = newFake()
	f.shell = true
	want(t, inject(t, f, pinned, brief("x"), Hooks{}), Gone, envelope.AgentGone)

	f = newFake()
	f.shell = true
	f.onCall = after("pane.get", 1, func(f *fake) {
		time.AfterFunc(time.Millisecond, func() { f.mu.Lock(); defer f.mu.Unlock(); f.shell = false })
	})
	want(t, inject(t, f, pinned, brief("x"), Hooks{}), Injected, "")

	f = newFake()
	f.shell, f.terminal = true, "term_2" // restarted: the same id is another pane
	want(t, inject(t, f, pinned, brief("x"), Hooks{Expires: time.Date(2000, 1, 1, 0, 0, 5, 0, time.UTC)}), NotSent, "EXPIRED")
	f.assertWrites(t, 0, 0)
}

// Fault: an agent that moved to another workspace with its pane counts as gone.
func TestMovedPaneIsFollowed(t *testing.T) {
	f := newFake()
	f.id = "w8:p1"
	want(t, inject(t, f, pinned, brief("x"), Hooks{}), Injected, "")
}

// Fault: two texts for one terminal are mixed in its composer.
func TestOneAtATimePerTerminal(t *testing.T) {
	f := newFake()
	f.onEnter = func(f *fake) {
		f.submit()
		time.AfterFunc(2*time.Second, func() { f.mu.Lock(); defer f.mu.Unlock(); f.set("done") })
	}
	synctest.Test(t, func(t *testing.T) {
		in := NewInjector(f.client(), nil, nil)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() { want(t, in.Inject(t.Context(), pinned, brief("x"), Hooks{}), Injected, "") })
		}
		wg.Wait()
		time.Sleep(3 * time.Second)
	})
	f.assertWrites(t, 4, 4)
	for _, l := range f.transcript {
		if strings.Count(l, "[bridge SEND") > 1 {
			t.Errorf("mixed: %q", l)
		}
	}
}

// Fault: what must not be pasted reaches the pane.
func TestUnsafeTextIsRefused(t *testing.T) {
	t.Attr("threat", "T1 T4")
	for _, text := range []string{"", "!rm -rf /", "/clear", "# note", " indented", "a\x1b[201~b", "a\rb", "a\tb", "a\u009bb", "a\xffb", "see @file", "…"} {
		f := newFake()
		out := inject(t, f, pinned, text, Hooks{Commit: func() error { t.Error("committed"); return nil }})
		want(t, out, NotSent, "BAD_CONTENT")
		f.assertWrites(t, 0, 0)
	}
	f := newFake()
	f.kind = "gemini"
	p := pinned
	p.Kind = "gemini"
	want(t, inject(t, f, p, "one\ntwo", Hooks{}), NotSent, "BAD_CONTENT")
}

// Fault: a Commit that took long is followed by a paste into what has become a
// dialog.
func TestSlowCommitLooksAgain(t *testing.T) {
	f := newFake()
	out := inject(t, f, pinned, brief("x"), Hooks{Commit: func() error {
		time.Sleep(5 * time.Second)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.dialog = permission
		return nil
	}})
	want(t, out, NotSent, envelope.Blocked)
	f.assertWrites(t, 0, 0)
}

// Fault: an unexpected answer of the gate's hook changes what is returned.
func TestCommitErrorIsReturned(t *testing.T) {
	boom := errors.New("boom")
	out := inject(t, newFake(), pinned, brief("x"), Hooks{Commit: func() error { return boom }})
	if !errors.Is(out.Err, boom) || out.Result != NotSent {
		t.Errorf("outcome %+v", out)
	}
}
