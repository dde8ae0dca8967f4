package herdrsim

import (
	"time"
)

// status is a raw agent state, or done (reference §4).
type status string

const (
	idle    status = "idle"
	working status = "working"
	blocked status = "blocked"
	done    status = "done"
	unknown status = "unknown"
)

func (s *status) UnmarshalJSON(raw []byte) error {
	return unmarshalEnum(raw, (*string)(s), "idle", "working", "blocked", "done", "unknown")
}

// agent is what herdr knows about the agent in a pane.
type agent struct {
	kind      string // "" : none
	group     int    // process group it was seen in
	raw       status
	unseen    bool   // finished in a tab nobody looked at since
	seq       uint64 // state_change_seq
	firstSeen time.Time
	nextLook  time.Time
	nextProbe time.Time
	misses    int
	weakIdle  int  // checks a weak working→idle has been held back
	parting   bool // the moment after its end: idle without agent
	hook      *hookReport
	session   *agentSession
}

// missesToDrop is how often an agent may be hidden before it counts as gone
// (reference §8.1).
const missesToDrop = 6

// shown is the status that records show.
func (p *pane) shown() status {
	a := &p.agent
	switch {
	case a.kind == "" && !a.parting, a.raw == "":
		return unknown
	case a.raw == idle && a.unseen:
		return done
	}
	return a.raw
}

// watchAgents drives detection until the server stops.
func (c *core) watchAgents() {
	defer c.wg.Done()
	t := c.opts.Timing
	tick := min(t.TickShell, t.TickAgent, t.Damping)
	for c.pause(tick) {
		c.do(func() {
			for _, p := range c.allPanes() {
				c.look(p, time.Now())
			}
		})
	}
}

// look is one detection step of one pane, if its time has come.
func (c *core) look(p *pane, now time.Time) {
	a := &p.agent
	if p.term == nil || now.Before(a.nextLook) {
		return
	}
	if a.parting {
		a.parting, a.raw = false, ""
	}
	if a.kind == "" {
		a.nextLook = now.Add(c.opts.Timing.TickShell)
		group, list := p.term.foregroundProcesses(false)
		c.meet(p, group, c.kindAmong(list), now)
		return
	}
	a.nextLook = now.Add(c.opts.Timing.TickAgent)
	if c.probe(p, now) {
		c.judge(p, now)
	}
	c.advanceStart(p, now)
}

func (c *core) kindAmong(list []process) string {
	for _, proc := range list {
		if kind := c.opts.Version.kindOf(proc); kind != "" {
			return kind
		}
	}
	return ""
}

// meet is the first sight of an agent: idle at once up to 0.8.0, unknown since
// 0.8.2 (reference §8.2).
func (c *core) meet(p *pane, group int, kind string, now time.Time) {
	if kind == "" {
		return
	}
	session := p.agent.session
	p.agent = agent{kind: kind, group: group, firstSeen: now, session: session, nextLook: now.Add(c.opts.Timing.TickAgent), nextProbe: now.Add(c.opts.Timing.Reprobe)}
	c.emit("pane_agent_detected", p.id, members{"pane_id": p.id, "workspace_id": p.tab.ws.id, "agent": kind})
	first := idle
	if c.opts.Version == V082 {
		first = unknown
	}
	c.publish(p, first)
	c.matchStart(p)
}

// probe looks whether the agent is still the foreground process; false: it is
// gone, hidden or another one.
func (c *core) probe(p *pane, now time.Time) bool {
	a := &p.agent
	group := p.term.foreground()
	if group == a.group && now.Before(a.nextProbe) {
		return true
	}
	a.nextProbe = now.Add(c.opts.Timing.Reprobe)
	group, list := p.term.foregroundProcesses(false)
	switch kind := c.kindAmong(list); kind {
	case a.kind:
		a.group, a.misses = group, 0
		return true
	case "":
		if a.misses++; a.misses >= missesToDrop {
			c.release(p)
		}
		return false
	default:
		c.release(p)
		c.meet(p, group, kind, now)
		return false
	}
}

// holdsForeground is the live look at the OS before input (reference §5.5).
func (c *core) holdsForeground(p *pane) bool {
	_, list := p.term.foregroundProcesses(true)
	return p.agent.kind != "" && c.kindAmong(list) == p.agent.kind
}

// judge takes the state from a script, a hook or the screen.
func (c *core) judge(p *pane, now time.Time) {
	a, f := &p.agent, &p.fault
	switch {
	case f.flap > 0:
		if now.Sub(f.flapped) < f.flap {
			return
		}
		f.flapped = now
		next := working
		if a.raw == working {
			next = idle
		}
		c.publish(p, next)
		return
	case f.forced != "":
		c.publish(p, f.forced)
		return
	case a.hook != nil && a.hook.full:
		c.publish(p, a.hook.state)
		return
	}
	v := c.verdict(p)
	if a.hook != nil && !v.visibleBlocker { // a state from elsewhere wins, but for a visible dialog
		c.publish(p, a.hook.state)
		return
	}
	if now.Sub(a.firstSeen) < c.opts.Timing.FirstSight {
		// 0.8.2 leaves unknown on positive evidence; the assumption idle waits.
		if c.opts.Version != V082 || v.rule == nil {
			return
		}
	}
	if v.skip {
		return
	}
	if v.state == idle && a.raw == working && !v.visibleIdle {
		if a.weakIdle++; a.weakIdle <= 3 {
			a.nextLook = now.Add(c.opts.Timing.Damping)
			return
		}
	}
	a.weakIdle = 0
	c.publish(p, v.state)
}

// publish makes raw the agent's state; a transition moves the server-wide
// counter and is an event.
func (c *core) publish(p *pane, raw status) {
	a := &p.agent
	if a.raw == raw {
		return
	}
	finished := raw == idle && (a.raw == working || a.raw == blocked)
	looked := c.active == p.tab.ws && p.tab.ws.active == p.tab
	a.raw, a.unseen = raw, finished && !looked
	c.seq++
	a.seq = c.seq
	c.emitStatus(p)
}

// release ends an agent whose shell stays.
func (c *core) release(p *pane) {
	kind := p.agent.kind
	c.publish(p, idle)
	final := p.shown()
	unseen := p.agent.unseen
	p.agent = agent{raw: idle, unseen: unseen, parting: true, nextLook: time.Now().Add(c.opts.Timing.TickAgent), seq: p.agent.seq}
	p.name = agentName{}
	c.emit("pane_agent_detected", p.id, members{
		"pane_id": p.id, "workspace_id": p.tab.ws.id, "agent": kind, "released": true, "final_status": final,
	})
}

// seen is what looking at a tab does: done becomes idle, without an event.
func (t *tab) seen() {
	for _, p := range t.panes() {
		p.agent.unseen = false
	}
}
