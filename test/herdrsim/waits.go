package herdrsim

import (
	"slices"
	"time"
)

// waitSpec is the wait of agent.prompt.
type waitSpec struct {
	Until     []status `json:"until"`
	TimeoutMS *int64   `json:"timeout_ms"`
}

func (w *waitSpec) UnmarshalJSON(raw []byte) error {
	type fields waitSpec
	return decodeObject(raw, (*fields)(w))
}

// until is the default of an absent or empty list.
func until(given []status) []status {
	if len(given) == 0 {
		return []status{idle, done, blocked}
	}
	return given
}

// deadline of a wait; without timeout_ms there is none.
func deadline(ms *int64) func() bool {
	if ms == nil {
		return func() bool { return false }
	}
	end := time.Now().Add(time.Duration(*ms) * time.Millisecond)
	return func() bool { return !time.Now().Before(end) }
}

var errTimeout = refuse("timeout", "timed out")

// agentWatch follows the status of one agent from a point in the ring on.
type agentWatch struct {
	c    *core
	p    *pane
	id   string
	kind string
	pos  int
}

func (c *core) watch(p *pane) *agentWatch {
	return &agentWatch{c: c, p: p, id: p.id, kind: p.agent.kind, pos: c.ring.end()}
}

// since returns the states that were published since the last call, and
// whether the agent ended, was replaced, or its pane moved, closed or exited.
// Only events of its pane wake it: tab.close and workspace.close do not.
func (w *agentWatch) since() (seen []status, gone bool) {
	for {
		e, ok := w.c.ring.next(&w.pos, func(e ringEvent) bool {
			return e.pane == w.id || e.kind == "pane_moved" && e.data["previous_pane_id"] == w.id
		})
		if !ok {
			return seen, false
		}
		switch e.kind {
		case statusKind:
			seen = append(seen, e.data["agent_status"].(status))
		case "pane_closed", "pane_exited", "pane_moved":
			return seen, true
		case "pane_agent_detected":
			if e.data["released"] == true || e.data["agent"] != w.kind {
				return seen, true
			}
		}
	}
}

// notRunning is the answer when a watched agent goes.
func (w *agentWatch) notRunning() error {
	return refuse("agent_not_running", "agent in %s is not running", w.id)
}

type agentWaitParams struct {
	Target    string   `json:"target" need:"required"`
	Until     []status `json:"until"`
	TimeoutMS *int64   `json:"timeout_ms"`
}

func (h *held) agentWait(q *agentWaitParams) (any, error) {
	want, over := until(q.Until), deadline(q.TimeoutMS)
	var w *agentWatch
	answer := func(s status) (any, error) {
		if slices.Contains(want, s) {
			info := h.c.agentInfo(w.p)
			info.AgentStatus = s
			return typed("agent_info", "agent", info), nil
		}
		return nil, nil
	}
	res, err := onLoop(h.c, func() (any, error) {
		p, err := h.c.target(q.Target)
		if err != nil {
			return nil, err
		}
		w = h.c.watch(p)
		return answer(p.shown())
	})
	for res == nil && err == nil {
		last := over()
		if !last && !h.sleep() {
			return nil, errSilent
		}
		res, err = onLoop(h.c, func() (any, error) {
			seen, gone := w.since()
			for _, s := range seen {
				if res, _ := answer(s); res != nil {
					return res, nil
				}
			}
			switch {
			case gone:
				return nil, w.notRunning()
			case last && h.c.alive(w.p):
				if res, _ := answer(w.p.shown()); res != nil {
					return res, nil
				}
				return nil, errTimeout
			case last:
				return nil, errTimeout
			}
			return nil, nil
		})
	}
	return res, err
}

// promptAndWait is agent.prompt; its wait follows reference §5.5.
func (h *held) promptAndWait(q *promptParams) (any, error) {
	var w *agentWatch
	var submitted paneInfo
	_, err := onLoop(h.c, func() (any, error) {
		if q.Wait != nil {
			if _, err := h.c.target(q.Target); err != nil {
				return nil, err
			}
		}
		p, err := h.c.prompt(q)
		if err != nil {
			return nil, err
		}
		w, submitted = h.c.watch(p), h.c.agentInfo(p)
		return nil, nil
	})
	if err != nil {
		return nil, err
	}
	if q.Wait == nil {
		return typed("agent_prompted", "agent", submitted), nil
	}
	return h.waitAfterPrompt(q.Wait, w, submitted)
}

func (h *held) waitAfterPrompt(spec *waitSpec, w *agentWatch, submitted paneInfo) (any, error) {
	want, over := until(spec.Until), deadline(spec.TimeoutMS)
	stallMS := h.c.opts.Timing.PromptStall.Milliseconds()
	stalled := deadline(&stallMS)
	moved := false
	for {
		if !h.sleep() {
			return nil, errSilent
		}
		res, err := onLoop(h.c, func() (any, error) {
			seen, gone := w.since()
			moved = moved || w.p.agent.seq > *submitted.StateChangeSeq
			if moved && !gone {
				seen = append(seen, w.p.shown())
			}
			for _, s := range seen {
				if slices.Contains(want, s) {
					info := h.c.agentInfo(w.p)
					info.AgentStatus = s
					return typed("agent_prompted", "agent", info), nil
				}
			}
			switch {
			case gone:
				return nil, w.notRunning()
			case over():
				return nil, errTimeout
			case !moved && submitted.AgentStatus != working && stalled():
				return nil, refuse("agent_prompt_stalled", "no state change seen within %d ms", stallMS)
			}
			return nil, nil
		})
		if res != nil || err != nil {
			return res, err
		}
	}
}

type outputParams struct {
	PaneID    string     `json:"pane_id" need:"required"`
	Source    readSource `json:"source" need:"required"`
	Match     textMatch  `json:"match" need:"required"`
	Lines     *uint32    `json:"lines"`
	TimeoutMS *int64     `json:"timeout_ms"`
	Strip     bool       `json:"strip_ansi"`
}

func (h *held) waitForOutput(q *outputParams) (any, error) {
	if err := q.Match.compile(); err != nil {
		return nil, err
	}
	over := deadline(q.TimeoutMS)
	for {
		last := over()
		res, err := onLoop(h.c, func() (any, error) {
			p, err := h.c.inputPane(q.PaneID)
			if err != nil {
				return nil, err
			}
			read, line, ok := h.c.matchOutput(p, q.Source, q.Lines, &q.Match)
			if !ok {
				return nil, nil
			}
			return typed("output_matched", "pane_id", p.id, "revision", 0, "matched_line", line, "read", read), nil
		})
		switch {
		case res != nil || err != nil:
			return res, err
		case last:
			return nil, errTimeout
		case !h.sleep():
			return nil, errSilent
		}
	}
}

type eventsWaitParams struct {
	MatchEvent eventMatch `json:"match_event" need:"required"`
	TimeoutMS  *int64     `json:"timeout_ms"`
}

type eventMatch struct {
	Event       string  `json:"event" need:"required"`
	PaneID      string  `json:"pane_id"`
	AgentStatus *status `json:"agent_status"`
}

func (m *eventMatch) UnmarshalJSON(raw []byte) error {
	type fields eventMatch
	return decodeObject(raw, (*fields)(m))
}

// eventsWait supports one shape, as herdr does.
func (h *held) eventsWait(q *eventsWaitParams) (any, error) {
	if q.MatchEvent.Event != statusKind || q.MatchEvent.AgentStatus == nil {
		return nil, refuse("unsupported_event_wait_match", "events.wait supports %s with a status only", statusKind)
	}
	over := deadline(q.TimeoutMS)
	e := &entry{Type: "pane.agent_status_changed", PaneID: q.MatchEvent.PaneID, Status: q.MatchEvent.AgentStatus}
	if _, err := onLoop(h.c, func() (any, error) { return nil, h.c.begin(h.id, 0, e) }); err != nil {
		return nil, err
	}
	for {
		last := over()
		res, err := onLoop(h.c, func() (any, error) {
			p, err := h.c.paneOrAlias(e.PaneID)
			if err != nil {
				return nil, err
			}
			if h.c.pollStatus(e, p) == nil {
				return nil, nil
			}
			data := h.c.statusData(p)
			data["type"], data["agent_status"] = statusKind, *e.Status
			return typed("wait_matched", "event", members{"event": statusKind, "data": data}), nil
		})
		switch {
		case res != nil || err != nil:
			return res, err
		case last:
			return nil, errTimeout
		case !h.sleep():
			return nil, errSilent
		}
	}
}
