package inbox

import (
	"context"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
	"fleetd/test/failpoint"
	"fleetd/wait"
)

// Deliver takes one message from this host (the local fork of a send, or a
// notice). It returns once the message is in the store; also is committed
// together with it, or alone if the message was here before.
func (in *Inbox) Deliver(ctx context.Context, env *envelope.Envelope, also func(*store.Tx) error) error {
	b := in.box(env.To)
	if b == nil {
		return fault.New(fault.UnknownRecipient, "nobody here has the id %s; ask bridge_roster who is there", env.To)
	}
	if also == nil {
		also = func(*store.Tx) error { return nil }
	}
	it := newLocal(env, in.cfg.Now())
	for {
		old, err := in.reserve(b, it)
		if err != nil {
			return err
		}
		if old == nil {
			return in.deliver(ctx, b, it, env, also)
		}
		if old.hash != it.hash {
			return in.otherBody(env)
		}
		if old.stored == nil {
			return in.cfg.Store.Write(ctx, also)
		}
		select { // the same message is being stored just now, or was
		case <-old.stored:
			if in.holds(b, old) {
				return in.cfg.Store.Write(ctx, also)
			}
		case <-ctx.Done():
			return fault.Wrap(ctx.Err(), fault.StoreUnavailable, "the request ended before the message was stored; it may be repeated")
		}
	}
}

// reserve gives a local item its place before it is stored, so that order and
// cap hold for all who deliver at the same time. old is the item that the
// message has already.
func (in *Inbox) reserve(b *box, it *item) (old *item, err error) {
	b.mu.Lock()
	gone, full := b.entity.Ended(), b.locals+b.backlog >= in.cfg.LocalCap
	if old = b.byID[it.env.MsgID]; old == nil && !gone && !full {
		b.seq++
		it.seq, it.stored = b.seq, make(chan struct{})
		it.late = b.behind(in.cfg.LocalWindow)
		b.insert(it)
	}
	b.mu.Unlock()
	switch {
	case gone:
		return nil, fault.New(fault.PaneGone, "%s has ended and will not come back; send to somebody else", in.cfg.Names.Name(b.gid))
	case old == nil && full:
		return nil, fault.New(fault.InboxFull, "the inbox of %s is full; wait until it has read some of its mail", in.cfg.Names.Name(b.gid))
	}
	return old, nil
}

func (in *Inbox) holds(b *box, it *item) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.byID[it.env.MsgID] == it
}

func (in *Inbox) deliver(ctx context.Context, b *box, it *item, env *envelope.Envelope, also func(*store.Tx) error) error {
	b.mu.Lock()
	record, backlog := heldOf(b.gid, it), b.partial
	b.mu.Unlock()
	record.Body = env.Body
	wait.Poke(b.wake) // the gate can be waited for already
	var seen store.Seen
	var dup bool
	failpoint.Hit("inbox.deliver.before")
	err := in.cfg.Store.Write(ctx, func(tx *store.Tx) (err error) {
		if seen, dup, err = tx.FindSeen(env.MsgID, b.gid); err != nil {
			return err
		}
		if dup = dup && (seen.Outcome != store.Waiting || backlog); dup && seen.BodyHash != it.hash {
			return in.otherBody(env)
		}
		if !dup {
			if err := tx.PutHeld(record); err != nil {
				return err
			}
			if it.late {
				if err := tx.PutSeen(env.TS, env.MsgID, b.gid, in.seen(it, store.Waiting, "")); err != nil {
					return err
				}
			}
		}
		return also(tx)
	})
	failpoint.Hit("inbox.deliver.after")
	if err == nil && !dup {
		in.trace("received", env, b.gid, store.Waiting, "")
		if env.Kind == envelope.Reply {
			in.cfg.Reports.Arrived(env)
		}
	}
	b.mu.Lock()
	switch {
	case err != nil || dup:
		b.drop(it)
		if dup && backlog {
			b.search() // a refill may have taken it for the one in the store
		}
	case it.late && !b.wanted(it):
		b.shelve(it)
	default:
		b.arrive(it)
	}
	close(it.stored)
	b.mu.Unlock()
	return err
}

// Backlog is how much mail waits for gid.
func (in *Inbox) Backlog(gid string) int {
	b := in.box(gid)
	if b == nil {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.items.Len()
}

func (in *Inbox) otherBody(env *envelope.Envelope) error {
	in.log.Error("ALARM: one message id with two bodies", "msg", env.MsgID, "trace", env.TraceID)
	return fault.New(fault.Refused, "message %s is there already with another body; this is a defect of the gateway, tell whoever runs it", env.MsgID)
}
