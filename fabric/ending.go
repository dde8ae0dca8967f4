package fabric

import (
	"context"
	"errors"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fault"
)

// errRemoved ends the consumer of an inbox that exists no more.
var errRemoved = errors.New("the inbox was removed")

type endResult struct {
	removed bool
	err     error
}

// Unbind takes all keys from an attached inbox for good, so that later
// publishes to it come back (design §9). The queue and its mail stay, and are
// consumed on. An error says that it is to be called again.
func (f *Fabric) Unbind(ctx context.Context, gid string) error {
	f.attachMu.Lock()
	defer f.attachMu.Unlock()
	in, err := f.ending(gid)
	if err != nil {
		return err
	}
	s, err := f.session()
	if err != nil {
		return err
	}
	spec := in.snapshot()
	return s.aside(ctx, func(ch *amqp.Channel) error {
		for _, key := range spec.formerKeys() {
			if err := ch.QueueUnbind(f.names.Inbox(gid), key, f.names.Msg(), nil); err != nil {
				return err
			}
		}
		return nil
	})
}

// ending marks an attached inbox as one that takes no new mail. Who declares it
// from now on binds no key; an attached one has been declared.
func (f *Fabric) ending(gid string) (*inbox, error) {
	f.mu.Lock()
	in, state := f.inboxes[gid], f.state
	f.mu.Unlock()
	if in == nil {
		return nil, fault.New(fault.UnknownRecipient, "no inbox of %s is attached here", gid)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.spec.Ending = true
	if in.info.Status != InboxAttached {
		return nil, state.down()
	}
	return in, nil
}

// Remove deletes an unbound inbox once nothing is left in it, and detaches it.
// False: mail is held or ready, or the inbox is not attached at present; then
// it is consumed on. An inbox that is not attached here at all is gone.
func (f *Fabric) Remove(ctx context.Context, gid string) (bool, error) {
	removed, err := f.remove(ctx, gid)
	if removed {
		f.Detach(gid)
	}
	return removed, err
}

func (f *Fabric) remove(ctx context.Context, gid string) (bool, error) {
	f.attachMu.Lock()
	defer f.attachMu.Unlock()
	f.mu.Lock()
	in, state := f.inboxes[gid], f.state
	f.mu.Unlock()
	if in == nil {
		return true, nil
	}
	if in.status().Status != InboxAttached {
		return false, state.down()
	}
	in.mu.Lock()
	done := in.done
	in.mu.Unlock()
	answer := make(chan endResult, 1)
	select {
	case in.end <- answer:
	case <-done:
		return false, f.State().down()
	case <-ctx.Done():
		return false, ctx.Err()
	}
	r := <-answer // bounded by the connection
	return r.removed, r.err
}

// finish deletes the queue if nothing is left in it. The consumer is cancelled
// first: all that was on its way has then come, so that if-empty, which counts
// what is ready alone, tells the truth.
func (w *window) finish(ctx context.Context) endResult {
	if err := w.cancel(); err != nil {
		return endResult{err: err}
	}
	if w.in.load.messages.Load() == 0 {
		removed, err := deleteEmpty(ctx, w.in.f, w.queue)
		if removed || err != nil {
			return endResult{removed: removed, err: err}
		}
	}
	return endResult{err: w.again(w.usual())}
}

// deleteEmpty deletes a queue in which nothing is ready; one that is gone
// already is deleted.
func deleteEmpty(ctx context.Context, f *Fabric, queue string) (bool, error) {
	s, err := f.session()
	if err != nil {
		return false, err
	}
	err = s.aside(ctx, func(ch *amqp.Channel) error {
		_, err := ch.QueueDelete(queue, false, true, false)
		return err
	})
	switch {
	case isCode(err, amqp.PreconditionFailed):
		return false, nil
	case err != nil && !isCode(err, amqp.NotFound):
		return false, err
	}
	return true, nil
}
