package herdr

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/wait"
)

// Launcher opens panes for agents and waits until they take input (herdr
// reference §11). It may be used by many goroutines and starts none.
type Launcher struct {
	Client   *Client
	Injector *Injector // whose gate says when an agent is ready

	opening sync.Mutex // two at once would each make a workspace
}

// Launch is an agent to start.
type Launch struct {
	GID  string
	Name string   // with the gid, the pane's label
	Argv []string // run directly, without a shell
	Cwd  string   // an existing directory: herdr takes $HOME for one that is not
	Env  map[string]string
}

// The ways in which a launch fails because of what was to be launched.
const (
	NotInstalled = "NOT_INSTALLED" // the program could not be started
	Exited       = "EXITED"        // it ended before it was ready
	NeverReady   = "NEVER_READY"   // it did not come to take input in time
)

// LaunchError says in which way a launch failed.
type LaunchError struct {
	Why    string
	Reason envelope.Reason // of NeverReady: why the gate was closed last
	Cause  error
}

// Error says so in words.
func (e *LaunchError) Error() string {
	return strings.TrimSpace(fmt.Sprintf("launch failed: %s %s: %v", e.Why, e.Reason, e.Cause))
}

// Unwrap returns the cause.
func (e *LaunchError) Unwrap() error { return e.Cause }

// home is the label of the workspace that launched agents live in.
const home = "bridged"

func label(name, gid string) string { return name + " " + gid }

// labelled reports whether a label carries gid.
func labelled(label, gid string) bool { return strings.HasSuffix(label, " "+gid) }

// Open starts the agent in a pane of its own, whose label carries the gid from
// its first moment: whatever becomes of the call, CloseLabelled finds it. The
// pane's kind is not known yet.
func (l *Launcher) Open(ctx context.Context, what Launch) (Pane, error) {
	l.opening.Lock()
	id, err := l.open(ctx, what)
	l.opening.Unlock()
	if hasCode(err, "layout_apply_failed", "invalid_layout") {
		return Pane{}, &LaunchError{Why: NotInstalled, Cause: err}
	}
	if err != nil {
		return Pane{}, AsFault(err)
	}
	p, err := l.Client.PaneGet(ctx, id)
	if hasCode(err, "pane_not_found") {
		return Pane{}, &LaunchError{Why: Exited, Cause: err}
	}
	if err != nil {
		return Pane{}, AsFault(err)
	}
	if !labelled(p.Label, what.GID) {
		return Pane{}, fault.New(fault.Internal, "herdr opened pane %s without the label that it was given", p.PaneID)
	}
	return Pane{ID: p.PaneID, Terminal: p.TerminalID, Leader: l.Client.leaderOf(ctx, p.PaneID, p.TerminalID)}, nil
}

// open adds a tab to the workspace of launched agents, or makes that; the shell
// that a new workspace comes with is replaced.
func (l *Launcher) open(ctx context.Context, what Launch) (pane string, err error) {
	root := layoutLeaf{Type: "pane", Label: label(what.Name, what.GID), Cwd: what.Cwd, Command: what.Argv, Env: what.Env}
	all, err := l.Client.WorkspaceList(ctx)
	if err != nil {
		return "", err
	}
	for _, w := range all {
		if w.Label != home {
			continue
		}
		pane, err = l.Client.layoutApply(ctx, layout{Root: root, WorkspaceID: w.WorkspaceID, TabLabel: what.Name})
		if !hasCode(err, "workspace_not_found") { // its last pane may just have gone
			return pane, err
		}
	}
	tab, err := l.Client.workspaceCreate(ctx, home, what.Cwd)
	if err != nil {
		return "", err
	}
	pane, err = l.Client.layoutApply(ctx, layout{Root: root, TabID: tab, TabLabel: what.Name})
	if err != nil {
		return "", errors.Join(err, l.Client.tabClose(context.WithoutCancel(ctx), tab))
	}
	return pane, nil
}

// readyPoll is how often it is looked whether herdr sees the agent.
const readyPoll = 200 * time.Millisecond

// Ready waits until the agent in p takes input, by the gate of an injection,
// and returns the pane as it is then, its kind known. The end of ctx is a
// LaunchError too: NeverReady.
func (l *Launcher) Ready(ctx context.Context, p Pane) (Pane, error) {
	reason, cause := envelope.NotReady, error(errors.New("herdr sees no agent in the pane"))
	for {
		now, err := l.Client.PaneGet(ctx, p.ID)
		switch {
		case hasCode(err, "pane_not_found"):
			return p, &LaunchError{Why: Exited, Cause: err}
		case err != nil && ctx.Err() == nil:
			reason, cause = herdrDown, err
		case err != nil:
		case now.TerminalID != p.Terminal && p.Leader != "" && l.Client.leaderOf(ctx, p.ID, now.TerminalID) == p.Leader:
			p.Terminal = now.TerminalID // herdr handed it over to another version of itself
			continue
		case now.TerminalID != p.Terminal:
			return p, &LaunchError{Why: Exited, Cause: errors.New("herdr was restarted, and its agents ended with it")}
		case now.Agent != "":
			p.ID, p.Kind = now.PaneID, now.Agent
			at, out := l.Injector.ready(ctx, p, func(r envelope.Reason) { reason = r })
			switch {
			case out.Result == Injected:
				return at, nil
			case out.Result == Gone:
				return p, &LaunchError{Why: Exited, Cause: out.Err}
			}
			cause = out.Err
		}
		if wait.Pause(ctx, readyPoll) != nil {
			return p, &LaunchError{Why: NeverReady, Reason: reason, Cause: cause}
		}
	}
}

// ready waits for the gate of p as Inject does, and writes nothing. Injected
// says that it is open. A pane that comes to hold another program than was
// seen first (a wrapper that started the agent) is returned from at once.
func (in *Injector) ready(ctx context.Context, p Pane, closed func(reason envelope.Reason)) (Pane, Outcome) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g := &gate{in: in, kind: kindOf(p.Kind), pane: p, hooks: Hooks{Closed: func(reason envelope.Reason) {
		closed(reason)
		if reason == envelope.PaneChanged {
			cancel()
		}
	}}}
	if out, ok := g.enter(ctx); !ok {
		return p, out
	}
	defer func() { in.seats.give(g.seat, in.now()) }()
	if out, ok := g.wait(ctx); !ok {
		return p, out
	}
	return g.pane, Outcome{Result: Injected}
}

// CloseLabelled closes every pane whose label carries gid. Labels outlive a
// restart of herdr, terminals do not.
func (c *Client) CloseLabelled(ctx context.Context, gid string) error {
	all, err := c.PaneList(ctx)
	if err != nil {
		return AsFault(err)
	}
	var errs []error
	for _, p := range all {
		if labelled(p.Label, gid) {
			errs = append(errs, c.Close(ctx, Pane{ID: p.PaneID, Terminal: p.TerminalID}))
		}
	}
	return errors.Join(errs...)
}
