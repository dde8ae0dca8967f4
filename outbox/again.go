package outbox

import (
	"context"
	"slices"
	"time"

	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
	"fleetd/test/failpoint"
)

// behindBound is how long new mail waits behind what is published again.
const behindBound = 5 * time.Second

// lane is the mail of one sender that has to be published, again or by the
// gateway itself: committed, not ended and not under way. In its order, and
// before new mail of the same sender (design §5).
type lane struct {
	ids  []string
	busy bool // a worker has it
}

// fallBehind puts an intent into its sender's lane; o.mu is held. A brief is
// never published again.
func (o *Outbox) fallBehind(op *open) {
	if op.kind().Brief() || op.ended() {
		return
	}
	l := o.lanes[op.intent.From]
	if l == nil {
		l = &lane{}
		o.lanes[op.intent.From] = l
	}
	if slices.Contains(l.ids, op.id) {
		return
	}
	at := len(l.ids)
	for at > 0 && o.open[l.ids[at-1]].order > op.order {
		at--
	}
	l.ids = slices.Insert(l.ids, at, op.id)
}

// catchUp takes an intent out of its lane; o.mu is held.
func (o *Outbox) catchUp(op *open) {
	l := o.lanes[op.intent.From]
	if l == nil {
		return
	}
	i := slices.Index(l.ids, op.id)
	if i < 0 {
		return
	}
	l.ids = slices.Delete(l.ids, i, i+1)
	if len(l.ids) == 0 && !l.busy {
		delete(o.lanes, op.intent.From)
	}
	close(o.moved)
	o.moved = make(chan struct{})
}

// behindOlder lets new mail of a sender go only behind what is published again
// for him.
func (o *Outbox) behindOlder(ctx context.Context, sender string) error {
	var bound <-chan time.Time
	for {
		o.mu.Lock()
		l, moved := o.lanes[sender], o.moved
		clear := l == nil || len(l.ids) == 0
		o.mu.Unlock()
		if clear {
			return nil
		}
		if bound == nil {
			o.nudge()
			t := time.NewTimer(o.behind)
			defer t.Stop()
			bound = t.C
		}
		select {
		case <-moved:
		case <-bound:
			return brokerDown("older mail is still being sent again")
		case <-ctx.Done():
			return fault.Wrap(ctx.Err(), fault.BrokerDown, "the call ended before the message could be sent; nothing was sent")
		}
	}
}

// Connected is called on every new connection: briefs that are open are asked
// for, everything else that is in doubt is published again. It never blocks.
func (o *Outbox) Connected() {
	failpoint.Hit("outbox.reconnected")
	now := o.cfg.Now()
	o.mu.Lock()
	o.gen++
	for _, op := range o.open {
		if op.kind().Brief() && !op.ended() && !op.flight {
			op.askNow(now)
		}
	}
	o.mu.Unlock()
	o.nudge()
}

// ready reports whether the first of a lane may be published: over each link
// once, unless it was not written at all; o.mu is held.
func (o *Outbox) ready(l *lane) bool { return len(l.ids) > 0 && o.open[l.ids[0]].gen < o.gen }

// resend hands the lanes to the workers, one lane to one of them; o.mu is held.
func (o *Outbox) resend() {
	for sender, l := range o.lanes {
		if l.busy || !o.ready(l) {
			continue
		}
		l.busy = o.later(func(ctx context.Context) { o.empty(ctx, sender, l) })
	}
}

// empty publishes what is in a lane, one after the other, or stops where the
// link does.
func (o *Outbox) empty(ctx context.Context, sender string, l *lane) {
	for id := o.next(sender, l, true); id != ""; {
		more := o.sendAgain(ctx, id)
		id = o.next(sender, l, more)
	}
}

// next returns what is to be published next, or gives the lane back.
func (o *Outbox) next(sender string, l *lane, more bool) (msgID string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if more && o.ready(l) {
		return l.ids[0]
	}
	l.busy = false
	if len(l.ids) == 0 {
		delete(o.lanes, sender)
	}
	return ""
}

// sendAgain publishes one REPLY, FAILED or ABANDONED under its id, and reports
// whether the next one may follow. Then this one has left its lane.
func (o *Outbox) sendAgain(ctx context.Context, msgID string) bool {
	in, found, err := o.stored(msgID)
	if err != nil || !found {
		o.log.Error("a message that has to be published again could not be read", "msg", msgID, "found", found, "error", err)
		if err == nil { // it must not hold up what is behind it
			o.change(msgID, func(op *open) bool {
				op.intent.State, op.intent.Outcome, op.intent.OutcomeReason = store.IntentEnded, store.EndRefused, string(fault.Internal)
				return true
			})
		}
		return err == nil
	}
	env := &envelope.Envelope{
		V: envelope.Version, Kind: envelope.Kind(in.Kind), MsgID: in.MsgID, TraceID: in.TraceID,
		From: in.From, To: in.To, Signer: o.cfg.Host, InReplyTo: in.InReplyTo, Reason: in.Reason,
		Hops: in.Hops, TS: in.TS, ExpiresAt: in.ExpiresAt, Body: in.Body,
	}
	if env.Expired(o.cfg.Now(), 0) {
		return o.endAgain(ctx, msgID, fault.Expired)
	}
	away := false
	if !o.change(msgID, func(op *open) bool {
		op.flight, op.doubted, op.word, op.gen = true, false, fabric.NotSent, o.gen
		op.away = !o.peers[in.ToHost].online
		away = op.away
		return false
	}) {
		return true // it has ended
	}
	failpoint.Hit("outbox.again.before")
	outcome, err := o.send(ctx, envelope.LaneMail, env, func(w fabric.Outcome) { o.word(in.MsgID, w) })
	failpoint.Hit("outbox.again.after")
	o.traceEnv("published", env, outcome.String(), "again")
	if outcome == fabric.InDoubt {
		outcome = o.doubt(in.MsgID)
	}
	switch {
	case outcome == fabric.InDoubt:
		return o.written(msgID)
	case outcome == fabric.Confirmed:
		if !away || o.lease(ctx, in.MsgID, in.To) {
			return true
		}
		outcome = fabric.Returned
	case outcome == fabric.NotSent:
		o.change(msgID, func(op *open) bool { op.flight, op.gen = false, 0; return false })
		if fault.Is(err, fault.BrokerDown) || ctx.Err() != nil {
			return false
		}
		o.log.Error("a message that has to be published again cannot be carried", "msg", in.MsgID, "trace", in.TraceID, "error", err)
	}
	return o.endAgain(ctx, msgID, o.why(ctx, in.To, outcome, err))
}

// written takes a message out of its lane that is on the wire and whose
// confirm is late: what follows is behind it. If the link broke instead it
// stays.
func (o *Outbox) written(msgID string) bool {
	under := false
	open := o.change(msgID, func(op *open) bool {
		if under = op.flight; under {
			o.catchUp(op)
		}
		return false
	})
	return under || !open
}

// endAgain ends what nobody can get any more. Who answered a brief is told;
// a report is not reported on.
func (o *Outbox) endAgain(ctx context.Context, msgID string, code fault.Code) bool {
	err := o.tellRefused(ctx, msgID, code)
	if err != nil {
		o.log.Error("a refused message could not be told yet", "msg", msgID, "error", err)
	}
	return err == nil
}
