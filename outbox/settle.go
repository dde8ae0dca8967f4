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

// Signal takes a verified INJECTED, DEFERRED, FAILED or ABANDONED from the
// signal lane.
func (o *Outbox) Signal(ctx context.Context, env *envelope.Envelope) error {
	if o.Turn(env) || env.TurnID != "" {
		return nil // about a question or its answer, of which nothing is stored
	}
	return o.settle(ctx, envelope.ReportOf(env))
}

// Outcome takes a FAILED or ABANDONED that came by mail; it returns once it is
// committed.
func (o *Outbox) Outcome(ctx context.Context, env *envelope.Envelope) error {
	return o.settle(ctx, envelope.ReportOf(env))
}

// Arrived is told of mail that answers something sent from here. A reply means
// that the message had been injected, whatever was reported before.
func (o *Outbox) Arrived(env *envelope.Envelope) {
	if env.InReplyTo == "" { // of the old daemon: nobody knows what it answers
		return
	}
	lock := o.stripe(env.InReplyTo)
	lock.Lock()
	defer lock.Unlock()
	in, found, err := o.intentFor(env.InReplyTo, env.From)
	if err != nil {
		o.log.Error("an answered intent could not be read", "msg", env.InReplyTo, "error", err)
		return
	}
	if !found && env.Signer == o.cfg.Host {
		o.answered(env.InReplyTo, env.From)
		return
	}
	if !found || in.To != env.From || in.Outcome == store.EndReplied {
		return
	}
	failpoint.Hit("outbox.replied.before")
	o.conclude(in, store.EndReplied, "")
	if in.Outcome != store.EndInjected {
		// The signal behind it will find nothing to tell any more.
		o.tell(env.InReplyTo, Progress{Kind: envelope.Injected})
		o.trace("resolved", env.InReplyTo, in.TraceID, in.Kind, in.From, in.To, string(store.EndInjected), string(envelope.Reply))
	}
}

// answeredFor is how long an answer can come before the word that its brief is
// in: both come from this host.
const answeredFor = time.Minute

// answered notes that a message to an entity of this host was answered, of
// which there is no intent: that it is in is no news any more.
func (o *Outbox) answered(msgID, by string) {
	o.tell(msgID, Progress{Kind: envelope.Injected})
	o.remember(msgID, by)
}

func (o *Outbox) remember(msgID, by string) {
	now := o.cfg.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	if now.Sub(o.turned) > answeredFor {
		o.repliedBefore, o.replied, o.turned = o.replied, map[string]struct{}{}, now
	}
	o.replied[msgID+by] = struct{}{}
}

func (o *Outbox) wasAnswered(msgID, by string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, lately := o.replied[msgID+by]
	_, before := o.repliedBefore[msgID+by]
	return lately || before
}

// settle takes one outcome of one message. INJECTED outranks ABANDONED, this
// FAILED, this our own verdict, in whatever order they come (design §5); what
// contradicts what was told is one more notice. Of a message to an entity of
// this host there is no intent: the inbox's own records keep that order.
func (o *Outbox) settle(ctx context.Context, r envelope.Report) error {
	lock := o.stripe(r.MsgID)
	lock.Lock()
	defer lock.Unlock()
	in, found, err := o.intentFor(r.MsgID, r.Recipient)
	if err != nil {
		return err
	}
	_, answer := envelope.GatewayHost(r.Sender) // to our QUERY
	if answer {
		o.inquired(r)
	}
	switch {
	case found && in.To != r.Recipient:
		o.log.Warn("a report about a message came from somebody who did not get it", "msg", r.MsgID, "trace", r.TraceID)
		return nil
	case found:
		r.Sender = in.From
	case answer:
		return nil // about a message that is forgotten
	}
	switch r.Kind {
	case envelope.Deferred:
		o.deferred(r, in, found, answer)
		return nil
	case envelope.Injected:
		return o.injected(ctx, r, in, found)
	case envelope.Failed:
		return o.failed(ctx, r, in, found)
	case envelope.Abandoned:
		if in.Outcome == store.EndAbandoned || in.Outcome == store.EndReplied {
			return nil
		}
		return o.notice(ctx, r, in, found, store.EndAbandoned)
	}
	return nil
}

// deferred notes that a message has not been injected, and why.
func (o *Outbox) deferred(r envelope.Report, in store.Intent, found, answer bool) {
	unseen := r.Reason == string(envelope.Unseen)
	if !found {
		if !unseen {
			o.tell(r.MsgID, Progress{Kind: envelope.Deferred, Reason: r.Reason})
		}
		return
	}
	if !unseen && (in.Outcome == store.EndDead || in.Outcome == "") && in.ToKind != store.Worker && in.State == store.IntentAccepted {
		o.conclude(in, store.EndAccepted, "") // its host has it, and will say if it dies
		return
	}
	failpoint.Hit("outbox.deferred.before")
	now := o.cfg.Now()
	open := o.change(in.MsgID, func(op *open) bool {
		op.answered = op.answered || answer // due forgets what came before the last question
		if unseen {
			return false
		}
		in := &op.intent
		if unknown(*in) {
			return false // it was told; the answer to the next question decides
		}
		if in.Outcome == store.EndDead {
			in.Outcome = "" // what died was a copy
			op.askNow(now)
			op.asksNext(now)
		}
		if in.Queries == 0 {
			op.asksNext(now) // not silent: the first QUERY is not needed
		}
		in.State, in.OutcomeReason = store.IntentDeferred, r.Reason
		return true
	})
	if open && !unseen {
		o.trace("resolved", r.MsgID, r.TraceID, in.Kind, r.Sender, r.Recipient, string(store.IntentDeferred), r.Reason)
		o.tell(r.MsgID, Progress{Kind: envelope.Deferred, Reason: r.Reason})
	}
}

// injected ends the wait for an outcome. Whoever waits is told; if nobody does,
// it is a notice, and so is a correction of what was told before.
func (o *Outbox) injected(ctx context.Context, r envelope.Report, in store.Intent, found bool) error {
	if in.Outcome.Injected() {
		return nil
	}
	correction := in.Outcome.Failed()
	o.mu.Lock()
	if op := o.live(in.MsgID); op != nil && op.doubted {
		correction = true
	}
	o.mu.Unlock()
	failpoint.Hit("outbox.injected.before")
	told := o.tell(r.MsgID, Progress{Kind: envelope.Injected})
	o.trace("resolved", r.MsgID, r.TraceID, in.Kind, r.Sender, r.Recipient, string(store.EndInjected), "")
	switch {
	case !found && (r.SenderHost != o.cfg.Host || o.wasAnswered(r.MsgID, r.Recipient)):
		return nil // about a message that is forgotten, or was answered
	case told && !correction:
	case found && in.Told && !correction:
		// Its end was told before it was forgotten here.
	case found && in.ToKind != store.Worker && in.State == store.IntentAccepted && !correction:
		// It was fetched from an inbox in which it is known to have been.
	default:
		return o.notice(ctx, r, in, found, store.EndInjected)
	}
	failpoint.Hit("outbox.injected.told")
	if found {
		o.conclude(in, store.EndInjected, "")
	}
	return nil
}

func (o *Outbox) failed(ctx context.Context, r envelope.Report, in store.Intent, found bool) error {
	switch {
	case in.Outcome.Injected(), in.Outcome == store.EndFailed:
		return nil // known better, or told
	case in.Outcome.Ours() && in.OutcomeReason == r.Reason:
		o.conclude(in, store.EndFailed, r.Reason) // told in the same words
		return nil
	}
	// Of what is forgotten here the report and the dead letter come side by side.
	said := r.Recipient + " " + r.Reason
	if o.wasAnswered(r.MsgID, said) {
		if found {
			o.conclude(in, store.EndFailed, r.Reason)
		}
		return nil
	}
	if err := o.notice(ctx, r, in, found, store.EndFailed); err != nil {
		return err
	}
	if !found {
		o.remember(r.MsgID, said)
	}
	return nil
}

// tellRefused ends an intent of which nothing can arrive, when nobody waits
// for the broker's word any more: with a notice, unless it is a report.
func (o *Outbox) tellRefused(ctx context.Context, msgID string, code fault.Code) error {
	lock := o.stripe(o.wireOf(msgID))
	lock.Lock()
	defer lock.Unlock()
	in, found, err := o.intent(msgID)
	if err != nil || !found {
		return err
	}
	if in.Outcome.Known() && !unknown(in) {
		return nil // and told
	}
	if kind := envelope.Kind(in.Kind); !kind.Brief() && kind != envelope.Reply {
		o.log.Warn("a report cannot be delivered: the inbox of its reader is full or gone", "kind", kind,
			"msg", in.InReplyTo, "trace", in.TraceID, "reason", code)
		o.conclude(in, store.EndRefused, string(code))
		return nil
	}
	return o.notice(ctx, failed(in, code), in, true, store.EndRefused)
}

// tellLate does so for a refusal that came after its publisher had given up.
func (o *Outbox) tellLate(ctx context.Context, op *open) {
	defer o.told(op)
	o.mu.Lock()
	in, w := op.intent, op.word
	o.mu.Unlock()
	if err := o.tellRefused(ctx, in.MsgID, o.why(ctx, in.To, w, nil)); err != nil {
		o.log.Error("a refused message could not be told yet", "msg", in.MsgID, "trace", in.TraceID, "error", err)
	}
}

func (op *open) refused() bool {
	return op.word == fabric.Returned || op.word == fabric.Nacked || op.word == fabric.Refused
}
