package herdrsim

import (
	"strings"
)

// endTerminal ends a pane's programs in the background: HUP, TERM, KILL.
func (c *core) endTerminal(p *pane) {
	term := p.term
	if term == nil {
		return
	}
	p.term = nil
	if c.closed == nil {
		c.closed = map[string]*terminal{}
	}
	c.closed[p.id] = term
	c.endings.Go(func() { term.end(c.opts.Timing.CloseStep) })
}

// exited is told when a terminal's program has ended, whichever server process
// has the pane by now.
func (s *Server) exited(term *terminal) {
	if c := s.running(); c != nil {
		c.do(func() { c.programEnded(term) })
	}
}

// programEnded takes the pane away: pane.exited, and layout.updated if the tab
// has other panes; nothing else (reference §2).
func (c *core) programEnded(term *terminal) {
	for _, p := range c.allPanes() {
		if p.term != term {
			continue
		}
		if p.handed && p.argv != nil { // after a live handoff a shell follows
			c.endTerminal(p)
			p.agent, p.name = agent{}, agentName{}
			if err := c.spawn(p, nil, nil); err == nil {
				return
			}
		}
		t := p.tab
		c.endTerminal(p)
		tabGone, _ := c.take(p)
		c.emit("pane_exited", p.id, members{"pane_id": p.id, "workspace_id": t.ws.id})
		if !tabGone {
			c.emit("layout_updated", "", members{"layout": c.layout(t)})
		}
		return
	}
}

func (c *core) paneClose(q *paneParam) (any, error) {
	p, err := c.paneOrAlias(q.PaneID)
	if err != nil {
		return nil, err
	}
	t, w := p.tab, p.tab.ws
	last := c.workspaceInfo(w)
	c.endTerminal(p)
	tabGone, wsGone := c.take(p)
	c.emit("pane_closed", p.id, members{"pane_id": p.id, "workspace_id": w.id})
	switch {
	case wsGone:
		c.emit("workspace_closed", "", members{"workspace_id": w.id, "workspace": last})
	case !tabGone:
		c.emit("layout_updated", "", members{"layout": c.layout(t)})
	}
	return typed("ok"), nil
}

func (c *core) tabClose(q *tabParam) (any, error) {
	t, err := c.tab(q.TabID)
	if err != nil {
		return nil, err
	}
	c.closeTab(t)
	return typed("ok"), nil
}

func (c *core) closeTab(t *tab) {
	w := t.ws
	last := c.workspaceInfo(w)
	for _, p := range t.panes() {
		c.endTerminal(p)
	}
	w.dropTab(t)
	c.emit("tab_closed", "", members{"tab_id": t.id, "workspace_id": w.id})
	if len(w.tabs) == 0 {
		c.dropWorkspace(w)
		c.emit("workspace_closed", "", members{"workspace_id": w.id, "workspace": last})
	}
}

func (c *core) workspaceClose(q *workspaceParam) (any, error) {
	w, err := c.workspace(q.WorkspaceID)
	if err != nil {
		return nil, err
	}
	last := c.workspaceInfo(w)
	for _, p := range w.panes() {
		c.endTerminal(p)
	}
	c.dropWorkspace(w)
	c.emit("workspace_closed", "", members{"workspace_id": w.id, "workspace": last})
	return typed("ok"), nil
}

type paneRenameParams struct {
	PaneID string  `json:"pane_id" need:"required"`
	Label  *string `json:"label"`
}

// paneRename emits no event.
func (c *core) paneRename(q *paneRenameParams) (any, error) {
	p, err := c.paneOrAlias(q.PaneID)
	if err != nil {
		return nil, err
	}
	p.label = strings.TrimSpace(deref(q.Label))
	return typed("pane_info", "pane", c.paneInfo(p)), nil
}

type tabRenameParams struct {
	TabID string `json:"tab_id" need:"required"`
	Label string `json:"label" need:"required"`
}

func (c *core) tabRename(q *tabRenameParams) (any, error) {
	t, err := c.tab(q.TabID)
	if err != nil {
		return nil, err
	}
	t.label = q.Label
	c.emit("tab_renamed", "", members{"tab_id": t.id, "workspace_id": t.ws.id, "label": t.label})
	return typed("tab_info", "tab", c.tabInfo(t)), nil
}

type workspaceRenameParams struct {
	WorkspaceID string `json:"workspace_id" need:"required"`
	Label       string `json:"label" need:"required"`
}

func (c *core) workspaceRename(q *workspaceRenameParams) (any, error) {
	w, err := c.workspace(q.WorkspaceID)
	if err != nil {
		return nil, err
	}
	w.label = q.Label
	c.emit("workspace_renamed", "", members{"workspace_id": w.id, "label": w.label})
	return typed("workspace_info", "workspace", c.workspaceInfo(w)), nil
}

// focus makes p what the user looks at and marks its tab seen, without a
// status event.
func (c *core) focus(p *pane) {
	c.active, p.tab.ws.active, p.tab.focus = p.tab.ws, p.tab, p
	p.tab.seen()
	c.emit("pane_focused", p.id, members{"pane_id": p.id, "workspace_id": p.tab.ws.id})
}

func (c *core) paneFocus(q *paneParam) (any, error) {
	p, err := c.paneOrAlias(q.PaneID)
	if err != nil {
		return nil, err
	}
	c.focus(p)
	return typed("pane_info", "pane", c.paneInfo(p)), nil
}

func (c *core) tabFocus(q *tabParam) (any, error) {
	t, err := c.tab(q.TabID)
	if err != nil {
		return nil, err
	}
	c.active, t.ws.active = t.ws, t
	t.seen()
	c.emit("tab_focused", "", members{"tab_id": t.id, "workspace_id": t.ws.id})
	return typed("tab_info", "tab", c.tabInfo(t)), nil
}

func (c *core) workspaceFocus(q *workspaceParam) (any, error) {
	w, err := c.workspace(q.WorkspaceID)
	if err != nil {
		return nil, err
	}
	c.active = w
	if w.active != nil {
		w.active.seen()
	}
	c.emit("workspace_focused", "", members{"workspace_id": w.id})
	return typed("workspace_info", "workspace", c.workspaceInfo(w)), nil
}

type zoomParams struct {
	PaneID *string `json:"pane_id"`
	Zoomed *bool   `json:"zoomed"`
}

// paneZoom is played as far as the record shows it.
func (c *core) paneZoom(q *zoomParams) (any, error) {
	p := c.focused()
	if q.PaneID != nil {
		var err error
		if p, err = c.paneOrAlias(*q.PaneID); err != nil {
			return nil, err
		}
	}
	if p == nil {
		return nil, refuse("pane_not_found", "no pane is focused")
	}
	p.tab.zoomed = !p.tab.zoomed
	if q.Zoomed != nil {
		p.tab.zoomed = *q.Zoomed
	}
	c.emit("layout_updated", "", members{"layout": c.layout(p.tab)})
	return typed("pane_layout", "layout", c.layout(p.tab)), nil
}
