package herdrsim

import (
	"maps"
	"strings"
)

// The records of reference §3: T? members are left out when unset.

type paneInfo struct {
	PaneID         string            `json:"pane_id"`
	TerminalID     string            `json:"terminal_id"`
	WorkspaceID    string            `json:"workspace_id"`
	TabID          string            `json:"tab_id"`
	Focused        bool              `json:"focused"`
	Cwd            string            `json:"cwd,omitempty"`
	ForegroundCwd  string            `json:"foreground_cwd,omitempty"`
	Label          string            `json:"label,omitempty"`
	Agent          string            `json:"agent,omitempty"`
	Title          string            `json:"title,omitempty"`
	DisplayAgent   string            `json:"display_agent,omitempty"`
	TerminalTitle  string            `json:"terminal_title,omitempty"`
	TitleStripped  string            `json:"terminal_title_stripped,omitempty"`
	AgentStatus    status            `json:"agent_status"`
	StateLabels    map[string]string `json:"state_labels,omitempty"`
	Tokens         map[string]string `json:"tokens,omitempty"`
	AgentSession   *agentSession     `json:"agent_session,omitempty"`
	Scroll         *scrollInfo       `json:"scroll,omitempty"`
	Revision       uint64            `json:"revision"`
	Name           string            `json:"name,omitempty"`
	DetectionSkip  bool              `json:"screen_detection_skipped,omitempty"`
	LaunchPending  bool              `json:"launch_pending,omitempty"`
	InteractiveYes bool              `json:"interactive_ready,omitempty"`
	StateChangeSeq *uint64           `json:"state_change_seq,omitempty"`
}

type agentSession struct {
	Source string `json:"source"`
	Agent  string `json:"agent"`
	Kind   string `json:"kind"`
	Value  string `json:"value"`
}

type scrollInfo struct {
	Offset   int `json:"offset_from_bottom"`
	Max      int `json:"max_offset_from_bottom"`
	Viewport int `json:"viewport_rows"`
}

type workspaceInfo struct {
	WorkspaceID string            `json:"workspace_id"`
	Number      int               `json:"number"`
	Label       string            `json:"label"`
	Focused     bool              `json:"focused"`
	PaneCount   int               `json:"pane_count"`
	TabCount    int               `json:"tab_count"`
	ActiveTabID string            `json:"active_tab_id"`
	AgentStatus status            `json:"agent_status"`
	Tokens      map[string]string `json:"tokens,omitempty"`
}

type tabInfo struct {
	TabID       string `json:"tab_id"`
	WorkspaceID string `json:"workspace_id"`
	Number      int    `json:"number"`
	Label       string `json:"label"`
	Focused     bool   `json:"focused"`
	PaneCount   int    `json:"pane_count"`
	AgentStatus status `json:"agent_status"`
}

// common fills what a pane's and an agent's record share.
func (c *core) common(p *pane) paneInfo {
	info := paneInfo{
		PaneID: p.id, WorkspaceID: p.tab.ws.id, TabID: p.tab.id, Focused: c.focused() == p,
		Cwd: p.cwd, Agent: p.agent.kind, AgentStatus: p.shown(), Revision: p.revision,
		Title: p.meta.title, DisplayAgent: p.meta.displayAgent, StateLabels: maps.Clone(p.meta.labels), Tokens: maps.Clone(p.meta.tokens),
		AgentSession: p.agent.session,
	}
	if p.term == nil {
		return info
	}
	info.TerminalID = p.term.id
	info.TerminalTitle = p.term.windowTitle()
	info.TitleStripped = strings.TrimLeft(info.TerminalTitle, "✳*·✢✶✻✽⠂⠐⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏ ")
	if proc, ok := readProcess(p.term.foreground()); ok {
		info.ForegroundCwd = proc.cwd
	}
	return info
}

func (c *core) paneInfo(p *pane) paneInfo {
	info := c.common(p)
	info.Label = p.label
	if p.term != nil {
		info.Scroll = &scrollInfo{Offset: p.scrolled, Max: max(0, len(p.term.history())-c.opts.Rows), Viewport: c.opts.Rows}
	}
	return info
}

func (c *core) agentInfo(p *pane) paneInfo {
	info := c.common(p)
	seq := p.agent.seq
	info.StateChangeSeq = &seq
	info.Name = p.name.name
	info.LaunchPending = p.name.pending
	info.InteractiveYes = p.name.ready
	info.DetectionSkip = p.agent.hook != nil && p.agent.hook.full
	return info
}

func (c *core) workspaceInfo(w *workspace) workspaceInfo {
	info := workspaceInfo{
		WorkspaceID: w.id, Label: w.label, Focused: c.active == w, PaneCount: len(w.panes()), TabCount: len(w.tabs),
		AgentStatus: rollUp(w.panes(), blocked, working, done, idle), Tokens: maps.Clone(w.tokens),
	}
	if w.active != nil {
		info.ActiveTabID = w.active.id
	}
	for i, x := range c.workspaces {
		if x == w {
			info.Number = i + 1
		}
	}
	return info
}

func (c *core) tabInfo(t *tab) tabInfo {
	info := tabInfo{
		TabID: t.id, WorkspaceID: t.ws.id, Label: t.label, Focused: c.active == t.ws && t.ws.active == t,
		PaneCount: len(t.panes()), AgentStatus: rollUp(t.panes(), blocked, done, working, idle),
	}
	for i, x := range t.ws.tabs {
		if x == t {
			info.Number = i + 1
		}
	}
	return info
}

// rollUp gives the first of order that a pane shows.
func rollUp(panes []*pane, order ...status) status {
	for _, want := range order {
		for _, p := range panes {
			if p.agent.kind != "" && p.shown() == want {
				return want
			}
		}
	}
	return unknown
}

type rect struct {
	X      int `json:"x"`
	Y      int `json:"y"`
	Width  int `json:"width"`
	Height int `json:"height"`
}

type layoutPane struct {
	PaneID  string `json:"pane_id"`
	Focused bool   `json:"focused"`
	Rect    rect   `json:"rect"`
}

type layoutSplit struct {
	ID        string  `json:"id"`
	Direction string  `json:"direction"`
	Ratio     float64 `json:"ratio"`
	Rect      rect    `json:"rect"`
}

type layoutSnapshot struct {
	WorkspaceID   string        `json:"workspace_id"`
	TabID         string        `json:"tab_id"`
	Zoomed        bool          `json:"zoomed"`
	Area          rect          `json:"area"`
	FocusedPaneID string        `json:"focused_pane_id"`
	Panes         []layoutPane  `json:"panes"`
	Splits        []layoutSplit `json:"splits"`
}

func (c *core) layout(t *tab) layoutSnapshot {
	l := layoutSnapshot{
		WorkspaceID: t.ws.id, TabID: t.id, Zoomed: t.zoomed, Area: rect{Width: c.opts.Cols, Height: c.opts.Rows},
		Panes: []layoutPane{}, Splits: []layoutSplit{},
	}
	if t.focus != nil {
		l.FocusedPaneID = t.focus.id
	}
	l.place(t.root, l.Area)
	return l
}

func (l *layoutSnapshot) place(n *node, r rect) {
	if n == nil {
		return
	}
	if n.pane != nil {
		l.Panes = append(l.Panes, layoutPane{PaneID: n.pane.id, Focused: n.pane.id == l.FocusedPaneID, Rect: r})
		return
	}
	l.Splits = append(l.Splits, layoutSplit{ID: n.id, Direction: n.direction, Ratio: n.ratio, Rect: r})
	first, second := r, r
	if n.direction == "right" {
		first.Width = int(float64(r.Width) * n.ratio)
		second.X, second.Width = r.X+first.Width, r.Width-first.Width
	} else {
		first.Height = int(float64(r.Height) * n.ratio)
		second.Y, second.Height = r.Y+first.Height, r.Height-first.Height
	}
	l.place(n.first, first)
	l.place(n.second, second)
}
