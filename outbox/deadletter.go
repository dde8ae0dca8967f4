package outbox

import (
	"context"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
	"fleetd/test/failpoint"
)

// deadBound is how long noting a dead letter may take.
const deadBound = 10 * time.Second

// DeadLetter takes a dead letter that carries our own signature, and returns
// once it is noted durably. It is not believed before its recipient was asked:
// a lost ack dead-letters a brief that was injected, and captured mail can be
// published to the exchange (design §6). An error: it should come again.
func (o *Outbox) DeadLetter(env *envelope.Envelope, reason string) error {
	if env.Kind != envelope.Send {
		o.log.Warn("mail of ours died unread", "kind", env.Kind, "msg", env.MsgID, "trace", env.TraceID, "reason", reason)
		return nil
	}
	failpoint.Hit("outbox.dead.before")
	ctx, cancel := context.WithTimeout(context.Background(), deadBound)
	defer cancel()
	lock := o.stripe(env.MsgID)
	lock.Lock()
	defer lock.Unlock()
	in, found, err := o.intent(env.MsgID)
	if err != nil {
		return err
	}
	if !found {
		if !o.local.Owns(env.From) || o.moment().Past.Sub(env.Sent()) > envelope.Horizon {
			o.log.Warn("a brief of ours died, and nobody is left to be told", "msg", env.MsgID, "trace", env.TraceID, "reason", reason)
			return nil
		}
		in = o.remembered(env)
		// A brief to a worker is not forgotten before its end was told. One to a
		// main ended when the broker took it.
		in.Told = in.ToKind == store.Worker
	}
	if in.Outcome.Known() && !unknown(in) {
		return nil // and told
	}
	err = o.dead(ctx, in, deathCode(reason), found && in.Told)
	failpoint.Hit("outbox.dead.noted")
	return err
}

// dead opens the intent anew, so that its recipient is asked and its sender
// told, also after a crash. doubted: he was told that it is in doubt, so that
// its arrival is news.
func (o *Outbox) dead(ctx context.Context, in store.Intent, code fault.Code, doubted bool) error {
	o.mu.Lock()
	op := o.open[in.MsgID]
	if op == nil {
		op = &open{intent: in}
		o.keep(op)
	}
	if op.ended() {
		op.intent.State, op.intent.EndedAt = store.IntentAccepted, 0
	}
	op.doubted = op.doubted || doubted
	if op.intent.Outcome != store.EndDead {
		op.asked = time.Time{}
	}
	op.intent.Outcome, op.intent.OutcomeReason = store.EndDead, string(code)
	o.save(op)
	o.mu.Unlock()
	o.nudge()
	return o.cfg.Store.Flush(ctx)
}

// remembered makes the intent of a message that is forgotten here. Whom it
// went to decides whose word on it counts.
func (o *Outbox) remembered(env *envelope.Envelope) store.Intent {
	in := store.Intent{
		MsgID: env.MsgID, TraceID: env.TraceID, Kind: string(env.Kind), From: env.From, To: env.To,
		InReplyTo: env.InReplyTo, Hops: env.Hops, TS: env.TS, ExpiresAt: env.ExpiresAt, State: store.IntentAccepted,
	}
	if t, err := o.cfg.Directory.Resolve(env.To); err == nil {
		in.ToHost, in.ToName, in.ToKind = t.Host, t.Address(), t.Kind
	}
	return in
}

// deathCode says what the broker's reason means to a sender.
func deathCode(reason string) fault.Code {
	switch reason {
	case "expired":
		return fault.Expired
	case "maxlen":
		return fault.InboxFull
	}
	return fault.Refused
}
