package inbox

import (
	"context"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
	"fleetd/test/failpoint"
)

// Unregister ends the live entity of that name or gid. It returns once the end
// is on record; whoever waits for the entity is told by Run.
func (in *Inbox) Unregister(ctx context.Context, name string) (store.Entity, error) {
	e, found := in.ByName(name)
	b := in.box(e.GID)
	if !found || b == nil {
		return store.Entity{}, fault.New(fault.UnknownRecipient, "nobody here is called %q; `bridged roster` lists who is", name)
	}
	if err := in.retire(ctx, b); err != nil {
		return store.Entity{}, err
	}
	return b.snapshot(), nil
}

// retire makes an entity gone for good. It is on record before anybody acts on
// it: a gid that is gone never lives again.
func (in *Inbox) retire(ctx context.Context, b *box) error {
	in.registry.Lock()
	defer in.registry.Unlock()
	e := b.snapshot()
	if e.State == Gone {
		return nil
	}
	failpoint.Hit("inbox.retire.before")
	e.State, e.GoneAt = Gone, in.cfg.Now().UnixMilli()
	err := in.cfg.Store.Write(ctx, func(tx *store.Tx) error {
		if err := tx.DeleteTokens(e.GID); err != nil {
			return err
		}
		return tx.PutEntity(e)
	})
	if err != nil {
		return err
	}
	failpoint.Hit("inbox.retire.after")
	b.become(e)
	in.endTurns(e.GID)
	in.cfg.Changed(e)
	in.log.Info("an entity has ended", "name", e.Name, "gid", e.GID)
	in.mu.Lock()
	in.start(b)
	in.mu.Unlock()
	return nil
}

// windUp tells everybody who waits for an entity that has ended, until nobody
// is left or ctx ends; after a restart it goes on.
func (in *Inbox) windUp(ctx context.Context, b *box) {
	for ctx.Err() == nil {
		if in.windUpOnce(ctx, b) {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryEvery):
		}
	}
}

func (in *Inbox) windUpOnce(ctx context.Context, b *box) (done bool) {
	b.mu.Lock()
	all := b.those(func(*item) bool { return true })
	b.mu.Unlock()
	if err := in.expelAll(ctx, b, string(fault.PaneGone), all); err != nil {
		return false
	}
	b.mu.Lock()
	left := b.items.Len() // being stored, offered or injected: they come back or not
	b.mu.Unlock()
	return left == 0 && in.abandon(ctx, b.gid)
}

// abandon tells everyone whose brief the entity had and did not answer.
func (in *Inbox) abandon(ctx context.Context, gid string) (done bool) {
	// That a brief is in stands in the store only with the next commit.
	if err := in.cfg.Store.Write(ctx, func(*store.Tx) error { return nil }); err != nil {
		return false
	}
	open, err := in.given(gid)
	if err != nil {
		in.log.Error("open briefs of an entity that ended could not be read", "gid", gid, "error", err)
		return false
	}
	done = true
	for _, b := range open {
		r := reportOf(b)
		r.Kind, r.Reason = envelope.Abandoned, string(fault.PaneGone)
		failpoint.Hit("inbox.abandon.before")
		if err := in.cfg.Reports.Final(ctx, r); err != nil {
			in.log.Error("an abandoned brief could not be reported yet", "msg", b.MsgID, "trace", b.TraceID, "error", err)
			done = false
			continue
		}
		failpoint.Hit("inbox.abandon.reported")
		in.cfg.Store.Later(func(tx *store.Tx) error {
			if err := failSeen(tx, b, string(fault.Abandoned)); err != nil {
				return err
			}
			return tx.DeleteBrief(b.GID, b.Seq)
		})
	}
	return done
}

// given lists the briefs that gid has, or may have, and did not answer. One
// whose injection is not known to have ended is left to the next start.
func (in *Inbox) given(gid string) (all []store.Brief, err error) {
	err = in.cfg.Store.View(func(tx *store.Tx) error {
		briefs, err := tx.Briefs(gid)
		if err != nil {
			return err
		}
		for _, b := range briefs {
			injected, err := wasInjected(tx, b)
			if err != nil {
				return err
			}
			if b.State == briefOpen || b.State == briefInDoubt || b.State == briefInjecting && injected {
				all = append(all, b)
			}
		}
		return nil
	})
	return all, err
}
