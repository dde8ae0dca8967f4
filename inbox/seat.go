package inbox

import (
	"context"

	"fleetd/fault"
	"fleetd/store"
)

// Reseat records where the pane of an entity is found now, if was is still the
// one that it has: whoever waits for its gate looks there.
func (in *Inbox) Reseat(ctx context.Context, gid string, was, at Pane) error {
	return in.seat(ctx, gid, was, func(_ *box, e *store.Entity) error {
		e.Pane, e.Terminal, e.AgentKind, e.Leader = at.ID, at.Terminal, at.Kind, at.Leader
		return nil
	})
}

// Unseat tells everyone whose open brief a worker had, or who waits for its
// answer, that the agent in pane was is gone for good. The worker stays, for
// its pane may be registered anew once an agent runs there; its mail waits
// till then. An error is to be tried again; told twice is told once.
func (in *Inbox) Unseat(ctx context.Context, gid string, was Pane) error {
	return in.seat(ctx, gid, was, func(b *box, e *store.Entity) error {
		if b.injecting() {
			return fault.New(fault.Internal, "a message is going into the pane of %s: it has its own outcome, and is open only after it", e.Name)
		}
		e.Leader = ""
		return in.abandon(ctx, gid)
	})
}

// seat changes the entity of that gid, if it lives in pane was, and tells of it.
func (in *Inbox) seat(ctx context.Context, gid string, was Pane, change func(*box, *store.Entity) error) error {
	changed, err := in.recordSeat(ctx, gid, was, change)
	if changed {
		in.tell(gid)
	}
	return err
}

func (in *Inbox) recordSeat(ctx context.Context, gid string, was Pane, change func(*box, *store.Entity) error) (changed bool, err error) {
	in.registry.Lock()
	defer in.registry.Unlock()
	b := in.box(gid)
	if b == nil {
		return false, nil
	}
	e := b.snapshot()
	if e.State != store.EntityLive || paneOf(e) != was {
		return false, nil
	}
	if err := change(b, &e); err != nil {
		return false, err
	}
	if err := in.record(ctx, e, "", nil); err != nil {
		return false, err
	}
	b.become(e)
	return true, nil
}

// injecting reports whether something is on its way into the pane.
func (b *box) injecting() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for e := b.items.Front(); e != nil; e = e.Next() {
		if e.Value.(*item).state == injecting {
			return true
		}
	}
	return false
}
