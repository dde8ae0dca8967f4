package outbox

import (
	"context"

	"golang.org/x/sync/errgroup"

	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
	"fleetd/test/failpoint"
)

// handOut gives members of this host their copies, and returns by gid why one
// got none.
func (o *Outbox) handOut(ctx context.Context, env *envelope.Envelope, local []Share) map[string]error {
	errs := make([]error, len(local))
	var g errgroup.Group
	g.SetLimit(handOutAtOnce)
	for i, s := range local {
		g.Go(func() error {
			copied := *env
			copied.To = s.GID
			o.traceEnv("sent", &copied, "local", "")
			failpoint.Hit("outbox.cast.local")
			errs[i] = o.local.Deliver(ctx, &copied, nil)
			return nil
		})
	}
	_ = g.Wait() // the errors are those of the members, each its own
	failed := map[string]error{}
	for i, s := range local {
		if errs[i] != nil {
			failed[s.GID] = errs[i]
		}
	}
	return failed
}

// publishSpread publishes the one copy for all other hosts, and returns why it
// did not leave.
func (o *Outbox) publishSpread(ctx context.Context, env *envelope.Envelope, shares []*open) error {
	defer func() {
		for _, op := range shares {
			o.release(op)
		}
	}()
	o.traceEnv("sent", env, string(store.IntentIntended), "")
	failpoint.Hit("outbox.cast.publish.before")
	outcome, err := o.send(ctx, envelope.LaneMail, env, func(w fabric.Outcome) { o.spreadWord(shares, w) })
	failpoint.Hit("outbox.cast.publish.after")
	o.traceEnv("published", env, outcome.String(), "")
	switch outcome {
	case fabric.Confirmed:
		o.leases(shares)
		return nil
	case fabric.InDoubt:
		o.spreadWord(shares, fabric.InDoubt)
		return nil // member by member: what became of it is asked
	case fabric.Nacked:
		o.nacked(ctx, shares)
		return nil
	}
	code := o.why(ctx, "", outcome, err)
	for _, op := range shares[1:] {
		o.mu.Lock()
		in := op.intent
		o.mu.Unlock()
		o.conclude(in, store.EndRefused, string(code))
	}
	o.refuse(ctx, shares[0], code) // and returns once all of them are on record
	return refusal(code, outcome, env.To, err)
}

// spreadWord takes the broker's word on the one copy for every share. A share
// of which the recipient has said more keeps that.
func (o *Outbox) spreadWord(shares []*open, w fabric.Outcome) {
	for _, share := range shares {
		o.change(share.id, func(op *open) bool {
			in := &op.intent
			op.flight = false
			switch {
			case w == fabric.Confirmed:
				if in.State == store.IntentIntended || in.State == store.IntentInDoubt {
					in.State = store.IntentAccepted
				}
				if in.Outcome == "" && !awaits(*in) && !op.away { // of who is away nobody else would tell that it expired
					in.State, in.Outcome = store.IntentEnded, store.EndAccepted
				}
				return true
			case w == fabric.InDoubt && in.State == store.IntentIntended:
				op.doubted, in.State = true, store.IntentInDoubt
				return true
			}
			return false
		})
	}
}

// nacked deals with a copy that one inbox of many was too full for: the others
// have it. Whose inbox is at its cap did not get it; the rest is asked.
func (o *Outbox) nacked(ctx context.Context, shares []*open) {
	for _, share := range shares {
		o.mu.Lock()
		in := share.intent
		o.mu.Unlock()
		if full, err := o.cfg.Broker.InboxFull(ctx, in.To); err == nil && full && in.Outcome == "" {
			o.conclude(in, store.EndVerdict, string(fault.InboxFull))
			continue
		}
		o.spreadWord([]*open{share}, fabric.Confirmed)
	}
}

// leases renews the leases of inboxes whose hosts are not seen alive.
func (o *Outbox) leases(shares []*open) {
	for _, op := range shares {
		o.mu.Lock()
		away, gid := op.away, op.intent.To
		o.mu.Unlock()
		if away {
			o.later(func(ctx context.Context) { o.leaseLate(ctx, op.id, gid) })
		}
	}
}
