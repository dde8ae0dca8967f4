// Package api is the client of a running daemon: it asks over the unix socket
// what mcp.Gateway and mcp.Admin offer, for the command line and for
// `bridged mcp`. It knows the REST paths and nothing of what is behind them.
package api

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"fleetd/fault"
	"fleetd/mcp"

	"github.com/cenkalti/backoff/v5"
)

// ErrNotRunning is the cause of the fault a call ends with while no daemon
// listens.
var ErrNotRunning = errors.New("bridged is not running")

const (
	// margin is how much longer than its wait a call may take: a send alone may
	// need 15 s for confirm and outcome (design §5).
	margin        = 30 * time.Second
	confirmWithin = 5 * time.Second
	retryPause    = 200 * time.Millisecond
	maxResponse   = 16 << 20
)

// Client asks the daemon behind Socket. Every call dials anew, so a restart of
// the daemon in between is not seen. Set the fields before the first call.
type Client struct {
	Socket string
	Token  string // the entity's token; "": the host's own user
	As     string // the entity that the host's own user speaks for: name or gid
	// Retry is how long a call goes on trying while no daemon listens. 0: not at
	// all, for a person at a shell; the stdio bridge sets it, so that an agent
	// does not see a restart.
	Retry time.Duration
	Now   func() time.Time // nil: time.Now

	server func(net.Conn) error // says who must be told nothing; nil: mcp.CheckServer

	once sync.Once
	http *http.Client
}

var (
	_ mcp.Gateway = (*Client)(nil)
	_ mcp.Admin   = (*Client)(nil)
)

// Send implements mcp.Gateway. It is repeated after a broken connection only
// under an idempotency key.
func (c *Client) Send(ctx context.Context, a mcp.SendArgs) (mcp.SendResult, error) {
	return call[mcp.SendResult](ctx, c, request{
		verb: "send", wait: a.WaitSeconds, repeatable: a.IdempotencyKey != "",
		args: func(left int) any { a.WaitSeconds = left; return a },
	})
}

// Read implements mcp.Gateway.
func (c *Client) Read(ctx context.Context, a mcp.ReadArgs) (mcp.ReadResult, error) {
	return call[mcp.ReadResult](ctx, c, question("read", a))
}

// Poll implements mcp.Gateway.
func (c *Client) Poll(ctx context.Context, a mcp.PollArgs) (mcp.PollResult, error) {
	return call[mcp.PollResult](ctx, c, request{
		verb: "poll", wait: a.WaitSeconds, repeatable: true,
		args: func(left int) any { a.WaitSeconds = left; return a },
	})
}

// Reply implements mcp.Gateway. It is repeated like Send.
func (c *Client) Reply(ctx context.Context, a mcp.ReplyArgs) (mcp.ReplyResult, error) {
	return call[mcp.ReplyResult](ctx, c, request{
		verb: "reply", repeatable: a.IdempotencyKey != "", args: func(int) any { return a },
	})
}

// Ask implements mcp.Gateway. It is never repeated: a question is asked once.
func (c *Client) Ask(ctx context.Context, a mcp.AskArgs) (mcp.AskResult, error) {
	wait := cmp.Or(a.TimeoutSeconds, mcp.MaxWaitSeconds)
	return call[mcp.AskResult](ctx, c, request{verb: "ask", wait: wait, args: func(int) any { return a }})
}

// Answer implements mcp.Gateway. It is never repeated: a turn takes one answer.
func (c *Client) Answer(ctx context.Context, a mcp.AnswerArgs) (mcp.SendResult, error) {
	return call[mcp.SendResult](ctx, c, request{
		verb: "answer", wait: a.WaitSeconds, args: func(left int) any { a.WaitSeconds = left; return a },
	})
}

// Broadcast implements mcp.Gateway. It is repeated like Send.
func (c *Client) Broadcast(ctx context.Context, a mcp.BroadcastArgs) (mcp.BroadcastResult, error) {
	return call[mcp.BroadcastResult](ctx, c, request{
		verb: "broadcast", wait: a.WaitSeconds, repeatable: a.IdempotencyKey != "",
		args: func(left int) any { a.WaitSeconds = left; return a },
	})
}

// Spawn implements mcp.Gateway. It is repeated like Send.
func (c *Client) Spawn(ctx context.Context, a mcp.SpawnArgs) (mcp.SpawnResult, error) {
	wait := cmp.Or(a.TimeoutSeconds, 90)
	return call[mcp.SpawnResult](ctx, c, request{
		verb: "spawn", wait: wait, repeatable: a.IdempotencyKey != "",
		args: func(left int) any { a.TimeoutSeconds = max(left, 1); return a },
	})
}

// Stop implements mcp.Gateway.
func (c *Client) Stop(ctx context.Context, a mcp.StopArgs) (mcp.StopResult, error) {
	return call[mcp.StopResult](ctx, c, request{verb: "stop", wait: 60, repeatable: true, args: func(int) any { return a }})
}

// Roster implements mcp.Gateway.
func (c *Client) Roster(ctx context.Context, a mcp.RosterArgs) (mcp.RosterResult, error) {
	return call[mcp.RosterResult](ctx, c, question("roster", a))
}

// Trace implements mcp.Gateway.
func (c *Client) Trace(ctx context.Context, a mcp.TraceArgs) (mcp.TraceResult, error) {
	return call[mcp.TraceResult](ctx, c, question("trace", a))
}

// Whoami implements mcp.Gateway.
func (c *Client) Whoami(ctx context.Context) (mcp.WhoamiResult, error) {
	return call[mcp.WhoamiResult](ctx, c, question("whoami", struct{}{}))
}

// Register implements mcp.Admin; it is asked as the host's own user.
func (c *Client) Register(ctx context.Context, a mcp.RegisterArgs) (mcp.RegisterResult, error) {
	return call[mcp.RegisterResult](ctx, c, request{verb: "register", admin: true, args: func(int) any { return a }})
}

// Unregister implements mcp.Admin; it is asked as the host's own user.
func (c *Client) Unregister(ctx context.Context, a mcp.UnregisterArgs) (mcp.UnregisterResult, error) {
	return call[mcp.UnregisterResult](ctx, c, request{verb: "unregister", wait: 30, admin: true, args: func(int) any { return a }})
}

// Groups implements mcp.Admin; it is asked as the host's own user.
func (c *Client) Groups(ctx context.Context, a mcp.GroupsArgs) (mcp.GroupsResult, error) {
	return call[mcp.GroupsResult](ctx, c, request{verb: "groups", admin: true, args: func(int) any { return a }})
}

// Info implements mcp.Admin; it is asked as the host's own user.
func (c *Client) Info(ctx context.Context) (mcp.InfoResult, error) {
	return call[mcp.InfoResult](ctx, c, request{verb: "info", repeatable: true, admin: true, args: func(int) any { return struct{}{} }})
}

// request is one call, before it is known how often it has to be tried.
type request struct {
	verb       string
	wait       int // seconds
	repeatable bool
	admin      bool
	args       func(waitLeft int) any
}

func question(verb string, args any) request {
	return request{verb: verb, repeatable: true, args: func(int) any { return args }}
}

// call asks, and asks again for some time where that can do no harm: when
// nothing was sent yet, or when the request may be repeated.
func call[R any](ctx context.Context, c *Client, req request) (R, error) {
	c.once.Do(c.init)
	ctx, cancel := context.WithTimeout(ctx, time.Duration(req.wait)*time.Second+c.Retry+margin)
	defer cancel()
	begun := c.Now()
	var away time.Time // since when the daemon is
	ask := func() (R, error) {
		left := max(0, req.wait-int(c.Now().Sub(begun).Seconds()))
		out, err := exchange[R](ctx, c, req, left)
		if err == nil || !errors.Is(err, errAway) {
			return out, backoff.Permanent(err)
		}
		if _, sent := errors.AsType[*brokenError](err); sent && !req.repeatable {
			return out, backoff.Permanent(err)
		}
		if away.IsZero() {
			away = c.Now()
		}
		if c.Now().Sub(away) >= c.Retry {
			return out, backoff.Permanent(err)
		}
		return out, err
	}
	out, err := backoff.Retry(ctx, ask, backoff.WithBackOff(backoff.NewConstantBackOff(retryPause)), backoff.WithMaxElapsedTime(0))
	if err != nil {
		return out, c.faultOf(err, req)
	}
	return out, nil
}

// errAway says that the daemon is away: not there, or gone during the call.
var errAway = errors.New("the daemon is away")

// brokenError is a connection that broke after the request may have been read.
type brokenError struct{ cause error }

func (e *brokenError) Error() string        { return e.cause.Error() }
func (e *brokenError) Unwrap() error        { return e.cause }
func (e *brokenError) Is(target error) bool { return target == errAway }

// downError is a connection that was never made.
type downError struct{ cause error }

func (e *downError) Error() string { return e.cause.Error() }
func (e *downError) Unwrap() error { return e.cause }
func (e *downError) Is(target error) bool {
	return target == errAway || target == ErrNotRunning
}

// classify tells what became of a request that got no response.
func classify(err error) error {
	if f, ok := errors.AsType[*fault.Error](err); ok {
		return f // of who serves the socket: nothing was sent
	}
	op, ok := errors.AsType[*net.OpError](err)
	if !ok || op.Op != "dial" {
		return &brokenError{err}
	}
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) {
		return &downError{err}
	}
	return err
}

// faultOf says in words what a call failed with.
func (c *Client) faultOf(err error, req request) error {
	if f, ok := errors.AsType[*fault.Error](err); ok {
		return f
	}
	switch broken, sent := errors.AsType[*brokenError](err); {
	case errors.Is(err, context.Canceled):
		return fault.Wrap(err, fault.Internal, "the call was cancelled; what the daemon had accepted by then stays accepted.")
	case errors.Is(err, ErrNotRunning):
		return fault.Wrap(err, fault.Internal, "bridged is not running on this host (socket %s): start it with `bridged serve`.", c.Socket)
	case errors.Is(err, syscall.EACCES):
		return fault.Wrap(err, fault.NotAuthenticated, "the socket %s belongs to another user's daemon.", c.Socket)
	case errors.Is(err, context.DeadlineExceeded) && !req.repeatable:
		return fault.Wrap(err, fault.InDoubt, "the daemon did not answer in time; the request may have been accepted. Do not send it again: look with bridge_whoami and bridge_poll.")
	case errors.Is(err, context.DeadlineExceeded):
		return fault.Wrap(err, fault.Internal, "the daemon at %s did not answer in time.", c.Socket)
	case sent && !req.repeatable:
		return fault.Wrap(broken, fault.InDoubt, "the daemon went away while it had the request; it may have been accepted. Do not send it again: look with bridge_whoami and bridge_poll once the daemon is back.")
	case sent:
		return fault.Wrap(broken, fault.Internal, "the daemon went away during the call; nothing was lost. Ask again in some seconds.")
	}
	return fault.Wrap(err, fault.Internal, "the daemon at %s cannot be reached.", c.Socket)
}
