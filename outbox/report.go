package outbox

import (
	"context"

	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/store"
	"fleetd/test/failpoint"
)

// Progress tells the sender of a message INJECTED or DEFERRED. It is a live
// signal: it never blocks, and where it is lost the sender asks.
func (o *Outbox) Progress(r envelope.Report) {
	if r.SenderHost != o.cfg.Host {
		o.signal(o.reportEnvelope(r, o.cfg.NewID()))
		return
	}
	// Here nobody asks, so who waits is told at once, in order.
	if o.tell(r.MsgID, Progress{Kind: r.Kind, Reason: r.Reason}) || r.Kind != envelope.Injected {
		return
	}
	if !o.later(func(ctx context.Context) {
		if err := o.settle(ctx, r); err != nil {
			o.log.Error("an outcome could not be told", "msg", r.MsgID, "trace", r.TraceID, "error", err)
		}
	}) {
		o.log.Error("an outcome was not told: too much waits to be told", "msg", r.MsgID, "trace", r.TraceID, "kind", r.Kind)
	}
}

// Final tells the sender of a message FAILED or ABANDONED. When it returns nil
// the report is committed; its id is derived, so that told twice it is one. To
// another host it goes on both lanes (design §3).
func (o *Outbox) Final(ctx context.Context, r envelope.Report) error {
	if _, ok := envelope.GatewayHost(r.Sender); ok {
		return nil // a gateway asks, it does not send briefs
	}
	if r.SenderHost == o.cfg.Host {
		return o.settle(ctx, r)
	}
	env := o.reportEnvelope(r, envelope.ReportID(r.MsgID, r.Recipient, r.Kind))
	lock := o.stripe(env.MsgID)
	lock.Lock()
	defer lock.Unlock()
	if _, found, err := o.intent(env.MsgID); err != nil || found {
		return err // it is on its way, or there
	}
	op := &open{intent: store.Intent{
		MsgID: env.MsgID, TraceID: env.TraceID, Kind: string(env.Kind), From: env.From, To: env.To,
		ToHost: r.SenderHost, InReplyTo: env.InReplyTo, Reason: env.Reason, Hops: env.Hops,
		TS: env.TS, ExpiresAt: env.ExpiresAt, State: store.IntentIntended,
	}}
	failpoint.Hit("outbox.final.before")
	if err := o.commit(ctx, op, nil); err != nil {
		return err
	}
	failpoint.Hit("outbox.final.after")
	o.traceEnv("reported", env, string(env.Kind), env.Reason)
	o.signal(env)
	o.mu.Lock()
	o.fallBehind(op) // the durable copy
	o.mu.Unlock()
	o.nudge()
	return nil
}

// Answer tells the gateway that asked with a QUERY, by signal alone.
func (o *Outbox) Answer(r envelope.Report) { o.signal(o.reportEnvelope(r, o.cfg.NewID())) }

func (o *Outbox) reportEnvelope(r envelope.Report, msgID string) *envelope.Envelope {
	now := o.cfg.Now()
	return &envelope.Envelope{
		V: envelope.Version, Kind: r.Kind, MsgID: msgID, TraceID: r.TraceID, From: r.Recipient, To: r.Sender,
		Signer: o.cfg.Host, InReplyTo: r.MsgID, Reason: r.Reason, Hops: hopsOfAnswer(r.Hops),
		TS: now.UnixMilli(), ExpiresAt: now.Add(envelope.Life(r.Kind, 0)).UnixMilli(),
	}
}

// signal publishes on the signal lane, if there is a connection.
func (o *Outbox) signal(env *envelope.Envelope) {
	if !o.connected() {
		return
	}
	if !o.later(func(ctx context.Context) { o.publishSignal(ctx, env) }) {
		o.log.Warn("too much waits to be published; a signal was dropped, its outcome will be asked for", "kind", env.Kind, "trace", env.TraceID)
	}
}

func (o *Outbox) publishSignal(ctx context.Context, env *envelope.Envelope) fabric.Outcome {
	if !o.connected() {
		return fabric.NotSent
	}
	failpoint.Hit("outbox.signal.before")
	outcome, err := o.send(ctx, envelope.LaneSignal, env, nil)
	failpoint.Hit("outbox.signal.after")
	if outcome != fabric.Confirmed {
		o.log.Debug("a signal was not taken; its outcome will be asked for", "kind", env.Kind, "trace", env.TraceID, "outcome", outcome, "error", err)
	}
	return outcome
}
