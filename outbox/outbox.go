// Package outbox holds everything that leaves a local entity (design §5).
//
// A send resolves its address and forks once: to an entity of this host it
// goes in process (Local), to another host it becomes an intent in the store,
// then an envelope on the broker. What happens to it there is learned from
// signals, from mail and by asking (watch.go), and told to the one who waits
// (Watch) or as a notice in his own inbox.
//
// The rules of failure, in one place:
//
//   - nothing is published before its intent is committed;
//   - a SEND whose fate is unknown is never published again: its outcome is
//     asked for, and at the end called EXPIRED or IN_DOUBT;
//   - a REPLY, FAILED or ABANDONED whose fate is unknown is published again
//     under the same id: its receiver removes duplicates;
//   - every negative end is a notice that is committed before the intent ends.
//
// How an envelope travels is known to fabric, how mail is read to inbox.
package outbox

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/fabric/roster"
	"fleetd/store"
)

// Directory knows who is where.
type Directory interface {
	Resolve(address string) (roster.Target, error)
	// Current reports whether the view is fit to say that somebody does not
	// exist; without a broker it always is.
	Current() bool
	Name(gid string) string
}

// Local is this host's own side of the fork.
type Local interface {
	// Deliver commits a message for an entity of this host, together with also.
	Deliver(ctx context.Context, env *envelope.Envelope, also func(*store.Tx) error) error
	// Local says what became of a message delivered here.
	Local(gid, msgID string) (outcome, reason string)
	// Owns reports whether gid is an entity of this host.
	Owns(gid string) bool
}

// Broker is the way to other hosts.
type Broker interface {
	// Connected says whether a send may be tried, and why not.
	Connected() (ok bool, reason string)
	// Reachable waits, some seconds at most, until the inbox of a local entity
	// is on the broker: before that an answer to it would come back.
	Reachable(ctx context.Context, gid string) error
	// Publish sends a signed env and waits for the broker's word, 5 s at most;
	// settled is called once with it, also if it comes later.
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
	Now          func() time.Time
	NewID        func() string // UUIDv7
	NewTrace     func() string // 32 hex digits
	Logger       hclog.Logger
}

// Outbox sends.
type Outbox struct {
	cfg   Config
	log   hclog.Logger
	local Local

	mu      sync.Mutex
	order   uint64              // of the last intent
	open    map[string]*open    // intents that have not ended, by msgID
	watches map[string][]*Watch // by msgID
	calls   map[string]*call    // running, by entity and idempotency key
	resent  chan struct{}       // closed once what was in doubt has been sent again

	stripes [64]sync.Mutex // one outcome of one message at a time
	work    chan func(context.Context)
}

// open is an intent that has not ended, without its body.
type open struct {
	intent store.Intent
	order  uint64    // in which they left
	deadAt time.Time // when a dead letter of it was seen, zero if none
	dead   string    // what it says
	unseen bool      // the recipient's host said that it has not arrived
	asked  time.Time // of the last QUERY that was not answered, zero if none
}

// New makes an Outbox. Use must follow before Run.
func New(cfg Config) *Outbox {
	if cfg.ContentBytes == 0 {
		cfg.ContentBytes = 256 << 10
	}
	if cfg.MaxLife == 0 {
		cfg.MaxLife = envelope.MaxLife
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	resent := make(chan struct{})
	close(resent)
	return &Outbox{
		cfg: cfg, log: cfg.Logger, open: map[string]*open{}, watches: map[string][]*Watch{},
		calls: map[string]*call{}, resent: resent, work: make(chan func(context.Context), 4096),
	}
}

// Use gives the outbox the local side: the two halves know each other only by
// interface.
func (o *Outbox) Use(l Local) { o.local = l }

// Load reads the intents that an earlier run left open.
func (o *Outbox) Load() error {
	var left []store.Intent
	err := o.cfg.Store.View(func(tx *store.Tx) (err error) {
		left, err = tx.OpenIntents()
		return err
	})
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, in := range left {
		in.Body = nil
		o.keepOpen(in)
	}
	return nil
}

// keepOpen notes an intent that waits for its end; o.mu is held.
func (o *Outbox) keepOpen(in store.Intent) {
	o.order++
	o.open[in.MsgID] = &open{intent: in, order: o.order}
}

// workers is how many signals and reports are published at the same time.
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

// later hands job to the workers. Without room it is refused: what matters is
// in the store, and comes again with the next connection.
func (o *Outbox) later(job func(context.Context)) bool {
	select {
	case o.work <- job:
		return true
	default:
		o.log.Warn("too much waits to be published; a signal was dropped, its outcome will be asked for")
		return false
	}
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

// change alters an open intent in memory and has the store follow with the
// next commit. It reports whether the intent was open.
func (o *Outbox) change(msgID string, fn func(*open)) bool {
	o.mu.Lock()
	op := o.open[msgID]
	if op == nil {
		o.mu.Unlock()
		return false
	}
	fn(op)
	if op.intent.State == store.IntentEnded {
		op.intent.EndedAt = o.cfg.Now().UnixMilli()
		delete(o.open, msgID)
	}
	record := op.intent
	// Handed over under the lock, so that two changes of one intent reach the
	// store in their order.
	o.cfg.Store.Later(keepIntent(record))
	o.mu.Unlock()
	return true
}

func keepIntent(in store.Intent) func(*store.Tx) error {
	return func(tx *store.Tx) error {
		if err := tx.PutIntent(in); err != nil {
			return err
		}
		if in.State == store.IntentEnded || in.State == store.IntentAccepted || in.State == store.IntentDeferred {
			return tx.DropBody(in.MsgID) // accepted: the broker has it now
		}
		return nil
	}
}

// intent returns what is known of a message that left here, ended or not.
func (o *Outbox) intent(msgID string) (store.Intent, bool, error) {
	o.mu.Lock()
	if op := o.open[msgID]; op != nil {
		defer o.mu.Unlock()
		return op.intent, true, nil
	}
	o.mu.Unlock()
	var in store.Intent
	var found bool
	err := o.cfg.Store.View(func(tx *store.Tx) (err error) {
		in, found, err = tx.Intent(msgID)
		return err
	})
	if err != nil {
		return in, false, fmt.Errorf("read intent %s: %w", msgID, err)
	}
	return in, found, nil
}

// RecipientHost is the host that was noted for a recipient when msgID was sent
// (design §4, verification step 5).
func (o *Outbox) RecipientHost(msgID, gid string) (string, bool) {
	in, found, err := o.intent(msgID)
	if err != nil {
		o.log.Error("the noted host of a recipient could not be read", "msg", msgID, "error", err)
		return "", false
	}
	return in.ToHost, found && in.To == gid
}
