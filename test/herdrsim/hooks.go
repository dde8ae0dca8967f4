package herdrsim

import (
	"slices"
)

// hookReport is a state reported through the socket (reference §5.9, §8.5).
type hookReport struct {
	source string
	state  status
	full   bool // the source decides alone; the screen is ignored
}

// fullAuthority are the sources that replace the screen.
var fullAuthority = []string{"herdr:pi", "herdr:omp", "herdr:mastracode", "herdr:opencode", "herdr:kilo", "herdr:kimi"}

// identityOnly are the sources that may not report a state.
var identityOnly = []string{"herdr:claude", "herdr:codex", "herdr:copilot", "herdr:devin", "herdr:droid", "herdr:qodercli", "herdr:cursor", "herdr:grok", "herdr:hermes", "herdr:antigravity_cli"}

type reportAgentParams struct {
	PaneID      string  `json:"pane_id" need:"required"`
	Source      string  `json:"source" need:"required"`
	Agent       string  `json:"agent" need:"required"`
	State       state   `json:"state" need:"required"`
	Message     *string `json:"message"`
	Seq         *uint64 `json:"seq"`
	SessionID   *string `json:"agent_session_id"`
	SessionPath *string `json:"agent_session_path"`
}

type state status

func (s *state) UnmarshalJSON(raw []byte) error {
	return unmarshalEnum(raw, (*string)(s), "idle", "working", "blocked", "unknown")
}

func (c *core) reportAgent(q *reportAgentParams) (any, error) {
	p, err := c.paneOrAlias(q.PaneID)
	if err != nil {
		return nil, err
	}
	if q.Agent == "" {
		return nil, refuse("invalid_agent", "agent is empty")
	}
	if slices.Contains(identityOnly, q.Source) || c.staleHook(p, q.Source, q.Seq) {
		return typed("ok"), nil
	}
	if p.agent.kind == "" && p.term != nil { // a hook may name what herdr cannot see
		c.meet(p, p.term.foreground(), q.Agent, now())
	}
	if p.agent.kind != q.Agent {
		return typed("ok"), nil
	}
	noteSession(p, q.Source, q.Agent, q.SessionID, q.SessionPath)
	p.agent.hook = &hookReport{source: q.Source, state: status(q.State), full: slices.Contains(fullAuthority, q.Source)}
	c.publish(p, status(q.State))
	return typed("ok"), nil
}

func (c *core) staleHook(p *pane, source string, seq *uint64) bool {
	if p.meta.seqs == nil {
		p.meta.seqs, p.meta.tokens = map[string]uint64{}, map[string]string{}
	}
	return stale(p.meta.seqs, "hook "+source, seq)
}

func noteSession(p *pane, source, kind string, id, path *string) {
	switch {
	case id != nil:
		p.agent.session = &agentSession{Source: source, Agent: kind, Kind: "id", Value: *id}
	case path != nil:
		p.agent.session = &agentSession{Source: source, Agent: kind, Kind: "path", Value: *path}
	}
}

type reportSessionParams struct {
	PaneID      string  `json:"pane_id" need:"required"`
	Source      string  `json:"source" need:"required"`
	Agent       string  `json:"agent" need:"required"`
	SessionID   *string `json:"agent_session_id"`
	SessionPath *string `json:"agent_session_path"`
	StartSource *string `json:"session_start_source"`
	Seq         *uint64 `json:"seq"`
}

func (c *core) reportSession(q *reportSessionParams) (any, error) {
	p, err := c.paneOrAlias(q.PaneID)
	if err != nil {
		return nil, err
	}
	if !c.staleHook(p, q.Source, q.Seq) {
		noteSession(p, q.Source, q.Agent, q.SessionID, q.SessionPath)
	}
	return typed("ok"), nil
}

type clearAuthorityParams struct {
	PaneID string  `json:"pane_id" need:"required"`
	Source *string `json:"source"`
	Seq    *uint64 `json:"seq"`
}

func (c *core) clearAuthority(q *clearAuthorityParams) (any, error) {
	p, err := c.paneOrAlias(q.PaneID)
	if err != nil {
		return nil, err
	}
	if h := p.agent.hook; h != nil && (q.Source == nil || *q.Source == h.source) {
		p.agent.hook = nil
	}
	return typed("ok"), nil
}

type releaseParams struct {
	PaneID string  `json:"pane_id" need:"required"`
	Source string  `json:"source" need:"required"`
	Agent  string  `json:"agent" need:"required"`
	Seq    *uint64 `json:"seq"`
}

func (c *core) releaseAgent(q *releaseParams) (any, error) {
	p, err := c.paneOrAlias(q.PaneID)
	if err != nil {
		return nil, err
	}
	if h := p.agent.hook; h != nil && h.source == q.Source && !c.staleHook(p, q.Source, q.Seq) {
		c.release(p)
	}
	return typed("ok"), nil
}
