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
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleetd/clock"
	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
)

// Store is what survives a restart (store.Store).
type Store interface {
	Write(ctx context.Context, fn func(*store.Tx) error) error
	Later(fn func(*store.Tx) error)
	View(fn func(*store.Tx) error) error
	Trace(ev store.Event)
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
	// TurnOver tells an asker NO_WAITER, FAILED or ABANDONED. It never blocks
	// and may be lost.
	TurnOver(ask *envelope.Envelope, kind envelope.Kind, reason string)
	// EndTurns tells everybody whom an entity that ends had asked.
	EndTurns(gid string)
}

// Names turns a gid into what people call it.
type Names interface {
	Name(gid string) string // name@host, or the gid itself
}

// Config is what an Inbox needs. Store, Injector, Reports and Names are
// required.
type Config struct {
	Host     string
	Boot     uint64
	Crashed  bool // the run before did not end in good order: what it noted last is missing
	Store    Store
	Injector Injector
	Reports  Reports
	Names    Names
	Window   Window // nil without a broker
	Panes    Panes  // nil without herdr
	// Changed is told of every entity that is made, changed or ended: of one at
	// a time and as it is then, of several at once.
	Changed func(store.Entity)
	// Nudge makes the line for a main's pane: so much mail is held, and who sent
	// the newest. Nil: no pane is told.
	Nudge func(held int, from string) string
	// Hints tells a main's clients; nil: none is told.
	Hints Hints
	// Gate is told whenever a worker's gate closes (a reason) or opens ("").
	Gate func(gid string, reason envelope.Reason, since time.Time)
	// Allowed says whether a host may send briefs here; nil: every trusted one.
	Allowed func(host string) bool
	// NotAllowed is told of a brief or question that was refused for that; nil:
	// nobody is.
	NotAllowed func(*envelope.Envelope)
	Now        func() time.Time
	Uptime     func() time.Duration // the monotonic clock, by which jumps of Now are seen
	NewID      func() string        // UUIDv7
	Secret     func() string        // a fresh token
	Logger     hclog.Logger

	LocalCap    int           // local mail per entity; 0: 100 000, as on the broker
	LocalWindow int           // of it, what is held in memory for a main; 0: 1024
	AgentGrace  time.Duration // how long a pane may show no agent; 0: 60 s
}

// Inbox is all the boxes of this host's entities.
type Inbox struct {
	cfg   Config
	log   hclog.Logger
	clock clock.Watch

	patience int // endPatience but in tests

	registry sync.Mutex // one change of an entity at a time

	mu      sync.Mutex
	boxes   map[string]*box // by gid
	running context.Context // set while Run runs
	loops   sync.WaitGroup
	done    chan struct{} // closed when Run ends: nobody waits any more
	stuck   int           // how many wait for the store

	turns turns
}

// New makes an Inbox without boxes; Open adds them, Run gives them life.
func New(cfg Config) *Inbox {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Uptime == nil {
		cfg.Uptime = clock.Uptime()
	}
	cfg.LocalCap = cmp.Or(cfg.LocalCap, 100_000)
	cfg.LocalWindow = cmp.Or(cfg.LocalWindow, 1024)
	cfg.AgentGrace = cmp.Or(cfg.AgentGrace, time.Minute)
	if cfg.Changed == nil {
		cfg.Changed = func(store.Entity) {}
	}
	if cfg.Gate == nil {
		cfg.Gate = func(string, envelope.Reason, time.Time) {}
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	in := &Inbox{
		cfg: cfg, log: cfg.Logger,
		boxes: map[string]*box{}, patience: endPatience, done: make(chan struct{}),
	}
	in.Steady() // a step is seen from here on
	return in
}

// Steady reports whether the wall clock may end lives: not for a minute after
// it stepped, since then time is wrong, not mail (design §6).
func (in *Inbox) Steady() bool {
	now := in.clock.Look(in.cfg.Now(), in.cfg.Uptime())
	if now.Step != 0 {
		in.log.Warn("the wall clock jumped; expiry pauses for a minute", "by", now.Step)
	}
	return now.Steady
}

// Run is the actor that owns every goroutine of this package: one loop per
// worker, the sweepers, and those that wind up what has ended. It is called
// once, and returns when ctx ends and all of them have.
func (in *Inbox) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := in.settleOldInjections(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	in.mu.Lock()
	in.running = ctx
	for _, b := range in.boxes {
		in.start(b)
	}
	in.loops.Go(func() { in.every(ctx, in.deferOverdue) })
	in.loops.Go(func() { in.every(ctx, in.hunt) })
	in.loops.Go(func() { in.every(ctx, in.nudge) })
	in.loops.Go(func() { in.expireAndPrune(ctx) })
	in.mu.Unlock()
	<-ctx.Done()
	in.mu.Lock()
	in.running = nil
	in.mu.Unlock()
	close(in.done)
	in.loops.Wait()
	return nil
}

// start gives b its goroutine if Run runs; in.mu is held.
func (in *Inbox) start(b *box) {
	if in.running == nil || b.started {
		return
	}
	ctx := in.running
	switch {
	case b.snapshot().State == store.EntityGone, b.snapshot().State == store.EntityLaunching:
	case b.snapshot().Ended():
		b.started = true
		in.loops.Go(func() { in.windUp(ctx, b) })
	case b.worker:
		b.started = true
		in.loops.Go(func() { in.forward(ctx, b) })
	}
}

// Open gives an entity its box and loads what the store holds for it.
func (in *Inbox) Open(e store.Entity) error {
	b := newBox(e, in.cfg.Store.Later)
	err := in.cfg.Store.View(func(tx *store.Tx) (err error) {
		if b.seq, err = tx.LastHeld(); err != nil {
			return err
		}
		if b.backlog, _, err = tx.CountLocal(e.GID); err != nil {
			return err
		}
		index, err := tx.HeldOnBroker(e.GID)
		for _, h := range index {
			h.Offered = h.Offered || in.cfg.Crashed
			b.index[h.MsgID] = h
		}
		return err
	})
	if err != nil {
		return err
	}
	b.partial = b.backlog > 0
	most := in.cfg.LocalWindow
	if b.worker {
		most = math.MaxInt // briefs are injected in order, whoever asks
	}
	in.refill(b, most)
	in.insert(b)
	return nil
}

func (in *Inbox) insert(b *box) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.boxes[b.gid] == nil {
		in.boxes[b.gid] = b
		in.start(b)
	}
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

// present are the boxes of those that are not gone.
func (in *Inbox) present() []*box {
	return slices.DeleteFunc(in.all(), (*box).isOver)
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
	return group == "all" && e.Kind == store.Worker || slices.Contains(e.Groups, group)
}

func (in *Inbox) trace(step string, e *envelope.Envelope, gid string, outcome store.Outcome, reason string) {
	in.cfg.Store.Trace(store.Event{
		TraceID: e.TraceID, MsgID: e.MsgID, Kind: string(e.Kind), Step: step, Host: in.cfg.Host,
		Entity: gid, Peer: e.From, Outcome: string(outcome), Reason: reason, At: in.cfg.Now().UnixMilli(),
	})
}

// retryEvery is the pace of whatever waits for the store.
const retryEvery = 500 * time.Millisecond

// untilStored retries fn while the store is unavailable: an infrastructure
// failure never costs a message its place (design §4). It gives up with ctx,
// and when Run ends.
func (in *Inbox) untilStored(ctx context.Context, fn func(context.Context) error) error {
	for first := true; ; first = false {
		err := fn(ctx)
		if !fault.Is(err, fault.StoreUnavailable) {
			return err
		}
		if first {
			in.waits(err)
			defer in.waited()
		}
		select {
		case <-ctx.Done():
			return err
		case <-in.done:
			return err
		case <-time.After(retryEvery):
		}
	}
}

// waits notes that somebody waits for the store. The first one is logged: mail
// that is held back shows nowhere else.
func (in *Inbox) waits(cause error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.stuck++; in.stuck == 1 {
		in.log.Warn("the inbox waits for the store; mail is held back and not acknowledged until it can be recorded", "error", cause)
	}
}

func (in *Inbox) waited() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.stuck--; in.stuck == 0 {
		in.log.Info("the inbox waits for the store no more")
	}
}

// lastTry bounds what is still written when the daemon stops.
const lastTry = 5 * time.Second

// persist is untilStored for what follows a point of no return: a daemon that
// stops does not undo it, but lets it have one more try.
func (in *Inbox) persist(ctx context.Context, fn func(context.Context) error) error {
	return in.untilStored(ctx, func(context.Context) error {
		once, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTry)
		defer cancel()
		return fn(once)
	})
}
