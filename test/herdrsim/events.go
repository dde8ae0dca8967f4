package herdrsim

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// ringSize is how many events the server remembers, all kinds together
// (reference §6.2).
const ringSize = 512

// statusKind is the ring's own kind for status changes; no plain subscription
// names it.
const statusKind = "pane_agent_status_changed"

type members map[string]any

type ringEvent struct {
	kind string
	pane string // the pane it is about, "" if none
	data members
}

// ring holds the last events; positions count over the life of the server.
type ring struct {
	base   int
	events []ringEvent
}

// emit adds an event of kind; data gets its type.
func (c *core) emit(kind, pane string, data members) {
	if kind != statusKind {
		data["type"] = kind
	}
	r := &c.ring
	r.events = append(r.events, ringEvent{kind: kind, pane: pane, data: data})
	if over := len(r.events) - ringSize; over > 0 {
		r.events = slices.Clone(r.events[over:])
		r.base += over
	}
}

func (r *ring) end() int { return r.base + len(r.events) }

// next returns the first event at or after *pos that matches and moves *pos
// behind it; events that fell out of the ring are skipped without notice.
func (r *ring) next(pos *int, match func(ringEvent) bool) (ringEvent, bool) {
	*pos = max(*pos, r.base)
	for *pos < r.end() {
		e := r.events[*pos-r.base]
		*pos++
		if match(e) {
			return e, true
		}
	}
	return ringEvent{}, false
}

func (c *core) emitStatus(p *pane) { c.emit(statusKind, p.id, c.statusData(p)) }

// statusData is what a status event says about p now.
func (c *core) statusData(p *pane) members {
	data := members{"pane_id": p.id, "workspace_id": p.tab.ws.id, "agent_status": p.shown()}
	for name, value := range map[string]string{"agent": p.agent.kind, "title": p.meta.title, "display_agent": p.meta.displayAgent} {
		if value != "" {
			data[name] = value
		}
	}
	if len(p.meta.labels) > 0 {
		data["state_labels"] = maps.Clone(p.meta.labels)
	}
	return data
}

// plainTypes are the subscription types without parameters (reference §6.1).
var plainTypes = strings.Fields("workspace.created workspace.updated workspace.metadata_updated workspace.renamed workspace.moved workspace.reordered " +
	"workspace.closed workspace.focused worktree.created worktree.opened worktree.removed tab.created tab.closed tab.focused tab.renamed tab.moved " +
	"pane.created pane.closed pane.updated pane.focused pane.moved pane.exited pane.agent_detected layout.updated")

// entry is one subscription of an events.subscribe.
type entry struct {
	Type   string
	PaneID string
	Status *status
	Source readSource
	Match  *textMatch
	Lines  *uint32

	pos      int    // in the ring
	last     string // what a scoped entry last saw
	first    []byte // the state that held already at the start
	matching bool
}

func (e *entry) UnmarshalJSON(raw []byte) error {
	var head struct {
		Type string `json:"type" need:"required"`
	}
	if err := decodeObject(raw, &head); err != nil {
		return err
	}
	e.Type = head.Type
	switch head.Type {
	case "pane.agent_status_changed":
		var p struct {
			PaneID string  `json:"pane_id" need:"required"`
			Status *status `json:"agent_status"`
		}
		err := decodeObject(raw, &p)
		e.PaneID, e.Status = p.PaneID, p.Status
		return err
	case "pane.output_matched":
		var p outputParams
		err := decodeObject(raw, &p)
		e.PaneID, e.Source, e.Match, e.Lines = p.PaneID, p.Source, &p.Match, p.Lines
		return err
	case "pane.scroll_changed":
		var p paneParam
		err := decodeObject(raw, &p)
		e.PaneID = p.PaneID
		return err
	}
	var known string
	typeJSON, _ := json.Marshal(head.Type)
	return unmarshalEnum(typeJSON, &known, append(plainTypes, "pane.agent_status_changed", "pane.output_matched", "pane.scroll_changed")...)
}

func (e *entry) plain() bool { return slices.Contains(plainTypes, e.Type) }

// textMatch is a substring or a regular expression, tried line by line.
type textMatch struct {
	Type  string
	Value string
	re    *regexp.Regexp
}

func (m *textMatch) UnmarshalJSON(raw []byte) error {
	var p struct {
		Type  string `json:"type" need:"required"`
		Value string `json:"value" need:"required"`
	}
	if err := decodeObject(raw, &p); err != nil {
		return err
	}
	m.Type, m.Value = p.Type, p.Value
	typeJSON, _ := json.Marshal(p.Type)
	return unmarshalEnum(typeJSON, &m.Type, "substring", "regex")
}

func (m *textMatch) compile() error {
	if m.Type != "regex" || m.re != nil {
		return nil
	}
	re, err := regexp.Compile(m.Value)
	if err != nil {
		return refuse("invalid_regex", "%v", err)
	}
	m.re = re
	return nil
}

// find returns the first matching line of text.
func (m *textMatch) find(text string) (string, bool) {
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if m.re != nil && m.re.MatchString(line) || m.re == nil && strings.Contains(line, m.Value) {
			return line, true
		}
	}
	return "", false
}
