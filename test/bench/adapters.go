package main

import (
	"context"
	"time"

	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/fabric/roster"
	"fleetd/fault"
	"fleetd/store"
)

// The adapters of cmd/bridged, as far as a measured path runs through them.

type directory struct{ *roster.Roster }

func (d directory) Name(gid string) string {
	if t, err := d.Resolve(gid); err == nil {
		return t.Address()
	}
	return gid
}

type homes struct{ *store.Store }

func (h homes) LoadHomes() ([]roster.Home, error) {
	stored, err := store.Read(h, (*store.Tx).Homes)
	all := make([]roster.Home, len(stored))
	for i, s := range stored {
		all[i] = roster.Home(s)
	}
	return all, err
}

func (h homes) SaveHomes(all []roster.Home) error {
	return h.Write(context.Background(), func(tx *store.Tx) error {
		for _, one := range all {
			if err := tx.PutHome(store.Home(one)); err != nil {
				return err
			}
		}
		return nil
	})
}

type link struct{ g *gateway }

func (l link) Connected() (bool, string) {
	s := l.g.fabric.State()
	return s.Phase == fabric.Connected, string(s.Phase) + ": " + s.Reason
}

func (l link) Reachable(ctx context.Context, gid string) error {
	for l.g.fabric.InboxState(gid).Status == fabric.InboxDetached {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

func (l link) Publish(ctx context.Context, lane envelope.Lane, env *envelope.Envelope, settled func(fabric.Outcome)) (fabric.Outcome, error) {
	if lane == envelope.LaneMail {
		defer l.g.trip.mark(&l.g.trip.confirmed)
	}
	return l.g.fabric.Publish(ctx, lane, env, settled)
}

func (l link) InboxFull(ctx context.Context, gid string) (bool, error) {
	return l.g.fabric.InboxFull(ctx, gid)
}

func (l link) Renew(ctx context.Context, gid string) (bool, error) { return l.g.fabric.Renew(ctx, gid) }

func (l link) More(gid string) bool {
	more, err := l.g.fabric.More(context.Background(), gid)
	return more || err != nil
}

func (l link) Full(gid string) bool { return l.g.fabric.Full(gid) }

func (l link) Unbind(ctx context.Context, gid string) error { return l.g.fabric.Unbind(ctx, gid) }

func (l link) Remove(ctx context.Context, gid string) (bool, error) {
	return l.g.fabric.Remove(ctx, gid)
}

func (l link) Ready(gid string) int {
	n, _ := l.g.fabric.ReadyCount(context.Background(), gid)
	return n
}

func (g *gateway) presence(sign func(*envelope.Envelope) error) func(context.Context, *envelope.Envelope) error {
	return func(ctx context.Context, env *envelope.Envelope) error {
		if err := sign(env); err != nil {
			return err
		}
		out, err := g.fabric.Publish(ctx, envelope.LanePresence, env, nil)
		if err == nil && out != fabric.Confirmed {
			err = fault.New(fault.BrokerDown, "presence was not confirmed: %s", out)
		}
		return err
	}
}
