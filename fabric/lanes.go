package fabric

import (
	"context"
	"fmt"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric/envelope"
)

const (
	// Acks of the lanes go out in batches: after so many, or so long.
	batchMost = 100
	batchWait = 20 * time.Millisecond
	// rememberedSignals bounds the memory of signal ids; all signals are
	// idempotent, so that forgetting one is no harm (design §4).
	rememberedSignals = 8192
)

// lane is a queue whose messages are read, handled and acked in batches.
type lane struct {
	place  place
	batch  bool // handle does not settle; the reader acks in batches
	handle func(*envelope.Envelope, *hold)
}

// startLanes declares, binds and consumes the signal and the roster queue.
// They are what "connected" means: losing one of them ends the session.
func (s *session) startLanes() error {
	f := s.f
	signal := f.names.signalQueue(f.cfg.Host, s.word)
	keys := []string{signalKey(envelope.GatewayAddress(f.cfg.Host))}
	f.mu.Lock()
	for gid := range f.inboxes {
		keys = append(keys, signalKey(gid))
	}
	f.mu.Unlock()
	err := s.startLane(signal, f.names.Msg(), keys, lane{place: place{lane: envelope.LaneSignal}, batch: true, handle: s.signal})
	if err != nil {
		return fmt.Errorf("signal queue: %w", err)
	}
	roster := f.names.rosterQueue(f.cfg.Host, s.word)
	err = s.startLane(roster, f.names.Roster(), []string{"roster.#"}, lane{place: place{lane: envelope.LanePresence}, batch: true, handle: s.heard})
	if err != nil {
		return fmt.Errorf("roster queue: %w", err)
	}
	return nil
}

func signalKey(address string) string {
	e := envelope.Envelope{To: address}
	return e.RoutingKey(envelope.LaneSignal)
}

func (s *session) startLane(q queue, exchange string, keys []string, l lane) error {
	ch, err := s.con.Channel()
	if err != nil {
		return err
	}
	if err := q.declare(ch); err != nil {
		return err
	}
	for _, key := range keys {
		if err := ch.QueueBind(q.name, key, exchange, false, nil); err != nil {
			return fmt.Errorf("bind %s to %s: %w", q.name, key, err)
		}
	}
	if err := ch.Qos(lanePrefetch, 0, false); err != nil {
		return err
	}
	deliveries, err := ch.Consume(q.name, string(l.place.lane)+"-"+s.word, false, true, false, false, nil)
	if err != nil {
		return err
	}
	l.place.queue = q.name
	s.spawn(func() {
		s.readLane(ch, deliveries, l)
		s.fail("the %s queue is gone", l.place.lane)
	})
	return nil
}

// bindSignal binds an entity that came while the session is up.
func (s *session) bindSignal(ctx context.Context, gid string) error {
	return s.aside(ctx, func(ch *amqp.Channel) error {
		return ch.QueueBind(s.f.names.SignalQueue(s.f.cfg.Host, s.word), signalKey(gid), s.f.names.Msg(), false, nil)
	})
}

func (s *session) unbindSignal(ctx context.Context, gid string) error {
	return s.aside(ctx, func(ch *amqp.Channel) error {
		return ch.QueueUnbind(s.f.names.SignalQueue(s.f.cfg.Host, s.word), signalKey(gid), s.f.names.Msg(), nil)
	})
}

// readLane reads a queue until its channel, its consumer or the session ends.
func (s *session) readLane(ch *amqp.Channel, deliveries <-chan amqp.Delivery, l lane) {
	acks := &batch{ch: ch}
	awaits := s.newAwaited()
	r := newReader(s.f, l.place, awaits, func(env *envelope.Envelope, _ *amqp.Delivery, h *hold) {
		l.handle(env, h)
		if l.batch {
			acks.add(h)
		}
	})
	defer s.dropAwaited(awaits)
	defer r.forget()
	closes := ch.NotifyClose(make(chan *amqp.Error, 1))
	for {
		source := deliveries
		if r.full() {
			source = nil
		}
		select {
		case <-s.ctx.Done():
			return
		case <-closes:
			return
		case d, ok := <-source:
			if !ok {
				return
			}
			r.take(d, &hold{ch: ch, tag: d.DeliveryTag})
		case <-awaits.wake:
			r.resume()
		case <-r.look():
			r.resume()
		case <-acks.due():
			acks.flush(len(r.parked) == 0)
		}
		if len(acks.tags) >= batchMost {
			acks.flush(len(r.parked) == 0)
		}
	}
}

func (s *session) newAwaited() *awaited {
	a := newAwaited()
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	s.awaits = append(s.awaits, a)
	return a
}

// dropAwaited forgets those of a lane that is not read any more: the control
// queue may be taken again many times in one session.
func (s *session) dropAwaited(a *awaited) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	s.awaits = slices.DeleteFunc(s.awaits, func(b *awaited) bool { return a == b })
}

// batch collects tags that are done.
type batch struct {
	ch    *amqp.Channel
	tags  []uint64
	timer *time.Timer
}

func (b *batch) add(h *hold) {
	if !h.done.CompareAndSwap(false, true) {
		return
	}
	if len(b.tags) == 0 {
		b.timer = time.NewTimer(batchWait)
	}
	b.tags = append(b.tags, h.tag)
}

func (b *batch) due() <-chan time.Time {
	if len(b.tags) == 0 {
		return nil
	}
	return b.timer.C
}

// flush acks what was collected; with one frame if nothing older is still
// open, since that would be acked along. An ack that fails is on a dead
// channel; the message comes again and is a duplicate.
func (b *batch) flush(together bool) {
	b.timer.Stop()
	var last uint64
	for _, tag := range b.tags {
		last = max(last, tag)
		if !together {
			_ = b.ch.Ack(tag, false)
		}
	}
	if together {
		_ = b.ch.Ack(last, true)
	}
	b.tags = b.tags[:0]
}

// signal hands a verified signal on, each id once. The probe is ours, and so
// are the answers of those whom Reach asks.
func (s *session) signal(env *envelope.Envelope, _ *hold) {
	if s.f.probed.back(env) || s.f.reached.answered(env) {
		return
	}
	if !s.f.remembered.add(env.Signer + " " + env.MsgID) {
		return
	}
	s.f.stats.signals.Add(1)
	if s.f.deps.OnSignal != nil {
		s.f.deps.OnSignal(env)
	}
}

func (s *session) heard(env *envelope.Envelope, _ *hold) {
	if s.f.deps.OnPresence == nil {
		return
	}
	if err := s.f.deps.OnPresence(env); err != nil {
		s.f.refusals.note(place{lane: envelope.LanePresence, queue: s.f.names.rosterQueue(s.f.cfg.Host, s.word).name}, nil, env, fromRefusal(err))
	}
}

func (s *session) settle(do func() error) {
	if err := do(); err != nil {
		s.f.log.Debug("not settled; the broker delivers it again", "error", err)
	}
}

// memory remembers the last keys it saw. One goroutine uses it at a time.
type memory struct {
	seen map[string]struct{}
	ring []string
	next int
}

// add reports whether key is new.
func (m *memory) add(key string) bool {
	if _, ok := m.seen[key]; ok {
		return false
	}
	if m.seen == nil {
		m.seen, m.ring = map[string]struct{}{}, make([]string, rememberedSignals)
	}
	delete(m.seen, m.ring[m.next])
	m.ring[m.next] = key
	m.seen[key] = struct{}{}
	m.next = (m.next + 1) % len(m.ring)
	return true
}
