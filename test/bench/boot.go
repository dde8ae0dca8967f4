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
	boot := func(o home, end func(*daemon)) func() (float64, error) {
		return func() (float64, error) {
			d, took, err := o.start(ctx, binary)
			if err != nil {
				return 0, err
			}
			end(d)
			return millis(took), nil
		}
	}
	for _, c := range []struct {
		name, note string
		end        func(*daemon)
		bars       []bar
	}{
		{"boot_million_seen", "after an end in good order", (*daemon).stop, []bar{ratioAtMost(2)}},
		{"boot_million_seen_killed", "after kill -9", (*daemon).kill, nil},
	} {
		for _, o := range []home{empty, full} { // warms the disk's cache, and ends as those that count
			if _, err := boot(o, c.end)(); err != nil {
				return err
			}
		}
		o, b, err := h.sides(h.rounds, boot(empty, c.end), boot(full, c.end))
		if err != nil {
			return err
		}
		line{name: c.name, unit: "ms", ours: o, base: b, bars: c.bars, note: c.note}.print()
	}
	return nil
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
