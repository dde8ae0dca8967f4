package agent_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Fails if a short paste is not shown as itself in the composer of its kind, or
// Enter does not hand it to the model and repeat it in the transcript.
func TestPasteEnterTranscript(t *testing.T) {
	for kind, look := range map[string]struct{ empty, draft, echo string }{
		"claude":   {"❯\u00a0", "❯\u00a0please look at this", "❯ please look at this"},
		"codex":    {"› Ask Codex to do anything", "› please look at this", "› please look at this"},
		"opencode": {"┃  Ask anything…", "┃  please look at this", "┃  please look at this"},
	} {
		t.Run(kind, func(t *testing.T) {
			p := inPane(t, kind, nil).ready()
			p.sees(look.empty)
			p.paste("please look at this")
			p.sees(look.draft)
			p.keys("enter")
			if got := p.prompts(1); got[0] != "please look at this" {
				t.Fatalf("the model got %q", got)
			}
			p.event("turn-end")
			p.sees(look.echo)
			if s := p.state(); s.Composer != "" || s.Working {
				t.Fatalf("after the turn: %+v", s)
			}
		})
	}
}

// Fails if long pastes do not collapse to the kind's marker, or the model does
// not get all of the text.
func TestLongPastesCollapse(t *testing.T) {
	long := strings.TrimSuffix(strings.Repeat(strings.Repeat("x", 40)+"\n", 60), "\n")
	for kind, markers := range map[string][2]string{
		"claude":   {"[Pasted text #1 +59 lines]", "[Pasted text #2 +59 lines]"},
		"codex":    {"[Pasted Content 2459 chars]", "[Pasted Content 2459 chars] #2"},
		"opencode": {"[Pasted ~60 lines]", "[Pasted ~60 lines]"},
	} {
		t.Run(kind, func(t *testing.T) {
			p := inPane(t, kind, nil).ready()
			p.paste(long)
			p.sees(markers[0])
			p.paste(long)
			p.sees(markers[0], markers[1])
			p.keys("enter")
			want := long + long
			if kind == "opencode" { // each collapsed paste gets one blank
				want = long + " " + long + " "
			}
			if diff := cmp.Diff(want, p.prompts(1)[0]); diff != "" {
				t.Fatalf("the model got another text (-want +got):\n%s", diff)
			}
		})
	}
}

// Fails if a kind changes a text otherwise than measured.
func TestTextAsTheModelGetsIt(t *testing.T) {
	const text = "  head\r\na\tb \x1b[31mred e\u0301 end\n"
	for kind, want := range map[string]string{
		"claude":   "  head\na    b red é end",
		"codex":    "head\na\tb red e\u0301 end",
		"opencode": "  head\na\tb \x1b[31mred e\u0301 end\n ", // three lines collapse there
	} {
		p := inPane(t, kind, nil).ready()
		p.paste(text)
		p.event("paste")
		p.keys("enter")
		if got := p.prompts(1)[0]; got != want {
			t.Errorf("%s: %q, want %q", kind, got, want)
		}
	}
}

// Fails if the worst fact is not played: a paste into a dialog vanishes without
// a trace and the Enter after it approves.
func TestDialogSwallowsPasteAndEnterApproves(t *testing.T) {
	for _, kind := range []string{"claude", "codex", "opencode"} {
		t.Run(kind, func(t *testing.T) {
			p := inPane(t, kind, nil).ready()
			p.do("draft half a thought")
			p.do("dialog")
			p.status("blocked")
			p.paste("[msg] into the void")
			if e := p.event("paste"); !e.Dropped {
				t.Fatalf("the paste was kept: %+v", e)
			}
			if s, _ := p.srv.Screen(p.id); strings.Contains(s, "void") {
				t.Fatalf("the dropped paste is drawn:\n%s", s)
			}
			p.keys("enter")
			if e := p.event("dialog"); e.Answer != "approved" {
				t.Fatalf("Enter answered %+v", e)
			}
			if kind == "opencode" { // asks a second time
				p.keys("esc")
			}
			p.status("idle")
			p.sees("half a thought")
			if got := p.events("prompt"); len(got) > 0 {
				t.Fatalf("the model got %v", got)
			}
		})
	}
}

// Fails if a person's draft and an injected text do not become one prompt.
func TestDraftIsJoined(t *testing.T) {
	p := inPane(t, "claude", nil, "--draft", "human draft ").ready()
	p.sees("❯\u00a0human draft")
	p.paste("INJECTED")
	p.sees("human draft INJECTED")
	p.keys("enter")
	if got := p.prompts(1)[0]; got != "human draft INJECTED" {
		t.Fatalf("the model got %q", got)
	}
}

// Fails if input while it works is not queued (claude, opencode) or does not
// break off the answer (codex).
func TestInputWhileWorking(t *testing.T) {
	for kind, queued := range map[string]string{"claude": "  ❯ second", "opencode": "QUEUED"} {
		p := inPane(t, kind, nil).ready()
		p.do("busy")
		p.status("working")
		p.paste("second")
		p.keys("enter")
		p.event("queued")
		p.sees(queued)
		if got := p.events("prompt"); len(got) > 0 {
			t.Fatalf("%s: the model got %v while it works", kind, got)
		}
		p.do("idle")
		if got := p.prompts(1)[0]; got != "second" {
			t.Fatalf("%s: the model got %q", kind, got)
		}
	}
	p := inPane(t, "codex", nil, "--work", "1h").ready()
	p.paste("first")
	p.keys("enter")
	p.prompts(1)
	p.status("working")
	p.paste("second")
	p.sees("tab to queue message")
	p.keys("enter")
	p.event("steered")
	if got := p.prompts(2); got[1] != "second" {
		t.Fatalf("codex: the model got %q", got)
	}
}

// Fails if a swallowed Enter leaves anything but the text in the composer, or
// the next Enter does not submit it once.
func TestSwallowedEnter(t *testing.T) {
	p := inPane(t, "claude", nil).ready()
	p.do("swallow-enter 1")
	p.paste("still here")
	p.sees("❯\u00a0still here")
	p.keys("enter")
	p.event("swallowed")
	p.sees("❯\u00a0still here")
	p.keys("enter")
	if got := p.prompts(1); len(got) != 1 || got[0] != "still here" {
		t.Fatalf("the model got %q", got)
	}
}

// Fails if the texts that never reach the model do, or one that does gets
// lost.
func TestTextsThatAreCommands(t *testing.T) {
	p := inPane(t, "claude", nil).ready()
	for text, event := range map[string]string{"!ls": "shell", "/compact now": "unknown-command"} {
		p.paste(text)
		p.keys("enter")
		p.event(event)
	}
	p.sees("Unknown command: /compact")
	p.paste("/etc/passwd is a path")
	p.keys("enter")
	if got := p.prompts(1); len(got) != 1 || got[0] != "/etc/passwd is a path" {
		t.Fatalf("the model got %q", got)
	}
}

// Fails if a program that is not logged in does not look idle and lose the
// prompt.
func TestLoginLooksIdleAndLosesThePrompt(t *testing.T) {
	p := inPane(t, "claude", nil, "--login").ready()
	p.sees("❯\u00a0", "Not logged in · Run /login")
	p.paste("hello")
	p.keys("enter")
	p.event("lost")
	p.sees("⎿  Not logged in · Please run /login")
	if got := p.events("prompt"); len(got) > 0 {
		t.Fatalf("the model got %v", got)
	}
}

// Fails if the trust dialog does not cover the composer at the start.
func TestTrustDialogAtStart(t *testing.T) {
	p := inPane(t, "claude", nil, "--trust")
	p.sees("Quick safety check", "❯ 1. Yes, I trust this folder")
	p.status("blocked")
	p.keys("enter")
	p.status("idle")
}

// Fails if what came before the first picture is not treated as measured:
// claude keeps the text and loses Enter, opencode loses both.
func TestInputBeforeTheComposer(t *testing.T) {
	for kind, want := range map[string]string{"claude": "early", "opencode": ""} {
		p := inPane(t, kind, nil, "--slow-start", "2s")
		if err := p.srv.Type(p.id, "\x1b[200~early\x1b[201~\r"); err != nil {
			t.Fatal(err)
		}
		p.event("ready")
		if s := p.state(); s.Composer != want || s.Turns != 0 {
			t.Errorf("%s: %+v", kind, s)
		}
	}
}

// Fails if late drawing hides the text from the screen for good, or shows it
// at once.
func TestLateDraw(t *testing.T) {
	p := inPane(t, "claude", nil).ready()
	p.do("late-draw 2s")
	p.paste("slowly drawn")
	e := p.event("paste")
	p.sees("❯\u00a0slowly drawn")
	if drawn := time.Since(e.At); drawn < time.Second { // the event is logged some time after the paste
		t.Fatalf("drawn after %v", drawn)
	}
}

// Fails if the two faults between text and Enter do not come there.
func TestFaultsBetweenTextAndEnter(t *testing.T) {
	p := inPane(t, "claude", nil, "--dialog-after-paste", "permission").ready()
	p.paste("hidden by a dialog")
	p.status("blocked")
	p.sees("Do you want to proceed?")
	p.keys("esc")
	p.sees("❯\u00a0hidden by a dialog")
	p.do("exit-after-paste")
	p.paste("x")
	p.event("exit")
	p.eventually("the pane to go", func() bool { _, _, err := p.srv.Status(p.id); return err != nil })
}
