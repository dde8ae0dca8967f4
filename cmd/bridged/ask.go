package main

import (
	"context"

	"github.com/spf13/cobra"

	"fleetd/mcp"
)

func (a *app) askCmd() *cobra.Command {
	var args mcp.AskArgs
	timeout := seconds(0)
	cmd := &cobra.Command{
		Use:   "ask [QUESTION|-]",
		Short: "Ask the sender of the open brief, and wait for the answer",
		Long: `Ask the one who sent the brief that is open, or the one that --to names, and
print the answer. He has to be listening: in a send, an answer or a poll that
waits. Otherwise it fails at once with NO_WAITER; nothing is stored. Without
QUESTION, or with -, it is read from standard input (less its last newline).`,
		GroupID: groupMessages,
		Args:    cobra.MaximumNArgs(1),
		RunE: verb(a, a.reading(&args.Question, 1), func(ctx context.Context, c client, _ []string) (mcp.AskResult, error) {
			args.TimeoutSeconds = int(timeout)
			return c.Ask(a.withReceipt(ctx), args)
		}, func(w *printer, r mcp.AskResult) { w.content(r.Answer) }),
	}
	a.asFlag(cmd)
	cmd.Flags().StringVar(&args.To, "to", "", "ask this `ADDRESS`, where it is not the sender of the one open brief")
	cmd.Flags().Var(&timeout, "timeout", "give up without an answer after so long (default 2m, at most 4m)")
	return cmd
}

func (a *app) answerCmd() *cobra.Command {
	var args mcp.AnswerArgs
	var wait seconds
	cmd := &cobra.Command{
		Use:   "answer TURN_ID [CONTENT|-]",
		Short: "Answer a question of an agent",
		Long: `Answer a question that a send or a poll returned with a turn id; the agent is
blocked until then. An answer that comes too late is delivered nowhere and fails
with TOO_LATE. Without CONTENT, or with -, it is read from standard input (less
its last newline).`,
		GroupID: groupMessages,
		Args:    cobra.RangeArgs(1, 2),
		RunE: verb(a, a.reading(&args.Content, 2), func(ctx context.Context, c client, pos []string) (mcp.SendResult, error) {
			args.TurnID, args.WaitSeconds = pos[0], int(wait)
			return c.Answer(a.withReceipt(ctx), args)
		}, printSent),
	}
	a.asFlag(cmd)
	cmd.Flags().Var(&wait, "wait", "then wait so long for the reply")
	return cmd
}
