package outbox

import (
	"context"

	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/store"
)

// Progress tells the sender of a message INJECTED or DEFERRED. It is a live
// signal: it never blocks, and where it is lost the sender asks.
func (o *Outbox) Progress(r envelope.Report) {
	if r.SenderHost == o.cfg.Host {
		o.later(func(ctx context.Context) {
			if err := o.Settle(ctx, r); err != nil {
				o.log.Error("an outcome could not be told", "msg", r.MsgID, "trace", r.TraceID, "error", err)
			}
		})
		return
	}
	o.signal(o.reportEnvelope(r, o.cfg.NewID()))
}

// Final tells the sender of a message FAILED or ABANDONED. When it returns nil
// the report is committed; its id is derived, so that told twice it is one. To
// another host it goes on both lanes (design §3).
func (o *Outbox) Final(ctx context.Context, r envelope.Report) error {
	if _, ok := envelope.GatewayHost(r.Sender); ok {
		return nil // a gateway asks, it does not send briefs
	}
	if r.SenderHost == o.cfg.Host {
		return o.Settle(ctx, r)
	}
	env := o.reportEnvelope(r, envelope.ReportID(r.MsgID, r.Recipient, r.Kind))
	in := store.Intent{
		MsgID: env.MsgID, TraceID: env.TraceID, Kind: string(env.Kind), From: env.From, To: env.To,
		ToHost: r.SenderHost, InReplyTo: env.InReplyTo, Reason: env.Reason, Hops: env.Hops,
		TS: env.TS, ExpiresAt: env.ExpiresAt, State: store.IntentIntended,
	}
	if known, found, err := o.intent(env.MsgID); err != nil || found && known.State == store.IntentEnded {
		return err
	}
	if err := o.commit(ctx, &in, func(*store.Tx) error { return nil }); err != nil {
		return err
	}
	o.traceEnv("reported", env, string(env.Kind), env.Reason)
	o.signal(env)
	o.later(func(ctx context.Context) { o.publishReport(ctx, env) })
	return nil
}

// Answer tells the gateway that asked with a QUERY, by signal alone.
func (o *Outbox) Answer(r envelope.Report) { o.signal(o.reportEnvelope(r, o.cfg.NewID())) }

func (o *Outbox) reportEnvelope(r envelope.Report, msgID string) *envelope.Envelope {
	now := o.cfg.Now()
	return &envelope.Envelope{
		V: envelope.Version, Kind: r.Kind, MsgID: msgID, TraceID: r.TraceID, From: r.Recipient, To: r.Sender,
		Signer: o.cfg.Host, InReplyTo: r.MsgID, Reason: r.Reason, Hops: min(r.Hops+1, maxHops),
		TS: now.UnixMilli(), ExpiresAt: now.Add(envelope.Life(r.Kind, 0)).UnixMilli(),
	}
}

// signal publishes on the signal lane, if there is a connection now.
func (o *Outbox) signal(env *envelope.Envelope) {
	if o.cfg.Broker == nil {
		return
	}
	o.later(func(ctx context.Context) {
		if ok, _ := o.cfg.Broker.Connected(); !ok {
			return
		}
		outcome, err := o.send(ctx, envelope.LaneSignal, env, nil)
		if outcome != fabric.Confirmed {
			o.log.Debug("a signal was not taken; its outcome will be asked for", "kind", env.Kind, "trace", env.TraceID, "outcome", outcome, "error", err)
		}
	})
}

// publishReport sends the durable copy. Without a connection the intent waits
// for the next one.
func (o *Outbox) publishReport(ctx context.Context, env *envelope.Envelope) {
	if o.cfg.Broker == nil {
		return
	}
	if ok, _ := o.cfg.Broker.Connected(); !ok {
		return
	}
	outcome, err := o.send(ctx, envelope.LaneMail, env, func(word fabric.Outcome) { o.word(env, word) })
	switch outcome {
	case fabric.Returned, fabric.Nacked, fabric.Refused:
		o.log.Warn("a report could not be delivered: its sender's inbox is full or gone", "kind", env.Kind,
			"msg", env.InReplyTo, "trace", env.TraceID, "outcome", outcome, "error", err)
	}
}
