package herdrsim

import (
	"encoding/json"
	"fmt"
	"strings"
)

type subscribeParams struct {
	Subscriptions []entry `json:"subscriptions" need:"required"`
}

// subscribe streams events until either side closes: per poll at most one
// event per entry, entries in the order given (reference §6.2).
func (h *held) subscribe(q *subscribeParams) (any, error) {
	_, err := onLoop(h.c, func() (any, error) {
		for i := range q.Subscriptions {
			if err := h.c.begin(h.id, i, &q.Subscriptions[i]); err != nil {
				return nil, err
			}
		}
		return nil, nil
	})
	if err != nil {
		return nil, err
	}
	if !h.emit(answer(h.id, typed("subscription_started"), nil)) {
		return nil, errSilent
	}
	for h.sleep() {
		for i := range q.Subscriptions {
			e := &q.Subscriptions[i]
			line, _ := onLoop(h.c, func() ([]byte, error) { return h.c.poll(e), nil })
			if line != nil && !h.emit(line) {
				return nil, errSilent
			}
		}
	}
	return nil, errSilent
}

// begin probes one entry: scoped ones need their pane and start now, plain
// ones start at the beginning of the ring.
func (c *core) begin(id string, i int, e *entry) error {
	if e.plain() {
		return nil
	}
	p, err := c.paneOrAlias(e.PaneID)
	if err != nil {
		refusal := refuse("pane_not_found", "pane %s not found", e.PaneID)
		refusal.id = fmt.Sprintf("%s:sub:%d:probe", id, i)
		return refusal
	}
	e.PaneID = p.id
	e.pos = c.ring.end()
	switch e.Type {
	case "pane.agent_status_changed":
		e.last = c.statusLine(p)
		if e.Status != nil && p.shown() == *e.Status { // holds already: told first
			e.first = encodeLine(map[string]any{"event": e.Type, "data": c.statusData(p)})
		}
	case "pane.output_matched":
		return e.Match.compile()
	case "pane.scroll_changed":
		e.last = fmt.Sprint(p.scrolled)
	}
	return nil
}

// poll returns the next line of an entry, nil if there is none.
func (c *core) poll(e *entry) []byte {
	if e.plain() {
		kind := strings.Replace(e.Type, ".", "_", 1)
		if ev, ok := c.ring.next(&e.pos, func(ev ringEvent) bool { return ev.kind == kind }); ok {
			return encodeLine(map[string]any{"event": kind, "data": ev.data})
		}
		return nil
	}
	p, err := c.paneOrAlias(e.PaneID)
	if err != nil { // gone: it falls silent
		return nil
	}
	switch e.Type {
	case "pane.agent_status_changed":
		return c.pollStatus(e, p)
	case "pane.output_matched":
		return c.pollOutput(e, p)
	}
	if now := fmt.Sprint(p.scrolled); now != e.last {
		e.last = now
		return encodeLine(map[string]any{"event": e.Type, "data": members{"pane_id": p.id, "scroll": c.paneInfo(p).Scroll}})
	}
	return nil
}

func (c *core) statusLine(p *pane) string {
	line, _ := json.Marshal(c.statusData(p))
	return string(line)
}

// pollStatus gives what the ring has since the last look, then the present
// state if it differs (it sees done→idle, which the ring does not).
func (c *core) pollStatus(e *entry, p *pane) []byte {
	if first := e.first; first != nil {
		e.first = nil
		return first
	}
	admits := func(s any) bool { return e.Status == nil || s == *e.Status }
	for {
		ev, ok := c.ring.next(&e.pos, func(ev ringEvent) bool { return ev.kind == statusKind && ev.pane == p.id })
		if !ok {
			break
		}
		line, _ := json.Marshal(ev.data)
		e.last = string(line)
		if admits(ev.data["agent_status"]) {
			return encodeLine(map[string]any{"event": e.Type, "data": ev.data})
		}
	}
	if line := c.statusLine(p); line != e.last {
		e.last = line
		if admits(p.shown()) {
			return encodeLine(map[string]any{"event": e.Type, "data": c.statusData(p)})
		}
	}
	return nil
}

// pollOutput is edge-triggered.
func (c *core) pollOutput(e *entry, p *pane) []byte {
	if p.term == nil {
		return nil
	}
	read, line, ok := c.matchOutput(p, e.Source, e.Lines, e.Match)
	fire := ok && !e.matching
	e.matching = ok
	if !fire {
		return nil
	}
	return encodeLine(map[string]any{"event": e.Type, "data": members{"pane_id": p.id, "matched_line": line, "read": read}})
}

// matchOutput reads and matches; recent is read as recent_unwrapped.
func (c *core) matchOutput(p *pane, source readSource, lines *uint32, m *textMatch) (paneRead, string, bool) {
	if source == "recent" {
		source = "recent_unwrapped"
	}
	read := c.read(p, source, lines, "text")
	line, ok := m.find(read.Text)
	return read, line, ok
}
