package fabric

import (
	"errors"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// errSettled: a delivery is settled once; settling it twice would close its
// channel and everything else on it (broker fact §6).
var errSettled = errors.New("the delivery is settled already")

// hold is the broker's hold on one delivery. It belongs to the channel that
// the delivery came on: tags mean nothing on another one.
type hold struct {
	ch   *amqp.Channel
	tag  uint64
	done atomic.Bool

	// In an inbox:
	msgID string
	bytes int           // of the body
	since time.Duration // uptime at which it was taken
	load  *load
	from  *consumer
}

// load counts what is unsettled: of one inbox, and in sum of all.
type load struct {
	messages, bytes atomic.Int64
	sum             *load
}

func (l *load) add(messages, bytes int) {
	for ; l != nil; l = l.sum {
		l.messages.Add(int64(messages))
		l.bytes.Add(int64(bytes))
	}
}

// end marks the hold as settled; false: it was.
func (h *hold) end() bool {
	if !h.done.CompareAndSwap(false, true) {
		return false
	}
	h.load.add(-1, -h.bytes)
	if h.from != nil {
		h.from.unsettled.Add(-1)
	}
	return true
}

// lighten tells that the body is not in memory any more.
func (h *hold) lighten() {
	if h.done.Load() {
		return // it counts for nothing any more
	}
	h.load.add(0, -h.bytes)
	h.bytes = 0
}

func (h *hold) settle(do func() error) error {
	if !h.end() {
		return errSettled
	}
	if h.ch.IsClosed() {
		return amqp.ErrClosed
	}
	return do()
}

// Held reports whether the hold is neither settled nor gone with its channel.
func (h *hold) Held() bool { return !h.done.Load() && !h.ch.IsClosed() }

// Ack ends the hold: the message is done.
func (h *hold) Ack() error { return h.settle(func() error { return h.ch.Ack(h.tag, false) }) }

// Reject sends the message to the dead-letter exchange.
func (h *hold) Reject() error { return h.settle(func() error { return h.ch.Reject(h.tag, false) }) }

// Requeue gives the message back to its old place in the queue.
func (h *hold) Requeue() error {
	return h.settle(func() error { return h.ch.Nack(h.tag, false, true) })
}
