package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/mcp"
)

func (a *app) sendCmd() *cobra.Command {
	var args mcp.SendArgs
	var wait, expires seconds
	cmd := &cobra.Command{
		Use:   "send TO [CONTENT|-]",
		Short: "Send a message to an agent or a main",
		Long: `Send a message. TO is a name, name@host, an id or a pane of this host. Without
CONTENT, or with -, it is read from standard input (less its last newline).

The state that is printed never claims more than was observed: injected is in
the agent's pane, deferred waits until the agent is free, queued waits in an
inbox, pending means that no reply came within --wait (it can be polled later).`,
		GroupID: groupMessages,
		Args:    cobra.RangeArgs(1, 2),
		RunE: verb(a, a.reading(&args.Content, 2), func(ctx context.Context, c client, pos []string) (mcp.SendResult, error) {
			args.To, args.WaitSeconds, args.ExpiresInSeconds = pos[0], int(wait), int(expires)
			return c.Send(a.withReceipt(ctx), args)
		}, printSent),
	}
	a.asFlag(cmd)
	cmd.Flags().Var(&wait, "wait", "wait so long for the reply")
	cmd.Flags().Var(&expires, "expires", "give up if it cannot be handed over by then (default 15m)")
	cmd.Flags().StringVar(&args.IdempotencyKey, "key", "", "idempotency `KEY`: the same call again sends nothing new for 24 h")
	cmd.Flags().BoolVar(&args.QueueIfOffline, "queue-if-offline", false, "leave it in the inbox if the recipient's host is offline")
	return cmd
}

func printSent(w *printer, r mcp.SendResult) {
	w.record("state", r.State, "to", r.To, "msg", r.MsgID, "trace", r.TraceID,
		"reason", r.Reason, "expires", r.Expires, "held", count(r.Held), "note", forShell(r.Note))
	for _, m := range []*mcp.Message{r.Reply, r.Question} {
		if m != nil {
			w.line("")
			printMessage(w, *m)
		}
	}
}

// printMessage is one piece of mail as a person reads it.
func printMessage(w *printer, m mcp.Message) {
	head := []string{m.Kind, "from " + m.From, "msg " + m.MsgID, "trace " + m.TraceID}
	if m.InReplyTo != "" {
		head = append(head, "in reply to "+m.InReplyTo)
	}
	if m.TurnID != "" {
		head = append(head, "turn "+m.TurnID)
	}
	if m.Reason != "" {
		head = append(head, "reason "+m.Reason)
	}
	if m.SentAt != "" {
		head = append(head, "sent "+m.SentAt)
	}
	if m.Redelivered {
		head = append(head, "redelivered")
	}
	w.line("-- %s", strings.Map(oneLine, strings.Join(head, " | ")))
	content := m.Content
	if m.Kind == string(envelope.Failed) || m.Kind == string(envelope.Abandoned) { // a notice of the gateway
		content = forShell(content)
	}
	for _, part := range []string{content, forShell(m.Note)} {
		if part != "" {
			w.content(part)
		}
	}
	if m.NextOffset > 0 {
		w.line("-- this is the beginning, %d of %d bytes; the whole: bridged read %s", m.NextOffset, m.Total, m.MsgID)
	}
}

func (a *app) pollCmd() *cobra.Command {
	var args mcp.PollArgs
	var wait seconds
	cmd := &cobra.Command{
		Use:   "poll",
		Short: "Take the mail that waits",
		Long: `Take the mail that waits. What was printed counts as read; it can be read again
for an hour with "bridged read".`,
		GroupID: groupMessages,
		Args:    cobra.NoArgs,
		RunE: verb(a, nil, func(ctx context.Context, c client, _ []string) (mcp.PollResult, error) {
			args.WaitSeconds = int(wait)
			return c.Poll(a.withReceipt(ctx), args)
		}, a.printPolled),
	}
	a.asFlag(cmd)
	cmd.Flags().StringVar(&args.From, "from", "", "only mail from this `ADDRESS`")
	cmd.Flags().Var(&wait, "wait", "wait so long for the first message")
	cmd.Flags().IntVar(&args.Max, "max", 0, "take at most `N` messages (default 20, at most 1000); fewer where they are long, some 6 KiB at once")
	return cmd
}

func (a *app) printPolled(w *printer, r mcp.PollResult) {
	for i, m := range r.Messages {
		if i > 0 {
			w.line("")
		}
		printMessage(w, m)
	}
	if len(r.Messages) == 0 {
		a.note("no mail")
	}
	if r.Remaining > 0 {
		a.note("%d more wait; poll again", r.Remaining)
	}
	if r.WindowFull {
		a.note("more may hide behind what is held; take mail of other senders first")
	}
	if r.Note != "" {
		a.note("%s", forShell(r.Note))
	}
}

func (a *app) readCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "read MSG_ID",
		Short:   "Print the whole content of a message",
		GroupID: groupMessages,
		Args:    cobra.ExactArgs(1),
		RunE: verb(a, nil, func(ctx context.Context, c client, pos []string) (mcp.ReadResult, error) {
			whole := mcp.ReadResult{}
			for offset := 0; ; {
				r, err := c.Read(ctx, mcp.ReadArgs{MsgID: pos[0], Offset: offset})
				if err != nil {
					return whole, err
				}
				content := whole.Content + r.Content
				whole = r
				whole.Content, whole.Offset, whole.NextOffset = content, 0, 0
				if r.NextOffset == 0 {
					return whole, nil
				}
				if r.NextOffset <= offset {
					return whole, fault.New(fault.Internal, "the daemon gave the same part of %s twice; report this", pos[0])
				}
				offset = r.NextOffset
			}
		}, func(w *printer, r mcp.ReadResult) { w.content(r.Content) }),
	}
	a.asFlag(cmd)
	return cmd
}

func (a *app) replyCmd() *cobra.Command {
	var args mcp.ReplyArgs
	cmd := &cobra.Command{
		Use:   "reply [CONTENT|-]",
		Short: "Answer a brief",
		Long: `Answer the one brief that is open, or the one that --to-msg names. Without
CONTENT, or with -, it is read from standard input (less its last newline).`,
		GroupID: groupMessages,
		Args:    cobra.MaximumNArgs(1),
		RunE: verb(a, a.reading(&args.Content, 1), func(ctx context.Context, c client, _ []string) (mcp.ReplyResult, error) {
			return c.Reply(ctx, args)
		}, func(w *printer, r mcp.ReplyResult) {
			w.record("state", r.State, "to", r.To, "msg", r.MsgID, "trace", r.TraceID,
				"in reply to", r.InReplyTo, "held", count(r.Held))
		}),
	}
	a.asFlag(cmd)
	cmd.Flags().StringVar(&args.InReplyTo, "to-msg", "", "`ID` of the brief, where several are open")
	cmd.Flags().StringVar(&args.IdempotencyKey, "key", "", "idempotency `KEY`: the same call again sends nothing new for 24 h")
	return cmd
}

func last(s []string) string {
	if len(s) == 0 {
		return ""
	}
	return s[len(s)-1]
}

// ago is an age in seconds for people.
func ago(s float64) string { return fmt.Sprintf("%.0fs", s) }
