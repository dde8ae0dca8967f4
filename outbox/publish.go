package outbox

import (
	"context"
	"time"

	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
	"fleetd/test/failpoint"
)

// leaseBound is how long the broker may take to renew a lease.
const leaseBound = 5 * time.Second

// publish sends a committed intent's envelope for the first time, and turns
// the broker's word into the intent's state and the caller's answer.
func (o *Outbox) publish(ctx context.Context, op *open, env *envelope.Envelope, to string) error {
	defer o.release(op)
	var outcome fabric.Outcome
	err := o.behindOlder(ctx, env.From) // the link may have been lost since the commit
	if err == nil {
		failpoint.Hit("outbox.publish.before")
		outcome, err = o.send(ctx, envelope.LaneMail, env, func(w fabric.Outcome) { o.word(env.MsgID, w) })
	}
	failpoint.Hit("outbox.publish.after")
	o.traceEnv("published", env, outcome.String(), "")
	if outcome == fabric.InDoubt {
		outcome = o.doubt(env.MsgID)
	}
	switch outcome {
	case fabric.Confirmed:
		if !op.away || o.lease(ctx, env.MsgID, env.To) {
			return nil
		}
		outcome = fabric.Returned
	case fabric.InDoubt:
		return inDoubt(env.Kind, env.Expiry(), err)
	}
	code := o.why(ctx, env.To, outcome, err)
	o.refuse(ctx, op, code)
	return refusal(code, outcome, to, err)
}

// send signs a copy, since one envelope may travel on two lanes at once, and
// publishes it.
func (o *Outbox) send(ctx context.Context, lane envelope.Lane, env *envelope.Envelope, settled func(fabric.Outcome)) (fabric.Outcome, error) {
	signed := *env
	if err := o.cfg.Sign(&signed); err != nil {
		return fabric.NotSent, err
	}
	return o.cfg.Broker.Publish(ctx, lane, &signed, settled)
}

// word takes the broker's word on a publish, which may come late and when an
// outcome from the recipient has overtaken it. A refusal that comes in time is
// the publisher's to deal with, a late one the loop's: it costs a commit, and
// this is called where nothing may wait.
func (o *Outbox) word(msgID string, w fabric.Outcome) {
	failpoint.Hit("outbox.confirm.before")
	renew := "" // whose lease
	o.change(msgID, func(op *open) bool {
		op.flight, op.word = false, w
		in := &op.intent
		switch w {
		case fabric.Confirmed:
			if op.doubted && op.away {
				renew = in.To
			}
			if in.State == store.IntentIntended || in.State == store.IntentInDoubt {
				in.State = store.IntentAccepted
			}
			if in.Outcome == "" && !awaits(*in) {
				in.State, in.Outcome = store.IntentEnded, store.EndAccepted
			}
			return true
		case fabric.InDoubt:
			o.fallBehind(op)
			if in.State != store.IntentIntended {
				return false
			}
			in.State = store.IntentInDoubt
			return true
		}
		if op.doubted {
			o.nudge()
		}
		return false
	})
	if renew != "" {
		o.later(func(ctx context.Context) { o.leaseLate(ctx, msgID, renew) })
	}
}

// doubt notes that a publisher stops waiting for the broker's word, and returns
// InDoubt, or the word after all: it, or a word of the recipient, may have come
// this very moment.
func (o *Outbox) doubt(msgID string) fabric.Outcome {
	o.mu.Lock()
	defer o.mu.Unlock()
	op := o.open[msgID]
	switch {
	case op == nil || op.ended() || op.intent.State == store.IntentDeferred:
		return fabric.Confirmed // it has arrived
	case op.word != fabric.NotSent && op.word != fabric.InDoubt:
		return op.word
	}
	op.doubted = true
	if op.intent.State == store.IntentIntended {
		op.intent.State = store.IntentInDoubt
		o.save(op)
	}
	return fabric.InDoubt
}

// why turns a refusal into an error code.
func (o *Outbox) why(ctx context.Context, gid string, outcome fabric.Outcome, err error) fault.Code {
	switch outcome {
	case fabric.NotSent:
		return fault.CodeOf(err)
	case fabric.Returned:
		return fault.Unroutable
	case fabric.Nacked:
		if full, err := o.cfg.Broker.InboxFull(ctx, gid); err == nil && full {
			return fault.InboxFull
		}
	}
	return fault.BrokerRefused
}

func refusal(code fault.Code, outcome fabric.Outcome, to string, err error) error {
	switch {
	case outcome == fabric.NotSent:
		return err
	case code == fault.Unroutable:
		return fault.New(code, "%s has no inbox on the broker any more; nothing was delivered. Ask bridge_roster who is there", to)
	case code == fault.InboxFull:
		return fault.New(code, "the inbox of %s is full; nothing was delivered. Wait until it has been read, then send again", to)
	}
	return fault.Wrap(err, code, "the broker refused the message; nothing was delivered. Try again later, and tell whoever runs the broker if it goes on")
}

func inDoubt(kind envelope.Kind, until time.Time, cause error) error {
	if kind == envelope.Send {
		return fault.Wrap(cause, fault.InDoubt, "the connection broke while the message was on its way; it may arrive until %s. Do not send it again: you will be told what became of it", until.UTC().Format(time.RFC3339))
	}
	return fault.Wrap(cause, fault.InDoubt, "the connection broke while the message was on its way; the gateway publishes it again by itself. Do not send it again")
}

// refuse ends an intent of which nothing can arrive. The caller is told by an
// error, and the same idempotency key may try again; so it returns once that is
// durable: after a crash an answer would be published all the same.
func (o *Outbox) refuse(ctx context.Context, op *open, code fault.Code) {
	o.mu.Lock()
	in := op.intent
	o.mu.Unlock()
	o.conclude(in, store.EndRefused, string(code))
	if err := o.cfg.Store.Flush(ctx); err != nil {
		o.log.Error("that a message was refused is not on record yet", "msg", in.MsgID, "trace", in.TraceID, "error", err)
	}
}

// release lets an intent be forgotten whose publisher is done with it.
func (o *Outbox) release(op *open) {
	o.mu.Lock()
	op.pinned = false
	o.mu.Unlock()
}

// lease follows mail to a host that is not seen alive with a passive declare
// of its inbox, which renews the lease that publishing does not (design §3).
// It reports whether the inbox is there.
func (o *Outbox) lease(ctx context.Context, msgID, gid string) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaseBound)
	defer cancel()
	failpoint.Hit("outbox.lease.before")
	exists, err := o.cfg.Broker.Renew(ctx, gid)
	if err != nil {
		o.log.Warn("the lease of an inbox could not be renewed", "gid", gid, "msg", msgID, "error", err)
		return true
	}
	return exists
}

// leaseLate does so for mail whose confirm came late.
func (o *Outbox) leaseLate(ctx context.Context, msgID, gid string) {
	if o.lease(ctx, msgID, gid) {
		return
	}
	if err := o.tellRefused(ctx, msgID, fault.Unroutable); err != nil {
		o.log.Error("a refused message could not be told", "msg", msgID, "error", err)
	}
}
