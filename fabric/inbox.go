package fabric

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric/envelope"
	"fleetd/wait"
)

// Inbox is what the fabric consumes for one local entity.
type Inbox struct {
	GID      string
	Worker   bool // also takes broadcast.all
	Groups   []string
	Former   []string // groups it has left: their keys are unbound
	Ending   bool     // its entity ends: no key brings it mail any more
	Prefetch int      // messages the broker gives before they are settled
	// InHand reports whether a message is being given to its reader in this
	// moment: such a one is not handed back when others are (design §6, Hold
	// refresh). It must return at once. May be nil.
	InHand func(msgID string) bool
	// Handler gets verified mail in order and must return soon. It settles
	// each delivery once, then or later, from any goroutine. Its context ends
	// with the channel of the delivery: one that waits returns then, and what it
	// has not taken comes again.
	Handler func(context.Context, envelope.Delivery)
	// PushedOut is told, between two channels, that of what is held some may have
	// been pushed out of the queue: LavinMQ does that to the oldest when held mail
	// goes back into a full one (broker fact §5). It is dead-lettered, so nobody
	// may read it any more; the rest comes again. May be nil.
	PushedOut func()
	// Lost is told that the channel is gone: everything unsettled comes again
	// with new holds, and settling the old ones only returns an error. It is
	// called after the last Handler call of that channel. May be nil.
	Lost func()
}

// InboxStatus is the state of one inbox's consumer.
type InboxStatus string

// The states of an inbox. Mismatched: the queue exists with other arguments.
const (
	InboxDetached   InboxStatus = "detached"
	InboxAttached   InboxStatus = "attached"
	InboxContested  InboxStatus = "contested" // another gateway holds it for more than 3 heartbeats
	InboxMismatched InboxStatus = "mismatched"
)

// InboxInfo is the state of one inbox and since when.
type InboxInfo struct {
	Status InboxStatus
	Since  time.Time
}

// inbox is an Inbox with its consumer, which lives from session to session.
type inbox struct {
	f      *Fabric
	load   load // what the handler has that is not settled, over all sessions
	awaits *awaited
	more   chan chan moreResult
	end    chan chan endResult

	mu     sync.Mutex
	spec   Inbox
	now    *consumer // nil while detached
	info   InboxInfo
	cancel context.CancelFunc // of the consumer of the present session
	done   chan struct{}
	said   string // the last trouble that was logged
}

type moreResult struct {
	taken bool
	err   error
}

func newInbox(f *Fabric, spec Inbox) *inbox {
	return &inbox{
		f: f, spec: spec, load: load{sum: &f.load}, awaits: newAwaited(), more: make(chan chan moreResult),
		end:  make(chan chan endResult),
		info: InboxInfo{Status: InboxDetached, Since: f.deps.Now()},
	}
}

func (in *inbox) status() InboxInfo {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.info
}

func (in *inbox) set(s InboxStatus) {
	in.mu.Lock()
	gid, changed := in.spec.GID, in.info.Status != s
	if changed {
		in.info = InboxInfo{Status: s, Since: in.f.deps.Now()}
	}
	in.mu.Unlock()
	if changed && in.f.deps.OnInbox != nil {
		in.f.deps.OnInbox(gid, s)
	}
}

// turn notes which consumer there is.
func (in *inbox) turn(c *consumer) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.now = c
}

func (in *inbox) consumer() *consumer {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.now
}

func (in *inbox) snapshot() Inbox {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.spec
}

// start runs the consumer in session s.
func (in *inbox) start(s *session) {
	ctx, cancel := context.WithCancel(s.ctx)
	done := make(chan struct{})
	in.mu.Lock()
	in.cancel, in.done = cancel, done
	in.mu.Unlock()
	if !s.spawn(func() { defer close(done); in.keep(ctx, s) }) {
		cancel()
		close(done)
	}
}

// stop ends the consumer and waits for it.
func (in *inbox) stop() {
	in.mu.Lock()
	cancel, done := in.cancel, in.done
	in.mu.Unlock()
	if cancel != nil {
		cancel()
		<-done
	}
}

// keep has the inbox attached for as long as the session lives.
func (in *inbox) keep(ctx context.Context, s *session) {
	f := in.f
	b := newBackoff(f.cfg.Heartbeat)
	var refusedSince time.Time
	for ctx.Err() == nil {
		began := time.Now()
		attached, err := in.consume(ctx, s)
		if ctx.Err() != nil || errors.Is(err, errRemoved) {
			break
		}
		if attached {
			refusedSince = time.Time{}
			if time.Since(began) > settledAfter || isCode(err, amqp.PreconditionFailed) {
				b.Reset()
			}
			f.log.Warn("inbox lost its channel; attaching again", "gid", in.snapshot().GID, "error", err)
		} else {
			if isRefusal(err) && refusedSince.IsZero() {
				refusedSince = began
			}
			in.trouble(s, err, refusedSince)
		}
		if wait.Pause(ctx, b.NextBackOff()) != nil {
			break
		}
	}
	in.set(InboxDetached)
}

// trouble says once what keeps the inbox from being attached.
func (in *inbox) trouble(s *session, err error, refusedSince time.Time) {
	f, spec := in.f, in.snapshot()
	queue := f.names.Inbox(spec.GID)
	var text string
	switch {
	case isRefusal(err):
		if !denied(err) && time.Since(refusedSince) <= f.refusedFor {
			return // ordinary after a crash or a partition (broker fact §3)
		}
		if denied(err) {
			in.set(InboxDetached)
			text = noRight(queue)
			break
		}
		in.set(InboxContested)
		text = "another gateway holds this inbox; stop it there, or unregister the entity here"
	case isCode(err, amqp.PreconditionFailed):
		in.set(InboxMismatched)
		text = fmt.Sprintf("queue %s exists with another %s; delete it once it is empty, or point this gateway at another broker", queue, argumentOf(err))
	default:
		in.set(InboxDetached)
		text = "inbox cannot be attached; trying again"
	}
	in.mu.Lock()
	fresh := in.said != text
	in.said = text
	in.mu.Unlock()
	if fresh {
		f.log.Error(text, "gid", spec.GID, "queue", queue, "error", err)
	}
}

var inequivalent = regexp.MustCompile(`inequivalent arg '([^']+)'`)

// argumentOf names the argument that differs; LavinMQ does not say which.
func argumentOf(err error) string {
	if m := inequivalent.FindStringSubmatch(err.Error()); m != nil {
		return m[1]
	}
	return "argument (one of " + argType + ", " + argDLX + ", " + argLength + ", " + argOverflow + ", " + argTTL + ", " + argExpires + ")"
}

var errInboxChannel = errors.New("the channel or its consumer ended")

// consume attaches the inbox and reads it until the channel is gone.
func (in *inbox) consume(ctx context.Context, s *session) (attached bool, err error) {
	f, spec := in.f, in.snapshot()
	ch, err := s.con.Channel()
	if err != nil {
		return false, err
	}
	defer ch.Close() // it may be closed already
	closes := ch.NotifyClose(make(chan *amqp.Error, 1))
	life, end := lifeOf(ctx, ch)
	defer end()
	if err := s.bindSignal(ctx, spec.GID); err != nil {
		return false, err
	}
	if err := in.declare(ch, spec); err != nil {
		return false, err
	}
	w := newWindow(life, in, ch, f.lavin(s.con.Connection))
	if err := w.attach(); err != nil {
		return false, err
	}
	in.set(InboxAttached)
	in.mu.Lock()
	in.said = ""
	in.mu.Unlock()
	if err = in.rebind(ch, spec); err == nil {
		err = w.read(ctx, closes)
	} else {
		err = ended(closes, err)
	}
	in.set(InboxDetached)
	w.end(err)
	if ctx.Err() == nil || s.ctx.Err() != nil {
		if spec.Lost != nil {
			spec.Lost()
		}
	}
	return true, err
}

// lifeOf returns a context that ends with ch, or by end, which waits for the
// goroutine behind it.
func lifeOf(parent context.Context, ch *amqp.Channel) (life context.Context, end func()) {
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	life, cancel := context.WithCancel(parent)
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-closed:
			cancel()
		case <-life.Done():
		}
	})
	return life, func() {
		cancel()
		watch.Wait()
	}
}

func (in *inbox) declare(ch *amqp.Channel, spec Inbox) error {
	q := in.f.names.inboxQueue(spec.GID, in.f.inboxCap)
	if err := q.declare(ch); err != nil {
		return err
	}
	return in.bind(ch, spec)
}

// rebind binds what SetGroups changed since spec was taken: it leaves to the
// attaching what is not attached yet.
func (in *inbox) rebind(ch *amqp.Channel, spec Inbox) error {
	for {
		now := in.snapshot()
		if slices.Equal(now.Groups, spec.Groups) {
			return nil
		}
		if err := in.bind(ch, now); err != nil {
			return err
		}
		spec = now
	}
}

func (in *inbox) bind(ch *amqp.Channel, spec Inbox) error {
	f, queue := in.f, in.f.names.Inbox(spec.GID)
	for _, key := range spec.formerKeys() {
		if err := ch.QueueUnbind(queue, key, f.names.Msg(), nil); err != nil {
			return err
		}
	}
	for _, key := range spec.keys() {
		if err := ch.QueueBind(queue, key, f.names.Msg(), false, nil); err != nil {
			return err
		}
	}
	return nil
}

// keys are the routing keys that bring the inbox its mail (design §3).
func (spec Inbox) keys() []string {
	if spec.Ending {
		return nil
	}
	return spec.allKeys()
}

// formerKeys are those that bring it none any more.
func (spec Inbox) formerKeys() (keys []string) {
	for _, group := range spec.Former {
		keys = append(keys, envelope.BroadcastKey(group))
	}
	if spec.Ending {
		keys = append(keys, spec.allKeys()...)
	}
	return keys
}

func (spec Inbox) allKeys() []string {
	keys := []string{spec.GID}
	if spec.Worker {
		keys = append(keys, envelope.BroadcastKey("all"))
	}
	for _, group := range spec.Groups {
		keys = append(keys, envelope.BroadcastKey(group))
	}
	return keys
}
