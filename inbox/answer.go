package inbox

import (
	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
	"fleetd/test/failpoint"
)

// Answer says what became of the message that a QUERY asks for, from the
// recipient's records alone; it changes nothing (design §5). Only the host
// that signed the message is answered: others get false.
func (in *Inbox) Answer(q *envelope.Envelope) (envelope.Report, bool) {
	failpoint.Hit("inbox.answer.before")
	r := envelope.Report{
		MsgID: q.InReplyTo, TraceID: q.TraceID, Sender: q.From, SenderHost: q.Signer, Recipient: q.To, Hops: q.Hops,
	}
	unseen := func() (envelope.Report, bool) {
		r.Kind, r.Reason = envelope.Deferred, string(envelope.Unseen)
		return r, true
	}
	if q.To == envelope.GatewayAddress(in.cfg.Host) {
		return unseen() // a gateway has no mail: it is asked whether it hears and believes who asks
	}
	b := in.box(q.To)
	if b == nil {
		return r, false
	}
	b.mu.Lock()
	if it := b.byID[q.InReplyTo]; it != nil {
		defer b.mu.Unlock()
		r.Kind, r.Reason = envelope.Deferred, string(b.reason)
		if r.Reason == "" {
			r.Reason = string(envelope.Queued)
		}
		return r, it.env.Signer == q.Signer
	}
	b.mu.Unlock()
	var seen store.Seen
	var brief store.Brief
	var haveSeen, haveBrief bool
	err := in.cfg.Store.View(func(tx *store.Tx) (err error) {
		if seen, haveSeen, err = tx.FindSeen(q.InReplyTo, q.To); err != nil {
			return err
		}
		brief, haveBrief, err = tx.BriefByMsg(q.To, q.InReplyTo)
		return err
	})
	if err != nil {
		in.log.Error("a query could not be answered", "trace", q.TraceID, "error", err)
		return r, false
	}
	switch {
	case !haveSeen:
		return unseen()
	case seen.Host != q.Signer:
		return r, false
	case seen.Outcome == store.Failed && haveBrief && brief.State == briefReplied:
		r.Kind = envelope.Injected // an answer proves what was in doubt
	case seen.Outcome == store.Failed && seen.Reason == string(fault.Abandoned):
		r.Kind, r.Reason = envelope.Abandoned, string(fault.PaneGone)
	case seen.Outcome == store.Failed:
		r.Kind, r.Reason = envelope.Failed, seen.Reason
	case seen.Outcome.Arrived():
		r.Kind = envelope.Injected
	case seen.Outcome == store.Injecting && seen.Boot != in.cfg.Boot:
		r.Kind, r.Reason = envelope.Failed, string(fault.InDoubt) // the start is about to report it
	default:
		r.Kind, r.Reason = envelope.Deferred, string(envelope.Queued)
	}
	return r, true
}

// Local tells the sender's side what the records of this host say of a message
// it delivered here, and the reason of a failure.
func (in *Inbox) Local(gid, msgID string) (outcome store.Outcome, reason string) {
	b := in.box(gid)
	if b == nil {
		return "", ""
	}
	b.mu.Lock()
	if it := b.byID[msgID]; it != nil {
		defer b.mu.Unlock()
		return store.Waiting, string(b.reason)
	}
	b.mu.Unlock()
	seen, _, err := store.Find(in.cfg.Store, func(tx *store.Tx) (store.Seen, bool, error) { return tx.FindSeen(msgID, gid) })
	if err != nil {
		in.log.Error("a message's outcome could not be read", "msg", msgID, "error", err)
	}
	return seen.Outcome, seen.Reason
}
