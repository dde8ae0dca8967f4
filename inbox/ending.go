package inbox

import (
	"cmp"
	"context"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
	"fleetd/test/failpoint"
	"fleetd/wait"
)

// Unregister begins the end of the entity of that name or gid, which is asked
// for, and closes its pane. It returns once the end is on record: from then on
// the gid never lives again. Run takes the steps of design §9; AwaitEnd waits
// for the last.
func (in *Inbox) Unregister(ctx context.Context, name string) (store.Entity, error) {
	e, found := in.ByName(name)
	b := in.box(e.GID)
	if !found || b == nil {
		return store.Entity{}, fault.New(fault.UnknownRecipient, "nobody here is called %q; `bridged roster` lists who is", name)
	}
	if err := in.retire(ctx, b, nil); err != nil {
		return store.Entity{}, err
	}
	return b.snapshot(), nil
}

// Reap begins the end of a worker whose pane or agent is gone, if was is still
// the pane that it has. What is left of a pane that a person opened stays with
// him.
func (in *Inbox) Reap(ctx context.Context, gid string, was Pane) error {
	b := in.box(gid)
	if b == nil {
		return fault.New(fault.UnknownRecipient, "nobody here has the id %s", gid)
	}
	return in.retire(ctx, b, &was)
}

// AwaitEnd waits until an entity whose end has begun is gone, or ctx ends. It
// returns the entity as it is then.
func (in *Inbox) AwaitEnd(ctx context.Context, gid string) store.Entity {
	b := in.box(gid)
	if b == nil {
		return store.Entity{GID: gid, State: store.EntityGone}
	}
	select {
	case <-b.over:
	case <-in.done:
	case <-ctx.Done():
	}
	return b.snapshot()
}

// retire records that an entity ends, and tells of it, before anybody acts on
// it: after a crash it ends all the same. One that is reaped for a pane that it
// does not have any more does not end.
func (in *Inbox) retire(ctx context.Context, b *box, reaped *Pane) error {
	b.telling.Lock() // before the registry, over which nobody waits for the broker
	defer b.telling.Unlock()
	e, ends, err := in.recordEnd(ctx, b, reaped)
	if !ends {
		return err
	}
	in.cfg.Changed(e)
	in.log.Info("an entity ends", "name", e.Name, "gid", e.GID)
	in.mu.Lock()
	in.start(b)
	in.mu.Unlock()
	return nil
}

func (in *Inbox) recordEnd(ctx context.Context, b *box, reaped *Pane) (e store.Entity, ends bool, err error) {
	in.registry.Lock()
	defer in.registry.Unlock()
	e = b.snapshot()
	if e.Ended() || reaped != nil && *reaped != paneOf(e) {
		return e, false, nil
	}
	failpoint.Hit("inbox.retire.before")
	e.State, e.KeepPane = store.EntityStopping, reaped != nil && !e.Launched
	err = in.cfg.Store.Write(ctx, func(tx *store.Tx) error {
		if err := tx.DeleteTokens(e.GID); err != nil {
			return err
		}
		return tx.PutEntity(e)
	})
	if err != nil {
		return e, false, err
	}
	failpoint.Hit("inbox.retire.after")
	b.become(e)
	return e, true, nil
}

// endPatience is how often the steps of an end are tried in strict order: for
// 10 s. Then who waits for an answer is told even while herdr or the broker is
// away; what they have to do is tried until they do it.
const endPatience = 20

// windUp takes the steps of an end, in their order and again and again, until
// all are done or ctx ends; after a restart it goes on.
func (in *Inbox) windUp(ctx context.Context, b *box) {
	b.told() // presence is withdrawn before the first step
	said := ""
	for round := 0; ctx.Err() == nil; round++ {
		done, err := in.windUpOnce(ctx, b, round < in.patience)
		if done {
			return
		}
		if err != nil && round >= in.patience && err.Error() != said {
			said = err.Error()
			in.log.Warn("an entity cannot end yet; trying on", "name", b.snapshot().Name, "gid", b.gid, "error", err)
		}
		_ = wait.Pause(ctx, retryEvery)
	}
}

// windUpOnce goes through design §9: the pane is closed, the inbox unbound,
// who waits for an answer is told, what lies in the inbox is answered for, and
// once nothing is left the inbox goes. In strict order nothing is passed over
// that cannot be done now.
func (in *Inbox) windUpOnce(ctx context.Context, b *box, strict bool) (done bool, err error) {
	away := in.closePane(ctx, b.snapshot())
	if away != nil && strict {
		return false, away
	}
	failpoint.Hit("inbox.end.closed")
	if err := in.unbind(ctx, b.gid); err != nil {
		if strict {
			return false, err
		}
		away = err
	}
	failpoint.Hit("inbox.end.unbound")
	if err := in.abandon(ctx, b.gid); err != nil {
		return false, err
	}
	if done, err := in.drained(ctx, b); !done {
		return false, err
	}
	// Somebody may have been given mail between the two.
	if err := cmp.Or(in.abandon(ctx, b.gid), away); err != nil {
		return false, err
	}
	failpoint.Hit("inbox.end.drained")
	if removed, err := in.remove(ctx, b.gid); !removed {
		return false, err
	}
	failpoint.Hit("inbox.end.removed")
	return in.gone(ctx, b)
}

func (in *Inbox) closePane(ctx context.Context, e store.Entity) error {
	if e.Kind != store.Worker { // its session is a person's, who goes on
		return nil
	}
	if e.Pane == "" && !e.Launched || e.KeepPane || in.cfg.Panes == nil {
		return nil
	}
	return in.cfg.Panes.Close(ctx, e.GID, paneOf(e))
}

func (in *Inbox) unbind(ctx context.Context, gid string) error {
	if in.cfg.Window == nil {
		return nil
	}
	return in.cfg.Window.Unbind(ctx, gid)
}

func (in *Inbox) remove(ctx context.Context, gid string) (bool, error) {
	if in.cfg.Window == nil {
		return true, nil
	}
	return in.cfg.Window.Remove(ctx, gid)
}

// drained ends all that waits in a box, and reports whether nothing is left.
func (in *Inbox) drained(ctx context.Context, b *box) (done bool, err error) {
	for more := true; more; more = in.refill(b, in.cfg.LocalWindow) {
		b.mu.Lock()
		all := b.those(func(*item) bool { return true })
		b.mu.Unlock()
		if err := in.expelAll(ctx, b, string(fault.PaneGone), all); err != nil {
			return false, err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.items.Len() == 0 && !b.partial, nil // being stored, offered or injected: they come back or not
}

// gone records that nothing is left of an entity, and tells of it.
func (in *Inbox) gone(ctx context.Context, b *box) (done bool, err error) {
	e, err := in.recordGone(ctx, b)
	if err != nil {
		return false, err
	}
	in.tell(e.GID)
	in.log.Info("an entity has ended", "name", e.Name, "gid", e.GID)
	close(b.over)
	return true, nil
}

func (in *Inbox) recordGone(ctx context.Context, b *box) (store.Entity, error) {
	in.registry.Lock()
	defer in.registry.Unlock()
	e := b.snapshot()
	e.State, e.GoneAt = store.EntityGone, in.cfg.Now().UnixMilli()
	if err := in.cfg.Store.Write(ctx, func(tx *store.Tx) error { return tx.PutEntity(e) }); err != nil {
		return e, err
	}
	b.become(e)
	return e, nil
}

// goneFor is how long an entity that is gone is remembered. Nobody can ask for
// it after that: its dead letters live 14 days, its homes 15, and the records of
// what it was sent are pruned before.
const goneFor = 15 * 24 * time.Hour

// forgetGone drops those that are gone for so long, record and box. Their gids
// stay dead: one is never given out twice, and without a record none is opened.
// What could not be done is done at the next prune, or the next start's.
func (in *Inbox) forgetGone(ctx context.Context, now time.Time) {
	in.registry.Lock()
	defer in.registry.Unlock()
	var old []string
	for _, b := range in.all() {
		if e := b.snapshot(); b.isOver() && e.GoneAt != 0 && now.Sub(time.UnixMilli(e.GoneAt)) > goneFor {
			old = append(old, e.GID)
		}
	}
	if len(old) == 0 {
		return
	}
	err := in.cfg.Store.Write(ctx, func(tx *store.Tx) error {
		for _, gid := range old {
			if err := tx.DeleteEntity(gid); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		in.log.Warn("entities that ended long ago could not be forgotten yet", "entities", len(old), "error", err)
		return
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, gid := range old {
		delete(in.boxes, gid)
	}
}

// abandon tells everyone whose brief the entity had and did not answer, and
// everyone with whom it had a question open. After an error not all were told.
func (in *Inbox) abandon(ctx context.Context, gid string) (failed error) {
	in.endTurns(gid)
	in.cfg.Reports.EndTurns(gid)
	// That a brief is in stands in the store only with the next commit.
	if err := in.cfg.Store.Write(ctx, func(*store.Tx) error { return nil }); err != nil {
		return err
	}
	open, err := in.given(gid)
	if err != nil {
		return err
	}
	for _, b := range open {
		r := reportOf(b)
		r.Kind, r.Reason = envelope.Abandoned, string(fault.PaneGone)
		failpoint.Hit("inbox.abandon.before")
		if err := in.cfg.Reports.Final(ctx, r); err != nil {
			failed = cmp.Or(failed, err)
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
	return failed
}

// given lists the briefs that gid has, or may have, and did not answer. One
// whose injection is not known to have ended is left to the next start.
func (in *Inbox) given(gid string) ([]store.Brief, error) {
	return store.Read(in.cfg.Store, func(tx *store.Tx) (all []store.Brief, err error) {
		briefs, err := tx.Briefs(gid)
		if err != nil {
			return nil, err
		}
		for _, b := range briefs {
			injected, err := wasInjected(tx, b)
			if err != nil {
				return nil, err
			}
			if b.State == briefOpen || b.State == briefInDoubt || b.State == briefInjecting && injected {
				all = append(all, b)
			}
		}
		return all, nil
	})
}
