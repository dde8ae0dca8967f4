package herdr

import (
	"regexp"
	"time"
)

// Kind is all that differs between agent programs (agent facts §2–§6). The
// strings are those of the versions measured there, not a contract: what is not
// recognised keeps the gate closed.
type Kind struct {
	Name string // herdr's kind label

	// Bracketed says that the program has bracketed paste on whenever its
	// composer is drawn. Others get single lines only: an unframed newline may
	// submit (design §11, agent fact §3).
	Bracketed bool

	// Composer finds the composer; nil if none is known. Floor matches the row
	// right under it, also when its top is scrolled off the screen.
	Composer    func(rows []string) (Composer, bool)
	Floor       *regexp.Regexp
	Placeholder *regexp.Regexp // what an empty composer shows

	Dialog  *regexp.Regexp // words of a dialog
	Working *regexp.Regexp // words of a running turn, looked for below the composer
	Above   int            // and in so many rows above it
	Login   *regexp.Regexp // words of a program that is not logged in
	Lost    *regexp.Regexp // its reply above the composer to a text that it threw away

	// Collapsed matches what stands for a long paste; group 1 is its size, as
	// Size computes it for a text, give or take Slack.
	Collapsed *regexp.Regexp
	Size      func(probe) int
	Slack     int

	PasteLimit int           // bytes, frame included; more is announced
	Settle     time.Duration // from the first empty composer to the first paste

	// Steers says that Enter breaks off a running answer (agent fact §5), so
	// that it waits even when the text is already in the composer.
	Steers bool
}

// generic is what is known of every other kind: no composer, so no test for a
// draft, and the dialog words of all.
var generic = Kind{
	Dialog: regexp.MustCompile(`(?i)\besc to (cancel|exit|reject)|\b(enter|return) to (confirm|submit|select|continue)|press (enter|return|any key)` +
		`|do you want to (proceed|allow|run|continue|make|create|trust)|do you trust|trust (this|the) (folder|files|workspace|directory)` +
		`|\[y/n\]|\(y/n\)|\(yes/no\)|allow once|permission required|^\s*(❯|›|>|▶|●)\s*\d+[.)]\s|log ?in (with|to)\b|sign in (with|to)\b`),
	Working:    regexp.MustCompile(`(?i)\besc (to )?(interrupt|cancel the run)`),
	Login:      regexp.MustCompile(`(?i)not logged in|please run /login|sign in with`),
	PasteLimit: 1, // always announced: whether it frames a paste is not known
	Settle:     2 * time.Second,
}

var kinds = map[string]Kind{
	"claude": {
		Bracketed:   true,
		Composer:    claudeComposer,
		Floor:       claudeRule,
		Placeholder: regexp.MustCompile(`^Press up to edit queued messages$`),
		Dialog: regexp.MustCompile(`Do you want to |Esc to (cancel|exit)|Enter to (confirm|select)|Tab to amend|Quick safety check` +
			`|New MCP server found|Showing detailed transcript|^\s*❯ \d+\. `),
		Working:    regexp.MustCompile(`esc to interrupt`),
		Login:      regexp.MustCompile(`Not logged in|Please run /login`),
		Lost:       regexp.MustCompile(`^\s*⎿\s+Not logged in`),
		Collapsed:  regexp.MustCompile(`\[Pasted text #\d+(?: \+(\d+) lines)?\]`),
		Size:       func(p probe) int { return p.newlines },
		Slack:      1,
		PasteLimit: DefaultPasteLimit,
		Settle:     2 * time.Second,
	},
	"codex": {
		Bracketed:   true,
		Composer:    codexComposer,
		Placeholder: regexp.MustCompile(`^Ask Codex to do anything$`),
		Dialog: regexp.MustCompile(`enter to (submit|confirm)|esc to cancel|^\s*› \d+\. |Press enter to|Allow the .* MCP server|Would you like to` +
			`|Sign in with ChatGPT|Welcome to Codex`),
		Working:    regexp.MustCompile(`^\s*•.*esc to interrupt`),
		Above:      8,
		Login:      regexp.MustCompile(`Sign in with ChatGPT`),
		Collapsed:  regexp.MustCompile(`\[Pasted Content (\d+) chars\](?: #\d+)?`),
		Size:       func(p probe) int { return p.chars },
		Slack:      2,
		PasteLimit: DefaultPasteLimit,
		Settle:     time.Second,
		Steers:     true,
	},
	"opencode": {
		Bracketed:   true,
		Composer:    opencodeComposer,
		Floor:       opencodeFloor,
		Placeholder: regexp.MustCompile(`^Ask anything(…|\.\.\.)`),
		Dialog:      regexp.MustCompile(`Permission required|Allow once\s+Allow always|enter confirm`),
		Working:     regexp.MustCompile(`esc (again to )?interrupt`),
		Login:       regexp.MustCompile(`Not logged in`),
		Collapsed:   regexp.MustCompile(`\[Pasted ~(\d+) lines\]`),
		Size:        func(p probe) int { return p.newlines + 1 },
		Slack:       1,
		PasteLimit:  DefaultPasteLimit,
		Settle:      2 * time.Second,
	},
}

// kindOf returns what is known of an agent kind.
func kindOf(name string) Kind {
	k, ok := kinds[name]
	if !ok {
		k = generic
	}
	k.Name = name
	return k
}

// PasteLimit returns the bytes, frame included, over which a text for an agent
// of this kind is announced instead of pasted; it is meant for Message.Limit.
func PasteLimit(kind string) int { return kindOf(kind).PasteLimit }
