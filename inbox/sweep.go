package inbox

import (
	"context"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
)

const (
	sweepEvery = 500 * time.Millisecond
	// deferAfter is when the sender of a brief that still waits is told so,
	// whatever the reason (design §6).
	deferAfter = 5 * time.Second
	// A jump of the wall clock against the monotonic one larger than this
	// stops expiry for a while: time, not mail, is wrong (design §6).
	clockJump  = 2 * time.Second
	clockPause = time.Minute
	pruneEvery = time.Hour
	briefsFor  = 7 * 24 * time.Hour
	answeredIn = 24 * time.Hour
)

// sweep tells senders that wait, ends what has expired and prunes what is old,
// until ctx ends.
func (in *Inbox) sweep(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	last, pausedUntil, pruned := in.cfg.Now(), time.Time{}, time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := in.cfg.Now()
		if jump := now.Round(0).Sub(last.Round(0)) - now.Sub(last); jump > clockJump || jump < -clockJump {
			in.log.Warn("the wall clock jumped; expiry pauses for a minute", "by", jump)
			pausedUntil = now.Add(clockPause)
		}
		last = now
		for _, b := range in.all() {
			in.deferOverdue(b, now)
			if now.After(pausedUntil) {
				in.expireDue(ctx, b, now)
			}
		}
		if now.Sub(pruned) > pruneEvery {
			pruned = now
			in.prune(now)
		}
	}
}

// deferOverdue tells the senders of briefs that have waited for long why.
func (in *Inbox) deferOverdue(b *box, now time.Time) {
	type due struct {
		env    *envelope.Envelope
		reason string
	}
	var told []due
	b.mu.Lock()
	gid := b.gid
	if b.worker {
		for i, it := range b.items {
			if it.state != waiting || it.told != "" || now.Sub(it.arrived) < deferAfter || !it.env.Kind.Brief() {
				continue
			}
			it.told = b.reason
			if it.told == "" || i > 0 {
				it.told = ReasonQueued
			}
			told = append(told, due{it.env, it.told})
		}
	}
	b.mu.Unlock()
	for _, d := range told {
		in.progress(d.env, gid, envelope.Deferred, d.reason)
		in.trace("deferred", d.env, gid, outcomeWaiting, d.reason)
	}
}

// expireDue ends what is past its life, wherever it stands in the line: an
// abandoned sender must not wedge a window.
func (in *Inbox) expireDue(ctx context.Context, b *box, now time.Time) {
	var due []*item
	b.mu.Lock()
	for _, it := range b.items {
		if it.state == waiting && it.env.Expired(now, 0) {
			due = append(due, it)
		}
	}
	b.mu.Unlock()
	for _, it := range due {
		in.expire(ctx, b, it)
	}
}

// expire ends one waiting item: its sender is told before it is rejected.
func (in *Inbox) expire(ctx context.Context, b *box, it *item) {
	in.drop(ctx, b, it, string(fault.Expired), func(s envelope.Settler) error { return s.Reject() })
}

// drop ends one waiting item with reason, settling a broker's copy by how.
func (in *Inbox) drop(ctx context.Context, b *box, it *item, reason string, how func(envelope.Settler) error) {
	if !b.move(it, waiting, injecting) {
		return // it is being offered or injected: that decides
	}
	gid := b.gid
	if err := in.untilStored(ctx, func() error {
		return in.final(ctx, it.env, gid, envelope.Failed, reason)
	}); err != nil {
		b.move(it, injecting, waiting)
		return
	}
	if !it.env.Kind.Brief() {
		in.log.Warn("mail ended unread", "kind", it.env.Kind, "msg", it.env.MsgID, "trace", it.env.TraceID, "to", gid, "reason", reason)
	}
	in.trace("ended", it.env, gid, outcomeFailed, reason)
	in.cfg.Store.Later(func(tx *store.Tx) error {
		if err := tx.PutSeen(it.env.TS, it.env.MsgID, gid, in.seen(it, outcomeFailed, reason)); err != nil {
			return err
		}
		return dropHeld(tx, gid, it)
	})
	if !it.local() {
		in.settled("settle", it.env, how(it.settle))
	}
	b.remove(it)
}

// prune drops the records that have outlived their use.
func (in *Inbox) prune(now time.Time) {
	in.cfg.Store.Later(func(tx *store.Tx) error {
		if err := tx.PruneSeen(now); err != nil {
			return err
		}
		briefs, err := tx.AllBriefs()
		if err != nil {
			return err
		}
		for _, b := range briefs {
			age := now.Sub(time.UnixMilli(b.At))
			if age > briefsFor || b.State == briefReplied && age > answeredIn {
				if err := tx.DeleteBrief(b.GID, b.Seq); err != nil {
					return err
				}
			}
		}
		return nil
	})
	for _, b := range in.all() {
		b.mu.Lock()
		for id, h := range b.index {
			if h.ExpiresAt < now.UnixMilli() {
				delete(b.index, id)
				in.cfg.Store.Later(func(tx *store.Tx) error { return tx.DeleteHeld(h.GID, h.Seq) })
			}
		}
		b.mu.Unlock()
	}
}
