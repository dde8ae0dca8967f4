package outbox

import (
	"context"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fabric/roster"
	"fleetd/fault"
	"fleetd/store"
)

// Anew sends the content of a brief of ours that expired once more, as a new
// message of the same entity with a life as long (design §6). Nobody but a
// person asks for it, so it is refused where the first one may have reached its
// recipient, or may still. A repetition within a day sends nothing new.
func (o *Outbox) Anew(ctx context.Context, dead *envelope.Envelope, queueIfOffline bool) (Sent, error) {
	if dead.Kind != envelope.Send {
		return Sent{}, fault.New(fault.BadRequest, "%s goes to many, and some may have it; nothing was sent. Broadcast it again by hand if it still matters", dead.Kind)
	}
	if !o.local.Owns(dead.From) {
		return Sent{}, fault.New(fault.NotAllowed, "its sender is no entity of this host any more, and nobody else speaks for it; nothing was sent. `bridged dlq show --body` has the content: send it as somebody who is here")
	}
	in, found, err := o.intent(dead.MsgID)
	if err != nil {
		return Sent{}, err
	}
	key := "anew " + dead.MsgID
	_, repeated, err := o.keyOf(dead.From, key)
	if err != nil {
		return Sent{}, err
	}
	// What became of it is not known here.
	if !repeated && (!found || in.Outcome == store.EndAccepted && in.State == store.IntentEnded) {
		if in, err = o.inquire(ctx, dead); err != nil {
			return Sent{}, err
		}
		found = true
	}
	if found {
		if err := over(in); err != nil {
			return Sent{}, err
		}
	}
	sent, err := o.Send(ctx, Request{
		From: dead.From, To: dead.To, Content: dead.Body, Life: min(dead.Expiry().Sub(dead.Sent()), o.cfg.MaxLife),
		Key: key, QueueIfOffline: queueIfOffline,
	})
	if err == nil && sent.Outcome == store.Failed {
		err = fault.New(fault.Conflict, "it was sent anew within the last day, as %s, and that one failed with %s; nothing was sent. Send the content by hand if it still matters", sent.MsgID, sent.Reason)
	}
	if err != nil {
		return sent, err
	}
	o.trace("sent anew", dead.MsgID, dead.TraceID, string(dead.Kind), dead.From, dead.To, sent.MsgID, "")
	return sent, nil
}

// inquiry is a question about a message of which nothing is known here.
type inquiry struct{ msgID, gid string }

// inquire asks the recipient of a message what became of it, and returns it as
// the intent that there would be.
func (o *Outbox) inquire(ctx context.Context, dead *envelope.Envelope) (store.Intent, error) {
	in := o.remembered(dead)
	in.State = store.IntentEnded
	t, err := o.cfg.Directory.Resolve(dead.To)
	if err != nil {
		return in, err
	}
	linked, reason := false, "this gateway has no broker"
	if o.cfg.Broker != nil {
		linked, reason = o.cfg.Broker.Connected()
	}
	switch {
	case o.moment().Past.Sub(dead.Sent()) > envelope.Horizon:
		return in, fault.New(fault.InDoubt, "it was sent more than 8 days ago, and nobody remembers whether its recipient was given it; nothing was sent. Send the content by hand if it still matters")
	case !linked:
		return in, brokerDown(reason)
	case t.HostState != roster.Online:
		return in, fault.New(fault.HostOffline, "what became of it is forgotten here, and the host of %s, which could say, is %s; nothing was sent. Try again when it is back", t.Address(), t.HostState)
	}
	key, answer := inquiry{dead.MsgID, dead.To}, make(chan envelope.Report, 1)
	o.mu.Lock()
	o.inquiries[key] = answer
	o.mu.Unlock()
	defer func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.inquiries, key)
	}()
	ctx, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	o.publishSignal(ctx, o.queryAbout(in))
	select {
	case r := <-answer:
		return judged(in, r)
	case <-ctx.Done():
		return in, fault.Wrap(ctx.Err(), fault.Unconfirmed, "what became of it is forgotten here, and the host of %s did not say; nothing was sent. Try again in a minute", t.Address())
	}
}

// judged is the intent of a message of which its recipient says what became.
func judged(in store.Intent, r envelope.Report) (store.Intent, error) {
	switch {
	case r.Kind == envelope.Injected:
		in.Outcome = store.EndInjected
	case r.Kind == envelope.Abandoned:
		in.Outcome = store.EndAbandoned
	case r.Kind == envelope.Failed:
		in.Outcome, in.OutcomeReason = store.EndFailed, r.Reason
	case r.Reason != string(envelope.Unseen):
		return in, fault.New(fault.Conflict, "it lies in the inbox of its recipient (%s); nothing was sent. Purge the letter", r.Reason)
	}
	return in, nil
}

// inquired hands an answer to who asked about a forgotten message.
func (o *Outbox) inquired(r envelope.Report) {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case o.inquiries[inquiry{r.MsgID, r.Recipient}] <- r: // nobody: a nil channel takes nothing
	default:
	}
}

// over says why a message must not be sent a second time.
func over(in store.Intent) error {
	switch {
	case in.Outcome.Injected():
		return fault.New(fault.Conflict, "its recipient was given it after all (%s); nothing was sent. Purge the letter", in.Outcome)
	case in.State != store.IntentEnded && !in.Told:
		return fault.New(fault.Conflict, "what became of it is still being asked; nothing was sent. Try again in a minute or two")
	case in.State != store.IntentEnded || in.OutcomeReason == string(fault.InDoubt):
		return fault.New(fault.InDoubt, "nobody knows whether its recipient was given it; nothing was sent. Look at its pane, and send the content by hand if it is not there (message of %s)", time.UnixMilli(in.TS).UTC().Format(time.RFC3339))
	}
	return nil
}
