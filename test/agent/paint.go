package agent

import (
	"io"
	"strings"

	"github.com/charmbracelet/x/ansi"
)

// painter draws frames. On the main screen rows that no longer fit scroll into
// the terminal's history, as they do for claude.
type painter struct {
	out        io.Writer
	cols, rows int
	scrolls    bool
	top        int // rows that have left the screen
}

func (d *painter) paint(frame []string, title string) {
	var b strings.Builder
	b.WriteString("\x1b[?2026h\x1b[?7l")
	top := max(0, len(frame)-d.rows)
	if d.scrolls {
		for ; d.top < top; d.top++ {
			b.WriteString("\x1b[H\x1b[2K" + frame[d.top])
			b.WriteString(ansi.CursorPosition(1, d.rows) + "\n")
		}
		top = min(d.top, len(frame)) // what has scrolled away does not come back
	}
	for y := range d.rows {
		b.WriteString(ansi.CursorPosition(1, y+1) + "\x1b[m\x1b[2K")
		if top+y < len(frame) {
			b.WriteString(frame[top+y])
		}
	}
	b.WriteString("\x1b[m\x1b]0;" + title + "\x07\x1b[?7h\x1b[?2026l")
	_, _ = io.WriteString(d.out, b.String()) // a terminal that is gone also ends our reads
}

const (
	grey    = "\x1b[38;2;153;153;153m"
	dim     = "\x1b[2m"
	reverse = "\x1b[7m"
	shaded  = "\x1b[48;2;55;55;55m"
	plain   = "\x1b[m"
)

// redraw draws now, or later when drawing is late.
func (p *program) redraw() {
	if !p.ready || p.exiting {
		return
	}
	if p.opts.LateDraw > 0 {
		if !p.drawPlan {
			p.drawPlan = true
			p.after(p.opts.LateDraw, func() {
				p.drawPlan = false
				if !p.exiting {
					p.draw()
				}
			})
		}
		return
	}
	p.draw()
}

func (p *program) draw() {
	title := p.kind.title
	switch {
	case p.kind.name == "claude" && p.working:
		title = "⠂ " + title
	case p.kind.name == "claude":
		title = "✳ " + title
	case p.kind.name == "codex" && p.working:
		title = "⠋ " + title
	}
	p.painter.paint(p.kind.frame(p), title)
}

// wrap breaks text at words into rows of at most width cells, the first behind first, the
// others behind rest. Control characters are drawn as nothing.
func wrap(text, first, rest string, width int) []string {
	var out []string
	prefix := first
	for line := range strings.SplitSeq(text, "\n") {
		line = strings.Map(func(r rune) rune {
			if r == '\t' {
				return ' '
			}
			if r < 0x20 || r == 0x7f || r >= 0x80 && r < 0xa0 {
				return -1
			}
			return r
		}, line)
		for row := range strings.SplitSeq(ansi.Wrap(line, max(1, width-ansi.StringWidth(prefix)), ""), "\n") {
			out = append(out, prefix+row)
			prefix = rest
		}
	}
	return out
}

// say adds rows to the transcript.
func (p *program) say(texts ...string) {
	for _, t := range texts {
		p.transcript = append(p.transcript, wrap(t, "", "  ", p.opts.Cols)...)
	}
}

// repeat adds a submitted text to the transcript as the kind shows it there.
func (p *program) repeat(text string) {
	first, rest := "❯ ", "  "
	switch p.kind.name {
	case "codex":
		first = "› "
	case "opencode":
		first, rest = "┃  ", "┃  "
	}
	rows := wrap(text, first, rest, p.opts.Cols-1)
	if p.kind.name == "claude" {
		for i := range rows {
			rows[i] = shaded + rows[i] + plain
		}
	}
	p.transcript = append(append(p.transcript, ""), rows...)
}

// spread puts left and right at the two ends of a row.
func spread(left, right string, width int) string {
	gap := width - ansi.StringWidth(left) - ansi.StringWidth(right)
	return left + strings.Repeat(" ", max(1, gap)) + right
}

// bottom fills up so that the last rows stand at the bottom of the screen.
func (p *program) bottom(above, last []string) []string {
	for len(above)+len(last) < p.opts.Rows {
		above = append(above, "")
	}
	return append(above, last...)
}
