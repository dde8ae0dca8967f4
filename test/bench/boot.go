package main

import (
	"context"
	"time"

	"fleetd/store"
)

const (
	seenEntries = 1_000_000
	seenPerTx   = 5000
)

// bootMillionSeen is the start of the daemon's process until it says that it is
// ready, with a million seen entries in the store, against one whose store has
// none. There is no broker: the time that others take to answer would hide ours.
func bootMillionSeen(ctx context.Context, h *host) error {
	binary, err := h.build(ctx)
	if err != nil {
		return err
	}
	empty, err := h.newHome("empty")
	if err != nil {
		return err
	}
	full, err := h.newHome("full")
	if err != nil {
		return err
	}
	if err := full.store(ctx, func(st *store.Store) error { return fillSeen(ctx, st, seenEntries) }); err != nil {
		return err
	}
	boot := func(o home) func() (float64, error) {
		return func() (float64, error) {
			d, took, err := o.start(ctx, binary)
			if err != nil {
				return 0, err
			}
			d.stop()
			return millis(took), nil
		}
	}
	for _, o := range []home{empty, full} { // makes the key, and warms the disk's cache
		if _, err := boot(o)(); err != nil {
			return err
		}
	}
	o, b, err := h.sides(h.rounds, boot(empty), boot(full))
	if err == nil {
		line{name: "boot_million_seen", unit: "ms", ours: o, base: b, bars: []bar{ratioAtMost(2)}}.print()
	}
	return err
}

// fillSeen spreads n entries over the days that the seen-set keeps.
func fillSeen(ctx context.Context, st *store.Store, n int) error {
	const days = 9
	day := 24 * time.Hour
	first := time.Now().Add(-(days - 1) * day)
	for done := 0; done < n; done += seenPerTx {
		err := st.Write(ctx, func(tx *store.Tx) error {
			for i := range seenPerTx {
				at := first.Add(day * time.Duration((done+i)*days/n))
				id := newID()
				if err := tx.PutSeen(at.UnixMilli(), id, id, store.Seen{Outcome: "injected", Host: "hosta"}); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
