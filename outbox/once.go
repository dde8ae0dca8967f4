package outbox

import (
	"context"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
)

// Outcomes of an intent. accepted and refused are the broker's word, the others
// the recipient's or, at the end, our own.
const (
	outcomeAccepted  = "accepted"
	outcomeRefused   = "refused"
	outcomeInjected  = "injected"
	outcomeAbandoned = "abandoned"
	outcomeFailed    = "failed"
	outcomeVerdict   = "verdict" // EXPIRED or IN_DOUBT, said by this gateway
)

// call is a send under an idempotency key that has not returned.
type call struct {
	done chan struct{}
	hash [32]byte
	sent Sent
	err  error
}

// once makes one message of all calls with one key (design §5): a call that
// finds the first one running joins it, a later one gets what became of it,
// and what was refused so that nothing can arrive is tried again.
func (o *Outbox) once(ctx context.Context, r Request) (Sent, error) {
	id := r.From + "\n" + r.Key
	for {
		o.mu.Lock()
		running := o.calls[id]
		if running == nil {
			running = &call{done: make(chan struct{}), hash: r.hash()}
			o.calls[id] = running
			o.mu.Unlock()
			running.sent, running.err = o.first(ctx, r)
			o.mu.Lock()
			delete(o.calls, id)
			o.mu.Unlock()
			close(running.done)
			return running.sent, running.err
		}
		o.mu.Unlock()
		if running.hash != r.hash() {
			return Sent{}, conflict(r.Key)
		}
		select {
		case <-running.done:
			if running.err == nil && r.Leaving != nil {
				r.Leaving(running.sent.MsgID)
			}
			running.sent.Repeated = true
			return running.sent, running.err
		case <-ctx.Done():
			return Sent{}, ctx.Err()
		}
	}
}

func conflict(key string) error {
	return fault.New(fault.Conflict, "the idempotency key %q stands for another message already; use a new key for a new message", key)
}

func (o *Outbox) first(ctx context.Context, r Request) (Sent, error) {
	var k store.Key
	var known bool
	err := o.cfg.Store.View(func(tx *store.Tx) (err error) {
		k, known, err = tx.KeyOf(r.From, r.Key)
		return err
	})
	if err != nil {
		return Sent{}, err
	}
	if !known || o.cfg.Now().Sub(time.UnixMilli(k.At)) > 24*time.Hour {
		return o.dispatch(ctx, r, o.cfg.NewID())
	}
	if k.Hash != r.hash() {
		return Sent{}, conflict(r.Key)
	}
	sent := Sent{MsgID: k.MsgID, TraceID: k.TraceID, To: *r.target, ExpiresAt: time.UnixMilli(k.ExpiresAt), Repeated: true}
	if r.target.Local {
		sent.Outcome, sent.Reason = o.local.Local(r.target.GID, k.MsgID)
	} else {
		in, found, err := o.intent(k.MsgID)
		if err != nil {
			return Sent{}, err
		}
		if !found || in.Outcome == outcomeRefused {
			return o.dispatch(ctx, r, k.MsgID)
		}
		sent.Outcome, sent.Reason = in.Outcome, in.OutcomeReason
		if sent.Outcome == outcomeVerdict {
			sent.Outcome = outcomeFailed
		}
	}
	if r.Leaving != nil {
		r.Leaving(k.MsgID)
	}
	return sent, nil
}

func (o *Outbox) key(r Request, env *envelope.Envelope) store.Key {
	return store.Key{
		MsgID: env.MsgID, TraceID: env.TraceID, Hash: r.hash(), At: o.cfg.Now().UnixMilli(),
		ExpiresAt: env.ExpiresAt, Call: string(r.kind),
	}
}
