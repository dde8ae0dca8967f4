package fabric

import (
	"errors"
	"sync/atomic"

	amqp "github.com/rabbitmq/amqp091-go"
)

// errSettled: a delivery is settled once; settling it twice would close its
// channel and everything else on it (broker fact §6).
var errSettled = errors.New("the delivery is settled already")

// hold is the broker's hold on one delivery. It belongs to the channel that
// the delivery came on: tags mean nothing on another one.
type hold struct {
	ch    *amqp.Channel
	tag   uint64
	bytes int
	box   *load // what is unsettled in an inbox; nil elsewhere
	done  atomic.Bool
}

// load counts what an inbox holds unsettled.
type load struct{ messages, bytes atomic.Int64 }

func (l *load) add(messages, bytes int) {
	l.messages.Add(int64(messages))
	l.bytes.Add(int64(bytes))
}

func (h *hold) settle(do func() error) error {
	if !h.done.CompareAndSwap(false, true) {
		return errSettled
	}
	if h.box != nil {
		h.box.add(-1, -h.bytes)
	}
	if h.ch.IsClosed() {
		return amqp.ErrClosed
	}
	return do()
}

// Ack ends the hold: the message is done.
func (h *hold) Ack() error { return h.settle(func() error { return h.ch.Ack(h.tag, false) }) }

// Reject sends the message to the dead-letter exchange.
func (h *hold) Reject() error { return h.settle(func() error { return h.ch.Reject(h.tag, false) }) }

// Requeue gives the message back to its old place in the queue.
func (h *hold) Requeue() error {
	return h.settle(func() error { return h.ch.Nack(h.tag, false, true) })
}
