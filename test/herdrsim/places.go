package herdrsim

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

type workspaceCreateParams struct {
	Cwd   *string           `json:"cwd"`
	Focus bool              `json:"focus"`
	Label *string           `json:"label"`
	Env   map[string]string `json:"env"`
}

func (c *core) workspaceCreate(q *workspaceCreateParams) (any, error) {
	if err := checkEnv("invalid_env", q.Env); err != nil {
		return nil, err
	}
	cwd := c.cwd(q.Cwd, c.focused())
	w := c.newWorkspace(deref(q.Label))
	t := w.newTab("")
	p := t.newPane(cwd)
	t.root, t.focus = &node{pane: p}, p
	if err := c.spawn(p, nil, q.Env); err != nil {
		c.dropWorkspace(w)
		return nil, refuse("workspace_create_failed", "%v", err)
	}
	if q.Focus {
		c.focus(p)
	}
	c.emit("workspace_created", "", members{"workspace": c.workspaceInfo(w)})
	c.made(t, p)
	return typed("workspace_created", "workspace", c.workspaceInfo(w), "tab", c.tabInfo(t), "root_pane", c.paneInfo(p)), nil
}

type tabCreateParams struct {
	WorkspaceID *string           `json:"workspace_id"`
	Cwd         *string           `json:"cwd"`
	Focus       bool              `json:"focus"`
	Label       *string           `json:"label"`
	Env         map[string]string `json:"env"`
}

func (c *core) tabCreate(q *tabCreateParams) (any, error) {
	if err := checkEnv("invalid_env", q.Env); err != nil {
		return nil, err
	}
	w, err := c.workspaceOrActive(q.WorkspaceID)
	if err != nil {
		return nil, err
	}
	cwd := c.cwd(q.Cwd, c.focused())
	t := w.newTab(deref(q.Label))
	p := t.newPane(cwd)
	t.root, t.focus = &node{pane: p}, p
	if err := c.spawn(p, nil, q.Env); err != nil {
		w.dropTab(t)
		return nil, refuse("tab_create_failed", "%v", err)
	}
	if q.Focus {
		c.focus(p)
	}
	c.made(t, p)
	return typed("tab_created", "tab", c.tabInfo(t), "root_pane", c.paneInfo(p)), nil
}

// made emits what follows the making of a tab.
func (c *core) made(t *tab, panes ...*pane) {
	c.emit("tab_created", "", members{"tab": c.tabInfo(t)})
	for _, p := range panes {
		c.emit("pane_created", p.id, members{"pane": c.paneInfo(p)})
	}
	c.emit("layout_updated", "", members{"layout": c.layout(t)})
}

func (w *workspace) dropTab(t *tab) {
	w.tabs = slices.DeleteFunc(w.tabs, func(x *tab) bool { return x == t })
	if w.active == t && len(w.tabs) > 0 {
		w.active = w.tabs[0]
	}
}

func (c *core) workspaceOrActive(id *string) (*workspace, error) {
	if id != nil {
		return c.workspace(*id)
	}
	if c.active == nil {
		return nil, refuse("workspace_not_found", "there is no workspace")
	}
	return c.active, nil
}

type direction string

func (d *direction) UnmarshalJSON(raw []byte) error {
	return unmarshalEnum(raw, (*string)(d), "right", "down")
}

type paneSplitParams struct {
	Direction   direction         `json:"direction" need:"required"`
	Target      *string           `json:"target_pane_id"`
	WorkspaceID *string           `json:"workspace_id"`
	Ratio       *float64          `json:"ratio"`
	Cwd         *string           `json:"cwd"`
	Focus       bool              `json:"focus"`
	Env         map[string]string `json:"env"`
	RightClick  string            `json:"right_click"`
}

func (c *core) paneSplit(q *paneSplitParams) (any, error) {
	if err := checkEnv("invalid_env", q.Env); err != nil {
		return nil, err
	}
	at, err := c.splitTarget(q)
	if err != nil {
		return nil, err
	}
	ratio := 0.5
	if q.Ratio != nil {
		ratio = *q.Ratio
	}
	if ratio <= 0 || ratio >= 1 {
		return nil, refuse("invalid_ratio", "ratio must be between 0 and 1")
	}
	t := at.tab
	p := t.newPane(c.cwd(q.Cwd, at))
	if err := c.spawn(p, nil, q.Env); err != nil {
		return nil, refuse("pane_split_failed", "%v", err)
	}
	t.splits++
	t.root.split(at, p, fmt.Sprintf("s%d", t.splits), string(q.Direction), ratio)
	t.zoomed = false
	if q.Focus {
		c.focus(p)
	}
	c.emit("pane_created", p.id, members{"pane": c.paneInfo(p)})
	c.emit("layout_updated", "", members{"layout": c.layout(t)})
	return typed("pane_info", "pane", c.paneInfo(p)), nil
}

// splitTarget: wrong ids of either kind give pane_not_found.
func (c *core) splitTarget(q *paneSplitParams) (*pane, error) {
	if q.Target != nil {
		return c.paneOrAlias(*q.Target)
	}
	p := c.focused()
	if q.WorkspaceID != nil {
		p = nil
		if w, err := c.workspace(*q.WorkspaceID); err == nil && w.active != nil {
			p = w.active.focus
		}
	}
	if p == nil {
		return nil, refuse("pane_not_found", "no pane to split")
	}
	return p, nil
}

// checkEnv refuses names that are empty or hold = or NUL, and values with NUL.
func checkEnv(code string, env map[string]string) error {
	for k, v := range env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.Contains(v, "\x00") {
			return refuse(code, "environment variable %q is not valid", k)
		}
	}
	return nil
}

// cwd resolves a directory: one that does not exist is silently $HOME; without
// any it is that of the pane near.
func (c *core) cwd(asked *string, near *pane) string {
	home := lookEnv(c.opts.Env, "HOME")
	if home == "" {
		home = "/"
	}
	dir := home
	switch {
	case asked != nil:
		dir = *asked
	case near != nil:
		dir = near.cwd
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() || !filepath.IsAbs(dir) {
		return home
	}
	return dir
}

// spawn starts a pane's program: argv, or the shell when nil.
func (c *core) spawn(p *pane, argv []string, env map[string]string) error {
	p.argv = argv
	if argv == nil {
		argv = c.opts.Shell
	}
	var term *terminal
	started := make(chan struct{}) // term is set before its exit is told
	term, err := openTerminal(c.srv.terminalID(), argv, p.cwd, c.environ(p, env), c.opts.Cols, c.opts.Rows, func() {
		<-started
		c.srv.exited(term)
	})
	if err != nil {
		return err
	}
	close(started)
	p.term = term
	return nil
}

// environ is the environment of reference §7: the server's, then the caller's,
// then herdr's own.
func (c *core) environ(p *pane, env map[string]string) []string {
	var out []string
	for _, kv := range c.opts.Env {
		name, _, _ := strings.Cut(kv, "=")
		if name != "CODEX_THREAD_ID" && !strings.HasPrefix(name, "HERDR_") {
			out = append(out, kv)
		}
	}
	for k, v := range env {
		out = append(out, k+"="+v)
	}
	path, err := filepath.Abs(c.opts.SocketPath)
	if err != nil {
		path = c.opts.SocketPath
	}
	out = append(out, "HERDR_ENV=1", "HERDR_SOCKET_PATH="+path, "HERDR_WORKSPACE_ID="+p.tab.ws.id, "HERDR_TAB_ID="+p.tab.id,
		"HERDR_PANE_ID="+p.id, "TERM=xterm-256color", "COLORTERM=truecolor")
	if exe, err := os.Executable(); err == nil && c.opts.Version != V080 {
		out = append(out, "HERDR_BIN_PATH="+exe)
	}
	return out
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
