package fabric

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric/envelope"
	"fleetd/wait"
)

// refusedBeats is for how many heartbeats an exclusive consumer may be refused
// before it means another gateway: a dead one is noticed within 3 (broker fact
// §3).
const refusedBeats = 3

// contestedEvery is how often a contested claim is said again.
const contestedEvery = 10 * time.Minute

// keepClaim holds the exclusive consumer on our control queue for as long as
// the session lives: it is the claim on the host id (design §3).
func (s *session) keepClaim() {
	f := s.f
	b := newBackoff(f.cfg.Heartbeat)
	var refusedSince, said time.Time
	for s.ctx.Err() == nil {
		began := time.Now()
		held, err := s.holdClaim()
		switch {
		case held:
			refusedSince = time.Time{}
			if time.Since(began) > settledAfter {
				b.Reset()
			}
			if err != nil && time.Since(said) > contestedEvery {
				said = time.Now()
				f.log.Error("control messages of other hosts do not reach this one; trying again", "queue", f.names.ControlQueue(f.cfg.Host), "error", err)
			}
		case isRefusal(err):
			if refusedSince.IsZero() {
				refusedSince = began
			}
			if f.claimRefused(s, err, refusedSince, &said) {
				return
			}
		case isCode(err, amqp.PreconditionFailed):
			f.log.Error("the control queue exists with other arguments; delete it, or set another host id", "queue", f.names.ControlQueue(f.cfg.Host), "error", err)
		default:
			f.log.Debug("claim on the host id not held", "error", err)
		}
		if wait.Pause(s.ctx, b.NextBackOff()) != nil {
			return
		}
	}
}

// claimRefused tells of a refusal; true if it ended the session.
func (f *Fabric) claimRefused(s *session, err error, since time.Time, said *time.Time) bool {
	if denied(err) { // no wait cures it
		f.setClaim(ClaimRefused)
		text := noRight(f.names.ControlQueue(f.cfg.Host))
		f.update(func() { f.reason = text })
		if time.Since(*said) > contestedEvery {
			*said = time.Now()
			f.log.Error(text, "host", f.cfg.Host, "broker", f.dialer.where(), "error", err)
		}
		return false
	}
	if time.Since(since) <= f.refusedFor {
		if f.Claim().Status != ClaimContested {
			f.setClaim(ClaimRefused)
		}
		return false
	}
	f.setClaim(ClaimContested)
	if time.Since(*said) > contestedEvery {
		*said = time.Now()
		f.log.Error("another gateway uses our host id: this one serves local traffic only and keeps trying. "+
			"Stop the other one, or give this one an id of its own (`host:` in the config, --host, or BRIDGED_HOST)",
			"host", f.cfg.Host, "queue", f.names.ControlQueue(f.cfg.Host), "broker", f.dialer.where(), "error", err)
	}
	reason := fmt.Sprintf("host id %s is in use by another gateway", f.cfg.Host)
	if f.claimedBefore() { // we went on without it; now we stop what we speak for
		f.update(func() { f.claimed = false })
		s.cancel(errors.New(reason))
		return true
	}
	f.update(func() { f.reason = reason })
	return false
}

// holdClaim takes the claim and serves control messages until it is lost.
func (s *session) holdClaim() (held bool, err error) {
	f := s.f
	q := f.names.controlQueue(f.cfg.Host)
	ch, err := s.con.Channel()
	if err != nil {
		return false, err
	}
	defer ch.Close() // it may be closed already
	if err := q.declare(ch); err != nil {
		return false, err
	}
	if err := ch.Qos(lanePrefetch, 0, false); err != nil {
		return false, err
	}
	deliveries, err := consumeAlone(ch, q.name, "control-"+s.word)
	if err != nil {
		return false, err
	}
	f.update(func() { f.claimed = true })
	closeOnce(s.held)
	f.log.Info("host id claimed", "host", f.cfg.Host)
	select {
	case <-s.topology:
	case <-s.ctx.Done():
		return true, context.Cause(s.ctx)
	}
	err = s.aside(s.ctx, func(ch *amqp.Channel) error {
		return ch.QueueBind(q.name, f.cfg.Host, f.names.Control(), false, nil)
	})
	if err == nil { // from now on requests come in, and we may say that we serve
		f.setClaim(ClaimHeld)
		defer f.setClaim(ClaimNone)
	}
	closeOnce(s.bound)
	if err != nil {
		return true, fmt.Errorf("bind the control queue: %w", err)
	}
	s.readLane(ch, deliveries, lane{place: place{lane: envelope.LaneControl}, handle: s.control})
	return true, nil
}

// closeOnce closes a channel that this goroutine alone closes.
func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// control hands a control message on; what nobody handles is acked, because
// the requester is not told that it was accepted.
func (s *session) control(env *envelope.Envelope, h *hold) {
	if s.f.deps.OnControl == nil {
		s.f.stats.unsupported.Add(1)
		s.f.log.Warn("control message ignored: this gateway does not serve it", "kind", env.Kind, "from", env.From, "trace", env.TraceID)
		s.settle(h.Ack)
		return
	}
	if err := s.f.deps.OnControl(env); err != nil {
		s.f.log.Error("control message not committed; the broker gives it again", "kind", env.Kind, "trace", env.TraceID, "error", err)
		_ = wait.Pause(s.ctx, retryMin) // a store that fails must not be hammered
		s.settle(h.Requeue)
		return
	}
	s.settle(h.Ack)
}

// denied tells a missing right from another consumer, which have one code. Both
// brokers say "in exclusive use" of the second (broker fact §2); who consumes
// the queue a moment later proves nothing, he may just have lost his link.
func denied(err error) bool {
	e, ok := errors.AsType[*amqp.Error](err)
	return ok && e.Code == amqp.AccessRefused && !strings.Contains(e.Reason, "exclusive")
}

func noRight(queue string) string {
	return "the broker gives this gateway's login too few rights for queue " + queue + "; see docs/broker.md"
}

// errShared means that LavinMQ granted an exclusive consumer beside another.
var errShared = errors.New("another consumer is attached to the queue")

// consumeAlone takes an exclusive consumer and makes sure that it is the only
// one: LavinMQ grants it beside a plain one (broker fact §2).
func consumeAlone(ch *amqp.Channel, queue, tag string) (<-chan amqp.Delivery, error) {
	deliveries, err := ch.Consume(queue, tag, false, true, false, false, nil)
	if err != nil {
		return nil, err
	}
	q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		return nil, err
	}
	if q.Consumers > 1 {
		return nil, errShared
	}
	return deliveries, nil
}

// isRefusal reports whether someone else holds the queue, or held it until the
// broker notices.
func isRefusal(err error) bool {
	return errors.Is(err, errShared) || isCode(err, amqp.AccessRefused, amqp.ResourceLocked)
}
