package api

import (
	"context"

	"fleetd/mcp"
)

var _ mcp.DeadLetters = (*Client)(nil)

// ListDeadLetters implements mcp.DeadLetters; it is asked as the host's own
// user, as all of these.
func (c *Client) ListDeadLetters(ctx context.Context, a mcp.ListDeadLettersArgs) (mcp.ListDeadLettersResult, error) {
	return call[mcp.ListDeadLettersResult](ctx, c, deadLetters("dlq_list", a))
}

// ShowDeadLetter implements mcp.DeadLetters.
func (c *Client) ShowDeadLetter(ctx context.Context, a mcp.ShowDeadLetterArgs) (mcp.ShowDeadLetterResult, error) {
	return call[mcp.ShowDeadLetterResult](ctx, c, deadLetters("dlq_show", a))
}

// RedeliverDeadLetters implements mcp.DeadLetters.
func (c *Client) RedeliverDeadLetters(ctx context.Context, a mcp.RedeliverDeadLettersArgs) (mcp.RedeliverDeadLettersResult, error) {
	return call[mcp.RedeliverDeadLettersResult](ctx, c, deadLetters("dlq_redeliver", a))
}

// PurgeDeadLetters implements mcp.DeadLetters.
func (c *Client) PurgeDeadLetters(ctx context.Context, a mcp.PurgeDeadLettersArgs) (mcp.PurgeDeadLettersResult, error) {
	return call[mcp.PurgeDeadLettersResult](ctx, c, deadLetters("dlq_purge", a))
}

// deadLetters is a request that may be repeated: a letter is redelivered under
// its own id or sent anew under one key, and what is purged is gone.
func deadLetters(verb string, args any) request {
	return request{
		verb: verb, wait: mcp.DeadLettersSeconds, repeatable: true, admin: true,
		args: func(int) any { return args },
	}
}
