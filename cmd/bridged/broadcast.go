package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"fleetd/mcp"
)

func (a *app) broadcastCmd() *cobra.Command {
	var args mcp.BroadcastArgs
	var wait, expires seconds
	cmd := &cobra.Command{
		Use:   "broadcast [CONTENT|-]",
		Short: "Send a message to all members of a group",
		Long: `Send one message to all members of a group, on all hosts, and print how it
stands at each. Without --group it goes to every worker. Without CONTENT, or with
-, it is read from standard input (less its last newline).

Where some were not reached, the same call again with the same --key reaches only
those.`,
		GroupID: groupMessages,
		Args:    cobra.MaximumNArgs(1),
		RunE: verb(a, a.reading(&args.Content, 1), func(ctx context.Context, c client, _ []string) (mcp.BroadcastResult, error) {
			args.WaitSeconds, args.ExpiresInSeconds = int(wait), int(expires)
			return c.Broadcast(a.withReceipt(ctx), args)
		}, printSpread),
	}
	a.asFlag(cmd)
	cmd.Flags().StringVar(&args.Group, "group", "all", "the `GROUP`")
	cmd.Flags().Var(&wait, "wait", "wait so long until all have it")
	cmd.Flags().Var(&expires, "expires", "give up where it cannot be handed over by then (default 15m)")
	cmd.Flags().StringVar(&args.IdempotencyKey, "key", "", "idempotency `KEY`: the same call again sends it only to those who were not reached, for 24 h")
	return cmd
}

func printSpread(w *printer, r mcp.BroadcastResult) {
	trouble := ""
	if r.Error != nil {
		trouble = string(r.Error.Code) + ": " + forShell(r.Error.Message)
	}
	w.record("summary", r.Summary, "group", r.Group, "msg", r.MsgID, "trace", r.TraceID, "expires", r.Expires,
		"error", trouble, "held", count(r.Held), "note", forShell(r.Note))
	w.line("")
	rows := make([][]string, 0, len(r.Recipients))
	for _, one := range r.Recipients {
		rows = append(rows, []string{one.To, one.State, one.Reason})
	}
	w.table([]string{"recipient", "state", "reason"}, rows)
}

func (a *app) groupsCmd() *cobra.Command {
	var args mcp.GroupsArgs
	cmd := &cobra.Command{
		Use:     "groups NAME",
		Short:   "Show or change the groups of an agent or a main of this host",
		Long:    `Show the groups of an entity of this host, after it joined those of --join and left those of --leave. It gets what is broadcast to a group from then on.`,
		Example: "  bridged groups reviewer\n  bridged groups reviewer --join reviewers --leave drafts",
		GroupID: groupHost,
		Args:    cobra.ExactArgs(1),
		RunE: verb(a, nil, func(ctx context.Context, c client, pos []string) (mcp.GroupsResult, error) {
			args.Name = pos[0]
			return c.Groups(ctx, args)
		}, func(w *printer, r mcp.GroupsResult) {
			w.record("name", r.Name, "gid", r.GID, "groups", strings.Join(r.Groups, " "))
		}),
	}
	cmd.Flags().StringSliceVar(&args.Add, "join", nil, "a `GROUP` to join; can be repeated")
	cmd.Flags().StringSliceVar(&args.Remove, "leave", nil, "a `GROUP` to leave; can be repeated")
	return cmd
}
