// Package outbox holds everything that leaves a local entity (design §5).
//
// A send resolves its address and forks once: to an entity of this host it
// goes in process (Local), to another host it becomes an intent in the store,
// then an envelope on the broker. What happens to it there is learned from
// signals, from mail and by asking, and told to the one who waits (Watch) or
// as a notice in his own inbox.
//
// The rules of failure, in one place:
//
//   - nothing is published before its intent is committed;
//   - a SEND whose fate is unknown is never published again: its outcome is
//     asked for (asking.go), and at the end called EXPIRED or IN_DOUBT;
//   - a REPLY, FAILED or ABANDONED whose fate is unknown is published again
//     under the same id (again.go): its receiver removes duplicates;
//   - every negative end is an error of the call that sent or, once that has
//     returned, a notice that is committed together with the intent's end.
//
// How an envelope travels is known to fabric, how mail is read to inbox.
package outbox

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleetd/clock"
	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/fabric/roster"
	"fleetd/store"
	"fleetd/wait"
)

// Directory knows who is where.
type Directory interface {
	Resolve(address string) (roster.Target, error)
	// Current reports whether the view is fit to say that somebody does not
	// exist; without a broker it always is.
	Current() bool
	// Entities lists who is there and was not withdrawn.
	Entities(f roster.Filter) []roster.EntityView
	// Hosts tells the state, boot epoch and clock offset of each gateway.
	Hosts() []roster.HostView
}

// Local is this host's own side of the fork.
type Local interface {
	// Deliver commits a message for an entity of this host, together with also.
	Deliver(ctx context.Context, env *envelope.Envelope, also func(*store.Tx) error) error
	// Local says what became of a message delivered here.
	Local(gid, msgID string) (outcome store.Outcome, reason string)
	// Owns reports whether gid is an entity of this host.
	Owns(gid string) bool
	// Backlog is how much mail waits for an entity of this host.
	Backlog(gid string) int
	// Ask takes a question for an entity of this host, and reports whether an
	// open call has it now. It never blocks.
	Ask(ask *envelope.Envelope) bool
	// Withdrawn takes the ABANDONED of a question.
	Withdrawn(env *envelope.Envelope)
}

// Broker is the way to other hosts.
type Broker interface {
	// Connected says whether a send may be tried, and why not.
	Connected() (ok bool, reason string)
	// Reachable waits, some seconds at most, until the inbox of a local entity
	// is on the broker: before that an answer to it would come back.
	Reachable(ctx context.Context, gid string) error
	// Publish sends a signed env and waits for the broker's word, 5 s at most.
	// settled is called exactly once, with the word, which may come after
	// Publish gave up with InDoubt; not at all if the outcome is NotSent.
	Publish(ctx context.Context, lane envelope.Lane, env *envelope.Envelope, settled func(fabric.Outcome)) (fabric.Outcome, error)
	// InboxFull reports whether the inbox of gid is at its cap.
	InboxFull(ctx context.Context, gid string) (bool, error)
	// Renew renews the lease of gid's inbox; false: it does not exist.
	Renew(ctx context.Context, gid string) (bool, error)
}

// Config is what an Outbox needs. Broker is nil without one.
type Config struct {
	Host         string
	Store        *store.Store
	Directory    Directory
	Broker       Broker
	Sign         func(*envelope.Envelope) error
	ContentBytes int           // of one message; 0: 256 KiB
	MaxLife      time.Duration // of a brief; 0: 7 d
	PerPair      int           // briefs and questions of one entity to another in a minute; 0: no bound
	Tick         time.Duration // between two looks at what is open; 0: 1 s
	Now          func() time.Time
	Uptime       func() time.Duration // the monotonic clock, by which steps of Now are seen; nil: since New
	NewID        func() string        // UUIDv7
	NewTrace     func() string        // 32 hex digits
	Logger       hclog.Logger
}

// Outbox sends.
type Outbox struct {
	cfg   Config
	log   hclog.Logger
	local Local
	clock clock.Watch

	mu       sync.Mutex
	order    uint64              // of the last intent
	open     map[string]*open    // intents that have not ended, or whose end may not be durable, by msgID
	done     []*open             // ended since the last flush
	flushing bool                // a flush is under way
	lanes    map[string]*lane    // what has to be published again, by sender
	moved    chan struct{}       // closed and replaced whenever a lane gets shorter
	peers    map[string]peer     // by host
	linked   time.Duration       // uptime when the link was last seen up; -1: nobody has looked
	steps    int                 // of the clock, when the loop looked last
	gen      uint64              // of the link: 1 at first, one more with each new one
	watches  map[string][]*Watch // by msgID
	calls    map[string]*call    // running, by entity and idempotency key

	// Messages to entities of this host that were answered lately, in two
	// generations: turned is when the younger one began.
	replied, repliedBefore map[string]struct{}
	turned                 time.Time

	behind time.Duration // behindBound but in tests

	pruned, prunedKeys time.Duration // uptime at which that was done last; the loop's own

	turns  turns
	pace   pace
	picked map[string]uint64 // by gid: the last time that any:GROUP meant it
	picks  uint64

	inquiries map[inquiry]chan envelope.Report // under way

	stripes [64]sync.Mutex // one outcome of one message at a time; taken before mu
	work    chan func(context.Context)
	wake    chan struct{} // the loop has something to do before the next tick
}

// New makes an Outbox. Use and Load must follow before Run.
func New(cfg Config) *Outbox {
	cfg.ContentBytes = cmp.Or(cfg.ContentBytes, 256<<10)
	cfg.MaxLife = cmp.Or(cfg.MaxLife, envelope.MaxLife)
	cfg.Tick = cmp.Or(cfg.Tick, time.Second)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Uptime == nil {
		cfg.Uptime = clock.Uptime()
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	return &Outbox{
		cfg: cfg, log: cfg.Logger, open: map[string]*open{}, lanes: map[string]*lane{}, moved: make(chan struct{}),
		peers: map[string]peer{}, watches: map[string][]*Watch{}, calls: map[string]*call{}, picked: map[string]uint64{}, replied: map[string]struct{}{},
		inquiries: map[inquiry]chan envelope.Report{},
		gen:       1, linked: -1, behind: behindBound, pace: pace{perMinute: cfg.PerPair}, work: make(chan func(context.Context), 4096), wake: make(chan struct{}, 1),
	}
}

// Use gives the outbox the local side: the two halves know each other only by
// interface.
func (o *Outbox) Use(l Local) { o.local = l }

// workers is how many publishes and notices that nobody waits for are under
// way at the same time.
const workers = 32

// Run is the actor that owns the package's goroutines: those that publish what
// nobody waits for, and the one that watches over open intents.
func (o *Outbox) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case job := <-o.work:
					job(ctx)
				}
			}
		})
	}
	o.watchOver(ctx)
	wg.Wait()
	return nil
}

// watchOver looks at what is open at each tick and whenever it is woken, and
// prunes, until ctx ends.
func (o *Outbox) watchOver(ctx context.Context) {
	t := time.NewTicker(o.cfg.Tick)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-o.wake:
		}
		o.look()
		o.tidy()
	}
}

// tidy forgets what is old, from time to time.
func (o *Outbox) tidy() {
	now, up := o.moment().Past, o.cfg.Uptime()
	if o.pruned == 0 || up-o.pruned >= pruneEvery {
		o.pruned = up
		o.prune(now)
	}
	if o.prunedKeys == 0 || up-o.prunedKeys >= keysEvery {
		o.prunedKeys = up
		o.pruneKeys(now)
	}
}

// nudge has the loop look soon.
func (o *Outbox) nudge() { wait.Poke(o.wake) }

// later hands job to the workers, and reports whether there was room.
func (o *Outbox) later(job func(context.Context)) bool {
	select {
	case o.work <- job:
		return true
	default:
		return false
	}
}

// connected reports whether there is a broker and the link to it is up.
func (o *Outbox) connected() bool {
	if o.cfg.Broker == nil {
		return false
	}
	ok, _ := o.cfg.Broker.Connected()
	return ok
}

func (o *Outbox) trace(step string, msgID, traceID, kind, entity, peer, outcome, reason string) {
	o.cfg.Store.Trace(store.Event{
		TraceID: traceID, MsgID: msgID, Kind: kind, Step: step, Host: o.cfg.Host,
		Entity: entity, Peer: peer, Outcome: outcome, Reason: reason, At: o.cfg.Now().UnixMilli(),
	})
}

func (o *Outbox) traceEnv(step string, e *envelope.Envelope, outcome, reason string) {
	o.trace(step, e.MsgID, e.TraceID, string(e.Kind), e.From, e.To, outcome, reason)
}

// stripe is the lock under which the outcomes of one message meet.
func (o *Outbox) stripe(msgID string) *sync.Mutex {
	var h uint32
	for i := range len(msgID) {
		h = h*31 + uint32(msgID[i])
	}
	return &o.stripes[h%uint32(len(o.stripes))]
}

// moment looks at the clocks.
func (o *Outbox) moment() clock.Moment { return o.clock.Look(o.cfg.Now(), o.cfg.Uptime()) }
