package inbox

import (
	"context"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/store"
)

// Injector is the last hop to a pane.
type Injector interface {
	// Frame makes the text that goes into a pane of the given kind, or the one
	// line that announces content too long for it.
	Frame(agentKind string, p Piece) (text string, announced bool)
	// Inject waits for the pane's gate and pastes text once. It ends with ctx.
	Inject(ctx context.Context, pane Pane, text string, h Hooks) Injection
}

// Pane is where a worker lives: the pane's id, and the terminal and agent kind
// it was registered with. Text goes nowhere else. Leader, if known, is the
// process by which the terminal is known again under another name.
type Pane struct{ ID, Terminal, Kind, Leader string }

func paneOf(e store.Entity) Pane {
	return Pane{ID: e.Pane, Terminal: e.Terminal, Kind: e.AgentKind, Leader: e.Leader}
}

// Piece is what a text in a pane is made of.
type Piece struct {
	MsgID     string
	Kind      envelope.Kind
	From      string // name@host
	InReplyTo string
	Content   string
}

// Hooks are how an injection talks back.
type Hooks struct {
	// Closed is told why the gate is closed, each time that changes.
	Closed func(reason envelope.Reason)
	// Commit is the point of no return, called once right before the first
	// byte; if it fails nothing is written.
	Commit func() error
	// Expires ends the wait: no injection starts after it.
	Expires time.Time
}

// Result is how an injection ended.
type Result int

// The ways an injection can end.
const (
	Injected  Result = iota // it is in
	NotSent                 // nothing was written; Reason and Err say why
	PaneGone                // the pane is no more
	AgentGone               // the pane has no agent now
	InDoubt                 // something may have been written; never to be repeated
)

// Injection is the outcome of one Inject. Reason is a word for the sender: why
// the gate was closed last, or an error code.
type Injection struct {
	Result Result
	Reason envelope.Reason
	Err    error
}
