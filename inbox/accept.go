package inbox

import (
	"context"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
)

// Accept takes one verified delivery from the broker and answers for it: it is
// settled now, or when its item leaves the box. It waits while the store is
// unavailable, so that an infrastructure failure holds mail back and never
// rejects it; if ctx ends meanwhile the delivery stays unsettled and comes
// again.
func (in *Inbox) Accept(ctx context.Context, gid string, d envelope.Delivery) {
	b := in.box(gid)
	if b == nil {
		in.settled("requeue", d.Envelope, d.Requeue())
		return
	}
	err := in.untilStored(ctx, func() error { return in.accept(ctx, b, d) })
	switch {
	case err == nil || ctx.Err() != nil:
	case fault.Is(err, fault.StoreUnavailable):
	default:
		in.log.Error("mail refused", "trace", d.TraceID, "msg", d.MsgID, "kind", d.Kind, "error", err)
		in.settled("reject", d.Envelope, d.Reject())
	}
}

func (in *Inbox) accept(ctx context.Context, b *box, d envelope.Delivery) error {
	e := b.snapshot()
	switch d.Kind {
	case envelope.Failed, envelope.Abandoned:
		if err := in.cfg.Reports.Outcome(ctx, d.Envelope); err != nil {
			return err
		}
		in.settled("ack", d.Envelope, d.Ack())
		return nil
	case envelope.Send, envelope.Broadcast, envelope.Reply:
	default:
		if err := in.final(ctx, d.Envelope, e.GID, envelope.Failed, string(fault.Refused)); err != nil {
			return err
		}
		return fault.New(fault.Refused, "an inbox takes no %s", d.Kind)
	}
	known, err := in.known(ctx, b, d)
	if known || err != nil {
		return err
	}
	if e.State == Gone {
		return in.refuseGone(ctx, e, d)
	}
	it := &item{env: d.Envelope, hash: envelope.Hash(d.Body), settle: d.Settler, arrived: in.cfg.Now()}
	b.mu.Lock()
	if old, ok := b.index[d.MsgID]; ok {
		it.seq, it.redelivered = old.Seq, old.Offered
		delete(b.index, d.MsgID)
	} else {
		b.seq++
		it.seq = b.seq
	}
	b.mu.Unlock()
	if e.Kind != Worker {
		record := heldOf(e.GID, it)
		in.cfg.Store.Later(func(tx *store.Tx) error { return tx.PutHeld(record) })
	}
	in.trace("received", d.Envelope, e.GID, outcomeWaiting, "")
	if d.Kind == envelope.Reply {
		in.cfg.Reports.Arrived(d.Envelope)
	}
	b.add(it)
	return nil
}

// known deals with a message that has been here before (design §4,
// duplicates) and reports whether it was one.
func (in *Inbox) known(ctx context.Context, b *box, d envelope.Delivery) (bool, error) {
	gid, hash := b.gid, envelope.Hash(d.Body)
	b.mu.Lock()
	it := b.byID[d.MsgID]
	if it != nil && it.hash != hash {
		b.mu.Unlock()
		return true, in.alarm(d)
	}
	if it != nil {
		spare := d.Settler // of the copy that is not needed
		if it.state != injecting && !it.local() {
			spare, it.settle = it.settle, d.Settler
		}
		b.mu.Unlock()
		in.trace("duplicate", d.Envelope, gid, outcomeWaiting, "")
		// After a reconnect the older tag is dead and this fails: nothing to do.
		in.settled("ack", d.Envelope, spare.Ack())
		return true, nil
	}
	b.mu.Unlock()

	var seen store.Seen
	var found bool
	err := in.cfg.Store.View(func(tx *store.Tx) (err error) {
		seen, found, err = tx.SeenOf(d.TS, d.MsgID, gid)
		return err
	})
	if err != nil || !found || seen.Outcome == outcomeWaiting {
		return false, err
	}
	if seen.BodyHash != hash {
		return true, in.alarm(d)
	}
	in.trace("duplicate", d.Envelope, gid, seen.Outcome, seen.Reason)
	switch seen.Outcome {
	case outcomeInjected:
		in.progress(d.Envelope, gid, envelope.Injected, "")
	case outcomeFailed:
		if err := in.final(ctx, d.Envelope, gid, envelope.Failed, seen.Reason); err != nil {
			return true, err
		}
	}
	in.settled("ack", d.Envelope, d.Ack())
	return true, nil
}

// Known reports whether a message with this id and body was taken before, by a
// recipient of this host. It is handed on without being verified anew.
func (in *Inbox) Known(gid, msgID string, body []byte) bool {
	b := in.box(gid)
	if b == nil {
		return false
	}
	hash := envelope.Hash(body)
	b.mu.Lock()
	if it := b.byID[msgID]; it != nil {
		defer b.mu.Unlock()
		return it.hash == hash
	}
	b.mu.Unlock()
	var seen store.Seen
	var found bool
	err := in.cfg.Store.View(func(tx *store.Tx) (err error) {
		seen, found, err = tx.FindSeen(msgID, gid)
		return err
	})
	return err == nil && found && seen.Outcome != outcomeWaiting && seen.BodyHash == hash
}

// alarm is for one message id with two bodies: never a retry, so an attack or
// a defect.
func (in *Inbox) alarm(d envelope.Delivery) error {
	in.trace("refused", d.Envelope, d.To, outcomeFailed, string(fault.Refused))
	return fault.New(fault.Refused, "ALARM: message %s came again with another body", d.MsgID)
}

// refuseGone answers mail for an entity that has ended.
func (in *Inbox) refuseGone(ctx context.Context, e store.Entity, d envelope.Delivery) error {
	if err := in.final(ctx, d.Envelope, e.GID, envelope.Failed, string(fault.PaneGone)); err != nil {
		return err
	}
	in.trace("refused", d.Envelope, e.GID, outcomeFailed, string(fault.PaneGone))
	in.settled("ack", d.Envelope, d.Ack())
	return nil
}

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
	it := &item{env: env, hash: envelope.Hash(env.Body), arrived: in.cfg.Now()}
	b.mu.Lock()
	gone, full, dup := b.entity.State == Gone, b.locals >= in.cfg.LocalCap, b.byID[env.MsgID] != nil
	if !gone && !full && !dup {
		b.seq++
		it.seq = b.seq
		b.locals++
	}
	gid := b.gid
	b.mu.Unlock()
	switch {
	case gone:
		return fault.New(fault.PaneGone, "%s has ended and will not come back; send to somebody else", in.cfg.Names.Name(gid))
	case full:
		return fault.New(fault.InboxFull, "the inbox of %s is full; wait until it has read some of its mail", in.cfg.Names.Name(gid))
	case dup:
		return in.cfg.Store.Write(ctx, also)
	}
	record := heldOf(gid, it)
	err := in.cfg.Store.Write(ctx, func(tx *store.Tx) error {
		dup = false
		seen, found, err := tx.SeenOf(env.TS, env.MsgID, gid)
		if err != nil {
			return err
		}
		if dup = found && seen.Outcome != outcomeWaiting; !dup {
			if err := tx.PutHeld(record); err != nil {
				return err
			}
		}
		return also(tx)
	})
	if err != nil || dup {
		b.mu.Lock()
		b.locals--
		b.mu.Unlock()
		return err
	}
	in.trace("received", env, gid, outcomeWaiting, "")
	if env.Kind == envelope.Reply {
		in.cfg.Reports.Arrived(env)
	}
	b.add(it)
	return nil
}

// settled notes that the broker could not be told: the channel went, and the
// broker will deliver the message again, as a duplicate.
func (in *Inbox) settled(what string, e *envelope.Envelope, err error) {
	if err != nil {
		in.log.Debug("the broker could not be told; it will deliver again", "what", what, "msg", e.MsgID, "error", err)
	}
}

func (in *Inbox) report(e *envelope.Envelope, gid string, kind envelope.Kind, reason string) envelope.Report {
	return envelope.Report{
		Kind: kind, Reason: reason, MsgID: e.MsgID, TraceID: e.TraceID,
		Sender: e.From, SenderHost: e.Signer, Recipient: gid, Hops: e.Hops,
	}
}

// progress tells the sender of a brief how it stands; nobody waits to hear
// this of other mail.
func (in *Inbox) progress(e *envelope.Envelope, gid string, kind envelope.Kind, reason string) {
	if e.Kind.Brief() {
		in.cfg.Reports.Progress(in.report(e, gid, kind, reason))
	}
}

// final tells the sender of a brief its end. Other mail has no end to tell: a
// dead reply is logged where it dies.
func (in *Inbox) final(ctx context.Context, e *envelope.Envelope, gid string, kind envelope.Kind, reason string) error {
	if !e.Kind.Brief() && e.Kind.Known() {
		return nil
	}
	return in.cfg.Reports.Final(ctx, in.report(e, gid, kind, reason))
}
