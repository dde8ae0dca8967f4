package herdrsim

import (
	"cmp"
	"maps"
	"slices"
)

// workspace, tab and pane are the places of reference §2. Their numbers count
// up and are not given out again while their workspace lives.
type workspace struct {
	id       string
	num      int
	label    string
	tabs     []*tab
	active   *tab
	lastTab  int
	lastPane int
	tokens   map[string]string
	seqs     map[string]uint64 // metadata sequence per source
}

type tab struct {
	id     string
	num    int
	label  string
	ws     *workspace
	root   *node
	focus  *pane
	zoomed bool
	splits int // numbers of splits given out
}

type pane struct {
	id       string
	num      int
	tab      *tab
	label    string
	cwd      string
	argv     []string // of layout.apply; nil: a shell
	handed   bool     // lived through a handoff: a shell follows its program
	term     *terminal
	scrolled int // rows the user scrolled up
	revision uint64

	meta  metadata
	agent agent
	name  agentName
	fault paneFaults
}

// node is a place in a tab's tree: a pane, or a split of two.
type node struct {
	pane          *pane
	id            string
	direction     string
	ratio         float64
	first, second *node
}

func (n *node) panes() []*pane {
	if n == nil {
		return nil
	}
	if n.pane != nil {
		return []*pane{n.pane}
	}
	return append(n.first.panes(), n.second.panes()...)
}

// without returns the tree with p taken out; its sibling takes the room.
func (n *node) without(p *pane) *node {
	if n == nil || n.pane == p {
		return nil
	}
	if n.pane != nil {
		return n
	}
	n.first, n.second = n.first.without(p), n.second.without(p)
	switch {
	case n.first == nil:
		return n.second
	case n.second == nil:
		return n.first
	}
	return n
}

// split puts fresh beside p.
func (n *node) split(p, fresh *pane, id, direction string, ratio float64) {
	if n.pane == p {
		*n = node{id: id, direction: direction, ratio: ratio, first: &node{pane: p}, second: &node{pane: fresh}}
		return
	}
	if n.pane == nil {
		n.first.split(p, fresh, id, direction, ratio)
		n.second.split(p, fresh, id, direction, ratio)
	}
}

func (t *tab) panes() []*pane { return t.root.panes() }

func (w *workspace) panes() []*pane {
	var all []*pane
	for _, t := range w.tabs {
		all = append(all, t.panes()...)
	}
	return all
}

func (c *core) allPanes() []*pane {
	var all []*pane
	for _, w := range c.workspaces {
		all = append(all, w.panes()...)
	}
	return all
}

// pane resolves a current id; no alias.
func (c *core) pane(id string) *pane {
	for _, p := range c.allPanes() {
		if p.id == id {
			return p
		}
	}
	return nil
}

// paneOrAlias resolves what pane.* methods accept.
func (c *core) paneOrAlias(id string) (*pane, error) {
	if p := c.pane(id); p != nil {
		return p, nil
	}
	if p := c.aliases[id]; p != nil && c.alive(p) {
		return p, nil
	}
	return nil, refuse("pane_not_found", "pane %s not found", id)
}

func (c *core) alive(p *pane) bool { return slices.Contains(c.allPanes(), p) }

func (c *core) workspace(id string) (*workspace, error) {
	for _, w := range c.workspaces {
		if w.id == id {
			return w, nil
		}
	}
	return nil, refuse("workspace_not_found", "workspace %s not found", id)
}

func (c *core) tab(id string) (*tab, error) {
	for _, w := range c.workspaces {
		for _, t := range w.tabs {
			if t.id == id {
				return t, nil
			}
		}
	}
	return nil, refuse("tab_not_found", "tab %s not found", id)
}

// focused is the one pane in focus of the whole server, or nil.
func (c *core) focused() *pane {
	if c.active == nil || c.active.active == nil {
		return nil
	}
	return c.active.active.focus
}

// newWorkspace adds an empty workspace; the very first becomes active.
func (c *core) newWorkspace(label string) *workspace {
	c.lastWorkspace++
	w := &workspace{num: c.lastWorkspace, id: workspaceID(c.lastWorkspace), label: label, tokens: map[string]string{}}
	w.label = cmp.Or(w.label, w.id)
	c.workspaces = append(c.workspaces, w)
	if c.active == nil {
		c.active = w
	}
	return w
}

func (w *workspace) newTab(label string) *tab {
	w.lastTab++
	t := &tab{num: w.lastTab, id: tabID(w.id, w.lastTab), label: label, ws: w}
	if t.label == "" {
		t.label = number(w.lastTab)
	}
	w.tabs = append(w.tabs, t)
	if w.active == nil {
		w.active = t
	}
	return t
}

// newPane makes a pane that is in no tree yet.
func (t *tab) newPane(cwd string) *pane {
	t.ws.lastPane++
	return &pane{num: t.ws.lastPane, id: paneID(t.ws.id, t.ws.lastPane), tab: t, cwd: cwd}
}

// take removes p from its tab and reports what went with it.
func (c *core) take(p *pane) (tabGone, wsGone bool) {
	t, w := p.tab, p.tab.ws
	t.root = t.root.without(p)
	if t.root != nil {
		if t.focus == p {
			t.focus = t.panes()[0]
		}
		return false, false
	}
	w.tabs = slices.DeleteFunc(w.tabs, func(x *tab) bool { return x == t })
	if len(w.tabs) > 0 {
		if w.active == t {
			w.active = w.tabs[0]
		}
		return true, false
	}
	c.dropWorkspace(w)
	return true, true
}

func (c *core) dropWorkspace(w *workspace) {
	c.workspaces = slices.DeleteFunc(c.workspaces, func(x *workspace) bool { return x == w })
	if c.active == w {
		c.active = nil
		if len(c.workspaces) > 0 {
			c.active = c.workspaces[0]
		}
	}
	maps.DeleteFunc(c.aliases, func(_ string, p *pane) bool { return p.tab.ws == w })
}
