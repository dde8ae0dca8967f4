package herdr

import (
	"strings"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
)

// dimComposer reports whether the composer on a coloured screen is recognised
// and all its text, prompt sign aside, is drawn dim: a placeholder, not a draft
// (herdr socket reference §10 step 6b).
func (k *Kind) dimComposer(text string) bool {
	if k.Composer == nil {
		return false
	}
	plain := screenRows(ansi.Strip(text))
	c, ok := k.Composer(plain)
	if !ok || c.Foreign || utf8.RuneCountInString(c.Text) < 2 {
		return false
	}
	bright := brightText(strings.Split(text, "\n"))
	return strings.TrimSpace(strings.Join(bright[c.Top:c.Bottom], "")) == ""
}

// brightText returns the letters and digits of each row that are drawn neither
// dim nor reversed; the cursor is drawn reversed, over a placeholder too.
func brightText(rows []string) []string {
	out := make([]string, len(rows))
	parser := ansi.NewParser()
	var now style
	for i, row := range rows {
		var b strings.Builder
		var state byte
		for len(row) > 0 {
			seq, width, n, next := ansi.DecodeSequence(row, state, parser)
			row, state = row[n:], next
			switch {
			case width > 0:
				if !now.dim && !now.reversed {
					b.WriteString(squash(seq))
				}
			case strings.HasPrefix(seq, "\x1b[") && ansi.Cmd(parser.Command()).Final() == 'm':
				now.apply(parser.Params())
			}
		}
		out[i] = b.String()
	}
	return out
}

type style struct{ dim, reversed bool }

// apply follows one SGR sequence; the 2 of a colour (38;2;r;g;b) or behind a
// colon (4:2) is not the attribute dim.
func (s *style) apply(params ansi.Params) {
	if len(params) == 0 {
		*s = style{}
	}
	for i := 0; i < len(params); i++ {
		if params[i].HasMore() {
			for i < len(params) && params[i].HasMore() {
				i++
			}
			continue
		}
		switch params[i].Param(0) {
		case 0:
			*s = style{}
		case 2:
			s.dim = true
		case 22:
			s.dim = false
		case 7:
			s.reversed = true
		case 27:
			s.reversed = false
		case 38, 48, 58:
			if i+1 < len(params) && params[i+1].Param(0) == 2 {
				i += 4
			} else {
				i += 2
			}
		}
	}
}
