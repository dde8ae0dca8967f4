package herdr

import (
	"strings"
	"testing"

	"fleetd/fabric/envelope"
)

const rule40 = "────────────────────────────────────────"

// Fault: a screen that is not an idle, empty composer passes for one, or one
// that is does not (agent facts §2, §6).
func TestScreens(t *testing.T) {
	cases := []struct {
		name, kind, screen string
		reason             envelope.Reason
		draft              bool
	}{
		{"claude idle", "claude", "❯ hi\n● hello\n✻ Baked for 4s\n\n" + rule40 + "\n❯" + nbsp + "\n" + rule40 + "\n  ? for shortcuts · ← for agents", "", false},
		{"claude idle, blank trimmed", "claude", rule40 + "\n❯\n" + rule40 + "\n", "", false},
		{"claude permission mode", "claude", rule40 + "\n❯" + nbsp + "\n" + rule40 + "\n  ⏵⏵ bypass permissions on (shift+tab to cycle)", "", false},
		{"claude queued placeholder", "claude", rule40 + "\n❯" + nbsp + "Press up to edit queued messages\n" + rule40 + "\n", "", false},
		{"claude draft", "claude", rule40 + "\n❯" + nbsp + "fix\n  more\n" + rule40 + "\n", "", true},
		{"claude draft in the second row", "claude", rule40 + "\n❯" + nbsp + "\n  more\n" + rule40 + "\n", "", true},
		{"claude working", "claude", "✻ Thinking… (12s · ↓ 4 tokens)\n" + rule40 + "\n❯" + nbsp + "\n" + rule40 + "\n  esc to interrupt · ? for shortcuts", envelope.Busy, false},
		{"claude logged out", "claude", rule40 + "\n❯" + nbsp + "\n" + rule40 + "\n  ? for shortcuts       Not logged in · Run /login", envelope.Blocked, false},
		{"claude threw a text away", "claude", "❯ hi\n  ⎿  Not logged in · Please run /login\n\n" + rule40 + "\n❯" + nbsp + "\n" + rule40 + "\n", envelope.Blocked, false},
		{"claude permission", "claude", rule40 + "\n Bash command\n\n Do you want to proceed?\n ❯ 1. Yes\n   2. No\n\n Esc to cancel · Tab to amend", envelope.Blocked, false},
		{"claude trust", "claude", " Quick safety check: Is this a project you created or one you trust?\n ❯ 1. Yes, I trust this folder\n   2. No, exit\n Enter to confirm · Esc to cancel", envelope.Blocked, false},
		{"claude transcript view", "claude", "❯ hi\n" + rule40 + "\n  Showing detailed transcript · ctrl+o to toggle", envelope.Blocked, false},
		{"claude transcript row between rules", "claude", rule40 + "\n❯ hi\n" + rule40 + "\n", envelope.NotReady, false},
		{"claude starting", "claude", "$ claude\n", envelope.NotReady, false},
		{"claude quotes a dialog", "claude", "● Do you want to proceed?\n  esc to interrupt\n\n" + rule40 + "\n❯" + nbsp + "\n" + rule40 + "\n", "", false},
		{"codex idle", "codex", "› hi\n\n• hello\n\nWorked for 2s\n\n› Ask Codex to do anything\n\n  gpt-5 high · ~/src/app\n  ← for agents · ? for shortcuts", "", false},
		{"codex draft", "codex", "› fix it\n  and more\n\n  gpt-5 high · /srv/app · title\n", "", true},
		{"codex bare", "codex", "›\n  second row\n\n  gpt-5 high · /srv/app\n", "", true},
		{"codex working", "codex", "• Working (3s • esc to interrupt)\n\n› Ask Codex to do anything\n\n  gpt-5 high · ~/src/app\n", envelope.Busy, false},
		{"codex tool dialog", "codex", "  Field 1/1\n  Allow the bridge MCP server to run tool \"echo\"?\n› 1. Allow\n  2. Allow for this session\n  4. Cancel\n  enter to submit | esc to cancel", envelope.Blocked, false},
		{"codex login", "codex", "  Welcome to Codex\n> 1. Sign in with ChatGPT\n  Press enter to continue", envelope.Blocked, false},
		{"codex transcript only", "codex", "› hi\n\n• hello · ~/x\n", envelope.NotReady, false},
		{"codex transcript over a path", "codex", "› hi\n\n• hello\n\n  see this · ~/x\n", envelope.NotReady, false},
		{"opencode empty session", "opencode", "   LOGO\n\n   ┃\n   ┃  Ask anything… \"Fix a TODO\"\n   ┃\n   ┃  Build · gpt local\n   ╹▀▀▀▀▀▀▀▀\n  tab agents  ctrl+p commands", "", false},
		{"opencode later", "opencode", "┃  hi\n\n  hello\n  ▣ Build · gpt · 448ms\n\n┃\n┃\n┃  Build · gpt local\n╹▀▀▀▀\n  tab agents", "", false},
		{"opencode draft", "opencode", "┃\n┃  fix it\n┃\n┃  Build · gpt local\n╹▀▀▀▀\n", "", true},
		{"opencode working", "opencode", "┃\n┃  Build · gpt local\n╹▀▀▀▀\n  ⬝⬝■■⬝  esc interrupt", envelope.Busy, false},
		{"opencode permission", "opencode", "┃  △ Permission required\n┃  Bash ls\n┃  Allow once   Allow always   Reject        ⇆ select  enter confirm", envelope.Blocked, false},
		{"opencode starting", "opencode", "\n\n", envelope.NotReady, false},
		{"other idle", "gemini", "some prose\n> \n", "", false},
		{"other menu", "gemini", "Pick one\n ❯ 1. Yes\n   2. No\n", envelope.Blocked, false},
		{"other question", "gemini", "Apply this change? [y/N]\n", envelope.Blocked, false},
		{"other trust", "gemini", "Do you trust this folder?\n", envelope.Blocked, false},
		{"other working", "gemini", "⠋ Thinking (esc to interrupt)\n> \n", envelope.Busy, false},
		{"other old dialog", "gemini", "Press enter to continue\n" + strings.Repeat("row\n", nearRows) + "> \n", "", false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			k := kindOf(c.kind)
			s := k.look(screenRows(c.screen))
			if s.reason != c.reason || k.draft(s, false) != c.draft {
				t.Errorf("reason %q, draft %t (composer %+v); want %q, %t", s.reason, k.draft(s, false), s.composer, c.reason, c.draft)
			}
		})
	}
}

// Fault: a collapse marker of another kind or size passes for our text.
func TestCollapseMarkers(t *testing.T) {
	p := newProbe("one\ntwo\nthree") // 2 newlines, 13 characters
	for _, c := range []struct {
		kind, text string
		ours       bool
	}{
		{"claude", "[Pasted text #12 +2 lines]", true},
		{"claude", "[Pasted text #12 +4 lines]", false},
		{"codex", "[Pasted Content 13 chars]", true},
		{"codex", "[Pasted Content 13 chars] #2", true},
		{"codex", "[Pasted Content 99999999999999999999 chars]", false},
		{"codex", "[Pasted Content 20 chars]", false},
		{"opencode", "[Pasted ~3 lines] ", true},
		{"opencode", "[Pasted ~9 lines] ", false},
		{"gemini", "[Pasted ~3 lines] ", false},
	} {
		k := kindOf(c.kind)
		if got := k.collapsed(c.text, p) != ""; got != c.ours {
			t.Errorf("%s %q: ours is %t", c.kind, c.text, got)
		}
	}
}

// Fault: a wrapped, boxed or indented text is not recognised.
func TestTextIsFoundThroughWrapping(t *testing.T) {
	text := brief("do this\nthen that")
	narrow := func(indent string) string {
		var rows []string
		for _, l := range strings.Split(text, "\n") {
			for r := []rune(l); len(r) > 0; r = r[min(len(r), 30):] {
				rows = append(rows, indent+string(r[:min(len(r), 30)]))
			}
		}
		return strings.Join(rows, "\n")
	}
	for kind, screen := range map[string]string{
		"claude":   rule40 + "\n❯" + nbsp + strings.TrimPrefix(narrow("  "), "  ") + "\n" + rule40 + "\n",
		"codex":    "› " + strings.TrimPrefix(narrow("  "), "  ") + "\n\n  gpt-5 high · ~/src\n",
		"opencode": narrow(" ┃  ") + "\n ┃\n ┃  Build · gpt local\n ╹▀▀▀▀▀\n",
	} {
		k := kindOf(kind)
		s := k.look(screenRows(screen))
		if pl := k.locate(&s, newProbe(text)); !pl.whole || pl.elsewhere {
			t.Errorf("%s: %+v in composer %+v", kind, pl, s.composer)
		}
	}
}
