package store

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

var pruneNow = time.Date(2026, 11, 20, 13, 30, 0, 0, time.UTC)

// Fails if a day of the seen-set is dropped while a replay from it would still
// be let in, if an old day stays, or if dropping goes entry by entry.
func TestPruneSeenDropsWholeDays(t *testing.T) {
	s := runningStore(t, Options{})
	const perDay = 50
	gid := newID()
	ids := map[int][]string{}
	mustWrite(t, s, func(tx *Tx, must func(error)) {
		clear(ids)
		for age := range 15 {
			for range perDay {
				id := newID()
				ids[age] = append(ids[age], id)
				must(tx.PutSeen(pruneNow.AddDate(0, 0, -age).UnixMilli(), id, gid, Seen{Outcome: "injected"}))
			}
		}
	})
	var changes int
	mustWrite(t, s, func(tx *Tx, must func(error)) {
		before := tx.changes
		must(tx.PruneSeen(pruneNow))
		changes = tx.changes - before
	})
	if changes != 5 {
		t.Errorf("%d changes to drop the days 10 to 14, want 5", changes)
	}
	view(t, s, func(tx *Tx) error {
		for age, msgs := range ids {
			for _, id := range msgs {
				_, byDay, err := tx.SeenOf(pruneNow.AddDate(0, 0, -age).UnixMilli(), id, gid)
				if err != nil {
					return err
				}
				_, anywhere, err := tx.FindSeen(id, gid)
				if want := age <= 9; byDay != want || anywhere != want || err != nil {
					return fmt.Errorf("%d days old: by day %v, anywhere %v (%v), want %v", age, byDay, anywhere, err, want)
				}
			}
		}
		return nil
	})
}

// Fails if trace is kept longer or shorter than seven days, or comes out of
// order.
func TestPruneTraceDropsWholeHours(t *testing.T) {
	s := runningStore(t, Options{})
	var want []int64
	for _, age := range []time.Duration{0, time.Hour, 167 * time.Hour, 169*time.Hour + time.Minute, 400 * time.Hour} {
		at := pruneNow.Add(-age)
		for _, at := range []time.Time{at.Add(time.Second), at, at} {
			s.Trace(Event{TraceID: traceA, At: at.UnixMilli()})
			if age <= 168*time.Hour {
				want = append(want, at.UnixMilli())
			}
		}
		s.Trace(Event{TraceID: "f" + traceA[1:], At: at.UnixMilli()})
	}
	slices.Sort(want)
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	var changes int
	mustWrite(t, s, func(tx *Tx, must func(error)) {
		before := tx.changes
		must(tx.PruneTrace(pruneNow))
		changes = tx.changes - before
	})
	if changes != 2 {
		t.Errorf("%d changes to drop two hours, want 2", changes)
	}
	var got []int64
	for _, ev := range events(t, s, traceA) {
		got = append(got, ev.At)
	}
	if !slices.Equal(got, want) {
		t.Errorf("events at %v, want %v", got, want)
	}
}

// Fails if an idempotency key is forgotten within 24 hours or kept much longer,
// or if keys of two entities meet.
func TestPruneKeys(t *testing.T) {
	s := runningStore(t, Options{})
	a, b := newID(), newID()
	put := func(gid, key string, age time.Duration) Key {
		k := Key{MsgID: newID(), At: pruneNow.Add(-age).UnixMilli(), Call: "send"}
		write(t, s, func(tx *Tx) error { return tx.PutKey(gid, key, k) })
		return k
	}
	put(a, "old", 24*time.Hour+time.Millisecond)
	young := put(a, "young", 24*time.Hour-time.Millisecond)
	other := put(b, "young", 0)
	put(b, "dropped", 0)
	mustWrite(t, s, func(tx *Tx, must func(error)) {
		must(tx.PruneKeys(pruneNow))
		must(tx.DeleteKey(b, "dropped"))
	})
	view(t, s, func(tx *Tx) error {
		k, ok, err := tx.KeyOf(a, "young")
		same(t, young, k, ok, err)
		k, ok, err = tx.KeyOf(b, "young")
		same(t, other, k, ok, err)
		for gid, key := range map[string]string{a: "old", b: "dropped"} {
			if _, ok, err := tx.KeyOf(gid, key); ok || err != nil {
				t.Errorf("key %q: found %v (%v)", key, ok, err)
			}
		}
		return nil
	})
}

// Fails if a home is forgotten before mail of its gid is, or never.
func TestPruneHomes(t *testing.T) {
	s := runningStore(t, Options{})
	young, old := newID(), newID()
	mustWrite(t, s, func(tx *Tx, must func(error)) {
		must(tx.PutHome(Home{GID: young, LastSign: pruneNow.AddDate(0, 0, -15).UnixMilli(), Gone: true}))
		must(tx.PutHome(Home{GID: old, LastSign: pruneNow.AddDate(0, 0, -15).UnixMilli() - 1}))
		must(tx.PruneHomes(pruneNow))
	})
	view(t, s, func(tx *Tx) error {
		h, ok, err := one(tx.Homes())
		same(t, young, h.GID, ok, err)
		return nil
	})
}

// Fails if the outcome of a spawn is forgotten while it may be asked for, or
// never, or if a launch is forgotten that has to be undone.
func TestPruneSpawns(t *testing.T) {
	s := runningStore(t, Options{})
	young, old, open := newID(), newID(), newID()
	limit := pruneNow.AddDate(0, 0, -15).UnixMilli()
	mustWrite(t, s, func(tx *Tx, must func(error)) {
		must(tx.PutSpawn(Spawn{SpawnID: young, State: SpawnFailed, At: limit}))
		must(tx.PutSpawn(Spawn{SpawnID: old, State: SpawnSpawned, At: limit - 1}))
		must(tx.PutSpawn(Spawn{SpawnID: open, State: SpawnLaunching, At: limit - 1}))
		must(tx.PruneSpawns(pruneNow))
	})
	view(t, s, func(tx *Tx) error {
		for id, want := range map[string]bool{young: true, old: false, open: true} {
			if _, found, err := tx.Spawn(id); found != want || err != nil {
				t.Errorf("%s: %v, %v", id, found, err)
			}
		}
		return nil
	})
}
