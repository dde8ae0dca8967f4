package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"fleetd/cmd/bridged/config"
	"fleetd/mcp"
)

func (a *app) spawnCmd() *cobra.Command {
	var args mcp.SpawnArgs
	task, timeout := "", seconds(0)
	cmd := &cobra.Command{
		Use:   "spawn PROFILE",
		Short: "Start an agent, here or on another host",
		Long: `Start an agent of a named profile of the host where it is to live, and wait until
it takes input. Whether another host may be asked is its policy (control.allow),
and which profiles it offers to others (remote: true).

A launch that fails leaves nothing behind. After SPAWN_TIMEOUT the same call with
--key, as the error names it, starts nothing twice.`,
		Example: "  bridged spawn reviewer --as lead\n  bridged spawn reviewer --host hostb --name rev-2 --task 'review parser.go' --as lead",
		GroupID: groupFleet,
		Args:    cobra.ExactArgs(1),
		RunE: verb(a, func(cmd *cobra.Command, pos []string, cfg config.Config) (err error) {
			if cmd.Flags().Changed("task") {
				if task, err = a.content(task, true, cfg.Limits.ContentBytes); err != nil {
					return err
				}
				args.Task = &task
			}
			args.Profile, args.TimeoutSeconds = pos[0], int(timeout)
			return nil
		}, func(ctx context.Context, c client, _ []string) (mcp.SpawnResult, error) {
			return c.Spawn(ctx, args)
		}, func(w *printer, r mcp.SpawnResult) {
			w.record("state", r.State, "address", r.Address, "gid", r.GID, "groups", strings.Join(r.Groups, ","),
				"task", r.MsgID, "trace", r.TraceID, "held", count(r.Held), "note", forShell(r.Note))
		}),
	}
	a.asFlag(cmd)
	cmd.Flags().StringVar(&args.Host, "host", "", "the `HOST` where it is to live (default: this one)")
	cmd.Flags().StringVar(&args.Name, "name", "", "its `NAME` (default: the profile's, with a number where that is taken)")
	cmd.Flags().StringSliceVar(&args.Groups, "group", nil, "a `GROUP` that it belongs to, beside those of the profile; can be repeated")
	cmd.Flags().StringVar(&task, "task", "", "send it this `TEXT` once it is ready; - reads it from standard input")
	cmd.Flags().Var(&timeout, "timeout", "wait so long for it (default 90s, at most 4m)")
	cmd.Flags().StringVar(&args.IdempotencyKey, "key", "", "idempotency `KEY`: the same call again starts nothing new for 24 h")
	return cmd
}

func (a *app) stopCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "stop TARGET",
		Short: "End a worker, here or on another host",
		Long: `End a worker for good: its pane is closed, whoever waits for it is told, its inbox
is emptied and removed. TARGET is a name, name@host, an id or a pane of this host.
A main ends with its client; its entity with "bridged unregister".`,
		GroupID: groupFleet,
		Args:    cobra.ExactArgs(1),
		RunE: verb(a, nil, func(ctx context.Context, c client, pos []string) (mcp.StopResult, error) {
			return c.Stop(ctx, mcp.StopArgs{Target: pos[0]})
		}, func(w *printer, r mcp.StopResult) {
			w.record("state", r.State, "target", r.Target, "gid", r.GID, "held", count(r.Held), "note", forShell(r.Note))
		}),
	}
	a.asFlag(cmd)
	return cmd
}
