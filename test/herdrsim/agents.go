package herdrsim

import (
	"regexp"
)

// target resolves what agent.* methods accept: the current pane id of a pane
// that hosts an agent, or an agent name (reference §2).
func (c *core) target(target string) (*pane, error) {
	for _, p := range c.allPanes() {
		known := p.agent.kind != "" || p.name.name != ""
		if known && p.term != nil && (p.id == target || p.name.name == target) {
			return p, nil
		}
	}
	return nil, refuse("agent_not_found", "agent %s not found", target)
}

func (c *core) agentList(*none) (any, error) {
	return typed("agent_list", "agents", c.agentInfos()), nil
}

func (c *core) agentGet(q *targetParam) (any, error) {
	p, err := c.target(q.Target)
	if err != nil {
		return nil, err
	}
	c.advanceStart(p, now())
	if p, err = c.target(q.Target); err != nil { // the start may just have failed
		return nil, err
	}
	return typed("agent_info", "agent", c.agentInfo(p)), nil
}

// explain evaluates the rules now (reference §5.8).
func (c *core) explain(q *targetParam) (any, error) {
	p, err := c.target(q.Target)
	if err != nil {
		return nil, err
	}
	if p.agent.kind == "" {
		return nil, refuse("agent_explain_unavailable", "no agent is detected in %s", p.id)
	}
	e := members{
		"agent": p.agent.kind, "state": p.agent.raw, "manifest_source": "bundled", "manifest_version": "2026.08.04.1",
		"cached_remote_version": nil, "local_override_shadowing_remote": false, "remote_update_status": nil,
		"remote_update_error": nil, "warning": nil, "matched_rule": nil, "fallback_reason": nil,
		"visible_idle": false, "visible_blocker": false, "visible_working": false, "skip_state_update": false,
		"skipped_update_reason": nil, "screen_detection_skipped": false, "evaluated_rules": []any{},
	}
	if p.agent.hook != nil && p.agent.hook.full {
		e["screen_detection_skipped"] = true
		e["screen_detection_skip_reason"] = "full_lifecycle_hook_authority"
		return typed("agent_explain", "explain", e), nil
	}
	v := c.verdict(p)
	e["state"], e["evaluated_rules"] = v.state, v.evaluated
	e["visible_idle"], e["visible_blocker"], e["visible_working"] = v.visibleIdle, v.visibleBlocker, v.visibleWorking
	if v.rule != nil {
		e["matched_rule"] = v.rule
	} else {
		e["fallback_reason"] = "default_known_agent_idle_fallback"
	}
	if v.skip {
		e["skip_state_update"], e["skipped_update_reason"] = true, v.rule.ID
	}
	return typed("agent_explain", "explain", e), nil
}

var agentNameForm = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,31}$`)

type agentRenameParams struct {
	Target string  `json:"target" need:"required"`
	Name   *string `json:"name"`
}

func (c *core) agentRename(q *agentRenameParams) (any, error) {
	p, err := c.target(q.Target)
	if err != nil {
		return nil, err
	}
	if p.name.pending {
		return nil, refuse("agent_launch_pending", "agent %s is still starting", q.Target)
	}
	if q.Name == nil {
		p.name = agentName{}
	} else {
		if err := c.freeName(*q.Name, p); err != nil {
			return nil, err
		}
		p.name.name = *q.Name
	}
	c.emit("pane_updated", p.id, members{"pane": c.paneInfo(p)})
	return typed("agent_info", "agent", c.agentInfo(p)), nil
}

// freeName checks a name for p; other agents' names are taken.
func (c *core) freeName(name string, p *pane) error {
	if !agentNameForm.MatchString(name) {
		return refuse("invalid_agent_name", "agent name %q is not valid", name)
	}
	for _, other := range c.allPanes() {
		if other != p && other.name.name == name {
			return refuse("agent_name_taken", "agent name %s is taken", name)
		}
	}
	return nil
}

func (c *core) agentFocus(q *targetParam) (any, error) {
	p, err := c.target(q.Target)
	if err != nil {
		return nil, err
	}
	c.focus(p)
	return typed("agent_info", "agent", c.agentInfo(p)), nil
}
