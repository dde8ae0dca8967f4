package outbox

import (
	"context"
	"time"

	"fleetd/fabric/envelope"
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
	if found {
		if err := over(in); err != nil {
			return Sent{}, err
		}
	}
	sent, err := o.Send(ctx, Request{
		From: dead.From, To: dead.To, Content: dead.Body, Life: min(dead.Expiry().Sub(dead.Sent()), o.cfg.MaxLife),
		Key: "anew " + dead.MsgID, QueueIfOffline: queueIfOffline,
	})
	if err == nil && sent.Outcome == "failed" {
		err = fault.New(fault.Conflict, "it was sent anew within the last day, as %s, and that one failed with %s; nothing was sent. Send the content by hand if it still matters", sent.MsgID, sent.Reason)
	}
	if err != nil {
		return sent, err
	}
	o.trace("sent anew", dead.MsgID, dead.TraceID, string(dead.Kind), dead.From, dead.To, sent.MsgID, "")
	return sent, nil
}

// over says why a message must not be sent a second time.
func over(in store.Intent) error {
	switch {
	case in.Outcome == outcomeInjected || in.Outcome == outcomeReplied || in.Outcome == outcomeAbandoned:
		return fault.New(fault.Conflict, "its recipient was given it after all (%s); nothing was sent. Purge the letter", in.Outcome)
	case in.State != store.IntentEnded && !in.Told:
		return fault.New(fault.Conflict, "what became of it is still being asked; nothing was sent. Try again in a minute or two")
	case in.State != store.IntentEnded || in.OutcomeReason == string(fault.InDoubt):
		return fault.New(fault.InDoubt, "nobody knows whether its recipient was given it; nothing was sent. Look at its pane, and send the content by hand if it is not there (message of %s)", time.UnixMilli(in.TS).UTC().Format(time.RFC3339))
	}
	return nil
}
