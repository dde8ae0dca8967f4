package inbox

import (
	"context"
	"maps"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
	"fleetd/test/failpoint"
)

// Accept takes one delivery from the broker and answers for it: it is settled
// now, or when its item leaves the box. It is verified, or Known. Accept waits
// while the store is unavailable, so that an infrastructure failure holds mail
// back and never rejects it; if ctx ends meanwhile, or Run does, the delivery
// stays unsettled and comes again.
func (in *Inbox) Accept(ctx context.Context, gid string, d envelope.Delivery) {
	b := in.box(gid)
	if b == nil {
		// It stays unsettled: handed back, it would return at once, for ever.
		in.log.Error("mail came for nobody here; it stays on the broker", "gid", gid, "msg", d.MsgID)
		return
	}
	err := in.untilStored(ctx, func(ctx context.Context) error { return in.accept(ctx, b, d) })
	switch {
	case err == nil || ctx.Err() != nil:
	case fault.Is(err, fault.StoreUnavailable):
	default:
		in.log.Error("mail refused", "trace", d.TraceID, "msg", d.MsgID, "kind", d.Kind, "error", err)
		in.settled("reject", d.Envelope, d.Reject())
	}
}

func (in *Inbox) accept(ctx context.Context, b *box, d envelope.Delivery) error {
	failpoint.Hit("inbox.accept.before")
	hash := envelope.Hash(d.Body)
	// First of all: what is Known was not verified, so its kind means nothing.
	if known, err := in.duplicate(ctx, b, d, hash); known || err != nil {
		return err
	}
	switch d.Kind {
	case envelope.Failed, envelope.Abandoned:
		if err := in.cfg.Reports.Outcome(ctx, d.Envelope); err != nil {
			return err
		}
		failpoint.Hit("inbox.report.committed")
		in.settled("ack", d.Envelope, d.Ack())
		return nil
	case envelope.Send, envelope.Broadcast:
		if d.From == b.gid { // the sender's own copy of a broadcast
			in.settled("ack", d.Envelope, d.Ack())
			return nil
		}
		if err := in.allowed(ctx, b.gid, d.Envelope); err != nil {
			return err
		}
	case envelope.Reply: // to something that was asked from here
	default:
		if err := in.final(ctx, d.Envelope, b.gid, envelope.Failed, string(fault.Refused)); err != nil {
			return err
		}
		return fault.New(fault.Refused, "an inbox takes no %s", d.Kind)
	}
	it := newItem(d.Envelope, in.cfg.Now())
	it.hold = d.Settler
	it.redelivered = in.cfg.Crashed && d.Redelivered // of it there may be no record at all
	switch gone, taken := in.admit(b, it); {
	case gone:
		return in.refuseGone(ctx, b.gid, d)
	case !taken: // the same message came by another way just now
		return in.accept(ctx, b, d)
	}
	in.trace("received", d.Envelope, b.gid, store.Waiting, "")
	if d.Kind == envelope.Reply {
		in.cfg.Reports.Arrived(d.Envelope)
	}
	b.mu.Lock()
	b.arrive(it)
	b.mu.Unlock()
	failpoint.Hit("inbox.accept.held")
	return nil
}

// allowed refuses a brief of a host that this one takes none from (design §9,
// §11 control.allow), and tells its sender.
func (in *Inbox) allowed(ctx context.Context, gid string, e *envelope.Envelope) error {
	if in.mayWrite(e) {
		return nil
	}
	if err := in.final(ctx, e, gid, envelope.Failed, string(fault.NotAllowed)); err != nil {
		return err
	}
	in.trace("refused", e, gid, store.Failed, string(fault.NotAllowed))
	return fault.New(fault.NotAllowed, "host %s may not send here: control.allow leaves it out", e.Signer)
}

// mayWrite says whether the host of a brief or question is let, and tells who
// wants to know that it is not.
func (in *Inbox) mayWrite(e *envelope.Envelope) bool {
	if e.Signer == in.cfg.Host || in.cfg.Allowed == nil || in.cfg.Allowed(e.Signer) {
		return true
	}
	if in.cfg.NotAllowed != nil {
		in.cfg.NotAllowed(e)
	}
	return false
}

// admit gives a new item its place, and a main's one in the held index.
func (in *Inbox) admit(b *box, it *item) (gone, taken bool) {
	gone, taken, again := b.admit(it)
	if taken && !b.worker && !again {
		b.note(it)
	}
	return gone, taken
}

// admit inserts an item; again: the held index has it from an earlier run.
func (b *box) admit(it *item) (gone, taken, again bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	id := it.env.MsgID
	if b.entity.Ended() || b.byID[id] != nil {
		return b.entity.Ended(), false, false
	}
	old, again := b.index[id]
	if again {
		it.seq, it.redelivered = old.Seq, old.Offered
		it.announced, it.announcedAt = old.Announced, old.AnnouncedAt
		delete(b.index, id)
	} else {
		b.seq++
		it.seq = b.seq
	}
	b.insert(it)
	return false, true, again
}

// duplicate deals with a message that has been here before (design §4) and
// reports whether it was one. A delivery that is Known was not verified: all
// that is believed of it is its id and body.
func (in *Inbox) duplicate(ctx context.Context, b *box, d envelope.Delivery, hash [32]byte) (bool, error) {
	held, err := in.heldAlready(ctx, b, d, hash)
	if held || err != nil {
		return held, err
	}
	seen, found, err := in.seenAlready(b, d.MsgID)
	if err != nil || !found {
		return false, err
	}
	if seen.BodyHash != hash {
		return true, in.alarm(d, b.gid, "another body")
	}
	failpoint.Hit("inbox.duplicate.before")
	if err := in.tellAgain(ctx, b.gid, d, seen); err != nil {
		return true, err
	}
	in.settled("ack", d.Envelope, d.Ack())
	return true, nil
}

// heldAlready deals with a copy of a message that is still here: it keeps its
// place and state, and the new hold takes over from the old one if that is dead,
// as after a reconnect.
func (in *Inbox) heldAlready(ctx context.Context, b *box, d envelope.Delivery, hash [32]byte) (bool, error) {
	b.mu.Lock()
	it := b.byID[d.MsgID]
	for it != nil && it.state == storing && it.stored != nil {
		b.mu.Unlock()
		select {
		case <-it.stored:
		case <-ctx.Done():
			return true, ctx.Err()
		}
		b.mu.Lock()
		it = b.byID[d.MsgID]
	}
	if it == nil {
		b.mu.Unlock()
		return false, nil
	}
	switch {
	case it.hash != hash:
		b.mu.Unlock()
		return true, in.alarm(d, b.gid, "another body")
	case it.local || it.letGo:
		b.mu.Unlock()
		in.settled("ack", it.env, d.Ack())
	case !maps.Equal(it.env.Headers, d.Headers):
		// Somebody else wrote this one. Were it kept instead of ours, it would
		// be refused when it comes again, and ours be gone.
		b.mu.Unlock()
		return true, in.alarm(d, b.gid, "other headers")
	default:
		over := d.Settler
		if !it.hold.Held() {
			it.hold, over = over, it.hold
		} // else a copy of a stranger's could be kept, which does not outlive the broker, or is about to expire
		told := it.copied || d.Redelivered // what the broker gives again is held for long, and nothing new
		it.copied = it.copied || !told
		b.mu.Unlock()
		in.settled("ack", it.env, over.Ack())
		if !told {
			in.trace("duplicate", it.env, b.gid, store.Waiting, "")
		}
	}
	failpoint.Hit("inbox.duplicate.held")
	return true, nil
}

// seenAlready returns what became of a message that left.
func (in *Inbox) seenAlready(b *box, msgID string) (seen store.Seen, found bool, err error) {
	seen, found, err = store.Find(in.cfg.Store, func(tx *store.Tx) (store.Seen, bool, error) { return tx.FindSeen(msgID, b.gid) })
	if err != nil || found && seen.Outcome != store.Waiting {
		return seen, found, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if hash, left := b.ended[msgID]; left { // what became of it is on its way into the store
		return store.Seen{BodyHash: hash}, true, nil
	}
	return seen, found && b.partial, nil // in the backlog
}

// tellAgain signals a recorded outcome again. Whom, the records say: the
// envelope is not verified.
func (in *Inbox) tellAgain(ctx context.Context, gid string, d envelope.Delivery, seen store.Seen) error {
	if seen.Host == in.cfg.Host {
		return nil // the broker's copy of a broadcast of this host: its sender was told
	}
	brief, found, err := in.briefOf(gid, d.MsgID)
	if err != nil {
		return err
	}
	r := reportOf(brief)
	switch {
	case found && seen.Outcome == store.Injected:
		r.Kind = envelope.Injected
		in.cfg.Reports.Progress(r)
	case found && seen.Outcome == store.Failed:
		r.Kind, r.Reason = envelope.Failed, seen.Reason
		return in.cfg.Reports.Final(ctx, r)
	case seen.Outcome == store.Failed && d.Signer == seen.Host && seen.Host != in.cfg.Host:
		// Only that host can be told, and it knows what it sent and for whom.
		return in.final(ctx, d.Envelope, gid, envelope.Failed, seen.Reason)
	}
	return nil
}

// Known reports whether a message with this id and body was taken before, by a
// recipient of this host. It is handed on without being verified anew. Of one
// that is still here the headers are known, too: with others it is not the same.
func (in *Inbox) Known(gid string, env *envelope.Envelope) bool {
	b := in.box(gid)
	if b == nil {
		return false
	}
	hash := envelope.Hash(env.Body)
	b.mu.Lock()
	if it := b.byID[env.MsgID]; it != nil {
		defer b.mu.Unlock()
		same := it.local || it.letGo || maps.Equal(it.env.Headers, env.Headers)
		return it.hash == hash && it.state != storing && same
	}
	b.mu.Unlock()
	seen, found, err := in.seenAlready(b, env.MsgID)
	return err == nil && found && seen.BodyHash == hash
}

// alarm is for one message id with two faces: never a retry, so an attack or a
// defect.
func (in *Inbox) alarm(d envelope.Delivery, gid, other string) error {
	in.trace("refused", d.Envelope, gid, store.Failed, string(fault.Refused))
	return fault.New(fault.Refused, "ALARM: message %s came again with %s", d.MsgID, other)
}

// refuseGone answers mail for an entity that has ended.
func (in *Inbox) refuseGone(ctx context.Context, gid string, d envelope.Delivery) error {
	if err := in.final(ctx, d.Envelope, gid, envelope.Failed, string(fault.PaneGone)); err != nil {
		return err
	}
	in.trace("refused", d.Envelope, gid, store.Failed, string(fault.PaneGone))
	in.settled("ack", d.Envelope, d.Ack())
	return nil
}

// settled notes that the broker could not be told: the channel went, and the
// broker will deliver the message again, as a duplicate.
func (in *Inbox) settled(what string, e *envelope.Envelope, err error) {
	if err != nil {
		in.log.Debug("the broker could not be told; it will deliver again", "what", what, "msg", e.MsgID, "error", err)
	}
}
