package herdr

import (
	"context"
	"encoding/json"
)

// Status values of an agent (herdr socket reference §4).
const (
	StatusIdle    = "idle"
	StatusDone    = "done" // as idle, but nobody has looked at it yet
	StatusWorking = "working"
	StatusBlocked = "blocked"
	StatusUnknown = "unknown"
)

// Pong is what a server says of itself.
type Pong struct {
	Version  string `json:"version"`
	Protocol int    `json:"protocol"`
}

// Session is the native session that an agent's hook reported.
type Session struct {
	Value string `json:"value"`
}

// PaneInfo is the part of herdr's pane record that is used here (reference §3).
// Fields that herdr leaves out are zero.
type PaneInfo struct {
	PaneID      string `json:"pane_id"`
	TerminalID  string `json:"terminal_id"`
	WorkspaceID string `json:"workspace_id"`
	Label       string `json:"label"`
	Agent       string `json:"agent"` // kind; empty: no agent in it
	AgentStatus string `json:"agent_status"`
}

// AgentInfo is the part of herdr's agent record that is used here (reference §3).
type AgentInfo struct {
	PaneID         string   `json:"pane_id"`
	TerminalID     string   `json:"terminal_id"`
	Name           string   `json:"name"`
	Agent          string   `json:"agent"`
	AgentStatus    string   `json:"agent_status"`
	Session        *Session `json:"agent_session"`
	LaunchPending  bool     `json:"launch_pending"`
	StateChangeSeq uint64   `json:"state_change_seq"`
}

// Explain is why herdr believes a state. The record is free JSON in herdr's
// schema, so it is decoded leniently: what has another type reads as unset.
type Explain struct {
	State           string
	FallbackReason  string
	VisibleIdle     bool
	VisibleBlocker  bool
	VisibleWorking  bool
	SkipStateUpdate bool // the status is frozen: do not type
	ScreenSkipped   bool // a hook decides, the visible_* say nothing
}

// UnmarshalJSON picks the known fields.
func (e *Explain) UnmarshalJSON(b []byte) error {
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		return err
	}
	text := func(k string) string { s, _ := m[k].(string); return s }
	flag := func(k string) bool { v, _ := m[k].(bool); return v }
	*e = Explain{
		State:           text("state"),
		FallbackReason:  text("fallback_reason"),
		VisibleIdle:     flag("visible_idle"),
		VisibleBlocker:  flag("visible_blocker"),
		VisibleWorking:  flag("visible_working"),
		SkipStateUpdate: flag("skip_state_update"),
		ScreenSkipped:   flag("screen_detection_skipped"),
	}
	return nil
}

// Sources of a read (herdr socket reference §5.6). The recent ones are left
// out: they scroll the agent.
const (
	SourceDetection = "detection" // bottom screenful, whatever the user scrolled; plain text
	SourceVisible   = "visible"   // what the user sees, his scrolling included
)

// Read is what stands on a pane's screen.
type Read struct {
	Text string `json:"text"`
}

type none struct{}

type target struct {
	Target string `json:"target"`
}

type paneTarget struct {
	PaneID string `json:"pane_id"`
}

// Ping asks which server listens. It does not prove that herdr's application
// loop turns; AgentList does (herdr socket reference §1.5).
func (c *Client) Ping(ctx context.Context) (Pong, error) {
	var out Pong
	err := c.call(ctx, "ping", none{}, &out)
	return out, err
}

// AgentGet returns the agent in a pane, given the pane's current id or the
// agent's name. Code agent_not_found: no agent there, or no such pane.
func (c *Client) AgentGet(ctx context.Context, who string) (AgentInfo, error) {
	var out struct{ Agent AgentInfo }
	err := c.call(ctx, "agent.get", target{who}, &out)
	return out.Agent, err
}

// AgentList returns all agents.
func (c *Client) AgentList(ctx context.Context) ([]AgentInfo, error) {
	var out struct{ Agents []AgentInfo }
	err := c.call(ctx, "agent.list", none{}, &out)
	return out.Agents, err
}

// PaneGet returns one pane. Code pane_not_found: there is none.
func (c *Client) PaneGet(ctx context.Context, pane string) (PaneInfo, error) {
	var out struct{ Pane PaneInfo }
	err := c.call(ctx, "pane.get", paneTarget{pane}, &out)
	return out.Pane, err
}

// paneShell returns the number of the process that a pane was opened for, which
// leads the session of its terminal; 0 if herdr does not say.
func (c *Client) paneShell(ctx context.Context, pane string) (int, error) {
	var out struct {
		Info struct {
			Shell int `json:"shell_pid"`
		} `json:"process_info"`
	}
	err := c.call(ctx, "pane.process_info", paneTarget{pane}, &out)
	return out.Info.Shell, err
}

// PaneList returns all panes.
func (c *Client) PaneList(ctx context.Context) ([]PaneInfo, error) {
	var out struct{ Panes []PaneInfo }
	err := c.call(ctx, "pane.list", none{}, &out)
	return out.Panes, err
}

// PaneRead returns the screen of a pane; with ansi the colours are kept.
func (c *Client) PaneRead(ctx context.Context, pane, source string, ansi bool) (Read, error) {
	params := struct {
		paneTarget
		Source string `json:"source"`
		Format string `json:"format,omitempty"`
	}{paneTarget: paneTarget{pane}, Source: source}
	if ansi {
		params.Format = "ansi"
	}
	var out struct{ Read Read }
	err := c.call(ctx, "pane.read", params, &out)
	return out.Read, err
}

// AgentExplain evaluates herdr's screen rules now. Code
// agent_explain_unavailable: herdr detects no agent there.
func (c *Client) AgentExplain(ctx context.Context, who string) (Explain, error) {
	var out struct{ Explain Explain }
	err := c.call(ctx, "agent.explain", target{who}, &out)
	return out.Explain, err
}

// SendInput pastes text into a pane, framed if the program has bracketed paste
// on, without Enter. nil means queued for the pane, no more (reference §5.5).
func (c *Client) SendInput(ctx context.Context, pane, text string) error {
	return c.call(ctx, "pane.send_input", struct {
		paneTarget
		Text string `json:"text"`
	}{paneTarget{pane}, text}, nil)
}

// SendKeys presses keys in an agent; herdr checks first that the agent holds
// the pane's foreground.
func (c *Client) SendKeys(ctx context.Context, who string, keys ...string) error {
	return c.call(ctx, "agent.send_keys", struct {
		target
		Keys []string `json:"keys"`
	}{target{who}, keys}, nil)
}

// PaneClose ends a pane and what runs in it. Code pane_not_found: there is none.
func (c *Client) PaneClose(ctx context.Context, pane string) error {
	return c.call(ctx, "pane.close", paneTarget{pane}, nil)
}

// Workspace is the part of herdr's workspace record that is used here.
type Workspace struct {
	WorkspaceID string `json:"workspace_id"`
	Label       string `json:"label"`
}

// WorkspaceList returns all workspaces.
func (c *Client) WorkspaceList(ctx context.Context) ([]Workspace, error) {
	var out struct{ Workspaces []Workspace }
	err := c.call(ctx, "workspace.list", none{}, &out)
	return out.Workspaces, err
}

// workspaceCreate makes a workspace and returns the id of its one tab.
func (c *Client) workspaceCreate(ctx context.Context, label, cwd string) (tab string, err error) {
	var out struct {
		Tab struct {
			TabID string `json:"tab_id"`
		}
	}
	err = c.call(ctx, "workspace.create", struct {
		Label string `json:"label"`
		Cwd   string `json:"cwd,omitempty"`
	}{label, cwd}, &out)
	return out.Tab.TabID, err
}

func (c *Client) tabClose(ctx context.Context, tab string) error {
	return c.call(ctx, "tab.close", struct {
		TabID string `json:"tab_id"`
	}{tab}, nil)
}

// layout is a tab with one pane: a new one, or in place of TabID.
type layout struct {
	Root        layoutLeaf `json:"root"`
	WorkspaceID string     `json:"workspace_id,omitempty"`
	TabID       string     `json:"tab_id,omitempty"`
	TabLabel    string     `json:"tab_label,omitempty"`
}

type layoutLeaf struct {
	Type    string            `json:"type"`
	PaneID  string            `json:"pane_id,omitempty"`
	Label   string            `json:"label,omitempty"`
	Cwd     string            `json:"cwd,omitempty"`
	Command []string          `json:"command,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
}

// layoutApply makes the tab and returns the id of its pane. Code
// layout_apply_failed: the program cannot be started.
func (c *Client) layoutApply(ctx context.Context, l layout) (pane string, err error) {
	var out struct{ Layout layout }
	err = c.call(ctx, "layout.apply", l, &out)
	return out.Layout.Root.PaneID, err
}
