package doctor

import (
	"context"
	"fmt"
	"strings"

	"fleetd/fabric/envelope"
	"fleetd/fabric/roster"
	"fleetd/herdr"
	"fleetd/mcp"
	"fleetd/store"
)

// cures are for what the roster says of an entity that gets no mail.
var cures = map[string]string{
	string(roster.Contested):   "another program consumes its inbox on the broker: stop it, a copy of this data_dir perhaps",
	string(roster.Mismatched):  "its inbox is on the broker with other arguments: delete that queue once it is empty (docs/upgrade.md)",
	string(roster.NoPane):      "once its agent runs: bridged register NAME --kind worker --pane PANE (in the pane: $HERDR_PANE_ID)",
	string(roster.PaneChanged): "another terminal or agent is in its pane: bridged register NAME --kind worker --pane PANE",

	string(envelope.Blocked):  "answer the dialog in its pane, or log the agent in",
	string(envelope.Draft):    "send or clear the text in its composer",
	string(envelope.Unsent):   "send or clear the text in its composer; its sender was told that it is in doubt",
	string(envelope.NotReady): "see its pane: the agent draws no idle prompt",
}

// entities looks for those of this host whose mail does not get through, and
// says whether one of them needs herdr.
func (p Patient) entities(ctx context.Context, r *report, host string) (panes bool) {
	ctx, cancel := context.WithTimeout(ctx, portWait)
	defer cancel()
	all, err := p.Daemon.Roster(ctx, mcp.RosterArgs{Host: host})
	if err != nil {
		r.fault("agents", err)
		return false
	}
	before, workers := len(*r), 0
	var main *mcp.RosterEntity // the default one
	for i, e := range all.Entities {
		if e.Name == p.Config.MCP.DefaultMain {
			main = &all.Entities[i]
		}
		if e.Kind == store.Worker {
			workers++
			panes = panes || e.Pane != ""
		}
		why := e.Status
		if cures[why] == "" {
			why, _, _ = strings.Cut(e.Refusing, " ") // and since when
		}
		if cures[why] == "" {
			continue
		}
		level, what := Warn, e.Status
		if e.Refusing != "" {
			what = e.Refusing
		}
		if why == string(roster.Contested) || why == string(roster.Mismatched) {
			level = Fail
		}
		r.add(level, "agents", fmt.Sprintf("mail for %s would wait: %s", e.Name, what), strings.ReplaceAll(cures[why], "NAME", e.Name))
	}
	switch name := p.Config.MCP.DefaultMain; {
	case name == "":
	case main == nil:
		r.add(Fail, "agents", fmt.Sprintf("mcp.default_main is %s, and nobody of that name is registered here: an MCP client without a token is refused", name),
			fmt.Sprintf("bridged register %s --kind main", name))
	case main.Kind == store.Worker:
		r.add(Fail, "agents", fmt.Sprintf("mcp.default_main is %s, and that is a worker: an MCP client without a token is refused", name),
			"set mcp.default_main to a main of this host; make one: bridged register NAME --kind main")
	}
	switch {
	case len(all.Entities) == 0:
		r.add(Warn, "agents", "nobody is registered on this host", "make a main: bridged register main --kind main")
	case len(*r) == before:
		r.add(OK, "agents", fmt.Sprintf("%d registered here, %d of them workers", len(all.Entities), workers), "")
	}
	return panes
}

// herdr asks the terminal multiplexer as the gateway does.
func (p Patient) herdr(ctx context.Context, r *report, needed bool) {
	level := Warn
	if needed {
		level = Fail
	}
	client := &herdr.Client{Socket: p.Config.Herdr.Socket, Timeout: portWait}
	pong, err := client.Ping(ctx)
	var panes []herdr.PaneInfo
	if err == nil {
		panes, err = client.PaneList(ctx) // unlike the ping it takes the way of all else
	}
	switch why := pong.Unfit(); {
	case err != nil:
		r.fault("herdr", herdr.AsFault(err))
		last := &(*r)[len(*r)-1]
		last.Level = level
		if !needed {
			last.Next += "; only workers need it, and none has a pane"
		}
	case why != "":
		what, next, _ := strings.Cut(why, "; ")
		r.add(level, "herdr", what, next)
	default:
		r.add(OK, "herdr", fmt.Sprintf("herdr %s answers at %s, protocol %d, %d panes", pong.Version, p.Config.Herdr.Socket, pong.Protocol, len(panes)), "")
	}
}
