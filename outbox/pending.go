package outbox

import (
	"cmp"
	"context"
	"slices"
	"time"

	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
)

const (
	tick        = time.Second
	firstQuery  = 5 * time.Second  // after a silent SEND (design §5)
	nextQuery   = time.Minute      // then 1, 4, 16 … minutes
	lastGrace   = 60 * time.Second // after expiresAt, before the last word
	answerWait  = 10 * time.Second // for the answer to a QUERY that decides
	endedFor    = 24 * time.Hour   // ended intents are kept for corrections
	pruneEvery  = time.Hour
	resendBound = 5 * time.Second // how long new mail waits behind what is sent again
)

// watchOver asks for outcomes, says the last word and prunes, until ctx ends.
func (o *Outbox) watchOver(ctx context.Context) {
	t := time.NewTicker(tick)
	defer t.Stop()
	var pruned time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		now := o.cfg.Now()
		o.askDue(ctx, now)
		if now.Sub(pruned) > pruneEvery {
			pruned = now
			o.prune(now)
		}
	}
}

// askDue looks at every open intent that waits for an outcome.
func (o *Outbox) askDue(ctx context.Context, now time.Time) {
	connected := false
	if o.cfg.Broker != nil {
		connected, _ = o.cfg.Broker.Connected()
	}
	var ask []store.Intent
	var ended []envelope.Report
	o.mu.Lock()
	for _, op := range o.open {
		if !watched(op.intent) {
			continue
		}
		if verdict := op.verdict(now); verdict != "" {
			ended = append(ended, envelope.Report{
				Kind: envelope.Failed, Reason: verdict, MsgID: op.intent.MsgID, TraceID: op.intent.TraceID,
				Sender: op.intent.From, Recipient: op.intent.To, Hops: op.intent.Hops,
			})
			continue
		}
		if connected && op.due(now) {
			ask = append(ask, op.intent)
		}
	}
	o.mu.Unlock()
	for _, r := range ended {
		o.lastWord(ctx, r)
	}
	for _, in := range ask {
		o.query(in)
	}
}

// due says whether to ask now, and notes that it was asked.
func (op *open) due(now time.Time) bool {
	in := &op.intent
	over := time.UnixMilli(in.ExpiresAt).Add(lastGrace)
	switch {
	case (now.After(over) || !op.deadAt.IsZero()) && op.asked.IsZero():
		op.asked = now // the answer to this one decides
		return true
	case in.NextQuery == 0:
		in.NextQuery = time.UnixMilli(in.TS).Add(firstQuery).UnixMilli()
		return false
	case now.UnixMilli() < in.NextQuery || now.After(over):
		return false
	}
	pause := nextQuery << (2 * min(in.Queries, 6))
	in.Queries++
	in.NextQuery = now.Add(pause).UnixMilli()
	return true
}

// verdict is the end that this gateway says when the recipient has not: never
// before it was asked once more, and never earlier, since an injection may be
// under way (design §5).
func (op *open) verdict(now time.Time) string {
	if op.asked.IsZero() || now.Sub(op.asked) < answerWait {
		return ""
	}
	switch {
	case !op.deadAt.IsZero():
		return op.dead
	case op.unseen || op.intent.State == store.IntentDeferred:
		return string(fault.Expired)
	}
	return string(fault.InDoubt)
}

func (o *Outbox) lastWord(ctx context.Context, r envelope.Report) {
	lock := o.stripe(r.MsgID)
	lock.Lock()
	defer lock.Unlock()
	in, found, err := o.intent(r.MsgID)
	if err != nil || !found || in.State == store.IntentEnded {
		return
	}
	if err := o.notice(ctx, r, in, true, outcomeVerdict); err != nil {
		o.log.Error("the last word on a message could not be told yet", "msg", r.MsgID, "trace", r.TraceID, "error", err)
	}
}

// query asks the recipient's gateway what became of a message.
func (o *Outbox) query(in store.Intent) {
	now := o.cfg.Now()
	o.trace("asked", in.MsgID, in.TraceID, string(envelope.Query), in.From, in.To, "", "")
	o.signal(&envelope.Envelope{
		V: envelope.Version, Kind: envelope.Query, MsgID: o.cfg.NewID(), TraceID: in.TraceID,
		From: envelope.GatewayAddress(o.cfg.Host), To: in.To, Signer: o.cfg.Host, InReplyTo: in.MsgID,
		TS: now.UnixMilli(), ExpiresAt: now.Add(envelope.Life(envelope.Query, 0)).UnixMilli(),
	})
}

// DeadLetter takes a dead letter that carries our own signature. It is not
// believed before its recipient was asked: a lost ack dead-letters a brief that
// was injected, and captured mail can be published to the exchange (design §6).
func (o *Outbox) DeadLetter(env *envelope.Envelope, reason string) error {
	code := string(fault.Refused)
	switch reason {
	case "expired":
		code = string(fault.Expired)
	case "maxlen":
		code = string(fault.InboxFull)
	}
	if !env.Kind.Brief() {
		o.log.Warn("mail of ours died unread", "kind", env.Kind, "msg", env.MsgID, "trace", env.TraceID, "reason", reason)
		return nil
	}
	o.change(env.MsgID, func(op *open) {
		if op.deadAt.IsZero() {
			op.deadAt, op.dead, op.asked = o.cfg.Now(), code, time.Time{}
		}
	})
	return nil
}

// Connected is called on every new connection, before mail flows: what is in
// doubt is asked for, or sent again in its order before new mail.
func (o *Outbox) Connected() {
	resent := make(chan struct{})
	var again []string
	o.mu.Lock()
	old := o.resent
	o.resent = resent
	for id, op := range o.open {
		if envelope.Kind(op.intent.Kind).Brief() {
			op.intent.NextQuery = o.cfg.Now().UnixMilli() // ask at the next tick
			continue
		}
		again = append(again, id)
	}
	slices.SortFunc(again, func(a, b string) int { return cmp.Compare(o.open[a].order, o.open[b].order) })
	o.mu.Unlock()
	done := func() { close(resent) }
	if len(again) == 0 || !o.later(func(ctx context.Context) {
		defer done()
		<-old
		for _, id := range again {
			if !o.sendAgain(ctx, id) {
				return
			}
		}
	}) {
		if len(again) == 0 {
			done()
			return
		}
		done()
	}
}

// sendAgain publishes one REPLY, FAILED or ABANDONED under its old id, and
// reports whether the connection still holds.
func (o *Outbox) sendAgain(ctx context.Context, msgID string) bool {
	in, found, err := o.stored(msgID)
	if err != nil || !found || in.State == store.IntentEnded {
		return err == nil
	}
	env := &envelope.Envelope{
		V: envelope.Version, Kind: envelope.Kind(in.Kind), MsgID: in.MsgID, TraceID: in.TraceID,
		From: in.From, To: in.To, Signer: o.cfg.Host, InReplyTo: in.InReplyTo, Reason: in.Reason,
		Hops: in.Hops, TS: in.TS, ExpiresAt: in.ExpiresAt, Body: in.Body,
	}
	if env.Expired(o.cfg.Now(), 0) {
		o.log.Warn("a message in doubt expired before it could be sent again", "kind", env.Kind, "msg", env.MsgID, "trace", env.TraceID)
		o.conclude(in, outcomeVerdict, string(fault.Expired))
		return true
	}
	outcome, err := o.send(ctx, envelope.LaneMail, env, func(word fabric.Outcome) { o.word(env, word) })
	o.traceEnv("published", env, outcome.String(), "again")
	if outcome == fabric.InDoubt || outcome == fabric.NotSent {
		return false
	}
	if outcome != fabric.Confirmed {
		o.log.Warn("a message sent again was refused: its inbox is full or gone", "kind", env.Kind, "msg", env.MsgID, "trace", env.TraceID, "outcome", outcome)
	}
	return true
}

// stored reads an intent with its body.
func (o *Outbox) stored(msgID string) (in store.Intent, found bool, err error) {
	err = o.cfg.Store.View(func(tx *store.Tx) (err error) {
		in, found, err = tx.Intent(msgID)
		return err
	})
	if err != nil {
		o.log.Error("a message in doubt could not be read", "msg", msgID, "error", err)
	}
	return in, found, err
}

// afterResent lets new mail go only behind what is being sent again.
func (o *Outbox) afterResent(ctx context.Context) error {
	o.mu.Lock()
	resent := o.resent
	o.mu.Unlock()
	select {
	case <-resent:
		return nil
	default:
	}
	t := time.NewTimer(resendBound)
	defer t.Stop()
	select {
	case <-resent:
		return nil
	case <-t.C:
		return brokerDown("older mail is still being sent again")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// prune forgets ended intents a day after their end and after their message's
// life, and idempotency keys after a day.
func (o *Outbox) prune(now time.Time) {
	o.cfg.Store.Later(func(tx *store.Tx) error {
		old, err := tx.EndedBefore(now.Add(-endedFor))
		if err != nil {
			return err
		}
		for _, in := range old {
			if now.UnixMilli() < in.ExpiresAt+endedFor.Milliseconds() {
				continue
			}
			if err := tx.DeleteIntent(in.MsgID); err != nil {
				return err
			}
		}
		return tx.PruneKeys(now)
	})
}
