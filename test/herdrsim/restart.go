package herdrsim

// session is what herdr keeps in session.json: places, labels, directories and
// counters. No environment, argv, tokens or names (reference §2).
type session struct {
	workspaces []savedWorkspace
	active     string
}

type savedWorkspace struct {
	id, label         string
	num               int
	lastTab, lastPane int
	active            string
	tabs              []savedTab
}

type savedTab struct {
	id, label string
	num       int
	splits    int
	focus     string
	root      savedNode
}

type savedNode struct {
	id, direction string
	ratio         float64
	first, second *savedNode
	pane          *savedPane
}

type savedPane struct {
	id, label, cwd string
	num            int
}

// save copies the session; the loop has ended.
func (c *core) save() *session {
	s := &session{}
	if c.active != nil {
		s.active = c.active.id
	}
	for _, w := range c.workspaces {
		sw := savedWorkspace{id: w.id, label: w.label, num: w.num, lastTab: w.lastTab, lastPane: w.lastPane}
		if w.active != nil {
			sw.active = w.active.id
		}
		for _, t := range w.tabs {
			st := savedTab{id: t.id, label: t.label, num: t.num, splits: t.splits, root: *saveNode(t.root)}
			if t.focus != nil {
				st.focus = t.focus.id
			}
			sw.tabs = append(sw.tabs, st)
		}
		s.workspaces = append(s.workspaces, sw)
	}
	return s
}

func saveNode(n *node) *savedNode {
	if n.pane != nil {
		p := n.pane
		return &savedNode{pane: &savedPane{id: p.id, label: p.label, cwd: p.cwd, num: p.num}}
	}
	return &savedNode{id: n.id, direction: n.direction, ratio: n.ratio, first: saveNode(n.first), second: saveNode(n.second)}
}

// restore makes the places of a saved session, each pane with a new shell. The
// workspace counter goes on above the highest restored number.
func (c *core) restore(s *session) error {
	for _, sw := range s.workspaces {
		w := &workspace{id: sw.id, label: sw.label, num: sw.num, lastTab: sw.lastTab, lastPane: sw.lastPane, tokens: map[string]string{}}
		c.workspaces = append(c.workspaces, w)
		c.lastWorkspace = max(c.lastWorkspace, w.num)
		if c.active == nil || w.id == s.active {
			c.active = w
		}
		for _, st := range sw.tabs {
			t := &tab{id: st.id, label: st.label, num: st.num, ws: w, splits: st.splits}
			w.tabs = append(w.tabs, t)
			root, err := c.restoreNode(t, &st.root)
			t.root = root
			if err != nil {
				return err
			}
			for _, p := range t.panes() {
				if t.focus == nil || p.id == st.focus {
					t.focus = p
				}
			}
			if w.active == nil || t.id == sw.active {
				w.active = t
			}
		}
	}
	return nil
}

func (c *core) restoreNode(t *tab, n *savedNode) (*node, error) {
	if n.pane != nil {
		p := &pane{id: n.pane.id, num: n.pane.num, label: n.pane.label, cwd: c.cwd(&n.pane.cwd, nil), tab: t}
		return &node{pane: p}, c.spawn(p, nil, nil)
	}
	first, err := c.restoreNode(t, n.first)
	if err != nil {
		return first, err
	}
	second, err := c.restoreNode(t, n.second)
	return &node{id: n.id, direction: n.direction, ratio: n.ratio, first: first, second: second}, err
}

// adopt takes the panes over from a predecessor that handed off: processes,
// ids and names stay, terminal ids and the event ring are new.
func (c *core) adopt(old *core) {
	c.workspaces, c.lastWorkspace, c.active = old.workspaces, old.lastWorkspace, old.active
	for _, p := range c.allPanes() {
		p.handed = true
		p.agent.seq = 0
		if p.term != nil {
			p.term.rename(c.srv.terminalID())
		}
	}
}

// reapMissed looks for programs that ended while no server ran.
func (c *core) reapMissed() {
	for _, p := range c.allPanes() {
		if p.term == nil {
			continue
		}
		select {
		case <-p.term.dead:
			c.programEnded(p.term)
		default:
		}
	}
}
