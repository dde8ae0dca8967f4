package fabric

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/test/failpoint"
	"fleetd/wait"
)

// Outcome is the broker's word on one publish.
type Outcome int

// The outcomes. NotSent always comes with an error, and nothing reached the
// broker. After InDoubt the message may still arrive.
const (
	NotSent   Outcome = iota
	Confirmed         // routed and stored
	Returned          // confirmed, but no queue takes it
	Nacked            // refused on a live channel: a queue is full
	InDoubt           // no word: in time, or for good because the connection broke
	Refused           // the broker closed the channel over this very message
)

func (o Outcome) String() string {
	return [...]string{"not sent", "confirmed", "returned", "nacked", "in doubt", "refused"}[o]
}

const (
	// confirmWait bounds the wait for the broker's word (design §5).
	confirmWait = 5 * time.Second
	// turnWait bounds the wait for others' writes; with writeWait behind it, a
	// publish into a frozen broker still ends within confirmWait.
	turnWait = confirmWait - writeWait
	// returnBuffer only spares switches: the reader never waits on anything.
	returnBuffer = 512
)

// Publish sends a signed envelope on lane and waits for the broker's word, for
// at most 5 s or until ctx ends; then it returns InDoubt. settled (may be nil)
// is called exactly once unless the outcome is NotSent: with the same outcome
// before Publish returns, or, if Publish gave up, with the word once it comes,
// from a goroutine of the session. It must return soon.
//
// The error is BROKER_DOWN if the link is not connected, BAD_REQUEST or
// TOO_LARGE if the message cannot be carried, BROKER_REFUSED beside Refused.
func (f *Fabric) Publish(ctx context.Context, lane envelope.Lane, env *envelope.Envelope, settled func(Outcome)) (Outcome, error) {
	m, err := f.message(lane, env)
	if err != nil {
		return NotSent, err
	}
	s, pub, err := f.publishing(lane)
	if err != nil {
		return NotSent, err
	}
	out, err := pub.publish(ctx, s, m, settled)
	f.stats.published(out)
	return out, err
}

// publishing returns the publish channel if lane may be used now. Presence may
// before the state is connected, since the roster is synced before it.
func (f *Fabric) publishing(lane envelope.Lane) (*session, *pubChannel, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.sess
	usable := f.state.Phase == Connected ||
		s != nil && lane == envelope.LanePresence && s.presence && s.blocked == ""
	if !usable || s.pub == nil {
		return nil, nil, f.state.down()
	}
	return s, s.pub, nil
}

// pubChannel is one channel in confirm mode.
type pubChannel struct {
	ch       *amqp.Channel
	lavin    bool
	wait     time.Duration
	turn     chan struct{} // held while writing
	returns  chan amqp.Return
	barriers chan chan struct{}
	drained  chan struct{} // closed when the reader of returns has ended
	gone     chan struct{} // closed when the channel is, after cause and alone are set

	mu       sync.Mutex
	waiting  map[string][]*publish
	inFlight int

	cause *amqp.Error // why the broker closed the channel; nil if the connection broke
	alone bool        // one publish was in flight then: cause is about it
}

// publish is one message under way.
type publish struct {
	key      string
	returned bool // under pubChannel.mu
	confirm  *amqp.DeferredConfirmation
}

// openPublisher opens a publish channel and makes it the session's.
func (s *session) openPublisher() (*pubChannel, error) {
	ch, err := s.out.Channel()
	if err != nil {
		return nil, err
	}
	p := &pubChannel{
		ch: ch, lavin: lavin(s.out.Connection), wait: s.f.confirmWait, turn: make(chan struct{}, 1),
		barriers: make(chan chan struct{}), drained: make(chan struct{}), gone: make(chan struct{}),
		waiting: map[string][]*publish{},
	}
	p.returns = ch.NotifyReturn(make(chan amqp.Return, returnBuffer))
	closes := ch.NotifyClose(make(chan *amqp.Error, 1))
	if !s.spawn(p.readReturns) || !s.spawn(func() { p.watch(closes) }) {
		_ = ch.Close() // the session is over
		return nil, errSessionOver
	}
	if err := ch.Confirm(false); err != nil {
		return nil, err
	}
	s.f.update(func() { s.pub = p })
	return p, nil
}

// keepPublisher opens a new publish channel whenever the broker closed one.
func (s *session) keepPublisher(p *pubChannel) {
	b := newBackoff(retryMax)
	for {
		opened := time.Now()
		<-p.gone
		if s.ctx.Err() != nil || s.out.IsClosed() {
			return
		}
		s.f.update(func() {
			s.pub = nil
			s.f.reason = fmt.Sprintf("the broker closed the publish channel: %v", p.cause)
		})
		s.f.log.Warn("the broker closed the publish channel; opening another", "error", p.cause)
		if time.Since(opened) > settledAfter {
			b.Reset()
		}
		if wait.Pause(s.ctx, b.NextBackOff()) != nil {
			return
		}
		next, err := s.openPublisher()
		if err != nil {
			s.fail("no new publish channel: %w", err)
			return
		}
		p = next
	}
}

// watch notes why the channel closed, before anyone decides on it.
func (p *pubChannel) watch(closes <-chan *amqp.Error) {
	cause := <-closes
	p.mu.Lock()
	p.alone = p.inFlight == 1
	p.mu.Unlock()
	p.cause = cause
	close(p.gone)
}

// readReturns reads returns and waits on nothing else: the library stalls its
// whole connection while nobody takes one (broker fact §4). Who passed a
// barrier has seen every return that came before it.
func (p *pubChannel) readReturns() {
	defer close(p.drained)
	for {
		select {
		case r, ok := <-p.returns:
			if !ok {
				return
			}
			p.mark(r)
		case b := <-p.barriers:
			for more := true; more; {
				select {
				case r, ok := <-p.returns:
					if !ok {
						close(b)
						return
					}
					p.mark(r)
				default:
					more = false
				}
			}
			close(b)
		}
	}
}

// mark finds the publish that came back: the oldest under that id and key.
// One id may be under way on two lanes.
func (p *pubChannel) mark(r amqp.Return) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.waiting[r.MessageId+" "+r.RoutingKey] {
		if !m.returned {
			m.returned = true
			return
		}
	}
}

func (p *pubChannel) barrier() {
	b := make(chan struct{})
	select {
	case p.barriers <- b:
		<-b
	case <-p.drained:
	}
}

func (p *pubChannel) publish(ctx context.Context, s *session, m message, settled func(Outcome)) (Outcome, error) {
	limit := time.NewTimer(p.wait)
	defer limit.Stop()
	w, err := p.write(ctx, m)
	if w == nil {
		return NotSent, err
	}
	if settled == nil {
		settled = func(Outcome) {}
	}
	if err != nil { // part of it may be on the way
		out := InDoubt
		p.forget(w)
		settled(out)
		return out, nil
	}
	if m.mandatory { // no presence
		failpoint.Hit("fabric.publish.written")
	}
	select {
	case <-w.confirm.Done():
		out := p.decide(w)
		settled(out)
		return out, p.reason(out)
	case <-limit.C:
	case <-ctx.Done():
	}
	late := func() { <-w.confirm.Done(); settled(p.decide(w)) }
	if !s.spawn(late) {
		late() // the connection is closed, and every confirm resolved with it
	}
	return InDoubt, nil
}

// write puts m on the wire. No publish: nothing was written. A publish and an
// error: perhaps.
func (p *pubChannel) write(ctx context.Context, m message) (*publish, error) {
	select {
	case p.turn <- struct{}{}:
	default:
		if err := p.awaitTurn(ctx); err != nil {
			return nil, err
		}
	}
	defer func() { <-p.turn }()
	w := &publish{key: m.MessageId + " " + m.key}
	p.mu.Lock()
	p.waiting[w.key] = append(p.waiting[w.key], w)
	p.inFlight++
	p.mu.Unlock()
	var err error
	w.confirm, err = p.ch.PublishWithDeferredConfirm(m.exchange, m.key, m.mandatory, false, m.Publishing)
	if errors.Is(err, amqp.ErrClosed) {
		p.forget(w)
		return nil, fault.Wrap(err, fault.BrokerDown, "the broker link went down just now; nothing was sent. Try again in a moment")
	}
	return w, err
}

func (p *pubChannel) awaitTurn(ctx context.Context) error {
	t := time.NewTimer(turnWait)
	defer t.Stop()
	select {
	case p.turn <- struct{}{}:
		return nil
	case <-t.C:
		return fault.New(fault.BrokerDown, "the broker takes no data at present; nothing was sent. Try again in a moment")
	case <-ctx.Done():
		return fault.Wrap(ctx.Err(), fault.BrokerDown, "the call ended before the message could be sent; nothing was sent")
	}
}

// decide turns a resolved confirm into the outcome. A confirm that resolved
// with the end of the channel is no word at all.
func (p *pubChannel) decide(w *publish) Outcome {
	p.barrier()
	acked := w.confirm.Acked()
	closed := !acked && p.ch.IsClosed()
	if closed {
		<-p.gone // before it is forgotten: what is in flight is counted then
	}
	returned := p.forget(w)
	switch {
	case acked && returned:
		return Returned
	case acked:
		return Confirmed
	case !closed:
		return Nacked
	}
	if p.cause == nil || !p.alone || p.lavin && p.cause.Code == amqp.PreconditionFailed {
		return InDoubt // LavinMQ's 406 is its alarm (broker fact §7)
	}
	switch p.cause.Code {
	case amqp.AccessRefused, amqp.NotFound, amqp.PreconditionFailed:
		return Refused
	}
	return InDoubt
}

// forget ends the bookkeeping of w and tells whether it was returned.
func (p *pubChannel) forget(w *publish) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inFlight--
	list := p.waiting[w.key]
	for i, m := range list {
		if m == w {
			list = append(list[:i], list[i+1:]...)
			break
		}
	}
	if len(list) == 0 {
		delete(p.waiting, w.key)
	} else {
		p.waiting[w.key] = list
	}
	return w.returned
}

func (p *pubChannel) reason(out Outcome) error {
	if out != Refused {
		return nil
	}
	return fault.Wrap(p.cause, fault.BrokerRefused, "the broker refused the message (code %d); check the rights of the gateway's login and that bridge.* exchanges exist", p.cause.Code)
}
