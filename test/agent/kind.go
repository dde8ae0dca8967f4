package agent

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// kind is what differs between the programs in what they do with text
// (agent-facts §3, §5). How they look is in their screen files.
type kind struct {
	name      string
	alternate bool // draws on the alternate screen
	steers    bool // Enter while working breaks off the answer
	title     string

	// pasted changes a paste as the program does before it shows it.
	pasted func(string) string
	// collapses tells whether a paste is shown as a marker.
	collapses func(string) bool
	// marker is what stands for a collapsed paste; n counts pastes.
	marker func(text string, n int, before []string) string
	// submitted changes the whole text as the program does on Enter.
	submitted func(string) string
	frame     func(*program) []string
}

var kinds = map[string]*kind{
	"claude": {
		name: "claude", title: "Claude Code",
		pasted:    pastedClaude,
		collapses: func(s string) bool { return utf8.RuneCountInString(s) > 1024 },
		marker: func(text string, n int, _ []string) string {
			if lines := strings.Count(text, "\n"); lines > 0 {
				return fmt.Sprintf("[Pasted text #%d +%d lines]", n, lines)
			}
			return fmt.Sprintf("[Pasted text #%d]", n)
		},
		submitted: func(s string) string {
			if strings.HasSuffix(s, "\n\n") { // several newlines came through
				return s
			}
			return strings.TrimRight(s, " \n")
		},
		frame: (*program).claudeFrame,
	},
	"codex": {
		name: "codex", alternate: true, steers: true, title: "codex",
		pasted:    pastedCodex,
		collapses: func(s string) bool { return utf8.RuneCountInString(s) > 1000 },
		marker: func(text string, _ int, before []string) string {
			m := fmt.Sprintf("[Pasted Content %d chars]", utf8.RuneCountInString(text))
			same := 1
			for _, b := range before {
				if strings.HasPrefix(b, m) {
					same++
				}
			}
			if same > 1 {
				m += fmt.Sprintf(" #%d", same)
			}
			return m
		},
		submitted: strings.TrimSpace,
		frame:     (*program).codexFrame,
	},
	"opencode": {
		name: "opencode", alternate: true, title: "OpenCode",
		pasted:    newlines,
		collapses: func(s string) bool { return utf8.RuneCountInString(s) > 150 || strings.Count(s, "\n") >= 2 },
		marker: func(text string, _ int, _ []string) string {
			return fmt.Sprintf("[Pasted ~%d lines] ", strings.Count(text, "\n")+1)
		},
		submitted: func(s string) string { return s },
		frame:     (*program).opencodeFrame,
	},
}

func newlines(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, "\r\n", "\n"), "\r", "\n")
}

var (
	escapes = regexp.MustCompile("\x1b(\\[[0-9;:?]*[ -/]*[@-~]|.)?")
	csiC1   = regexp.MustCompile("\u009b[0-9;:?]*[@-~]")
)

func pastedClaude(s string) string {
	s = strings.ReplaceAll(newlines(s), "\t", "    ")
	s = csiC1.ReplaceAllString(escapes.ReplaceAllString(s, ""), "")
	if utf8.RuneCountInString(s) <= 1024 { // kept when collapsed
		s = norm.NFC.String(s)
	}
	return s
}

func pastedCodex(s string) string {
	s = escapes.ReplaceAllString(newlines(s), "")
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && unicode.IsControl(r) {
			return -1
		}
		return r
	}, s)
}

var commandWord = regexp.MustCompile(`^/[A-Za-z][\w-]*(\s|$)`)

// command says what a text is to the program that does not go to the model:
// "shell" (! first), "unknown" (a /word first), or "".
func (k *kind) command(text string) string {
	switch {
	case k.name == "opencode":
		return ""
	case strings.HasPrefix(text, "!"):
		return "shell"
	case commandWord.MatchString(text):
		return "unknown"
	}
	return ""
}
