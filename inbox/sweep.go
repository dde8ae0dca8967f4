package inbox

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
	"fleetd/test/failpoint"
)

const (
	sweepEvery = 500 * time.Millisecond
	pruneEvery = time.Hour
	// endsAtOnce is how many ends are reported at the same time: they share
	// commits.
	endsAtOnce = 32
)

// every looks at each box that is not gone, again and again, until ctx ends.
func (in *Inbox) every(ctx context.Context, look func(context.Context, *box)) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, b := range in.present() {
			look(ctx, b)
		}
	}
}

// expireAndPrune ends what has expired and drops records that are old, until
// ctx ends.
func (in *Inbox) expireAndPrune(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	var pruned time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !in.Steady() {
			continue
		}
		in.turns.expire(in.cfg.Now())
		for _, b := range in.present() {
			in.takeExpired(b, in.cfg.Now())
			in.expireDue(ctx, b)
		}
		if now := in.cfg.Now(); now.Sub(pruned) > pruneEvery {
			pruned = now
			in.prune(now)
			in.forgetGone(ctx, now)
		}
	}
}

// expireDue ends what is past its life, wherever it stands in the line: an
// abandoned sender must not wedge a window.
func (in *Inbox) expireDue(ctx context.Context, b *box) {
	in.expelAll(ctx, b, string(fault.Expired), b.expired(in.cfg.Now()))
}

// expired lists the waiting items whose life is over, and notes when to look
// again.
func (b *box) expired(now time.Time) []*item {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.expiry == 0 || now.UnixMilli() <= b.expiry {
		return nil
	}
	b.expiry = 0
	var due []*item
	for e := b.items.Front(); e != nil; e = e.Next() {
		it := e.Value.(*item)
		if it.state == waiting && it.env.Expired(now, 0) {
			due = append(due, it)
		}
		if at := it.env.ExpiresAt; at != 0 && (b.expiry == 0 || at < b.expiry) {
			b.expiry = at
		}
	}
	return due
}

// expelAll ends waiting items, and returns the first error of those that wait
// on because they could not be ended.
func (in *Inbox) expelAll(ctx context.Context, b *box, reason string, all []*item) error {
	var g errgroup.Group
	g.SetLimit(endsAtOnce)
	for _, it := range all {
		g.Go(func() error { return in.expel(ctx, b, it, reason) })
	}
	return g.Wait()
}

// expel ends one waiting item: its sender is told before a broker's copy is
// dead-lettered (what expired) or acked. An item that is being offered or
// injected is left alone: that decides.
func (in *Inbox) expel(ctx context.Context, b *box, it *item, reason string) error {
	if !b.move(it, waiting, injecting) {
		return nil
	}
	failpoint.Hit("inbox.expel.before")
	err := in.final(ctx, it.env, b.gid, envelope.Failed, reason)
	if b.fails(it.env.MsgID, err) && !fault.Is(err, fault.StoreUnavailable) { // it is tried by every sweep
		in.log.Error("the end of a message could not be reported yet", "msg", it.env.MsgID, "trace", it.env.TraceID, "error", err)
	}
	if err != nil {
		b.release(it)
		return err
	}
	if !it.env.Kind.Brief() {
		in.log.Warn("mail ended unread", "kind", it.env.Kind, "msg", it.env.MsgID, "trace", it.env.TraceID, "to", b.gid, "reason", reason)
	}
	failpoint.Hit("inbox.expel.reported")
	in.trace("ended", it.env, b.gid, store.Failed, reason)
	in.cfg.Store.Later(func(tx *store.Tx) error {
		if err := tx.PutSeen(it.env.TS, it.env.MsgID, b.gid, in.seen(it, store.Failed, reason)); err != nil {
			return err
		}
		return tx.DeleteHeld(b.gid, it.seq)
	})
	for _, hold := range b.finish(it) {
		if reason == string(fault.PaneGone) {
			in.settled("ack", it.env, hold.Ack())
		} else {
			in.settled("reject", it.env, hold.Reject())
		}
	}
	return nil
}

// prune drops the records that have outlived their use.
func (in *Inbox) prune(now time.Time) {
	in.cfg.Store.Later(func(tx *store.Tx) error {
		if err := tx.PruneSeen(now); err != nil {
			return err
		}
		return pruneBriefs(tx, now)
	})
	for _, b := range in.all() {
		for _, h := range b.prune(now) {
			b.later(func(tx *store.Tx) error { return tx.DeleteHeld(h.GID, h.Seq) })
		}
	}
}

// prune forgets what cannot be read or come any more, and returns the records
// of it.
func (b *box) prune(now time.Time) (old []store.Held) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.trim(now)
	for id, h := range b.index {
		if h.ExpiresAt < now.UnixMilli() {
			delete(b.index, id)
			old = append(old, h)
		}
	}
	return old
}
