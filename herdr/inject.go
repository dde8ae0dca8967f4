package herdr

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleetd/fabric/envelope"
	"fleetd/fault"
)

// Pane pins where a text may go. ID is what herdr calls the pane now; Terminal
// and Kind are those seen at registration (Identify), and a pane that has others
// gets nothing. Leader names the process that leads the terminal's session, by
// which Track knows the terminal again under another number; "" is not known.
type Pane struct{ ID, Terminal, Kind, Leader string }

// Result says what became of a text.
type Result int

// The results of an injection (herdr socket reference §10).
const (
	NotSent  Result = iota // nothing was written; it may be tried again
	Injected               // submitted, or queued by the agent
	Gone                   // nothing was written, and this occupant will not come back
	InDoubt                // written, and it is not known whether it was submitted: never to be sent again
)

// String returns the result in words.
func (r Result) String() string {
	switch r {
	case NotSent:
		return "not sent"
	case Injected:
		return "injected"
	case Gone:
		return "gone"
	case InDoubt:
		return "in doubt"
	}
	return "invalid"
}

// Outcome is what Inject returns.
type Outcome struct {
	Result Result
	Reason envelope.Reason // why the gate was closed, AgentGone, or an error code; "" if injected
	Err    error           // nil if injected
}

// Hooks are what the caller of Inject wants to know, and when. All may be zero.
type Hooks struct {
	// Closed is called when the gate is seen closed and whenever the reason
	// changes.
	Closed func(reason envelope.Reason)

	// Commit is the point of no return: called once, right before the first
	// byte is written. After an error nothing is written and Inject returns
	// NotSent with it. NotSent after Commit means that nothing was written and
	// the text may be put back.
	Commit func() error

	// Expires is the time of Injector.Now from which on no injection starts;
	// zero: none.
	Expires time.Time
}

var (
	errNothing = errors.New("the text is empty")
	errUnclean = errors.New("the text holds control characters or an at sign; it did not go through Clean")
	errCommand = errors.New("the text begins with a blank or a character that agents take for a command")
	errLines   = errors.New("this kind of agent gets single lines only")
	errNoMark  = errors.New("the text has nothing to be recognised by")
)

// Injector pastes texts into panes, one at a time per terminal. Make it with
// NewInjector; it may be used by many goroutines and starts none.
type Injector struct {
	Client  *Client
	Monitor *Monitor // wakes waiting gates, if it runs; may be nil
	Timing  Timing
	Now     func() time.Time // for Hooks.Expires and all intervals
	Logger  hclog.Logger

	seats seats

	mu     sync.Mutex
	pong   Pong
	pinged time.Time // zero: ask again
}

// NewInjector makes an Injector with the default timing. monitor and logger may
// be nil.
func NewInjector(client *Client, monitor *Monitor, logger hclog.Logger) *Injector {
	return &Injector{Client: client, Monitor: monitor, Timing: DefaultTiming(), Logger: logger}
}

// Inject waits until p's gate opens and then pastes and submits text, once
// (herdr socket reference §10). It returns when the text was submitted, when
// ctx ends or Hooks.Expires passes while the gate is closed, when the pane or
// its agent is gone, or when what became of a written text cannot be told.
//
// text must come from Frame or Nudge. From Commit on, the end of ctx changes
// nothing: what was begun is finished within Timing.Finish.
func (in *Injector) Inject(ctx context.Context, p Pane, text string, h Hooks) Outcome {
	k := kindOf(p.Kind)
	pr := newProbe(text)
	if err := injectable(&k, pr, text); err != nil {
		return Outcome{Result: NotSent, Reason: envelope.Reason(fault.BadContent),
			Err: fault.Wrap(err, fault.BadContent, "this text cannot be pasted into %s", p.Kind)}
	}
	g := &gate{in: in, kind: k, pane: p, hooks: h}
	if out, ok := g.enter(ctx); !ok {
		return out
	}
	defer func() { in.seats.give(g.seat, in.now()) }()
	if out, ok := g.wait(ctx); !ok {
		return out
	}
	if out, ok := g.commit(ctx); !ok {
		return out
	}
	finish, cancel := context.WithTimeout(context.WithoutCancel(ctx), in.Timing.Finish)
	defer cancel()
	t := &typist{in: in, kind: k, pane: g.pane, text: text, probe: pr, base: g.agent, log: in.log().With("pane", g.pane.ID)}
	before := k.look(screenRows(g.screen))
	t.probe.before = strings.Count(squash(strings.Join(before.rows, "")), pr.head)
	out := t.run(finish)
	t.log.Debug("injection ended", "result", out.Result, "reason", out.Reason, "error", out.Err)
	return out
}

func injectable(k *Kind, p probe, text string) error {
	if err := checkSafe(text); err != nil {
		return err
	}
	if !k.Bracketed && p.newlines > 0 {
		return errLines
	}
	if p.head == "" {
		return errNoMark
	}
	return nil
}

// enter takes the terminal's lock. Waiting for it is a closed gate too.
func (g *gate) enter(ctx context.Context) (Outcome, bool) {
	wait := ctx
	if !g.hooks.Expires.IsZero() {
		var cancel context.CancelFunc
		wait, cancel = context.WithTimeout(ctx, max(g.hooks.Expires.Sub(g.in.now()), 0))
		defer cancel()
	}
	seat, err := g.in.seats.take(wait, g.pane.Terminal, g.in.now(), func() { g.tell(envelope.Busy) })
	switch {
	case err == nil:
		g.seat = seat
		return Outcome{}, true
	case ctx.Err() != nil:
		return g.stopped(ctx), false
	}
	return g.expiry(), false
}

// commit calls the hook. A slow one (a full disk) makes what the gate saw old,
// so it is looked at again; to hand the text back is still possible.
func (g *gate) commit(ctx context.Context) (Outcome, bool) {
	if g.hooks.Commit == nil {
		return Outcome{}, true
	}
	start := g.in.now()
	if err := g.hooks.Commit(); err != nil {
		return Outcome{Result: NotSent, Reason: envelope.Reason(fault.CodeOf(err)), Err: err}, false
	}
	if g.expired() {
		return g.expiry(), false
	}
	if !g.in.late(start) {
		return Outcome{}, true
	}
	again, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.in.Timing.Finish)
	defer cancel()
	if v := g.look(again); !v.open {
		return Outcome{Result: NotSent, Reason: v.reason, Err: v.err}, false
	}
	return Outcome{}, true
}

// late reports whether what was seen since start is too old to act on.
func (in *Injector) late(start time.Time) bool { return in.now().Sub(start) > in.Timing.Look }

// view returns the monitor's view and the channel that tells of the next one,
// nil if no monitor runs.
func (in *Injector) view() (View, <-chan struct{}) {
	if in.Monitor == nil || !in.Monitor.running.Load() {
		return View{}, nil
	}
	return in.Monitor.watch()
}

// fit is step 2: which herdr is there. The answer is believed for Timing.Fit,
// less if a request fails.
func (in *Injector) fit(ctx context.Context) (Pong, error) {
	in.mu.Lock()
	pong, at := in.pong, in.pinged
	in.mu.Unlock()
	if !at.IsZero() && in.now().Sub(at) < in.Timing.Fit {
		return pong, nil
	}
	pong, err := in.Client.Ping(ctx)
	if err != nil {
		return pong, err
	}
	in.mu.Lock()
	in.pong, in.pinged = pong, in.now()
	in.mu.Unlock()
	return pong, nil
}

// forget makes the next fit ask again.
func (in *Injector) forget() {
	in.mu.Lock()
	in.pinged = time.Time{}
	in.mu.Unlock()
}

func (in *Injector) now() time.Time {
	if in.Now != nil {
		return in.Now()
	}
	return time.Now()
}

func (in *Injector) log() hclog.Logger {
	if in.Logger != nil {
		return in.Logger
	}
	return hclog.NewNullLogger()
}
