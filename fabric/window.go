package fabric

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric/envelope"
)

// The bounds of what is held (design §6, Prefetch).
const (
	windowMessages = 4096     // of one inbox, over all its windows
	windowBytes    = 64 << 20 // likewise
	// loadBytes is the bound of all inboxes together. Past it their windows
	// shrink to narrowWindow, with which every reader still gets on. What the
	// broker gave before comes on top: one window of each inbox at most.
	loadBytes    = 256 << 20
	narrowWindow = 8

	lookEvery  = 10 * time.Second // at what is held for long
	lookNarrow = time.Second      // at whether there is room again
)

// window is what one channel holds of an inbox. One goroutine uses it.
type window struct {
	in    *inbox
	spec  Inbox
	ch    *amqp.Channel
	queue string
	lavin bool
	r     *reader
	now   *consumer
	holds []*hold // in the order of their coming; some are settled
}

// consumer is one consumer of an inbox. When it is cancelled for the next one,
// what it brought stays unsettled.
type consumer struct {
	tag        string
	prefetch   int
	deliveries <-chan amqp.Delivery
	unsettled  atomic.Int64
}

func (c *consumer) full() bool { return c != nil && c.unsettled.Load() >= int64(c.prefetch) }

// newWindow makes the window of a channel; life ends with it.
func newWindow(life context.Context, in *inbox, ch *amqp.Channel, lavin bool) *window {
	f, spec := in.f, in.snapshot()
	w := &window{in: in, spec: spec, ch: ch, queue: f.names.Inbox(spec.GID), lavin: lavin}
	at := place{lane: envelope.LaneMail, gid: spec.GID, worker: spec.Worker, queue: w.queue}
	w.r = newReader(f, at, in.awaits, func(env *envelope.Envelope, d *amqp.Delivery, h *hold) {
		f.stats.delivered.Add(1)
		spec.Handler(life, envelope.Delivery{Envelope: env, Redelivered: d.Redelivered, Settler: h})
	})
	w.r.room, w.r.spare = w.room, w.spare
	w.r.open = func() bool { return !w.now.full() }
	return w
}

// attach takes the first consumer. What the handler has from an earlier channel
// comes again, so there must be room for it.
func (w *window) attach() error {
	if err := w.pushedOut(); err != nil {
		return err
	}
	return w.consume(max(w.usual(), int(w.in.load.messages.Load())), consumeAlone)
}

// pushedOut tells the handler if the queue may not have kept all that it has.
func (w *window) pushedOut() error {
	if !w.lavin || w.spec.PushedOut == nil || w.in.load.messages.Load() == 0 {
		return nil
	}
	left, err := w.belowCap()
	if err == nil && left <= 0 {
		w.spec.PushedOut()
	}
	return err
}

// belowCap is how many messages the queue is below its cap.
func (w *window) belowCap() (int, error) {
	q, err := w.ch.QueueDeclarePassive(w.queue, true, false, false, false, nil)
	return int(w.in.f.inboxCap) - q.Messages, err
}

// spare is how many messages may be handed back without the queue losing any.
func (w *window) spare() int {
	if !w.lavin {
		return windowMessages
	}
	left, err := w.belowCap()
	if err != nil {
		return 0 // the channel has ended
	}
	return left
}

// usual is how many messages a window should take now.
func (w *window) usual() int {
	if w.in.f.crowded() {
		return min(w.spec.Prefetch, narrowWindow)
	}
	return w.spec.Prefetch
}

// crowded reports whether all inboxes together hold too much.
func (f *Fabric) crowded() bool { return f.load.bytes.Load() >= f.loadBytes }

func (w *window) consume(prefetch int, by func(*amqp.Channel, string, string) (<-chan amqp.Delivery, error)) error {
	prefetch = min(prefetch, windowMessages)
	if err := w.ch.Qos(prefetch, 0, false); err != nil {
		return err
	}
	c := &consumer{tag: "inbox-" + w.in.f.deps.Word(), prefetch: prefetch}
	var err error
	if c.deliveries, err = by(w.ch, w.queue, c.tag); err != nil {
		return err
	}
	w.now = c
	w.in.turn(c)
	return nil
}

// turn takes another consumer in place of the present one, on the same
// channel: nothing is requeued, and the next messages come (design §6).
func (w *window) turn(prefetch int) error {
	if err := w.cancel(); err != nil {
		return err
	}
	return w.again(prefetch)
}

// cancel ends the present consumer and takes what was on its way to it.
func (w *window) cancel() error {
	if err := w.ch.Cancel(w.now.tag, false); err != nil {
		return err
	}
	for d := range w.now.deliveries {
		w.take(d)
	}
	return nil
}

func (w *window) again(prefetch int) error {
	return w.consume(prefetch, func(ch *amqp.Channel, queue, tag string) (<-chan amqp.Delivery, error) {
		return ch.Consume(queue, tag, false, true, false, false, nil)
	})
}

// read hands verified mail to the handler until the channel is gone.
func (w *window) read(ctx context.Context, closes <-chan *amqp.Error) error {
	in := w.in
	look := time.NewTimer(w.lookIn())
	defer look.Stop()
	for {
		source := w.now.deliveries
		if w.r.full() {
			source = nil
		}
		var err error
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-closes:
			if err != nil {
				return err
			}
			return errInboxChannel
		case d, ok := <-source:
			if !ok {
				return ended(closes, errInboxChannel)
			}
			w.take(d)
			switch {
			case w.now.prefetch > narrowWindow && in.f.crowded():
				err = w.turn(w.usual())
			case w.stands() && w.places():
				err = w.turn(w.careful())
			}
		case <-in.awaits.wake:
			w.r.resume()
		case <-w.r.look():
			w.r.resume()
		case answer := <-in.more:
			answer <- w.widen()
		case answer := <-in.end:
			r := w.finish(ctx)
			answer <- r
			if err = r.err; r.removed {
				return errRemoved
			}
		case <-look.C:
			err = w.look()
			look.Reset(w.lookIn())
		}
		if err != nil {
			return ended(closes, err)
		}
	}
}

// ended prefers the broker's own word on why the consumer ended.
func ended(closes <-chan *amqp.Error, err error) error {
	word := endOf(closes, err)
	if word == nil {
		select {
		case word = <-closes: // of a channel that closed under its consumer
		default:
		}
	}
	if word != nil {
		return word
	}
	return err
}

func (w *window) take(d amqp.Delivery) {
	id, _ := d.Headers["msgId"].(string)
	h := &hold{
		ch: w.ch, tag: d.DeliveryTag, msgID: id, bytes: len(d.Body), since: w.in.f.uptime(),
		load: &w.in.load, from: w.now,
	}
	h.load.add(1, h.bytes)
	h.from.unsettled.Add(1)
	if len(w.holds) > 64+2*int(w.in.load.messages.Load()) {
		w.dropSettled()
	}
	w.holds = append(w.holds, h)
	w.r.take(d, h)
}

func (w *window) dropSettled() {
	w.holds = slices.DeleteFunc(w.holds, func(h *hold) bool { return h.done.Load() })
}

// stands reports whether most of the present window is mail that waits for its
// sender's host. That may take days, in which others' must get through.
func (w *window) stands() bool {
	if 2*len(w.r.parked) <= w.now.prefetch {
		return false
	}
	n := 0
	for _, m := range w.r.parked {
		if m.h.from == w.now {
			n++
		}
	}
	return 2*n > w.now.prefetch
}

// room reports whether another window may be taken.
func (w *window) room() bool {
	return w.places() && w.in.load.bytes.Load() < windowBytes && !w.in.f.crowded()
}

// careful is how many messages a window should take that is not asked for by a
// reader.
func (w *window) careful() int {
	if w.room() {
		return w.spec.Prefetch
	}
	return min(w.spec.Prefetch, narrowWindow)
}

// places is room but for what the texts take: those of mail that waits without
// room are let go of.
func (w *window) places() bool {
	return int(w.in.load.messages.Load())+w.spec.Prefetch <= windowMessages
}

// widen takes another window for a reader who found nothing in a full one.
func (w *window) widen() moreResult {
	if !w.room() {
		return moreResult{}
	}
	if err := w.turn(w.spec.Prefetch); err != nil {
		return moreResult{err: err}
	}
	return moreResult{taken: true}
}
