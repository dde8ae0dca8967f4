package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"fleetd/fault"
	"fleetd/mcp"
)

func (a *app) dlqCmd() *cobra.Command {
	return a.group(&cobra.Command{
		Use:   "dlq",
		Short: "See, redeliver and purge messages that died unread",
		Long: `Messages that no recipient took lie on the broker as dead letters, those of all
hosts together, for 14 days. Looking at them changes nothing: each goes back to
its place. What another host looks at in the same moment is not shown.`,
		GroupID: groupFleet,
	}, a.dlqListCmd(), a.dlqShowCmd(), a.dlqRedeliverCmd(), a.dlqPurgeCmd())
}

// pick are the flags that pick several letters.
type pick struct {
	reason, queue string
	age           seconds
	all           bool
}

func (p *pick) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&p.reason, "reason", "", "only those that died for this `REASON`: expired, rejected, maxlen")
	cmd.Flags().StringVar(&p.queue, "queue", "", "only those that died in this `QUEUE`, or in the inbox of this id")
	cmd.Flags().Var(&p.age, "older-than", "only those that died longer ago than this")
}

// several adds --all, for commands that change something.
func (p *pick) several(cmd *cobra.Command) {
	p.flags(cmd)
	cmd.Flags().BoolVar(&p.all, "all", false, "all letters, or all that the other flags pick")
}

// check insists on one letter or several, said expressly.
func (p *pick) check(pos []string) (msgID string, err error) {
	several := p.reason != "" || p.queue != "" || p.age != 0 || p.all
	switch {
	case len(pos) == 0 && !several:
		return "", usagef("name a letter (bridged dlq list shows them), or say which: --reason, --queue, --older-than or --all")
	case len(pos) == 1 && several:
		return "", usagef("name one letter, or pick several with flags, not both")
	}
	return last(pos), nil
}

func (a *app) dlqListCmd() *cobra.Command {
	var p pick
	var limit int
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List dead letters, the oldest first",
		Long: `List dead letters, the oldest first. Reason, queue and time are what the broker
says, or whoever forged the letter: a hint. Only a letter with a signer is
what it says; the others are shown as they are.`,
		Args: cobra.NoArgs,
		RunE: verb(a, nil, func(ctx context.Context, c client, _ []string) (mcp.ListDeadLettersResult, error) {
			return c.ListDeadLetters(ctx, mcp.ListDeadLettersArgs{
				Reason: p.reason, Queue: p.queue, OlderThanSeconds: int(p.age), Limit: limit,
			})
		}, a.printLetters),
	}
	p.flags(cmd)
	cmd.Flags().IntVar(&limit, "limit", 0, "list at most `N` letters (default 100)")
	return cmd
}

func (a *app) printLetters(w *printer, r mcp.ListDeadLettersResult) {
	if len(r.Letters) == 0 {
		a.note("no dead letters%s", map[bool]string{true: fmt.Sprintf(" of this sort; there are %d others", r.Total)}[r.Total > 0])
	} else {
		rows := make([][]string, len(r.Letters))
		for i, l := range r.Letters {
			rows[i] = []string{l.MsgID, l.Kind, l.From, l.To, l.Reason, l.Queue, l.DiedAt, fmt.Sprint(l.Bytes), l.TraceID, signedBy(l)}
		}
		w.table([]string{"msg", "kind", "from", "to", "reason", "queue", "died", "bytes", "trace", "signer"}, rows)
	}
	if r.Note != "" {
		a.note("%s", forShell(r.Note))
	}
}

func signedBy(l mcp.DeadLetter) string {
	switch {
	case !l.Verified:
		return "not verified: " + l.Problem
	case l.Own:
		return l.Signer + " (this host)"
	}
	return l.Signer
}

func (a *app) dlqShowCmd() *cobra.Command {
	var args mcp.ShowDeadLetterArgs
	cmd := &cobra.Command{
		Use:   "show MSG_ID",
		Short: "Show what is known of one dead letter",
		Long: `Show what is known of one dead letter, what it says only with --body. Several
are shown if a message died more than once, or if somebody forged its id.`,
		Args: cobra.ExactArgs(1),
		RunE: verb(a, nil, func(ctx context.Context, c client, pos []string) (mcp.ShowDeadLetterResult, error) {
			args.MsgID = pos[0]
			return c.ShowDeadLetter(ctx, args)
		}, func(w *printer, r mcp.ShowDeadLetterResult) {
			for i, l := range r.Letters {
				if i > 0 {
					w.line("")
				}
				printLetter(w, l, args.Body)
			}
		}),
	}
	cmd.Flags().BoolVar(&args.Body, "body", false, "show what it says, too")
	return cmd
}

func printLetter(w *printer, d mcp.DeadLetterDetail, body bool) {
	l := d.Letter
	expires := l.ExpiresAt
	if l.Expired {
		expires += " (over)"
	}
	w.record("msg", l.MsgID, "kind", l.Kind, "from", named(l.From, l.FromID), "to", named(l.To, l.ToID), "trace", l.TraceID,
		"sent", l.SentAt, "expires", expires, "signer", signedBy(l), "problem", d.Detail,
		"routing key", d.RoutingKey, "bytes", fmt.Sprint(l.Bytes), "other headers", strings.Join(d.OtherHeaders, ", "))
	var headers [][]string
	for _, name := range slices.Sorted(maps.Keys(d.Headers)) {
		headers = append(headers, []string{name, d.Headers[name]})
	}
	if len(headers) > 0 {
		w.line("")
		w.table([]string{"header", "value"}, headers)
	}
	if len(d.Deaths) > 0 {
		rows := make([][]string, len(d.Deaths))
		for i, x := range d.Deaths {
			rows[i] = []string{x.At, x.Reason, x.Queue, fmt.Sprint(x.Count)}
		}
		w.line("")
		w.table([]string{"died", "reason", "queue", "times"}, rows)
	}
	if body {
		w.line("")
		w.content(d.Body + string(d.BodyBase64))
		if d.BodyCut {
			w.line("-- this is the beginning; the whole has %d bytes", l.Bytes)
		}
	}
}

// named is a name with the id behind it, where there are both.
func named(name, id string) string {
	if name == id {
		return id
	}
	return name + " (" + id + ")"
}

func (a *app) dlqRedeliverCmd() *cobra.Command {
	var p pick
	var args mcp.RedeliverDeadLettersArgs
	cmd := &cobra.Command{
		Use:   "redeliver [MSG_ID]",
		Short: "Deliver dead letters again",
		Long: `Publish a dead letter once more as it was, or all that --all, --reason, --queue
or --older-than pick: same id, same signature. A recipient that has it already
drops it. It leaves the dead letters when the broker has stored it again; one
that has expired, is older than 8 days, cannot be verified or that nobody takes
stays, and the table says why.

With --anew, expired briefs that this host signed are sent as new messages,
unless their recipient may have been given them.`,
		Args: cobra.MaximumNArgs(1),
		RunE: a.run(func(cmd *cobra.Command, pos []string) error {
			msgID, err := p.check(pos)
			if err != nil {
				return err
			}
			if args.QueueIfOffline && !args.Anew {
				return usagef("--queue-if-offline goes with --anew: a letter that leaves as it was is queued whoever is there")
			}
			c, _, err := a.dial(cmd)
			if err != nil {
				return err
			}
			args.MsgID, args.Reason, args.Queue, args.OlderThanSeconds, args.All = msgID, p.reason, p.queue, int(p.age), p.all
			r, err := c.RedeliverDeadLetters(a.signals(cmd.Context()), args)
			if err != nil {
				return err
			}
			if err := a.emit(r, func(w *printer) { a.printRedelivered(w, r) }); err != nil {
				return err
			}
			return undelivered(r)
		}),
	}
	p.several(cmd)
	cmd.Flags().BoolVar(&args.Anew, "anew", false, "send expired briefs of this host as new messages")
	cmd.Flags().BoolVar(&args.QueueIfOffline, "queue-if-offline", false, "with --anew: leave it in the inbox if the recipient's host is offline")
	return cmd
}

func (a *app) printRedelivered(w *printer, r mcp.RedeliverDeadLettersResult) {
	if len(r.Letters) == 0 {
		a.note("no such dead letters")
		return
	}
	rows := make([][]string, len(r.Letters))
	for i, l := range r.Letters {
		rows[i] = []string{l.MsgID, l.To, l.State, l.NewMsgID, string(l.Code), l.Detail, l.TraceID}
	}
	w.table([]string{"msg", "to", "state", "new msg", "code", "why", "trace"}, rows)
}

// undelivered is the failure of a command that left letters where they were.
// One letter's own code says more than ours for several.
func undelivered(r mcp.RedeliverDeadLettersResult) error {
	switch {
	case r.Note != "":
		return fault.New(fault.Unconfirmed, "%d redelivered, %d stay: %s", r.Redelivered, r.Stay, r.Note)
	case r.Stay == 1 && r.Redelivered == 0:
		l := r.Letters[0]
		return fault.New(l.Code, "%s: %s", l.MsgID, l.Detail)
	case r.Stay > 0:
		return fault.New(fault.Refused, "%d of %d letters stay; the table says why", r.Stay, len(r.Letters))
	}
	return nil
}

func (a *app) dlqPurgeCmd() *cobra.Command {
	var p pick
	cmd := &cobra.Command{
		Use:   "purge [MSG_ID]",
		Short: "Delete dead letters for good",
		Long: `Delete one dead letter, or all that --all, --reason, --queue or --older-than
pick ("bridged dlq list" with the same flags shows them first). All others stay
in their order.`,
		Args: cobra.MaximumNArgs(1),
		RunE: a.run(func(cmd *cobra.Command, pos []string) error {
			msgID, err := p.check(pos)
			if err != nil {
				return err
			}
			c, _, err := a.dial(cmd)
			if err != nil {
				return err
			}
			r, err := c.PurgeDeadLetters(a.signals(cmd.Context()), mcp.PurgeDeadLettersArgs{
				MsgID: msgID, Reason: p.reason, Queue: p.queue, OlderThanSeconds: int(p.age), All: p.all,
			})
			if err != nil {
				return err
			}
			if err := a.emit(r, func(w *printer) { w.record("purged", fmt.Sprint(r.Purged), "stay", fmt.Sprint(r.Stay)) }); err != nil {
				return err
			}
			if r.Note != "" {
				return fault.New(fault.Unconfirmed, "%s", r.Note)
			}
			return nil
		}),
	}
	p.several(cmd)
	return cmd
}
