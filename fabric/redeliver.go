package fabric

import (
	"context"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
)

// Redelivery is what became of one dead letter that was to be delivered again.
type Redelivery struct {
	*DeadLetter
	NewID string // of the message that was sent in its place; "": it left as it was
	Err   error  // nil: it is on its way and removed, else it stays and this says why
}

// Anew sends an expired brief of our own as a new message and returns its id.
type Anew func(ctx context.Context, dead *envelope.Envelope) (newID string, err error)

// Redeliver publishes the letters that q picks once more, each as it was: the
// same headers, id and signature, without anything that brokers added. A letter
// is removed after the broker has routed and stored it, and stays otherwise; so
// a crash in between leaves a letter that is a duplicate to its recipient.
// Where anew is given, expired briefs of our own go through it instead.
//
// Done lists what was tried also beside an error. A link that goes down ends
// the work with the letter that met it.
func (f *Fabric) Redeliver(ctx context.Context, q Filter, anew Anew) (done []Redelivery, b Browsed, err error) {
	sent := map[string]string{} // signature → id: copies of what went out in this run
	b, err = f.Find(ctx, q, func(l *DeadLetter) Fate {
		r := Redelivery{DeadLetter: l}
		sig := ""
		if l.Envelope != nil {
			sig = l.Envelope.Headers["sig"]
		}
		id, copied := sent[sig]
		switch {
		case copied && l.Key == l.Envelope.RoutingKey(envelope.LaneMail):
			r.NewID = id
		case anew != nil:
			r.NewID, r.Err = f.sendAnew(ctx, l, anew)
		default:
			r.Err = f.redeliver(ctx, l)
		}
		done = append(done, r)
		if r.Err == nil {
			f.log.Info("dead letter redelivered", "msg", l.MsgID, "trace", l.TraceID, "to", l.To, "new", r.NewID)
		}
		switch {
		case r.Err == nil:
			sent[sig] = r.NewID
			return Remove
		case fault.Is(r.Err, fault.BrokerDown) || ctx.Err() != nil:
			return Last
		}
		return Keep
	})
	return done, b, err
}

// redeliver publishes l as it was; nil: it is routed and stored.
func (f *Fabric) redeliver(ctx context.Context, l *DeadLetter) error {
	if err := f.fit(l); err != nil {
		return err
	}
	if err := f.fresh(l); err != nil {
		return err
	}
	out, err := f.republish(ctx, l.Envelope)
	switch out {
	case Confirmed:
		if l.Envelope.Kind == envelope.Broadcast {
			return nil
		}
		// Its recipient's host may be away for long (design §3, Orphans).
		if there, err := f.Renew(ctx, l.To); err != nil || there {
			return nil
		}
		fallthrough
	case Returned:
		return fault.New(fault.Unroutable, "nobody has an inbox for %s any more; the letter stays. `bridged roster` shows who is there", l.To)
	case Nacked:
		if full, err := f.InboxFull(ctx, l.To); err == nil && full {
			return fault.New(fault.InboxFull, "the inbox of %s is full; the letter stays. Redeliver it once that has been read", l.To)
		}
		return fault.New(fault.BrokerRefused, "the broker did not take it; the letter stays. Try again later, and look at the broker's log if it goes on")
	case InDoubt:
		return fault.Wrap(err, fault.InDoubt, "the broker did not say whether it took it; the letter stays. Redelivering it again does no harm: a recipient that has it drops the second one")
	}
	return err
}

// fit refuses what no recipient would take (design §4), by our own clock and
// keys, whenever it came.
func (f *Fabric) fit(l *DeadLetter) error {
	env := l.Envelope
	switch {
	case env == nil:
		return fault.Wrap(l.Err, fault.Refused, "it cannot be verified (%s), so its recipient would refuse it too; the letter stays. Trust its signer first, or purge it", l.Problem)
	case env.Kind.Known() && !env.Kind.Travels(envelope.LaneMail):
		return fault.New(fault.Refused, "%s is no mail and means nothing later; the letter stays. Ask again for what it asked, or purge it", env.Kind)
	case l.Key != env.RoutingKey(envelope.LaneMail):
		return fault.New(fault.Refused, "it was published under the key %q, which is not its recipient's; the letter stays. Somebody put it there by hand: purge it", l.Key)
	}
	return nil
}

// fresh refuses what its recipient would refuse for its age, without grace: a
// letter within the horizon is known to those that had it (design §4).
func (f *Fabric) fresh(l *DeadLetter) error {
	now := f.deps.Now()
	if away := now.Sub(l.Sent); away > envelope.Horizon || away < -envelope.Horizon {
		return fault.New(fault.Refused, "it says it was sent at %s, more than 8 days from this host's clock; the letter stays. Send its content again by hand, or purge it", stamp(l.Sent))
	}
	if l.Envelope.Expired(now, 0) {
		return fault.New(fault.Expired, "its life ended at %s; the letter stays. A brief can be sent anew (--anew, on the host that signed it); else purge it", stamp(l.Expires))
	}
	return nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// sendAnew refuses what may go as it is, or is not ours to say again.
func (f *Fabric) sendAnew(ctx context.Context, l *DeadLetter, anew Anew) (string, error) {
	if err := f.fit(l); err != nil {
		return "", err
	}
	switch {
	case !l.Own:
		return "", fault.New(fault.NotAllowed, "host %s signed it, and only that one can send it anew; the letter stays. Run the command there", l.Signer)
	case !l.Envelope.Kind.Brief():
		return "", fault.New(fault.BadRequest, "%s is no brief, and only briefs can be sent anew; the letter stays", l.Kind)
	case !l.Envelope.Expired(f.deps.Now(), 0):
		return "", fault.New(fault.Conflict, "it has not expired; the letter stays. Redeliver it without --anew, so that a recipient that has it already knows it")
	}
	return anew(ctx, l.Envelope)
}

// republish publishes a message that was signed before, mandatory whatever its
// kind: a letter that nobody takes must stay.
func (f *Fabric) republish(ctx context.Context, env *envelope.Envelope) (Outcome, error) {
	m, err := f.message(envelope.LaneMail, env)
	if err != nil {
		return NotSent, err
	}
	m.mandatory = true
	s, pub, err := f.publishing(envelope.LaneMail)
	if err != nil {
		return NotSent, err
	}
	out, err := pub.publish(ctx, s, m, nil)
	f.stats.published(out)
	return out, err
}
