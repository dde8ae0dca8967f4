package herdr

import (
	"context"
	"slices"
	"strings"

	"fleetd/fault"
)

// Identify looks up what a registration pins: the terminal and the agent kind
// of a pane. The id may be a stale one of a moved pane; the current one is
// returned. Errors are for the person who registers: fault.HerdrDown, or
// fault.BadRequest with the panes that exist.
func (c *Client) Identify(ctx context.Context, pane string) (Pane, error) {
	p, err := c.PaneGet(ctx, pane)
	switch {
	case hasCode(err, "pane_not_found"):
		return Pane{}, c.noSuchPane(ctx, pane)
	case err != nil:
		return Pane{}, AsFault(err)
	case p.Agent == "":
		return Pane{}, fault.New(fault.BadRequest, "herdr sees no agent in pane %s yet; start the agent there, wait until its prompt is drawn, and try again", p.PaneID)
	}
	return Pane{
		ID: p.PaneID, Terminal: p.TerminalID, Kind: p.Agent,
		Leader: c.leaderOf(ctx, p.PaneID, p.TerminalID),
	}, nil
}

func (c *Client) noSuchPane(ctx context.Context, pane string) error {
	panes, err := c.PaneList(ctx)
	if err != nil {
		return AsFault(err)
	}
	var with []string
	for _, p := range panes {
		if p.Agent == "" {
			continue
		}
		s := p.PaneID + " (" + p.Agent
		if p.Label != "" {
			s += ", " + oneLine(p.Label)
		}
		with = append(with, s+")")
	}
	if len(with) == 0 {
		return fault.New(fault.BadRequest, "herdr has no pane %s, and none of its %d panes holds an agent; start one first", oneLine(pane), len(panes))
	}
	slices.Sort(with)
	return fault.New(fault.BadRequest, "herdr has no pane %s; the panes with an agent are %s", oneLine(pane), strings.Join(with, ", "))
}
