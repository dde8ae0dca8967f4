package outbox

import (
	"context"
	"fmt"
	"time"

	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
	"fleetd/test/failpoint"
)

const (
	endedFor   = 24 * time.Hour // ended intents are kept for idempotency and corrections
	pruneLimit = 10_000         // intents in one commit: none should last long
	pruneEvery = time.Minute
	keysEvery  = 10 * time.Minute // finding old keys reads all of them
)

// open is an intent in memory, without its body. Outbox.mu guards it.
type open struct {
	id     string
	intent store.Intent
	order  uint64 // in which they left

	pinned  bool           // its publisher may still refuse it
	flight  bool           // it is being published, or the broker's word is still to come
	word    fabric.Outcome // the broker's latest word
	gen     uint64         // of the link over which it was written last; 0: it was not
	away    bool           // its recipient's host was not seen alive
	silent  bool           // nor since, over one and the same link
	doubted bool           // its sender was told IN_DOUBT: whatever comes is news to him
	ending  bool           // its end is being committed with a notice
	telling bool           // its end is with a worker
	undo    func(*store.Tx) error

	asked    time.Time // when the QUERY that decides was sent; zero: it was not
	answered bool      // since then the recipient said that it was not injected

	unflushed int // ends that may not be durable yet
}

func (op *open) ended() bool { return op.intent.State == store.IntentEnded }

func (op *open) kind() envelope.Kind { return envelope.Kind(op.intent.Kind) }

// wire is the id under which the message of an intent travels.
func wire(in store.Intent) string {
	if in.Of != "" {
		return in.Of
	}
	return in.MsgID
}

// unknown reports whether its sender was told that nobody knows what became of
// it. Its recipient may say so later, and is asked whenever he is new.
func unknown(in store.Intent) bool {
	return in.Outcome == store.EndVerdict && in.OutcomeReason == string(fault.InDoubt)
}

// awaits reports whether the intent stays open when it was accepted: only of a
// brief to a worker an outcome will be heard (design §5).
func awaits(in store.Intent) bool {
	return envelope.Kind(in.Kind).Brief() && in.ToKind == store.Worker
}

// Load reads the intents that an earlier run left open.
func (o *Outbox) Load() error {
	failpoint.Hit("outbox.load")
	left, err := store.Read(o.cfg.Store, (*store.Tx).OpenIntents)
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, in := range left {
		if in.Kind == string(envelope.Broadcast) && in.Of == "" {
			// Its shares say how far it came. It is not sent again: who did not get
			// it is not known, and its caller was told nothing.
			in.State, in.Outcome, in.EndedAt = store.IntentEnded, store.EndAccepted, o.cfg.Now().UnixMilli()
			o.cfg.Store.Later(func(tx *store.Tx) error { return keepIntent(tx, in) })
			continue
		}
		op := &open{intent: in, doubted: in.State == store.IntentIntended || in.State == store.IntentInDoubt || in.Told}
		o.keep(op)
		o.fallBehind(op)
	}
	return nil
}

// keep takes an intent that is in the store into memory; o.mu is held.
func (o *Outbox) keep(op *open) {
	op.id, op.intent.Body = op.intent.MsgID, nil
	o.order++
	op.order = o.order
	if op.flight {
		op.gen = o.gen
	}
	o.open[op.id] = op
}

// commit makes a new intent durable, together with also, before anything
// leaves. An id that was refused before gets a new place in the order.
func (o *Outbox) commit(ctx context.Context, op *open, also func(*store.Tx) error) error {
	in := op.intent
	err := o.cfg.Store.Write(ctx, func(tx *store.Tx) error {
		if err := tx.DeleteIntent(in.MsgID); err != nil {
			return err
		}
		if err := tx.PutIntent(in); err != nil {
			return err
		}
		if also == nil {
			return nil
		}
		return also(tx)
	})
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.keep(op)
	return nil
}

// live returns an intent that has not ended; o.mu is held.
func (o *Outbox) live(msgID string) *open {
	if op := o.open[msgID]; op != nil && !op.ended() {
		return op
	}
	return nil
}

// change alters an intent that has not ended; fn reports whether the store has
// to follow, which it does with the next commit.
func (o *Outbox) change(msgID string, fn func(*open) bool) (found bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	op := o.live(msgID)
	if op == nil {
		return false
	}
	if fn(op) {
		o.save(op)
	}
	return true
}

// conclude records the end of an intent, or another end of one that had ended.
// What was committed with it is undone if it was refused.
func (o *Outbox) conclude(in store.Intent, end store.End, reason string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	op := o.open[in.MsgID]
	if op == nil {
		in.Body = nil
		op = &open{id: in.MsgID, intent: in}
		o.open[op.id] = op
	}
	op.intent.State, op.intent.Outcome, op.intent.OutcomeReason = store.IntentEnded, end, reason
	o.save(op)
}

// save hands the intent to the store; o.mu is held, so that two changes of one
// intent reach the store in their order. (Later only queues: it waits for no
// commit.) While a notice is being committed that decides what is stored.
func (o *Outbox) save(op *open) {
	if op.ended() {
		op.intent.EndedAt = o.cfg.Now().UnixMilli()
		o.finished(op)
	}
	if op.ending {
		return
	}
	var undo func(*store.Tx) error
	if op.intent.Outcome == store.EndRefused {
		undo, op.undo = op.undo, nil
	}
	record := op.intent
	o.cfg.Store.Later(func(tx *store.Tx) error {
		if err := keepIntent(tx, record); err != nil || undo == nil {
			return err
		}
		return undo(tx)
	})
}

// finished notes an end; o.mu is held. The intent stays in memory until its
// end is durable: whoever asks meanwhile must not read the past from the store.
func (o *Outbox) finished(op *open) {
	o.catchUp(op)
	op.unflushed++
	o.done = append(o.done, op)
}

// flush has the intents forgotten that ended since the last one, once their
// end is durable.
func (o *Outbox) flush() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.flushing || len(o.done) == 0 {
		return
	}
	done := o.done
	o.flushing = o.later(func(ctx context.Context) { o.forget(ctx, done) })
	if o.flushing {
		o.done = nil
	}
}

func (o *Outbox) forget(ctx context.Context, done []*open) {
	err := o.cfg.Store.Flush(ctx)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.flushing = false
	if err != nil {
		o.done = append(done, o.done...)
		return
	}
	for _, op := range done {
		if op.pinned {
			o.done = append(o.done, op)
			continue
		}
		if op.unflushed--; op.unflushed == 0 && op.ended() && o.open[op.id] == op {
			delete(o.open, op.id)
		}
	}
}

// keepIntent stores an intent, and drops its body once nobody will publish it
// again.
func keepIntent(tx *store.Tx, in store.Intent) error {
	if err := tx.PutIntent(in); err != nil {
		return err
	}
	switch in.State {
	case store.IntentEnded, store.IntentAccepted, store.IntentDeferred:
		return tx.DropBody(in.MsgID)
	}
	return nil
}

// intent returns what is known of a message that left here, ended or not.
func (o *Outbox) intent(msgID string) (store.Intent, bool, error) {
	o.mu.Lock()
	if op := o.open[msgID]; op != nil {
		defer o.mu.Unlock()
		return op.intent, true, nil
	}
	o.mu.Unlock()
	return o.stored(msgID)
}

// intentFor returns what is known of a message as far as it concerns gid: of a
// broadcast that is the share of one recipient.
func (o *Outbox) intentFor(msgID, gid string) (store.Intent, bool, error) {
	in, found, err := o.intent(msgID)
	if !found || err != nil || in.Kind != string(envelope.Broadcast) {
		return in, found, err
	}
	return o.intent(shareID(msgID, gid))
}

// stored reads an intent with its body.
func (o *Outbox) stored(msgID string) (in store.Intent, found bool, err error) {
	in, found, err = store.Find(o.cfg.Store, func(tx *store.Tx) (store.Intent, bool, error) { return tx.Intent(msgID) })
	if err != nil {
		return in, false, fmt.Errorf("read intent %s: %w", msgID, err)
	}
	return in, found, nil
}

// RecipientHost is the host that was noted for a recipient when msgID was sent
// (design §4, verification step 5). Signals about a spawn or a stop are about no
// message: their msgID is empty.
func (o *Outbox) RecipientHost(msgID, gid string) (string, bool) {
	if msgID == "" {
		return "", false
	}
	if host, found := o.turnHost(msgID, gid); found {
		return host, true
	}
	in, found, err := o.intentFor(msgID, gid)
	if err != nil {
		o.log.Error("the noted host of a recipient could not be read", "msg", msgID, "error", err)
		return "", false
	}
	return in.ToHost, found && in.To == gid && in.ToHost != ""
}

// prune forgets intents a day after their end, but not before their life is
// over. Of a REPLY nothing is heard after the broker took it, so the day will
// do.
func (o *Outbox) prune(now time.Time) {
	o.cfg.Store.Later(func(tx *store.Tx) error {
		old, err := tx.EndedBefore(now.Add(-endedFor))
		if err != nil {
			return err
		}
		n := 0
		for _, in := range old {
			if now.UnixMilli() <= in.ExpiresAt && in.Kind != string(envelope.Reply) {
				continue
			}
			if n++; n > pruneLimit {
				return nil // the rest in a minute
			}
			if err := tx.DeleteIntent(in.MsgID); err != nil {
				return err
			}
		}
		return nil
	})
}

// pruneKeys forgets idempotency keys after a day.
func (o *Outbox) pruneKeys(now time.Time) {
	o.cfg.Store.Later(func(tx *store.Tx) error { return tx.PruneKeys(now) })
}
