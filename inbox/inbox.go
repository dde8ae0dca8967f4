// Package inbox holds everything that arrives for a local entity (design §6).
//
// Two ack models live here, matched to what a duplicate costs:
//
//   - the forward path, into a worker's pane (forward.go): record injecting,
//     ack, inject, record injected. At most once, and loud when it fails;
//   - the pull path, to a main's client (pull.go): held, offered, drained, ack.
//     At least once, and duplicates are removed.
//
// Mail comes from the broker (Accept) or from an entity of this host (Deliver,
// which the store keeps). It goes on to a pane through the Injector or to a
// client through a Waiter. What became of it is told to its sender through
// Reports. How text reaches a pane, how a client is answered and how reports
// travel is not known here.
package inbox

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
)

// Kinds of entities (design §1).
const (
	Worker       = "worker"
	Main         = "main"
	Orchestrator = "orchestrator"
)

// States of an entity's record.
const (
	Live = "live"
	Gone = "gone" // its pane ended or it was unregistered; the gid never lives again
)

// Outcomes as the seen-set records them (design §1).
const (
	outcomeWaiting   = "waiting"
	outcomeInjecting = "injecting"
	outcomeInjected  = "injected"
	outcomeDrained   = "drained"
	outcomeFailed    = "failed"
)

// Reasons why a message waits, beside those of the gate.
const (
	ReasonNoPane = "NO_PANE" // the worker is registered and has no pane yet
	ReasonQueued = "QUEUED"  // others are before it
	ReasonUnseen = "UNSEEN"  // a QUERY's answer: it has not arrived here
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
// it was registered with. Text goes nowhere else.
type Pane struct{ ID, Terminal, Kind string }

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
	Closed func(reason string)
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

// Injection is the outcome of one Inject. Reason is a word for the sender.
type Injection struct {
	Result Result
	Reason string
	Err    error
}

// Reports carries reports to senders here and on other hosts.
type Reports interface {
	// Progress tells INJECTED or DEFERRED. It never blocks and may be lost.
	Progress(r envelope.Report)
	// Final tells FAILED or ABANDONED. When it returns nil the report survives
	// a crash; told twice it is one report.
	Final(ctx context.Context, r envelope.Report) error
	// Arrived is told of each piece of mail that answers something sent from
	// here: a REPLY means that the message had been injected.
	Arrived(env *envelope.Envelope)
	// Outcome takes a FAILED or ABANDONED that came by mail and returns once
	// it is committed.
	Outcome(ctx context.Context, env *envelope.Envelope) error
}

// Names turns a gid into what people call it.
type Names interface {
	Name(gid string) string // name@host, or the gid itself
}

// Window is the broker's side of an inbox.
type Window interface {
	More(gid string) bool // take another window of held mail; false: at its bound
	Ready(gid string) int // messages that still lie on the broker
}

// Config is what an Inbox needs. Store, Injector, Reports and Names are
// required.
type Config struct {
	Host     string
	Boot     uint64
	Store    *store.Store
	Injector Injector
	Reports  Reports
	Names    Names
	Window   Window // nil without a broker
	Panes    Panes  // nil without herdr
	// Changed is told of every entity that is made, changed or ended.
	Changed func(store.Entity)
	// Gate is told whenever a worker's gate closes (a reason) or opens ("").
	Gate   func(gid, reason string, since time.Time)
	Now    func() time.Time
	NewID  func() string // UUIDv7
	Secret func() string // a fresh token
	Logger hclog.Logger

	WindowSize int           // what the broker gives of a main's mail before any is settled
	LocalCap   int           // local mail per entity; 0: 100 000, as on the broker
	AgentGrace time.Duration // how long a pane may show no agent; 0: 60 s
}

// Inbox is all the boxes of this host's entities.
type Inbox struct {
	cfg Config
	log hclog.Logger

	mu      sync.Mutex
	boxes   map[string]*box // by gid
	running context.Context // set while Run runs
	loops   sync.WaitGroup
}

// New makes an Inbox without boxes; Open adds them, Run gives them life.
func New(cfg Config) *Inbox {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.LocalCap == 0 {
		cfg.LocalCap = 100_000
	}
	if cfg.AgentGrace == 0 {
		cfg.AgentGrace = time.Minute
	}
	if cfg.Changed == nil {
		cfg.Changed = func(store.Entity) {}
	}
	if cfg.Gate == nil {
		cfg.Gate = func(string, string, time.Time) {}
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	return &Inbox{cfg: cfg, log: cfg.Logger, boxes: map[string]*box{}}
}

// Run is the actor that owns every goroutine of this package: one loop per
// worker, and the sweeper. It returns when ctx ends and all of them have.
func (in *Inbox) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := in.settleOldInjections(ctx); err != nil {
		return err
	}
	in.mu.Lock()
	in.running = ctx
	for _, b := range in.boxes {
		in.start(b)
	}
	in.mu.Unlock()
	in.sweep(ctx)
	in.mu.Lock()
	in.running = nil
	in.mu.Unlock()
	cancel()
	in.loops.Wait()
	return nil
}

// start begins b's loop if Run runs; in.mu is held.
func (in *Inbox) start(b *box) {
	if in.running == nil || !b.worker || b.started {
		return
	}
	b.started = true
	ctx := in.running
	in.loops.Go(func() { in.forward(ctx, b) })
}

// Open gives an entity its box and loads what the store holds for it.
func (in *Inbox) Open(e store.Entity) error {
	b := newBox(e)
	err := in.cfg.Store.View(func(tx *store.Tx) error {
		held, err := tx.HeldOf(e.GID)
		if err != nil {
			return err
		}
		for _, h := range held {
			b.load(h, in.cfg.Now())
		}
		return nil
	})
	if err != nil {
		return err
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.boxes[e.GID] == nil {
		in.boxes[e.GID] = b
		in.start(b)
	}
	return nil
}

func (in *Inbox) box(gid string) *box {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.boxes[gid]
}

func (in *Inbox) all() []*box {
	in.mu.Lock()
	defer in.mu.Unlock()
	all := make([]*box, 0, len(in.boxes))
	for _, b := range in.boxes {
		all = append(all, b)
	}
	return all
}

// Owns reports whether gid is an entity of this host.
func (in *Inbox) Owns(gid string) bool { return in.box(gid) != nil }

// Member reports whether gid belongs to group here.
func (in *Inbox) Member(gid, group string) bool {
	b := in.box(gid)
	if b == nil {
		return false
	}
	e := b.snapshot()
	if group == "all" {
		return e.Kind == Worker
	}
	for _, g := range e.Groups {
		if g == group {
			return true
		}
	}
	return false
}

func (in *Inbox) trace(step string, e *envelope.Envelope, gid, outcome, reason string) {
	in.cfg.Store.Trace(store.Event{
		TraceID: e.TraceID, MsgID: e.MsgID, Kind: string(e.Kind), Step: step, Host: in.cfg.Host,
		Entity: gid, Peer: e.From, Outcome: outcome, Reason: reason, At: in.cfg.Now().UnixMilli(),
	})
}

// untilStored retries fn while the store is unavailable: an infrastructure
// failure never costs a message its place (design §4). It gives up with ctx.
func (in *Inbox) untilStored(ctx context.Context, fn func() error) error {
	for {
		err := fn()
		if !fault.Is(err, fault.StoreUnavailable) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(500 * time.Millisecond):
		}
	}
}
