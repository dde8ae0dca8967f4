package inbox

import (
	"context"

	"fleetd/fault"
	"fleetd/store"
)

// Reseat records where the pane of an entity is found now, if was is still the
// one that it has: whoever waits for its gate looks there.
func (in *Inbox) Reseat(ctx context.Context, gid string, was, at Pane) error {
	in.registry.Lock()
	defer in.registry.Unlock()
	b, e := in.seated(gid, was)
	if b == nil {
		return nil
	}
	e.Pane, e.Terminal, e.AgentKind, e.Leader = at.ID, at.Terminal, at.Kind, at.Leader
	return in.seat(ctx, b, e)
}

// Unseat tells everyone whose open brief a worker had, or who waits for its
// answer, that the agent in pane was is gone for good. The worker stays, for
// its pane may be registered anew once an agent runs there; its mail waits
// till then. An error is to be tried again; told twice is told once.
func (in *Inbox) Unseat(ctx context.Context, gid string, was Pane) error {
	in.registry.Lock()
	defer in.registry.Unlock()
	b, e := in.seated(gid, was)
	if b == nil {
		return nil
	}
	if b.injecting() {
		return fault.New(fault.Internal, "a message is going into the pane of %s: it has its own outcome, and is open only after it", e.Name)
	}
	if err := in.abandon(ctx, gid); err != nil {
		return err
	}
	e.Leader = ""
	return in.seat(ctx, b, e)
}

// seated finds the entity if it lives in that pane; registry is held.
func (in *Inbox) seated(gid string, pane Pane) (*box, store.Entity) {
	b := in.box(gid)
	if b == nil {
		return nil, store.Entity{}
	}
	e := b.snapshot()
	if e.State != store.EntityLive || paneOf(e) != pane {
		return nil, e
	}
	return b, e
}

func (in *Inbox) seat(ctx context.Context, b *box, e store.Entity) error {
	if err := in.record(ctx, e, "", nil); err != nil {
		return err
	}
	b.become(e)
	in.tell(e.GID)
	return nil
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
