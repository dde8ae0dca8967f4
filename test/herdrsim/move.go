package herdrsim

import (
	"encoding/json"
	"fmt"
)

type destination struct {
	Type        string
	TabID       string
	Split       direction
	Target      *string
	Ratio       *float64
	WorkspaceID *string
	Label       *string
	TabLabel    *string
}

func (d *destination) UnmarshalJSON(raw []byte) error {
	var head struct {
		Type string `json:"type" need:"required"`
	}
	if err := decodeObject(raw, &head); err != nil {
		return err
	}
	typeJSON, _ := json.Marshal(head.Type)
	if err := unmarshalEnum(typeJSON, &d.Type, "tab", "new_tab", "new_workspace"); err != nil {
		return err
	}
	if d.Type == "tab" {
		var p struct {
			TabID  string    `json:"tab_id" need:"required"`
			Split  direction `json:"split" need:"required"`
			Target *string   `json:"target_pane_id"`
			Ratio  *float64  `json:"ratio"`
		}
		err := decodeObject(raw, &p)
		d.TabID, d.Split, d.Target, d.Ratio = p.TabID, p.Split, p.Target, p.Ratio
		return err
	}
	var p struct {
		WorkspaceID *string `json:"workspace_id"`
		Label       *string `json:"label"`
		TabLabel    *string `json:"tab_label"`
	}
	err := decodeObject(raw, &p)
	d.WorkspaceID, d.Label, d.TabLabel = p.WorkspaceID, p.Label, p.TabLabel
	return err
}

type paneMoveParams struct {
	PaneID      string      `json:"pane_id" need:"required"`
	Destination destination `json:"destination" need:"required"`
	Focus       bool        `json:"focus"`
}

// paneMove keeps the id within a workspace; to another one the pane gets a new
// id and the old one becomes an alias (reference §2).
func (c *core) paneMove(q *paneMoveParams) (any, error) {
	p, err := c.paneOrAlias(q.PaneID)
	if err != nil {
		return nil, err
	}
	from, fromWS, oldID := p.tab, p.tab.ws, p.id
	event := members{"previous_pane_id": oldID, "previous_workspace_id": fromWS.id, "previous_tab_id": from.id}
	to, beside, err := c.moveTarget(q, p, event)
	if err != nil {
		return nil, err
	}
	tabGone, wsGone := c.take(p)
	if tabGone {
		event["closed_tab_id"] = from.id
	}
	if wsGone {
		event["closed_workspace_id"] = fromWS.id
	}
	c.place(p, to, beside, q.Destination)
	if to.ws != fromWS {
		to.ws.lastPane++
		p.num, p.id = to.ws.lastPane, paneID(to.ws.id, to.ws.lastPane)
		c.aliases[oldID] = p
	}
	if q.Focus {
		c.focus(p)
	}
	if _, made := event["created_tab"]; made {
		event["created_tab"] = c.tabInfo(to)
	}
	if _, made := event["created_workspace"]; made {
		event["created_workspace"] = c.workspaceInfo(to.ws)
	}
	event["pane"] = c.paneInfo(p)
	c.emit("pane_moved", p.id, event)
	return typed("pane_move", "move_result", event), nil
}

// moveTarget finds or makes the tab that p goes to.
func (c *core) moveTarget(q *paneMoveParams, p *pane, event members) (to *tab, beside *pane, err error) {
	d := q.Destination
	switch d.Type {
	case "tab":
		if to, err = c.tab(d.TabID); err != nil {
			return nil, nil, err
		}
		beside = to.focus
		if d.Target != nil {
			if beside, err = c.paneOrAlias(*d.Target); err != nil || beside.tab != to {
				return nil, nil, refuse("target_pane_not_found", "pane %s is not in tab %s", *d.Target, to.id)
			}
		}
		if beside == p {
			return nil, nil, refuse("pane_move_failed", "pane %s cannot be moved beside itself", p.id)
		}
		return to, beside, nil
	case "new_tab":
		w := p.tab.ws
		if d.WorkspaceID != nil {
			if w, err = c.workspace(*d.WorkspaceID); err != nil {
				return nil, nil, err
			}
		}
		event["created_tab"] = nil
		return w.newTab(deref(d.Label)), nil, nil
	default:
		event["created_workspace"], event["created_tab"] = nil, nil
		return c.newWorkspace(deref(d.Label)).newTab(deref(d.TabLabel)), nil, nil
	}
}

func (c *core) place(p *pane, to *tab, beside *pane, d destination) {
	p.tab = to
	if to.root == nil {
		to.root, to.focus = &node{pane: p}, p
		return
	}
	ratio := 0.5
	if d.Ratio != nil {
		ratio = *d.Ratio
	}
	to.splits++
	to.root.split(beside, p, fmt.Sprintf("s%d", to.splits), string(d.Split), ratio)
}
