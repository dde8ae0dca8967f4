package herdrsim

import (
	"strings"
	"time"
	"unicode"
)

func now() time.Time { return time.Now() }

// agentName is the name an agent has, and how far agent.start got with it
// (reference §11).
type agentName struct {
	name     string
	kind     string // of agent.start; "" for a renamed agent
	pending  bool
	ready    bool
	started  time.Time
	deadline time.Time
}

type agentStartParams struct {
	Name      string   `json:"name" need:"required"`
	Kind      string   `json:"kind" need:"required"`
	PaneID    string   `json:"pane_id" need:"required"`
	Args      []string `json:"args"`
	TimeoutMS *int64   `json:"timeout_ms"`
}

// agentStart types the command into an idle shell; the checks are in herdr's
// order.
func (c *core) agentStart(q *agentStartParams) (any, error) {
	p := c.pane(q.PaneID)
	if err := c.checkStart(q, p); err != nil {
		return nil, err
	}
	timeout := 30 * time.Second
	if q.TimeoutMS != nil {
		timeout = time.Duration(*q.TimeoutMS) * time.Millisecond
		if timeout <= c.opts.Timing.StartSettle || timeout > 300*time.Second {
			return nil, refuse("invalid_agent_timeout", "timeout_ms must be above 3000 and at most 300000")
		}
	}
	argv := append([]string{executable(q.Kind)}, q.Args...)
	line := append(p.term.framed(shellLine(argv)), '\r')
	if err := c.put(p, "agent.start", line); err != nil {
		return nil, refuse("agent_start_input_failed", "%v", err)
	}
	started := now()
	p.name = agentName{name: q.Name, kind: q.Kind, pending: true, started: started, deadline: started.Add(timeout)}
	p.revision++
	c.emit("pane_updated", p.id, members{"pane": c.paneInfo(p)})
	c.later(timeout+10*time.Millisecond, func() { c.advanceStart(p, now()) })
	return typed("agent_started", "argv", argv, "agent", c.agentInfo(p)), nil
}

func (c *core) checkStart(q *agentStartParams, p *pane) error {
	if !agentNameForm.MatchString(q.Name) {
		return refuse("invalid_agent_name", "agent name %q is not valid", q.Name)
	}
	if !c.opts.Version.knows(q.Kind) {
		return refuse("unsupported_agent_kind", "agent kind %s is not supported", q.Kind)
	}
	for _, a := range q.Args {
		if strings.ContainsFunc(a, unicode.IsControl) {
			return refuse("invalid_agent_argument", "agent arguments must not hold control characters")
		}
	}
	if err := c.freeName(q.Name, nil); err != nil {
		return err
	}
	switch {
	case p == nil:
		return refuse("agent_pane_not_found", "pane %s not found", q.PaneID)
	case p.agent.kind != "" || p.name.pending:
		return refuse("agent_pane_busy", "agent target pane %s hosts an agent", q.PaneID)
	case p.term == nil:
		return refuse("agent_pane_unavailable", "agent target pane %s has no terminal", q.PaneID)
	}
	shell := p.term.cmd.Process.Pid
	group, list := p.term.foregroundProcesses(true)
	if p.argv != nil || group != shell || len(list) != 1 || list[0].pid != shell {
		return refuse("agent_pane_busy", "agent target pane %s is not an available shell", q.PaneID)
	}
	return nil
}

// matchStart notes that an agent appeared where a start is pending: another
// kind ends the name.
func (c *core) matchStart(p *pane) {
	if p.name.pending && p.name.kind != p.agent.kind {
		c.unname(p)
	}
}

// advanceStart moves a pending start: ready, failed or neither yet.
func (c *core) advanceStart(p *pane, at time.Time) {
	n := &p.name
	if !n.pending {
		return
	}
	settled := at.Sub(n.started) >= c.opts.Timing.StartSettle
	seen := p.agent.kind != "" && p.agent.kind == n.kind
	stays := c.opts.Version == V082 && seen && p.agent.raw == blocked // its timeout no longer applies
	switch {
	case seen && settled && (p.agent.raw == idle || p.agent.raw == blocked && c.opts.Version != V082):
		n.pending, n.ready = false, true
		p.revision++
		c.emit("pane_updated", p.id, members{"pane": c.paneInfo(p)})
	case at.After(n.deadline) && !stays:
		c.unname(p)
	}
}

// unname takes the name away; the program may run on without one.
func (c *core) unname(p *pane) {
	p.name = agentName{}
	p.revision++
	c.emit("pane_updated", p.id, members{"pane": c.paneInfo(p)})
}

// shellLine quotes argv for a POSIX shell.
func shellLine(argv []string) string {
	plain := func(r rune) bool {
		return unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("-_./:=@%+,", r)
	}
	words := make([]string, len(argv))
	for i, a := range argv {
		words[i] = a
		if a == "" || strings.ContainsFunc(a, func(r rune) bool { return !plain(r) }) {
			words[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}
