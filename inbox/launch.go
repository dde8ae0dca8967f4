package inbox

import (
	"context"
	"fmt"
	"slices"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
)

// Reservation is a worker that is about to be launched.
type Reservation struct {
	GID    string
	Name   string // "": Base, with a number where that is taken
	Base   string
	Groups []string
}

// Reserve makes a worker that is being launched, together with also. It has its
// name and its token, so that its agent can start with them, and is announced
// to nobody. A name in use is a CONFLICT.
func (in *Inbox) Reserve(ctx context.Context, r Reservation, also func(*store.Tx, store.Entity) error) (e store.Entity, token string, err error) {
	in.registry.Lock()
	defer in.registry.Unlock()
	e = store.Entity{
		GID: r.GID, Kind: store.Worker, Name: r.Name, Groups: slices.Clone(r.Groups), State: store.EntityLaunching, Launched: true,
		CreatedAt: in.cfg.Now().UnixMilli(),
	}
	if err := checkRegistration(Registration{Name: nameOr(r.Name, r.Base), Kind: store.Worker, Groups: r.Groups}); err != nil {
		return e, "", err
	}
	for n := 1; e.Name == ""; n++ {
		name := r.Base
		if n > 1 {
			number := fmt.Sprintf("-%d", n)
			name = r.Base[:min(len(r.Base), envelope.MaxName-len(number))] + number
		}
		if _, taken := in.ByName(name); !taken {
			e.Name = name
		}
	}
	if other, taken := in.ByName(e.Name); taken {
		return e, "", fault.New(fault.Conflict, "the name %s is in use here by a %s; choose another one", e.Name, other.Kind)
	}
	token = in.cfg.Secret()
	if err := in.record(ctx, e, token, func(tx *store.Tx) error { return also(tx, e) }); err != nil {
		return e, "", err
	}
	in.insert(newBox(e, in.cfg.Store.Later))
	return e, token, nil
}

func nameOr(name, other string) string {
	if name == "" {
		return other
	}
	return name
}

// Launched makes a reserved worker live in its pane, together with also; from
// here on it is announced.
func (in *Inbox) Launched(ctx context.Context, gid string, pane Pane, also func(*store.Tx) error) (store.Entity, error) {
	e, b, err := in.ready(ctx, gid, pane, also)
	if err != nil {
		return e, err
	}
	in.tell(gid)
	in.mu.Lock()
	in.start(b)
	in.mu.Unlock()
	return e, nil
}

// ready records that a reserved worker lives.
func (in *Inbox) ready(ctx context.Context, gid string, pane Pane, also func(*store.Tx) error) (store.Entity, *box, error) {
	in.registry.Lock()
	defer in.registry.Unlock()
	b := in.box(gid)
	if b == nil || b.snapshot().State != store.EntityLaunching {
		return store.Entity{}, nil, fault.New(fault.SpawnFailed, "it was stopped before it was ready")
	}
	e := b.snapshot()
	e.State = store.EntityLive
	e.Pane, e.Terminal, e.AgentKind, e.Leader = pane.ID, pane.Terminal, pane.Kind, pane.Leader
	if err := in.record(ctx, e, "", also); err != nil {
		return e, nil, err
	}
	b.become(e)
	return e, b, nil
}

// Discard forgets a reserved worker that never was ready, and its token,
// together with also; one that is not reserved (any more) is left alone.
func (in *Inbox) Discard(ctx context.Context, gid string, also func(*store.Tx) error) error {
	in.registry.Lock()
	defer in.registry.Unlock()
	b := in.box(gid)
	reserved := b != nil && b.snapshot().State == store.EntityLaunching
	err := in.cfg.Store.Write(ctx, func(tx *store.Tx) error {
		if reserved {
			if err := in.forget(tx, gid); err != nil {
				return err
			}
		}
		return also(tx)
	})
	if err == nil && reserved {
		in.mu.Lock()
		delete(in.boxes, gid)
		in.mu.Unlock()
	}
	return err
}

// forget takes an entity out of the store, and mail that came for it: answers
// to what it sent before it was ready.
func (in *Inbox) forget(tx *store.Tx, gid string) error {
	held, err := tx.HeldIndex(gid)
	if err != nil {
		return err
	}
	for _, h := range held {
		if err := tx.DeleteHeld(gid, h.Seq); err != nil {
			return err
		}
	}
	return tx.DeleteEntity(gid)
}
