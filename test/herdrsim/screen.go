package herdrsim

import (
	"strings"
)

const (
	maxLines    = 1000 // reference §5.6
	recentLines = 80
)

// plain is the text of a row without trailing blanks.
func (c *core) plain(r row) string {
	var b strings.Builder
	for i := range r {
		switch {
		case r[i].IsZero(): // second half of a wide character
		case r[i].Content == "":
			b.WriteByte(' ')
		default:
			b.WriteString(r[i].Content)
		}
	}
	blanks := " "
	if c.opts.TrimUnicode {
		blanks = " \u00a0\u2007\u202f\u3000"
	}
	return strings.TrimRight(b.String(), blanks)
}

// texts turns rows into lines of the asked format and drops trailing empty
// ones.
func (c *core) texts(rows []row, ansi bool) []string {
	lines := make([]string, len(rows))
	last := 0
	for i, r := range rows {
		lines[i] = c.plain(r)
		if lines[i] != "" {
			last = i + 1
		}
		if ansi {
			lines[i] = r.Render()
		}
	}
	return lines[:last]
}

// unwrap joins rows that fill the whole width with the next one: the emulator
// keeps no mark of soft wraps, so a line that ends exactly at the edge is
// joined too.
func (c *core) unwrap(rows []row, width int) []row {
	var out []row
	joining := false
	for _, r := range rows {
		if joining {
			out[len(out)-1] = append(out[len(out)-1], r...)
		} else {
			out = append(out, r)
		}
		joining = len(r) >= width && r[width-1].Content != " " && c.plain(r) != ""
	}
	return out
}

type readParams struct {
	PaneID string     `json:"pane_id" need:"required"`
	Source readSource `json:"source" need:"required"`
	Lines  *uint32    `json:"lines"`
	Format readFormat `json:"format"`
	Strip  bool       `json:"strip_ansi"`
}

type readSource string

func (s *readSource) UnmarshalJSON(raw []byte) error {
	return unmarshalEnum(raw, (*string)(s), "visible", "recent", "recent_unwrapped", "detection")
}

type readFormat string

func (s *readFormat) UnmarshalJSON(raw []byte) error {
	return unmarshalEnum(raw, (*string)(s), "text", "ansi")
}

type paneRead struct {
	PaneID      string `json:"pane_id"`
	WorkspaceID string `json:"workspace_id"`
	TabID       string `json:"tab_id"`
	Source      string `json:"source"`
	Format      string `json:"format"`
	Text        string `json:"text"`
	Revision    uint64 `json:"revision"`
	Truncated   bool   `json:"truncated"`
}

// read does pane.read. The scrolling that herdr does for recent reads of an
// alternate-screen agent is not played.
func (c *core) read(p *pane, source readSource, lines *uint32, format readFormat) paneRead {
	if format == "" || source == "detection" {
		format = "text"
	}
	texts := c.texts(c.source(p, source), format == "ansi")
	limit := len(texts)
	if source == "recent" || source == "recent_unwrapped" {
		limit = recentLines
	}
	if lines != nil {
		limit = int(min(*lines, maxLines))
	}
	out := paneRead{PaneID: p.id, WorkspaceID: p.tab.ws.id, TabID: p.tab.id, Source: string(source), Format: string(format)}
	if len(texts) > limit {
		texts, out.Truncated = texts[len(texts)-limit:], true
	}
	for _, l := range texts {
		out.Text += l + "\n"
	}
	return out
}

func (c *core) source(p *pane, source readSource) []row {
	switch source {
	case "detection":
		return p.term.screenRows()
	case "visible":
		if p.scrolled == 0 {
			return p.term.screenRows()
		}
		rows := p.term.history()
		end := max(len(rows)-p.scrolled, min(c.opts.Rows, len(rows)))
		return rows[max(0, end-c.opts.Rows):end]
	case "recent_unwrapped":
		return c.unwrap(p.term.history(), c.opts.Cols)
	default:
		return p.term.history()
	}
}

func (c *core) paneRead(q *readParams) (any, error) {
	p, err := c.paneOrAlias(q.PaneID)
	if err != nil {
		return nil, err
	}
	if p.term == nil {
		return nil, refuse("pane_not_found", "pane %s has no terminal", q.PaneID)
	}
	return typed("pane_read", "read", c.read(p, q.Source, q.Lines, q.Format)), nil
}

type agentReadParams struct {
	Target string     `json:"target" need:"required"`
	Source readSource `json:"source" need:"required"`
	Lines  *uint32    `json:"lines"`
	Format readFormat `json:"format"`
	Strip  bool       `json:"strip_ansi"`
}

func (c *core) agentRead(q *agentReadParams) (any, error) {
	p, err := c.target(q.Target)
	if err != nil {
		return nil, err
	}
	recent := q.Source == "recent" || q.Source == "recent_unwrapped"
	if recent && q.Lines != nil && p.term.altScreen() && p.agent.raw != idle {
		return nil, refuse("agent_not_idle", "agent %s is not idle", q.Target)
	}
	return typed("pane_read", "read", c.read(p, q.Source, q.Lines, q.Format)), nil
}

func (t *terminal) altScreen() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.emu.IsAltScreen()
}
