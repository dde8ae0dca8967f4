package outbox

import (
	"context"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
	"fleetd/test/failpoint"
)

// notice commits a report as mail of the sender together with the end of its
// intent, so that a crash tells it neither never nor twice. The message's
// stripe is held.
func (o *Outbox) notice(ctx context.Context, r envelope.Report, in store.Intent, found bool, end store.End) error {
	env := o.reportEnvelope(r, noticeID(r, in, end))
	// A notice is mail, whatever it tells: INJECTED lives as long as FAILED.
	env.ExpiresAt = env.TS + envelope.MaxLife.Milliseconds()
	op, undo := o.ending(in.MsgID, end)
	if found {
		env.Signer = in.ToHost
		in.Body, in.State, in.EndedAt = nil, store.IntentEnded, o.cfg.Now().UnixMilli()
		in.Outcome, in.OutcomeReason = end, r.Reason
		if unknown(in) { // its recipient is asked as long as he can know
			in.State, in.EndedAt, in.Told = store.IntentAccepted, 0, true
		}
	}
	failpoint.Hit("outbox.notice.before")
	err := o.local.Deliver(ctx, env, func(tx *store.Tx) error {
		if !found {
			return nil
		}
		if err := keepIntent(tx, in); err != nil || undo == nil {
			return err
		}
		return undo(tx)
	})
	if fault.Is(err, fault.UnknownRecipient) || fault.Is(err, fault.PaneGone) || fault.Is(err, fault.InboxFull) {
		o.log.Warn("a report has nobody to read it", "kind", r.Kind, "msg", r.MsgID, "trace", r.TraceID, "error", err)
		o.endedWith(op, in, nil)
		if found {
			o.conclude(in, end, r.Reason)
		}
		return nil
	}
	failpoint.Hit("outbox.notice.after")
	o.endedWith(op, in, err)
	if err != nil {
		return err
	}
	o.trace("resolved", r.MsgID, r.TraceID, in.Kind, r.Sender, r.Recipient, string(end), r.Reason)
	return nil
}

// ending keeps everybody else from storing an intent whose end is about to be
// committed.
func (o *Outbox) ending(msgID string, end store.End) (op *open, undo func(*store.Tx) error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	op = o.open[msgID]
	if op == nil {
		return nil, nil
	}
	op.ending = true
	if end == store.EndRefused {
		undo = op.undo
	}
	return op, undo
}

// endedWith brings memory behind the store: the intent has ended as in says,
// or with an error is what it has become meanwhile.
func (o *Outbox) endedWith(op *open, in store.Intent, err error) {
	if op == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	op.ending = false
	if err != nil {
		o.save(op)
		return
	}
	op.intent, op.undo = in, nil
	if op.ended() {
		o.finished(op)
	}
}

// noticeID derives the id of a notice, so that told twice it is one. What this
// gateway concludes by itself is another notice than what the recipient's
// gateway may say later: a correction must be seen.
func noticeID(r envelope.Report, in store.Intent, end store.End) string {
	kind := r.Kind
	switch {
	case in.Told && end.Ours():
		kind = "SETTLED"
	case in.Outcome == store.EndDead && end.Ours():
		kind = "DEAD"
	case end.Ours():
		kind = "VERDICT"
	}
	return envelope.ReportID(r.MsgID, r.Recipient, kind)
}
