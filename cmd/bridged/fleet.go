package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"fleetd/cmd/bridged/config"
	"fleetd/mcp"
)

func (a *app) rosterCmd() *cobra.Command {
	var args mcp.RosterArgs
	cmd := &cobra.Command{
		Use:     "roster",
		Short:   "List hosts, agents and mains",
		GroupID: groupFleet,
		Args:    cobra.NoArgs,
		RunE: verb(a, func(*cobra.Command, []string, config.Config) error {
			if args.Kind == "" {
				return nil
			}
			return checkKind(args.Kind)
		}, func(ctx context.Context, c client, _ []string) (mcp.RosterResult, error) {
			return c.Roster(ctx, args)
		}, a.printRoster),
	}
	a.asFlag(cmd)
	cmd.Flags().StringVar(&args.Host, "host", "", "only this `HOST`")
	kindFlag(cmd, &args.Kind, "only this `KIND`: worker, main or orchestrator")
	cmd.Flags().StringVar(&args.Group, "group", "", "only members of this `GROUP`")
	cmd.Flags().StringVar(&args.Status, "status", "", "only with this `STATUS`: idle, working, blocked …")
	return cmd
}

func (a *app) printRoster(w *printer, r mcp.RosterResult) {
	broker := r.Broker
	if r.Reason != "" {
		broker += " (" + r.Reason + ")"
	}
	view := "" // of this host alone, it is always new
	if r.Broker != "none" {
		view = ago(r.ViewAge) + " old"
	}
	w.record("host", r.Self, "broker", broker, "view", view, "held", count(r.Held))
	if len(r.Hosts) > 0 {
		rows := make([][]string, len(r.Hosts))
		for i, h := range r.Hosts {
			rows[i] = []string{h.Host, h.State, ago(h.AgeSeconds), fmt.Sprint(h.Entities), strings.Join(h.Profiles, ","), h.Note}
		}
		w.line("")
		w.table([]string{"host", "state", "age", "entities", "profiles", "note"}, rows)
	}
	if len(r.Entities) == 0 {
		a.note("no agents or mains")
	} else {
		rows := make([][]string, len(r.Entities))
		for i, e := range r.Entities {
			rows[i] = []string{
				e.Name + "@" + e.Host, string(e.Kind), e.Status, e.Since, strings.Join(e.Groups, ","), e.Pane, e.GID, e.Refusing,
			}
		}
		w.line("")
		w.table([]string{"address", "kind", "status", "since", "groups", "pane", "gid", "refusing"}, rows)
	}
	if r.Note != "" {
		a.note("%s", forShell(r.Note))
	}
}

func (a *app) traceCmd() *cobra.Command {
	var fleet bool
	cmd := &cobra.Command{
		Use:     "trace TRACE_ID",
		Short:   "Show the steps of a message on this host, or on all",
		GroupID: groupFleet,
		Args:    cobra.ExactArgs(1),
		RunE: verb(a, nil, func(ctx context.Context, c client, pos []string) (mcp.TraceResult, error) {
			return c.Trace(ctx, mcp.TraceArgs{TraceID: pos[0], Fleet: fleet})
		}, a.printTrace),
	}
	a.asFlag(cmd)
	cmd.Flags().BoolVar(&fleet, "fleet", false, "ask every other host that can be reached, too")
	return cmd
}

func (a *app) printTrace(w *printer, r mcp.TraceResult) {
	if len(r.Hops) > 0 {
		rows := make([][]string, len(r.Hops))
		for i, h := range r.Hops {
			rows[i] = []string{h.At, h.Host, h.Step, h.Kind, h.MsgID, h.Entity, h.Peer, h.Outcome, h.Reason}
		}
		w.table([]string{"at", "host", "step", "kind", "msg", "entity", "peer", "outcome", "reason"}, rows)
	}
	if r.Note != "" {
		a.note("%s", forShell(r.Note))
	}
}

func (a *app) whoamiCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "whoami",
		Short:   "Show for whom the daemon takes the caller, and what waits",
		GroupID: groupFleet,
		Args:    cobra.NoArgs,
		RunE: verb(a, nil, func(ctx context.Context, c client, _ []string) (mcp.WhoamiResult, error) {
			return c.Whoami(ctx)
		}, a.printWhoami),
	}
	a.asFlag(cmd)
	return cmd
}

func (a *app) printWhoami(w *printer, r mcp.WhoamiResult) {
	w.record("name", r.Name+"@"+r.Host, "gid", r.GID, "kind", string(r.Kind), "pane", r.Pane,
		"groups", strings.Join(r.Groups, ","), "held", fmt.Sprint(r.Held))
	if len(r.OpenBriefs) > 0 {
		rows := make([][]string, len(r.OpenBriefs))
		for i, b := range r.OpenBriefs {
			rows[i] = []string{b.MsgID, b.From, b.At, count(b.Bytes)}
		}
		w.line("")
		w.table([]string{"open brief", "from", "at", "bytes to read"}, rows)
	}
	if len(r.Drained) > 0 {
		rows := make([][]string, len(r.Drained))
		for i, d := range r.Drained {
			rows[i] = []string{d.MsgID, d.From, d.At}
		}
		w.line("")
		w.table([]string{"read lately", "from", "at"}, rows)
	}
	if r.Note != "" {
		a.note("%s", forShell(r.Note))
	}
}
