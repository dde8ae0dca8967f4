package herdr

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"fleetd/fabric/envelope"
)

// Fault: an Enter that the agent swallowed is not repeated, is repeated more
// than twice, or the text is written again.
func TestSwallowedEnterIsRepeatedTwice(t *testing.T) {
	for swallowed, c := range map[int]struct {
		enters int
		result Result
		reason envelope.Reason
	}{1: {2, Injected, ""}, 2: {3, Injected, ""}, 9: {3, InDoubt, "IN_DOUBT"}} {
		f := newFake()
		f.onEnter = func(f *fake) {
			if f.enters > swallowed {
				f.submit()
			}
		}
		want(t, inject(t, f, pinned, brief("x"), Hooks{}), c.result, c.reason)
		f.assertWrites(t, 1, c.enters)
	}
}

// Fault: an Enter that takes effect late is pressed again, into what has come
// since.
func TestLateEnterIsAwaited(t *testing.T) {
	f := newFake()
	f.onEnter = func(*fake) {
		time.AfterFunc(4*time.Second, func() { f.mu.Lock(); defer f.mu.Unlock(); f.submit() })
	}
	want(t, inject(t, f, pinned, brief("x"), Hooks{}), Injected, "")
	f.assertWrites(t, 1, 1)
}

// Fault: Enter answers a dialog that opened between text and Enter, at any of
// the looks in between, or the outcome hides that a person must act.
func TestDialogBeforeEnterStops(t *testing.T) {
	blocked := func(f *fake) { f.status = "blocked" }
	cases := map[string]*fake{}
	add := func(name string, set func(f *fake)) { f := newFake(); set(f); cases[name] = f }
	add("swallows the paste", func(f *fake) { f.onInput = func(f *fake, _ string) { f.dialog = permission } })
	add("over the draft", func(f *fake) { f.onInput = func(f *fake, s string) { f.composer, f.dialog = s, permission } })
	add("status says so", func(f *fake) { f.onInput = func(f *fake, s string) { f.composer, f.status = s, "blocked" } })
	cases["after the first look"] = atReads(func(n int) func(*fake) string {
		if n == 1 {
			return nil
		}
		return func(*fake) string { return permission }
	})
	add("status at the last moment", func(f *fake) {
		f.onCall = func(f *fake, m string, _ int) {
			if m == "agent.get" && len(f.inputs) == 1 {
				blocked(f)
			}
		}
	})
	add("while herdr is slow to say who is there", func(f *fake) {
		f.onInput = func(f *fake, s string) {
			f.composer = s
			f.meanwhile("agent.get", func(f *fake) { f.dialog = permission })
		}
	})
	for name, f := range cases {
		t.Run(name, func(t *testing.T) {
			want(t, inject(t, f, pinned, brief("x"), Hooks{}), InDoubt, envelope.Blocked)
			f.assertWrites(t, 1, 0)
		})
	}
}

// atReads draws the screen of the n-th look after the paste, from 1, as draw
// says; nil draws it as ever.
func atReads(draw func(n int) func(f *fake) string) *fake {
	f := newFake()
	n := 0
	f.onCall = func(f *fake, method string, _ int) {
		if method == "pane.read" && len(f.inputs) > 0 {
			n++
			f.screen = draw(n)
		}
	}
	return f
}

// Fault: one look at a screen that is half drawn, with no composer yet and words
// of a dialog in the transcript, leaves a brief in doubt that was well on its way.
func TestHalfDrawnScreenIsLookedAtAgain(t *testing.T) {
	for name, half := range map[string]string{
		"with words of a dialog": "✻ Welcome\n  it said:\n  ❯ 1. Yes\n",
		"with nothing":           "✻ Welcome\n",
		"empty":                  "",
	} {
		for at := 1; at <= 4; at++ {
			t.Run(fmt.Sprintf("%s, look %d", name, at), func(t *testing.T) {
				f := atReads(func(n int) func(*fake) string {
					if n != at {
						return nil
					}
					return func(*fake) string { return half }
				})
				want(t, inject(t, f, pinned, brief("x"), Hooks{}), Injected, "")
				f.assertWrites(t, 1, 1)
			})
		}
	}
}

// Fault: the end of the time to look is the end of a dialog's second look, so
// that a half-drawn screen at the last moment is taken for a dialog.
func TestHalfDrawnScreenAtTheLastLook(t *testing.T) {
	looks := int(DefaultTiming().LookFor / DefaultTiming().Look)
	for at := looks - 1; at <= looks+1; at++ {
		f := atReads(func(n int) func(*fake) string {
			if n != at {
				return nil
			}
			return func(*fake) string { return permission }
		})
		f.onInput = func(f *fake, s string) { f.composer = s[:len(s)/2] } // looked at to the end
		want(t, inject(t, f, pinned, brief(strings.Repeat("words ", 40)), Hooks{}), Injected, "")
		f.assertWrites(t, 1, 1)
	}
}

// Fault: the last look after a swallowed Enter meets a screen that is half drawn,
// and the brief is in doubt instead of sent by another Enter.
func TestHalfDrawnScreenAtTheLastLookAfterEnter(t *testing.T) {
	looks := int(DefaultTiming().Verify / DefaultTiming().VerifyPoll)
	for at := looks - 1; at <= looks+2; at++ {
		f, n := newFake(), 0
		f.onEnter = func(f *fake) {
			if f.enters > 1 {
				f.submit()
			}
		}
		f.onCall = func(f *fake, method string, _ int) {
			if method != "pane.read" || f.enters != 1 {
				return
			}
			f.screen = nil
			if n++; n == at {
				f.screen = func(*fake) string { return permission }
			}
		}
		want(t, inject(t, f, pinned, brief("x"), Hooks{}), Injected, "")
		f.assertWrites(t, 1, 2)
	}
}

// Fault: herdr calls an agent blocked for a moment, by a screen that it saw half
// drawn, and the brief that stands in the composer is in doubt.
func TestBlockedForOneLookIsLookedAtAgain(t *testing.T) {
	for at := 1; at <= 3; at++ {
		f, n := newFake(), 0
		f.onCall = func(f *fake, method string, _ int) {
			if method != "agent.get" || len(f.inputs) == 0 || f.enters > 0 {
				return
			}
			f.status = "idle"
			if n++; n == at {
				f.status = "blocked"
			}
		}
		want(t, inject(t, f, pinned, brief("x"), Hooks{}), Injected, "")
		f.assertWrites(t, 1, 1)
	}
}

// Fault: a dialog that one look does not see, between others that do, gets an
// Enter.
func TestDialogThatFlickersGetsNoEnter(t *testing.T) {
	f := atReads(func(n int) func(*fake) string {
		if n == 1 || n == 3 {
			return nil
		}
		return func(*fake) string { return permission }
	})
	want(t, inject(t, f, pinned, brief("x"), Hooks{}), InDoubt, envelope.Blocked)
	f.assertWrites(t, 1, 0)

	f = atReads(func(n int) func(*fake) string { // for as long as one may look
		if n%2 == 1 {
			return nil
		}
		return func(*fake) string { return permission }
	})
	want(t, inject(t, f, pinned, brief("x"), Hooks{}), InDoubt, "IN_DOUBT")
	f.assertWrites(t, 1, 0)
}

// Fault: Enter is repeated into a dialog that opened after a swallowed Enter, or
// the dialog is taken for proof.
func TestDialogAfterSwallowedEnterStops(t *testing.T) {
	f := newFake()
	f.onEnter = func(f *fake) { f.dialog = permission; f.set("blocked") }
	want(t, inject(t, f, pinned, brief("x"), Hooks{}), InDoubt, envelope.Blocked)
	f.assertWrites(t, 1, 1)
}

// Fault: a turn that asks for permission at once counts as in doubt although
// the text is seen in the transcript.
func TestDialogOfOurOwnTurnIsInjected(t *testing.T) {
	f := newFake()
	f.onEnter = func(f *fake) { f.submit(); f.dialog = permission; f.set("blocked") }
	want(t, inject(t, f, pinned, brief("x"), Hooks{}), Injected, "")
}

// Fault: text or Enter end up in a shell, or its pane's end is called success.
func TestAgentEndsAfterPaste(t *testing.T) {
	for name, end := range map[string]func(f *fake){
		"exits to the shell": func(f *fake) { f.shell = true; f.screen = func(f *fake) string { return "$ " + f.inputs[0] } },
		"pane closes":        func(f *fake) { f.closed = true },
		"herdr restarts":     func(f *fake) { f.terminal = "term_2" },
		"another kind":       func(f *fake) { f.kind = "codex" },
		"herdr dies":         func(f *fake) { f.down = true },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			f.onInput = func(f *fake, s string) { f.composer = s; end(f) }
			out := inject(t, f, pinned, brief("x"), Hooks{})
			want(t, out, InDoubt, "IN_DOUBT")
			f.assertWrites(t, 1, 0)
			if says := map[string]string{"exits to the shell": "ended", "another kind": "changed hands"}[name]; !strings.Contains(out.Err.Error(), says) {
				t.Errorf("the error does not say %q: %v", says, out.Err)
			}

			f = newFake()
			f.onEnter = func(f *fake) { f.composer = ""; end(f) }
			want(t, inject(t, f, pinned, brief("x"), Hooks{}), InDoubt, "IN_DOUBT")
			f.assertWrites(t, 1, 1)
		})
	}
}

// Fault: a refused paste counts as written, so that the brief is lost, or an
// answer that proves nothing counts as refused.
func TestRefusedPasteMayBePutBack(t *testing.T) {
	for _, code := range []string{"pane_send_failed", "pane_not_found", "agent_not_found"} {
		f := newFake()
		f.fail["pane.send_input"] = []string{code}
		committed := false
		out := inject(t, f, pinned, brief("x"), Hooks{Commit: func() error { committed = true; return nil }})
		want(t, out, NotSent, "NOT_INJECTED")
		f.assertWrites(t, 0, 0)
		if !committed {
			t.Error("not committed")
		}
	}
	f := newFake()
	f.onCall = func(f *fake, m string, _ int) {}
	out := inject(t, f, pinned, brief("x"), Hooks{Commit: func() error { f.mu.Lock(); defer f.mu.Unlock(); f.down = true; return nil }})
	want(t, out, NotSent, "HERDR_DOWN")
	f.assertWrites(t, 0, 0)
}

// Fault: a paste whose answer was lost is written again, or is not finished
// although it is seen in the composer.
func TestUnansweredPasteIsLookedFor(t *testing.T) {
	for _, code := range []string{"eof", "hang", "server_unavailable", "internal_error", "brand_new_code"} {
		f := newFake()
		f.fail["pane.send_input"] = []string{code}
		if code == "eof" {
			want(t, inject(t, f, pinned, brief("x"), Hooks{}), Injected, "")
			f.assertWrites(t, 1, 1)
			continue
		}
		want(t, inject(t, f, pinned, brief("x"), Hooks{}), InDoubt, "IN_DOUBT")
		f.assertWrites(t, 0, 0)
		if n := f.count["pane.send_input"]; n != 1 {
			t.Errorf("%s: the paste was sent %d times", code, n)
		}
	}
}

// Fault: Enter is pressed although the text is nowhere to be seen.
func TestNoEnterWithoutText(t *testing.T) {
	f := newFake()
	f.onInput = func(*fake, string) {}
	want(t, inject(t, f, pinned, brief("x"), Hooks{}), InDoubt, "IN_DOUBT")
	f.assertWrites(t, 1, 0)

	f = newFake()
	f.onInput = func(f *fake, s string) { f.composer = "something else" }
	want(t, inject(t, f, pinned, brief("x"), Hooks{}), InDoubt, "IN_DOUBT")
	f.assertWrites(t, 1, 0)
}

// Fault: text that is drawn late, or piecewise, is given up or entered early.
func TestTextDrawnLate(t *testing.T) {
	f := newFake()
	entered := ""
	f.onInput = func(_ *fake, s string) {
		for i, at := range []int{0, 1000, 2500} {
			time.AfterFunc(time.Duration(at)*time.Millisecond, func() { f.mu.Lock(); defer f.mu.Unlock(); f.composer = s[:(i+1)*len(s)/3] })
		}
	}
	f.onEnter = func(f *fake) { entered = f.composer; f.submit() }
	want(t, inject(t, f, pinned, brief(strings.Repeat("words ", 40)), Hooks{}), Injected, "")
	if entered != f.inputs[0] {
		t.Errorf("entered: %q", entered)
	}
}

// Fault: a composer that shows only the beginning of a text is waited for in
// vain, or is not waited for at all.
func TestComposerThatHidesTheEnd(t *testing.T) {
	f := newFake()
	var pasted, entered time.Time
	f.onInput = func(_ *fake, s string) { pasted, f.composer = time.Now(), s[:len(s)/2] }
	f.onEnter = func(*fake) { entered = time.Now(); f.submit() }
	want(t, inject(t, f, pinned, brief(strings.Repeat("words ", 40)), Hooks{}), Injected, "")
	f.assertWrites(t, 1, 1)
	if d := entered.Sub(pasted); d < 3*time.Second {
		t.Errorf("entered after %s", d)
	}
}

// Fault: Enter whose answer was lost is pressed again although it worked.
func TestUnansweredEnter(t *testing.T) {
	for mode, enters := range map[string]int{"eof": 1, "lost": 1, "hang": 1, "agent_not_ready": 1, "agent_send_keys_failed": 1} {
		f := newFake()
		f.fail["agent.send_keys"] = []string{mode}
		want(t, inject(t, f, pinned, brief("x"), Hooks{}), Injected, "")
		f.assertWrites(t, 1, enters)
	}
}

// Fault: an agent without a working state, or one that answers between two
// polls, counts as in doubt.
func TestAgentThatShowsNoTurn(t *testing.T) {
	f := newFake()
	f.onEnter = func(f *fake) { f.submit(); f.status, f.seq = "idle", 7 }
	want(t, inject(t, f, pinned, brief("x"), Hooks{}), Injected, "")

	f = newFake()
	f.onEnter = func(f *fake) { f.submit(); f.transcript = nil; f.set("done") }
	want(t, inject(t, f, pinned, brief("x"), Hooks{}), Injected, "")
	f.assertWrites(t, 1, 1)
}

// Fault: a status moved by something else proves an Enter that was swallowed.
func TestForeignTurnProvesNothing(t *testing.T) {
	f := newFake()
	f.onEnter = func(f *fake) { f.set("working"); f.hint = "" } // the text stays
	want(t, inject(t, f, pinned, brief("x"), Hooks{}), InDoubt, "IN_DOUBT")
	f.assertWrites(t, 1, 1)
}

// Fault: the end of a turn that ran before Enter proves an Enter.
func TestEndOfAnEarlierTurnProvesNothing(t *testing.T) {
	f := newFake()
	f.onInput = func(f *fake, s string) { f.composer = s; f.set("working") }
	f.onEnter = func(f *fake) { f.composer = ""; f.set("done") }
	want(t, inject(t, f, pinned, brief("x"), Hooks{}), InDoubt, "IN_DOUBT")
	f.assertWrites(t, 1, 1)
}

// Fault: a composer that was wiped counts as submitted.
func TestWipedComposerIsInDoubt(t *testing.T) {
	f := newFake()
	f.onEnter = func(f *fake) { f.composer = "" }
	want(t, inject(t, f, pinned, brief("x"), Hooks{}), InDoubt, "IN_DOUBT")
	f.assertWrites(t, 1, 1)

	f = newFake() // wiped before Enter, after the first look
	looks := 0
	f.onCall = func(f *fake, m string, _ int) {
		if m == "pane.read" && len(f.inputs) == 1 {
			if looks++; looks == 2 {
				f.composer = ""
			}
		}
	}
	want(t, inject(t, f, pinned, brief("x"), Hooks{}), InDoubt, "IN_DOUBT")
	f.assertWrites(t, 1, 0)
}

// Fault: a message that a logged-out agent threw away counts as injected.
func TestLoggedOutAgentTookNothing(t *testing.T) {
	f := newFake()
	f.onEnter = func(f *fake) {
		f.submit()
		f.transcript = append(f.transcript, "  ⎿  Not logged in · Please run /login")
		f.set("idle")
	}
	want(t, inject(t, f, pinned, brief("x"), Hooks{}), InDoubt, envelope.Blocked)
}

// Fault: a person's Enter after our paste leads to a second one into the void.
func TestSomebodyElsePressedEnter(t *testing.T) {
	f := newFake()
	f.onInput = func(f *fake, s string) { f.composer = s; f.submit() }
	want(t, inject(t, f, pinned, brief("x"), Hooks{}), Injected, "")
	f.assertWrites(t, 1, 0)
}

// Fault: a collapsed paste is not recognised, or one of the wrong size is: the
// brief was cut on its way.
func TestCollapsedPaste(t *testing.T) {
	text := brief(strings.Repeat("a line of the brief\n", 100))
	n := strings.Count(text, "\n")
	for marker, ok := range map[string]bool{
		fmt.Sprintf("[Pasted text #3 +%d lines]", n):   true,
		fmt.Sprintf("[Pasted text #3 +%d lines]", n/2): false,
		"[Pasted text #3]":                             false,
	} {
		f := newFake()
		f.onInput = func(f *fake, _ string) { f.composer = marker }
		f.onEnter = func(f *fake) { f.submit(); f.status, f.seq = "idle", 7 } // only the screen tells
		out := inject(t, f, pinned, text, Hooks{})
		if ok {
			want(t, out, Injected, "")
			f.assertWrites(t, 1, 1)
		} else {
			want(t, out, InDoubt, "IN_DOUBT")
			f.assertWrites(t, 1, 0)
		}
	}
}

// Fault: a composer taller than the screen hides its top and the text in it
// counts as lost.
func TestComposerTallerThanTheScreen(t *testing.T) {
	f := newFake()
	f.screen = func(f *fake) string {
		rows := strings.Split(strings.TrimRight(drawClaude(f), "\n"), "\n")
		return strings.Join(tail(rows, 12), "\n")
	}
	want(t, inject(t, f, pinned, brief(strings.Repeat("x\n", 30)), Hooks{}), Injected, "")
	f.assertWrites(t, 1, 1)
}

// Fault: content that quotes a dialog keeps its own Enter away, where there is a
// composer to tell it from one.
func TestContentMayQuoteADialog(t *testing.T) {
	t.Attr("threat", "T2")
	f := newFake()
	want(t, inject(t, f, pinned, brief("it asked\nDo you want to proceed?\n❯ 1. Yes\nEsc to cancel\nNot logged in"), Hooks{}), Injected, "")
	f.assertWrites(t, 1, 1)
}

// Fault: Enter goes into a running answer of an agent that it would break off.
func TestSteeredAgentIsWaitedFor(t *testing.T) {
	f := newFake()
	f.kind = "codex"
	f.screen = drawCodex
	f.onInput = func(_ *fake, s string) {
		f.composer = s
		f.set("working")
		time.AfterFunc(6*time.Second, func() { f.mu.Lock(); defer f.mu.Unlock(); f.set("idle") })
	}
	f.onEnter = func(f *fake) {
		if f.status == "working" {
			t.Error("Enter into a running turn")
		}
		f.submit()
	}
	p := pinned
	p.Kind = "codex"
	want(t, inject(t, f, p, brief("x"), Hooks{}), Injected, "")
	f.assertWrites(t, 1, 1)
}

// Fault: a kind without a composer to recognise gets no message at all.
func TestOtherKindGetsTheAnnouncement(t *testing.T) {
	f := newFake()
	f.kind = "gemini"
	f.screen = func(f *fake) string { return strings.Join(f.transcript, "\n") + "\n> " + f.composer + "\n" }
	p := pinned
	p.Kind = "gemini"
	text, announced := Frame(Message{ID: testID, Kind: "SEND", From: "a@b", Content: "do you want to proceed?", Limit: PasteLimit("gemini")})
	if !announced {
		t.Fatalf("not announced: %q", text)
	}
	want(t, inject(t, f, p, text, Hooks{}), Injected, "")
	f.assertWrites(t, 1, 1)

	f.mu.Lock()
	f.set("idle")
	f.inputs, f.enters = nil, 0
	f.onEnter = func(*fake) {} // where the text stands cannot be told: no second Enter
	f.mu.Unlock()
	text, _ = Frame(Message{ID: strings.Replace(testID, "0198", "0199", 1), Kind: "SEND", From: "a@b", Content: "x", Limit: 1})
	want(t, inject(t, f, p, text, Hooks{}), InDoubt, "IN_DOUBT")
	f.assertWrites(t, 1, 1)
}

// drawCodex draws the measured codex.
func drawCodex(f *fake) string {
	rows := append([]string{}, f.transcript...)
	for i, r := range rows {
		rows[i] = strings.Replace(r, "❯", "›", 1)
	}
	if f.status == "working" {
		rows = append(rows, "• Working (3s • esc to interrupt)", "")
	}
	text, hint := f.composer, "  ← for agents · ? for shortcuts"
	if text == "" {
		text = "Ask Codex to do anything"
	} else {
		hint = ""
	}
	for i, l := range strings.Split(text, "\n") {
		if i == 0 {
			rows = append(rows, "› "+l)
		} else {
			rows = append(rows, "  "+l)
		}
	}
	return strings.Join(append(rows, "", "  gpt-5 high · ~/src/app", hint), "\n") + "\n"
}
