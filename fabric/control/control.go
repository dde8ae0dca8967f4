// Package control is the conversation of gateways about agents that are to
// begin or to end (design §9): who asks, and who does it. In trace.go they ask
// each other what they saw of a flow.
//
// Both sides meet in one record of the store, named by the spawnId, which is
// also the gid of the new worker. The side that asks (ask.go, stop.go) repeats
// itself every 10 s until it has an outcome; the side that does it (launch.go)
// has one outcome per spawnId for good. A host that asks itself is both.
//
// How an agent comes into a pane, what a worker is, and how an envelope
// travels are known elsewhere.
package control

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleetd/fabric/envelope"
	"fleetd/fabric/roster"
	"fleetd/fault"
	"fleetd/store"
)

// Store is what survives a restart (store.Store).
type Store interface {
	Write(ctx context.Context, fn func(*store.Tx) error) error
	View(fn func(*store.Tx) error) error
	Trace(ev store.Event)
}

// Launch is an agent to start.
type Launch struct {
	GID, Name, Token string
	Profile          Profile
}

// Pane is where a launched agent lives.
type Pane struct{ ID, Terminal, Kind, Leader string }

// Launcher is the last hop to panes. What fails because of the agent is a
// *Failure.
type Launcher interface {
	// Open starts the agent in a pane that carries its gid.
	Open(ctx context.Context, what Launch) (Pane, error)
	// Ready waits until it takes input, as long as ctx lasts.
	Ready(ctx context.Context, gid string, p Pane) (Pane, error)
	// Close closes every pane that carries gid. What is gone is closed.
	Close(ctx context.Context, gid string) error
}

// Entities are the workers of this host.
type Entities interface {
	// Reserve makes a worker that is announced to nobody, together with also,
	// which is given its name: name, or one made of base.
	Reserve(ctx context.Context, gid, name, base string, groups []string, also func(tx *store.Tx, name string) error) (token string, err error)
	// Launched makes a reserved one live, together with also.
	Launched(ctx context.Context, gid string, p Pane, also func(*store.Tx) error) error
	// Discard forgets a reserved one, together with also.
	Discard(ctx context.Context, gid string, also func(*store.Tx) error) error
	// Find returns the kind of an entity of this host and whether it has ended.
	Find(gid string) (kind store.EntityKind, ended, found bool)
	// Stop begins the end of a worker; it is on record when Stop returns.
	Stop(ctx context.Context, gid string) error
	// AwaitEnd waits for the last step, and reports whether it was taken.
	AwaitEnd(ctx context.Context, gid string) bool
}

// Fleet is who is where.
type Fleet interface {
	Resolve(address string) (roster.Target, error)
	HostState(host string) string
	Hosts() []roster.HostView
	Changed() <-chan struct{}
}

// Broker is the way to other hosts.
type Broker interface {
	// Connected says whether something may be published, and why not.
	Connected() (ok bool, reason string)
	// Publish signs and publishes. nil: the broker has it, or may have it.
	Publish(ctx context.Context, lane envelope.Lane, env *envelope.Envelope) error
}

// Profile is one kind of agent that can be launched here.
type Profile struct {
	Argv         []string
	Cwd          string
	Env          map[string]string
	Groups       []string
	ReadyTimeout time.Duration
	Remote       bool // other hosts may ask for it
}

// Config is what a Control needs. Broker is nil without one.
type Config struct {
	Host     string
	Boot     uint64
	Store    Store
	Entities Entities
	Launcher Launcher
	Fleet    Fleet
	Broker   Broker
	Profiles map[string]Profile
	// Allows says whether host may do verb (spawn, stop) here.
	Allows func(host, verb string) bool
	// Brief sends the task of a spawned worker, once per spawn.
	Brief func(ctx context.Context, s store.Spawn) (msgID string, err error)
	// CheckTask says why a text cannot be sent as a task.
	CheckTask func(text []byte) error
	// Audit is told of each act, on the side that asks and on the one that does
	// it; nil: nobody is. It returns soon.
	Audit    func(Act)
	NewID    func() string
	NewTrace func() string
	Now      func() time.Time
	Logger   hclog.Logger

	BodyBytes int // the longest body of a message that this host takes; 0: any

	Repeat time.Duration                          // between two requests; 0: 10 s
	After  func(d time.Duration) <-chan time.Time // nil: time.After
}

// Control asks and is asked.
type Control struct {
	cfg Config
	log hclog.Logger

	mu      sync.Mutex
	running context.Context // set while Run runs
	waiting []func(context.Context)
	work    sync.WaitGroup
	spawns  map[string]*spawning  // under way, by spawnId
	stops   map[string][]stopping // that wait for an answer, by gid
	traces  map[string]tracing    // that wait for an answer, by msgId of the TRACE
}

// The verbs of control.allow, and one that every trusted host may use.
const (
	verbSpawn = "spawn"
	verbStop  = "stop"
	verbTrace = "trace"
)

// Act is one step of a verb, for the audit log: who asked whom for what, and what
// came of it. It holds no body.
type Act struct {
	Verb       string // spawn, stop or trace
	Who        string // gid of the asker, or its gateway's address
	From, Host string // the host that asks, the one that is asked
	Profile    string
	GID        string // of the worker
	Outcome    string // asked, begun, spawned, stopped, told, refused or failed
	Code       fault.Code
	TraceID    string
}

// The outcomes of an Act.
const (
	actAsked   = "asked"   // this host asks another
	actBegun   = "begun"   // this host does it
	actSpawned = "spawned" // the worker lives
	actStopped = "stopped" // its end is over, or was before
	actTold    = "told"    // the steps of a flow, to another host
	actRefused = "refused" // nothing was done
	actFailed  = "failed"  // it was tried, and undone
)

func (c *Control) audit(a Act) {
	if c.cfg.Audit != nil {
		c.cfg.Audit(a)
	}
}

func (c *Control) auditSpawn(s store.Spawn, outcome string, code fault.Code) {
	c.audit(Act{
		Verb: verbSpawn, Who: s.From, From: s.FromHost, Host: s.Host, Profile: s.Profile, GID: s.SpawnID,
		Outcome: outcome, Code: code, TraceID: s.TraceID,
	})
}

// auditAsked is of what another host asks of this one.
func (c *Control) auditAsked(verb string, env *envelope.Envelope, outcome string, code fault.Code) {
	c.audit(Act{
		Verb: verb, Who: env.From, From: env.Signer, Host: c.cfg.Host, GID: env.SpawnID,
		Outcome: outcome, Code: code, TraceID: env.TraceID,
	})
}

// New makes a Control; Run gives it life.
func New(cfg Config) *Control {
	cfg.Repeat = cmp.Or(cfg.Repeat, 10*time.Second)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	if cfg.After == nil {
		cfg.After = time.After
	}
	return &Control{
		cfg: cfg, log: cfg.Logger, spawns: map[string]*spawning{}, stops: map[string][]stopping{},
		traces: map[string]tracing{},
	}
}

// Run is the actor that owns every goroutine of this package. It undoes the
// launches that an earlier run left, takes up what is still owed, and returns
// when ctx ends and all has.
func (c *Control) Run(ctx context.Context) error {
	if err := c.resume(); err != nil {
		return err
	}
	c.mu.Lock()
	c.running = ctx
	for _, fn := range c.waiting {
		c.work.Go(func() { fn(ctx) })
	}
	c.waiting = nil
	c.mu.Unlock()
	<-ctx.Done()
	c.mu.Lock()
	c.running = nil
	c.mu.Unlock()
	c.work.Wait()
	return nil
}

// begin runs fn as part of Run; c.mu is held. What is begun before Run runs
// waits for it, after it nothing begins: the next start takes it up.
func (c *Control) begin(fn func(context.Context)) {
	switch {
	case c.running == nil:
		c.waiting = append(c.waiting, fn)
	case c.running.Err() == nil:
		ctx := c.running
		c.work.Go(func() { fn(ctx) })
	}
}

// Handle takes a verified SPAWN, STOP or TRACE. It returns nil once what it needs is
// committed; an error has the broker give it again.
func (c *Control) Handle(ctx context.Context, env *envelope.Envelope) error {
	switch env.Kind {
	case envelope.Spawn:
		return c.onSpawn(ctx, env)
	case envelope.Stop:
		return c.onStop(ctx, env)
	case envelope.Trace:
		c.onTrace(env)
		return nil
	}
	c.log.Debug("a control message that this version does not serve", "kind", env.Kind, "trace", env.TraceID)
	return nil
}

// Signal takes a verified SPAWNED or STOPPED, or a FAILED about one of both, or
// a TRACED.
func (c *Control) Signal(env *envelope.Envelope) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if env.Kind == envelope.Traced {
		c.onTraced(env)
		return
	}
	if s := c.spawns[env.SpawnID]; s != nil && env.Kind != envelope.Stopped && env.Signer == s.rec.Host {
		s.hear(outcomeOf(env))
		return
	}
	if env.Kind == envelope.Spawned {
		return
	}
	for _, s := range c.stops[env.SpawnID] {
		if s.host != env.Signer || s.trace != env.TraceID && env.Kind != envelope.Stopped {
			continue
		}
		select {
		case s.answers <- env:
		default: // it has its answer
		}
	}
}

// answer signals an outcome to whoever asked. It may be lost: he asks again.
func (c *Control) answer(ctx context.Context, ask *envelope.Envelope, kind envelope.Kind, f *Failure) {
	now := c.cfg.Now()
	env := &envelope.Envelope{
		V: envelope.Version, Kind: kind, MsgID: c.cfg.NewID(), TraceID: ask.TraceID, SpawnID: ask.SpawnID,
		From: envelope.GatewayAddress(c.cfg.Host), To: ask.From, Signer: c.cfg.Host,
		TS: now.UnixMilli(), ExpiresAt: now.Add(envelope.Life(kind, 0)).UnixMilli(),
	}
	if f != nil {
		env.Reason = string(f.Code)
		if f.Detail != "" {
			env.Headers = map[string]string{headerDetail: f.Detail}
		}
	}
	if err := c.cfg.Broker.Publish(ctx, envelope.LaneSignal, env); err != nil {
		c.log.Debug("an answer was not taken; it will be asked for again", "kind", kind, "trace", env.TraceID, "error", err)
	}
}

func (c *Control) request(kind envelope.Kind, from, host, id, trace string, expires time.Time, body []byte) *envelope.Envelope {
	return &envelope.Envelope{
		V: envelope.Version, Kind: kind, MsgID: c.cfg.NewID(), TraceID: trace, SpawnID: id, From: from, To: host,
		Signer: c.cfg.Host, TS: c.cfg.Now().UnixMilli(), ExpiresAt: expires.UnixMilli(), Body: body,
	}
}

func (c *Control) trace(step string, s store.Spawn, outcome, reason string) {
	c.cfg.Store.Trace(store.Event{
		TraceID: s.TraceID, MsgID: s.SpawnID, Kind: string(envelope.Spawn), Step: step, Host: c.cfg.Host,
		Entity: s.SpawnID, Peer: s.From, Outcome: outcome, Reason: reason, At: c.cfg.Now().UnixMilli(),
	})
}
