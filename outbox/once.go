package outbox

import (
	"context"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
	"fleetd/test/failpoint"
)

// call is a send under an idempotency key that has not returned.
type call struct {
	done chan struct{}
	hash [32]byte
	sent Sent
	err  error
	left bool // its caller gave up, so its error says nothing to others

	answers store.Brief // of a reply
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
			running = &call{done: make(chan struct{}), hash: r.hash(), answers: r.answers}
			o.calls[id] = running
			o.mu.Unlock()
			return o.lead(ctx, r, id, running)
		}
		o.mu.Unlock()
		if running.hash != r.hash() {
			return Sent{}, conflict(r.Key)
		}
		select {
		case <-running.done:
		case <-ctx.Done():
			return Sent{}, fault.Wrap(ctx.Err(), fault.Unconfirmed, "the call ended while another one with the key %q was sending the message; call again with that key to learn what became of it", r.Key)
		}
		if running.err != nil && !running.left && !fault.Is(running.err, fault.InDoubt) {
			return Sent{}, running.err
		}
		// The next round finds what became of it.
	}
}

// lead makes the call that others join.
func (o *Outbox) lead(ctx context.Context, r Request, id string, c *call) (Sent, error) {
	c.err = fault.New(fault.Internal, "the call with the key %q met an error of the gateway's own; see its log", r.Key)
	defer func() {
		c.left = c.err != nil && ctx.Err() != nil
		o.mu.Lock()
		delete(o.calls, id)
		o.mu.Unlock()
		close(c.done)
	}()
	c.sent, c.err = o.first(ctx, r)
	return c.sent, c.err
}

func conflict(key string) error {
	return fault.New(fault.Conflict, "the idempotency key %q stands for another message already; use a new key for a new message", key)
}

// first sends, unless the key stands for a message that was not refused.
func (o *Outbox) first(ctx context.Context, r Request) (Sent, error) {
	k, known, err := o.keyOf(r.From, r.Key)
	switch {
	case err != nil:
		return Sent{}, err
	case !known:
		return o.dispatch(ctx, r, o.id(r))
	case k.Hash != r.hash():
		return Sent{}, conflict(r.Key)
	}
	failpoint.Hit("outbox.repeated")
	if _, free := anyOf(r.To); free { // it means whom it meant the first time
		target, err := o.cfg.Directory.Resolve(k.To)
		if err != nil {
			return Sent{}, err
		}
		r.target = &target
	}
	sent := Sent{MsgID: k.MsgID, TraceID: k.TraceID, To: *r.target, ExpiresAt: time.UnixMilli(k.ExpiresAt), Repeated: true}
	if r.target.Local {
		r.leaving(k.MsgID)
		sent.Outcome, sent.Reason = o.local.Local(r.target.GID, k.MsgID)
		return sent, nil
	}
	in, found, err := o.intent(k.MsgID)
	if err != nil {
		return Sent{}, err
	}
	if !found || in.Outcome == store.EndRefused {
		return o.dispatch(ctx, r, k.MsgID)
	}
	// Whoever waits is registered before the state is read: what comes in
	// between reaches him one way or the other.
	r.leaving(k.MsgID)
	if in, _, err = o.intent(k.MsgID); err != nil {
		return Sent{}, err
	}
	return stateOf(sent, in)
}

// stateOf fills in how far a message has come.
func stateOf(sent Sent, in store.Intent) (Sent, error) {
	switch in.Outcome {
	case store.EndInjected, store.EndReplied:
		sent.Outcome = store.Injected
	case store.EndFailed, store.EndVerdict, store.EndRefused:
		sent.Outcome, sent.Reason = store.Failed, in.OutcomeReason
	case store.EndAbandoned:
		sent.Outcome, sent.Reason = store.Failed, string(fault.Abandoned)
	case store.EndDead:
		if in.Told {
			sent.Outcome, sent.Reason = store.Failed, string(fault.InDoubt)
		}
	}
	if in.Outcome != "" {
		return sent, nil
	}
	switch in.State {
	case store.IntentDeferred:
		sent.Outcome, sent.Reason = store.Waiting, in.OutcomeReason
	case store.IntentIntended, store.IntentInDoubt: // by now nobody is publishing it for the first time
		return sent, inDoubt(envelope.Kind(in.Kind), time.UnixMilli(in.ExpiresAt), nil)
	}
	return sent, nil
}

// keyOf is what a key of gid stands for, while it does.
func (o *Outbox) keyOf(gid, key string) (k store.Key, known bool, err error) {
	k, known, err = store.Find(o.cfg.Store, func(tx *store.Tx) (store.Key, bool, error) { return tx.KeyOf(gid, key) })
	return k, known && o.moment().Past.Sub(time.UnixMilli(k.At)) < store.KeyLife, err
}

// AnsweredUnder is the brief that gid answered, or is answering, under key. It
// holds what a repeated call needs; the brief's own record may be gone by now.
func (o *Outbox) AnsweredUnder(gid, key string) (brief store.Brief, found bool, err error) {
	o.mu.Lock()
	running := o.calls[gid+"\n"+key]
	o.mu.Unlock()
	if running != nil {
		return running.answers, running.answers.MsgID != "", nil
	}
	k, known, err := o.keyOf(gid, key)
	return store.Brief{GID: gid, MsgID: k.InReplyTo, Sender: k.To}, known && k.InReplyTo != "", err
}

func (o *Outbox) key(r Request, env *envelope.Envelope) store.Key {
	return store.Key{
		MsgID: env.MsgID, TraceID: env.TraceID, Hash: r.hash(), At: o.cfg.Now().UnixMilli(),
		ExpiresAt: env.ExpiresAt, Call: string(r.kind), To: r.target.GID, InReplyTo: r.answers.MsgID,
	}
}
