package herdrsim

import (
	"strings"
)

type none struct{}

type workspaceParam struct {
	WorkspaceID string `json:"workspace_id" need:"required"`
}

type inWorkspaceParam struct {
	WorkspaceID *string `json:"workspace_id"`
}

type tabParam struct {
	TabID string `json:"tab_id" need:"required"`
}

type paneParam struct {
	PaneID string `json:"pane_id" need:"required"`
}

type targetParam struct {
	Target string `json:"target" need:"required"`
}

func (c *core) ping() any {
	version, protocol := c.opts.Version.wire()
	return typed("pong", "version", version, "protocol", protocol,
		"capabilities", map[string]bool{"live_handoff": true, "detached_server_daemon": true})
}

func (c *core) snapshot(*none) (any, error) {
	version, protocol := c.opts.Version.wire()
	snap := members{
		"version": version, "protocol": protocol,
		"workspaces": c.workspaceInfos(), "tabs": c.tabInfos(c.workspaces...), "panes": c.paneInfos(c.workspaces...), "agents": c.agentInfos(),
	}
	layouts := []layoutSnapshot{}
	for _, w := range c.workspaces {
		for _, t := range w.tabs {
			layouts = append(layouts, c.layout(t))
		}
	}
	snap["layouts"] = layouts
	if p := c.focused(); p != nil {
		snap["focused_workspace_id"], snap["focused_tab_id"], snap["focused_pane_id"] = p.tab.ws.id, p.tab.id, p.id
	}
	return typed("session_snapshot", "snapshot", snap), nil
}

func (c *core) workspaceInfos() []workspaceInfo {
	out := []workspaceInfo{}
	for _, w := range c.workspaces {
		out = append(out, c.workspaceInfo(w))
	}
	return out
}

func (c *core) tabInfos(in ...*workspace) []tabInfo {
	out := []tabInfo{}
	for _, w := range in {
		for _, t := range w.tabs {
			out = append(out, c.tabInfo(t))
		}
	}
	return out
}

func (c *core) paneInfos(in ...*workspace) []paneInfo {
	out := []paneInfo{}
	for _, w := range in {
		for _, p := range w.panes() {
			out = append(out, c.paneInfo(p))
		}
	}
	return out
}

func (c *core) agentInfos() []paneInfo {
	out := []paneInfo{}
	for _, p := range c.allPanes() {
		if p.agent.kind != "" || p.name.name != "" {
			out = append(out, c.agentInfo(p))
		}
	}
	return out
}

func (c *core) workspaceList(*none) (any, error) {
	return typed("workspace_list", "workspaces", c.workspaceInfos()), nil
}

func (c *core) workspaceGet(q *workspaceParam) (any, error) {
	w, err := c.workspace(q.WorkspaceID)
	if err != nil {
		return nil, err
	}
	return typed("workspace_info", "workspace", c.workspaceInfo(w)), nil
}

// within returns the asked workspace, or all.
func (c *core) within(id *string) ([]*workspace, error) {
	if id == nil {
		return c.workspaces, nil
	}
	w, err := c.workspace(*id)
	return []*workspace{w}, err
}

func (c *core) tabList(q *inWorkspaceParam) (any, error) {
	in, err := c.within(q.WorkspaceID)
	if err != nil {
		return nil, err
	}
	return typed("tab_list", "tabs", c.tabInfos(in...)), nil
}

func (c *core) tabGet(q *tabParam) (any, error) {
	t, err := c.tab(q.TabID)
	if err != nil {
		return nil, err
	}
	return typed("tab_info", "tab", c.tabInfo(t)), nil
}

func (c *core) paneList(q *inWorkspaceParam) (any, error) {
	in, err := c.within(q.WorkspaceID)
	if err != nil {
		return nil, err
	}
	return typed("pane_list", "panes", c.paneInfos(in...)), nil
}

func (c *core) paneGet(q *paneParam) (any, error) {
	p, err := c.paneOrAlias(q.PaneID)
	if err != nil {
		return nil, err
	}
	return typed("pane_info", "pane", c.paneInfo(p)), nil
}

type currentParams struct {
	CallerPaneID *string `json:"caller_pane_id"`
}

func (c *core) paneCurrent(q *currentParams) (any, error) {
	p := c.focused()
	if q.CallerPaneID != nil {
		var err error
		if p, err = c.paneOrAlias(*q.CallerPaneID); err != nil {
			return nil, err
		}
	}
	if p == nil {
		return nil, refuse("pane_not_found", "no pane is focused")
	}
	return typed("pane_current", "pane", c.paneInfo(p)), nil
}

type optionalPane struct {
	PaneID *string `json:"pane_id"`
}

func (c *core) processInfo(q *optionalPane) (any, error) {
	p := c.focused()
	if q.PaneID != nil {
		var err error
		if p, err = c.paneOrAlias(*q.PaneID); err != nil {
			return nil, err
		}
	}
	if p == nil || p.term == nil {
		return nil, refuse("pane_not_found", "no such pane with a terminal")
	}
	info := members{"pane_id": p.id, "shell_pid": p.term.cmd.Process.Pid}
	group, list := p.term.foregroundProcesses(true)
	if group > 0 {
		info["foreground_process_group_id"] = group
	}
	var procs []members
	for _, proc := range list {
		one := members{"pid": proc.pid, "name": proc.name}
		if len(proc.argv) > 0 {
			one["argv0"], one["argv"], one["cmdline"] = proc.argv[0], proc.argv, strings.Join(proc.argv, " ")
		}
		if proc.cwd != "" {
			one["cwd"] = proc.cwd
		}
		procs = append(procs, one)
	}
	if len(procs) > 0 {
		info["foreground_processes"] = procs
	}
	return typed("pane_process_info", "process_info", info), nil
}
