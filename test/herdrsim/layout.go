package herdrsim

import (
	"encoding/json"
	"fmt"
	"math"
	"time"
)

// layoutNode is a leaf or a split of layout.apply.
type layoutNode struct {
	Type      string
	Label     *string
	Cwd       *string
	Command   []string
	Env       map[string]string
	Direction direction
	Ratio     float64
	First     *layoutNode
	Second    *layoutNode
	given     bool // a command member was there
}

func (n *layoutNode) UnmarshalJSON(raw []byte) error {
	var head struct {
		Type string `json:"type" need:"required"`
	}
	if err := decodeObject(raw, &head); err != nil {
		return err
	}
	typeJSON, _ := json.Marshal(head.Type)
	if err := unmarshalEnum(typeJSON, &n.Type, "pane", "split"); err != nil {
		return err
	}
	if n.Type == "split" {
		var s struct {
			Direction direction       `json:"direction" need:"required"`
			Ratio     float64         `json:"ratio" need:"required"`
			First     json.RawMessage `json:"first" need:"required"`
			Second    json.RawMessage `json:"second" need:"required"`
		}
		if err := decodeObject(raw, &s); err != nil {
			return err
		}
		n.Direction, n.Ratio, n.First, n.Second = s.Direction, s.Ratio, &layoutNode{}, &layoutNode{}
		if err := n.First.UnmarshalJSON(s.First); err != nil {
			return err
		}
		return n.Second.UnmarshalJSON(s.Second)
	}
	var p struct {
		Label   *string           `json:"label"`
		Cwd     *string           `json:"cwd"`
		Command *[]string         `json:"command"`
		Env     map[string]string `json:"env"`
	}
	if err := decodeObject(raw, &p); err != nil {
		return err
	}
	n.Label, n.Cwd, n.Env = p.Label, p.Cwd, p.Env
	if p.Command != nil {
		n.Command, n.given = *p.Command, true
	}
	return nil
}

const (
	layoutPanes = 24
	layoutDepth = 16
)

// check refuses what herdr refuses before anything is made.
func (n *layoutNode) check(depth int, panes *int) error {
	if depth > layoutDepth {
		return refuse("invalid_layout", "layout is deeper than %d", layoutDepth)
	}
	if n.Type == "split" {
		if math.IsNaN(n.Ratio) || n.Ratio <= 0 || n.Ratio >= 1 {
			return refuse("invalid_layout", "ratio must be between 0 and 1")
		}
		if err := n.First.check(depth+1, panes); err != nil {
			return err
		}
		return n.Second.check(depth+1, panes)
	}
	*panes++
	if *panes > layoutPanes {
		return refuse("invalid_layout", "layout has more than %d panes", layoutPanes)
	}
	if n.given && (len(n.Command) == 0 || n.Command[0] == "") {
		return refuse("invalid_layout", "command is empty")
	}
	return checkEnv("invalid_layout", n.Env)
}

type layoutApplyParams struct {
	Root        layoutNode `json:"root" need:"required"`
	WorkspaceID *string    `json:"workspace_id"`
	TabID       *string    `json:"tab_id"`
	TabLabel    *string    `json:"tab_label"`
	Focus       bool       `json:"focus"`
}

func (c *core) layoutApply(q *layoutApplyParams) (any, error) {
	if q.WorkspaceID != nil && q.TabID != nil {
		return nil, refuse("invalid_target", "give workspace_id or tab_id, not both")
	}
	count := 0
	if err := q.Root.check(1, &count); err != nil {
		return nil, err
	}
	w, replaced, err := c.layoutTarget(q)
	if err != nil {
		return nil, err
	}
	t := w.newTab(deref(q.TabLabel))
	root, err := c.grow(t, &q.Root)
	t.root = root
	if err != nil {
		for _, p := range t.panes() {
			c.endTerminal(p)
		}
		w.dropTab(t)
		return nil, refuse("layout_apply_failed", "%v", err)
	}
	t.focus = t.panes()[0]
	if replaced != nil {
		if w.active == replaced {
			w.active = t
		}
		c.closeTab(replaced)
	}
	if q.Focus {
		c.focus(t.focus)
	}
	c.made(t, t.panes()...)
	return typed("layout_apply", "layout", c.described(t)), nil
}

func (c *core) layoutTarget(q *layoutApplyParams) (*workspace, *tab, error) {
	if q.TabID != nil {
		t, err := c.tab(*q.TabID)
		if err != nil {
			return nil, nil, err
		}
		return t.ws, t, nil
	}
	w, err := c.workspaceOrActive(q.WorkspaceID)
	return w, nil, err
}

// grow starts the panes of a tree; on failure what was started is in the tree
// it returns.
func (c *core) grow(t *tab, n *layoutNode) (*node, error) {
	if n.Type == "pane" {
		p := t.newPane(c.cwd(n.Cwd, c.focused()))
		p.label = deref(n.Label)
		if err := c.spawn(p, n.Command, n.Env); err != nil {
			return nil, err
		}
		c.opened = append(c.opened, Opened{At: time.Now(), PaneID: p.id, Label: p.label})
		return &node{pane: p}, nil
	}
	first, err := c.grow(t, n.First)
	if err != nil {
		return first, err
	}
	second, err := c.grow(t, n.Second)
	if second == nil {
		return first, err
	}
	t.splits++
	return &node{id: fmt.Sprintf("s%d", t.splits), direction: string(n.Direction), ratio: n.Ratio, first: first, second: second}, err
}

// described is the layout that layout.apply and layout.export answer.
func (c *core) described(t *tab) members {
	return members{"workspace_id": t.ws.id, "tab_id": t.id, "zoomed": t.zoomed, "focused_pane_id": t.focus.id, "root": describe(t.root)}
}

func describe(n *node) members {
	if n.pane == nil {
		return members{"type": "split", "direction": n.direction, "ratio": n.ratio, "first": describe(n.first), "second": describe(n.second)}
	}
	leaf := members{"type": "pane", "pane_id": n.pane.id, "cwd": n.pane.cwd}
	if n.pane.label != "" {
		leaf["label"] = n.pane.label
	}
	if n.pane.argv != nil {
		leaf["command"] = n.pane.argv
	}
	return leaf
}

type layoutExportParams struct {
	TabID  *string `json:"tab_id"`
	PaneID *string `json:"pane_id"`
}

func (c *core) layoutExport(q *layoutExportParams) (any, error) {
	p := c.focused()
	switch {
	case q.TabID != nil:
		t, err := c.tab(*q.TabID)
		if err != nil {
			return nil, err
		}
		p = t.focus
	case q.PaneID != nil:
		var err error
		if p, err = c.paneOrAlias(*q.PaneID); err != nil {
			return nil, err
		}
	}
	if p == nil {
		return nil, refuse("layout_not_found", "there is no layout")
	}
	return typed("layout_export", "layout", c.described(p.tab)), nil
}

func (c *core) paneLayout(q *optionalPane) (any, error) {
	p := c.focused()
	if q.PaneID != nil {
		var err error
		if p, err = c.paneOrAlias(*q.PaneID); err != nil {
			return nil, err
		}
	}
	if p == nil {
		return nil, refuse("pane_layout_unavailable", "there is no layout")
	}
	return typed("pane_layout", "layout", c.layout(p.tab)), nil
}
