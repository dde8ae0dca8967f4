package agent

import (
	"fmt"
	"os"
	"strings"
)

const nbsp = "\u00a0"

// seconds is how long the turn runs.
func (p *program) seconds() int { return int(p.opts.Now().Sub(p.turnBegan).Seconds()) }

// claudeFrame draws Claude Code: transcript, spinner, composer between two
// full-width rules, hint row. A dialog takes the composer's place.
func (p *program) claudeFrame() []string {
	rows := []string{" ✻ Welcome to Claude Code", "   /help for help", ""}
	rows = append(rows, p.transcript...)
	rule := strings.Repeat("─", p.opts.Cols)
	if d := p.dialog(); d != nil {
		return append(append(append(rows, ""), rule), d.lines...)
	}
	if p.working {
		line := string([]rune("·✢*✶✻✽")[p.spin%6]) + " Pondering…"
		if s := p.seconds(); s >= 2 {
			line += fmt.Sprintf(" (%ds · ↓ %d tokens)", s, 4*s)
		}
		rows = append(rows, "", line)
	}
	for _, q := range p.queue {
		for _, r := range wrap(q, "  ❯ ", "    ", p.opts.Cols) {
			rows = append(rows, grey+r+plain)
		}
	}
	rows = append(rows, "", grey+rule+plain)
	rows = append(rows, p.claudeComposer()...)
	return append(rows, grey+rule+plain, p.claudeHint())
}

func (p *program) claudeComposer() []string {
	sign, text := "❯", p.composer.shown()
	if strings.HasPrefix(text, "!") {
		sign, text = "!", text[1:]
	}
	rows := wrap(text, sign+nbsp, "  ", p.opts.Cols-1)
	if p.working {
		rows[0] = grey + sign + plain + strings.TrimPrefix(rows[0], sign)
	}
	if text == "" && len(p.queue) > 0 {
		rows[0] += dim + "Press up to edit queued messages" + plain
	} else {
		rows[len(rows)-1] += reverse + " " + plain
	}
	return rows
}

func (p *program) claudeHint() string {
	left, right := "  ? for shortcuts · ← for agents", "● high · /effort"
	text := p.composer.shown()
	switch {
	case p.exitAsked:
		left, right = "  Press Ctrl-C again to exit", ""
	case p.working:
		left = "  esc to interrupt · ctrl+t to hide tasks"
	case strings.HasPrefix(text, "!"):
		left, right = "  ! for shell mode", ""
	case p.composer.collapsed():
		left = "  paste again to expand"
	case strings.Contains(text, "\n"):
		left, right = "", "ctrl+g to edit in Vim"
	case text != "":
		left = ""
	}
	if p.opts.Login {
		right = "Not logged in · Run /login"
	}
	return spread(left, right, p.opts.Cols-1)
}

// codexFrame draws Codex: everything stands at the bottom of the alternate
// screen; the footer names model and directory.
func (p *program) codexFrame() []string {
	rows := append([]string{"  >_ OpenAI Codex (v0.171.0)", ""}, p.transcript...)
	if d := p.dialog(); d != nil {
		return p.bottom(rows, append([]string{""}, d.lines...))
	}
	var last []string
	if p.working {
		last = append(last, "", fmt.Sprintf("• Working (%ds • esc to interrupt)", p.seconds()))
	}
	for i, q := range p.queue {
		if i == 0 {
			last = append(last, "", "• Queued follow-up inputs")
		}
		last = append(last, wrap(q, "  ↳ ", "    ", p.opts.Cols)...)
	}
	last = append(last, "")
	if text := p.composer.shown(); text == "" {
		last = append(last, "› "+dim+"Ask Codex to do anything"+plain)
	} else {
		last = append(last, wrap(text, "› ", "  ", p.opts.Cols-1)...)
	}
	hint := "  ← for agents · ? for shortcuts"
	switch {
	case !p.composer.empty() && p.working:
		hint = "  tab to queue message"
	case !p.composer.empty():
		hint = ""
	}
	return p.bottom(rows, append(last, "", "  gpt-5 high · "+directory(), hint))
}

// opencodeFrame draws opencode: a box at the bottom of the alternate screen.
func (p *program) opencodeFrame() []string {
	rows := append([]string{""}, p.transcript...)
	for _, q := range p.queue {
		rows = append(rows, "")
		rows = append(rows, wrap(q+"  QUEUED", "┃  ", "┃  ", p.opts.Cols)...)
	}
	if d := p.dialog(); d != nil {
		return p.bottom(rows, append([]string{""}, d.lines...))
	}
	last := []string{"", "┃"}
	switch text := p.composer.shown(); {
	case text == "" && p.turns == 0:
		last = append(last, `┃  `+dim+`Ask anything… "Fix a TODO in the codebase"`+plain)
	default:
		last = append(last, wrap(text, "┃  ", "┃  ", p.opts.Cols-1)...)
	}
	last = append(last, "┃", "┃  Build · stub-1 lab", "╹"+strings.Repeat("▀", p.opts.Cols-1))
	below := spread("  "+directory(), "tab agents  ctrl+p commands", p.opts.Cols-1)
	if p.working {
		below = "  " + strings.Repeat("⬝", p.spin%5) + "■■⬝  esc interrupt"
	}
	return p.bottom(rows, append(last, below))
}

func directory() string {
	dir, err := os.Getwd()
	if err != nil {
		return "~"
	}
	if home, err := os.UserHomeDir(); err == nil {
		if rest, ok := strings.CutPrefix(dir, home); ok {
			return "~" + rest
		}
	}
	return dir
}
