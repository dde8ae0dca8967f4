package outbox

import (
	"context"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
)

// Signal takes a verified INJECTED, DEFERRED, FAILED or ABANDONED from the
// signal lane.
func (o *Outbox) Signal(ctx context.Context, env *envelope.Envelope) error {
	return o.Settle(ctx, envelope.ReportOf(env))
}

// Outcome takes a FAILED or ABANDONED that came by mail; it returns once it is
// committed.
func (o *Outbox) Outcome(ctx context.Context, env *envelope.Envelope) error {
	return o.Settle(ctx, envelope.ReportOf(env))
}

// Arrived is told of mail that answers something sent from here. A reply means
// that the message had been injected, whatever was reported before.
func (o *Outbox) Arrived(env *envelope.Envelope) {
	in, found, err := o.intent(env.InReplyTo)
	if err != nil {
		o.log.Error("an answered intent could not be read", "msg", env.InReplyTo, "error", err)
		return
	}
	if !found || in.To != env.From || in.Outcome == outcomeInjected {
		return
	}
	o.conclude(in, outcomeInjected, "")
	// The signal behind it will find nothing to tell any more.
	o.tell(in.MsgID, Progress{Kind: envelope.Injected})
	o.trace("resolved", in.MsgID, in.TraceID, in.Kind, in.From, in.To, outcomeInjected, "REPLY")
}

// Settle takes one outcome of one message. INJECTED outranks ABANDONED, this
// FAILED, this our own verdict, in whatever order they come (design §5); what
// contradicts what was told is one more notice.
func (o *Outbox) Settle(ctx context.Context, r envelope.Report) error {
	lock := o.stripe(r.MsgID)
	lock.Lock()
	defer lock.Unlock()
	in, found, err := o.intent(r.MsgID)
	if err != nil {
		return err
	}
	if found && in.To != r.Recipient {
		o.log.Warn("a report about a message came from somebody who did not get it", "msg", r.MsgID, "trace", r.TraceID)
		return nil
	}
	if found {
		r.Sender = in.From // a QUERY's answer is addressed to the gateway
	}
	switch r.Kind {
	case envelope.Deferred:
		o.deferred(r)
		return nil
	case envelope.Injected:
		return o.injected(ctx, r, in, found)
	case envelope.Failed:
		if found && in.Outcome != "" && in.Outcome != outcomeAccepted && in.Outcome != outcomeVerdict {
			return nil // told already, or it is known to have been injected
		}
		return o.notice(ctx, r, in, found, outcomeFailed)
	case envelope.Abandoned:
		if found && in.Outcome == outcomeAbandoned {
			return nil
		}
		return o.notice(ctx, r, in, found, outcomeAbandoned)
	}
	return nil
}

func (o *Outbox) deferred(r envelope.Report) {
	open := o.change(r.MsgID, func(op *open) {
		op.asked = op.asked.Truncate(0)
		op.unseen = r.Reason == "UNSEEN"
		if !op.unseen && op.intent.Outcome == "" {
			op.intent.State, op.intent.OutcomeReason = store.IntentDeferred, r.Reason
		}
	})
	if r.Reason == "UNSEEN" {
		return
	}
	if open {
		o.trace("resolved", r.MsgID, r.TraceID, "", r.Sender, r.Recipient, "deferred", r.Reason)
	}
	o.tell(r.MsgID, Progress{Kind: envelope.Deferred, Reason: r.Reason})
}

// injected ends the wait for an outcome. Whoever waits is told; if nobody does,
// it is a notice, and so is a correction of what was told before.
func (o *Outbox) injected(ctx context.Context, r envelope.Report, in store.Intent, found bool) error {
	if found && (in.Outcome == outcomeInjected || in.Outcome == outcomeAbandoned) {
		return nil
	}
	told := o.tell(r.MsgID, Progress{Kind: envelope.Injected})
	correction := found && (in.Outcome == outcomeFailed || in.Outcome == outcomeVerdict)
	o.trace("resolved", r.MsgID, r.TraceID, in.Kind, r.Sender, r.Recipient, outcomeInjected, "")
	if told && !correction {
		if found {
			o.conclude(in, outcomeInjected, "")
		}
		return nil
	}
	return o.notice(ctx, r, in, found, outcomeInjected)
}

// conclude records the last word on an intent, open or ended.
func (o *Outbox) conclude(in store.Intent, outcome, reason string) {
	if o.change(in.MsgID, func(op *open) {
		op.intent.State, op.intent.Outcome, op.intent.OutcomeReason = store.IntentEnded, outcome, reason
	}) {
		return
	}
	in.State, in.Outcome, in.OutcomeReason, in.EndedAt = store.IntentEnded, outcome, reason, o.cfg.Now().UnixMilli()
	o.cfg.Store.Later(keepIntent(in))
}

// notice commits a report as mail of the sender together with the end of its
// intent, so that a crash tells it neither never nor twice.
func (o *Outbox) notice(ctx context.Context, r envelope.Report, in store.Intent, found bool, outcome string) error {
	env := o.reportEnvelope(r, envelope.ReportID(r.MsgID, r.Recipient, r.Kind))
	if found {
		env.Signer = in.ToHost
	}
	in.State, in.OutcomeReason, in.EndedAt = store.IntentEnded, r.Reason, o.cfg.Now().UnixMilli()
	if !(outcome == outcomeAbandoned && in.Outcome == outcomeInjected) {
		in.Outcome = outcome
	} else {
		in.Outcome = outcomeAbandoned
	}
	err := o.local.Deliver(ctx, env, func(tx *store.Tx) error {
		if !found {
			return nil
		}
		return keepIntent(in)(tx)
	})
	if fault.Is(err, fault.UnknownRecipient) || fault.Is(err, fault.PaneGone) || fault.Is(err, fault.InboxFull) {
		o.log.Warn("a report has nobody to read it", "kind", r.Kind, "msg", r.MsgID, "trace", r.TraceID, "error", err)
		if found {
			o.conclude(in, in.Outcome, in.OutcomeReason)
		}
		return nil
	}
	if err != nil {
		return err
	}
	o.mu.Lock()
	delete(o.open, r.MsgID)
	o.mu.Unlock()
	o.trace("resolved", r.MsgID, r.TraceID, in.Kind, r.Sender, r.Recipient, outcome, r.Reason)
	return nil
}
