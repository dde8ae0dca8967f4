package store

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"fleetd/fault"

	bolt "go.etcd.io/bbolt"
)

// Fails if maintenance runs beside the writer.
func TestMaintenanceNeedsAnIdleStore(t *testing.T) {
	s := runningStore(t, Options{})
	write(t, s, putEntity(newID(), "x")) // so that Run has begun
	if err := s.Check(t.Context()); !fault.Is(err, fault.Conflict) {
		t.Errorf("check: %v, want CONFLICT", err)
	}
	if _, _, err := s.Compact(t.Context()); !fault.Is(err, fault.Conflict) {
		t.Errorf("compact: %v, want CONFLICT", err)
	}
}

// Fails if compacting loses a record or a sequence, leaves the size, or lets
// the lock go.
func TestCompactKeepsRecordsAndLock(t *testing.T) {
	dir := privateDir(t)
	s := openAt(t, Options{Dir: dir})
	stop := start(t, s)
	gid, kept := newID(), newID()
	write(t, s, func(tx *Tx) error {
		for range 100 {
			if err := tx.PutHeld(Held{GID: gid, MsgID: newID(), Local: true, Body: make([]byte, 256<<10)}); err != nil {
				return err
			}
		}
		return putFamily(tx, kept)
	})
	write(t, s, func(tx *Tx) error {
		for seq := range uint64(100) {
			if err := tx.DeleteHeld(gid, seq+1); err != nil {
				return err
			}
		}
		return nil
	})
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	before, after, err := s.Compact(t.Context())
	if err != nil || after >= before || s.Stats().FileBytes != after {
		t.Errorf("from %d to %d bytes (%v), stats say %d", before, after, err, s.Stats().FileBytes)
	}
	view(t, s, func(tx *Tx) error { return wantFamily(tx, kept) })
	wantWords(t, refused(t, Options{Dir: dir}), "in use by process")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	again := runningStore(t, Options{Dir: dir})
	write(t, again, func(tx *Tx) error { return tx.PutHeld(Held{GID: gid, MsgID: newID()}) })
	view(t, again, func(tx *Tx) error {
		if held, err := tx.HeldIndex(gid); err != nil || len(held) != 1 || held[0].Seq != 102 {
			return fmt.Errorf("held %+v (%v), want one of number 102", held, err)
		}
		return wantFamily(tx, kept)
	})
}

// Fails if compacting a small store makes it larger, or closing it does.
func TestCompactOfASmallStore(t *testing.T) {
	dir := privateDir(t)
	s := openAt(t, Options{Dir: dir})
	stop := start(t, s)
	write(t, s, func(tx *Tx) error { return putFamily(tx, newID()) })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		before, after, err := s.Compact(t.Context())
		if err != nil || after > before || after > 256<<10 {
			t.Errorf("from %d to %d bytes (%v)", before, after, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(dir, DefaultFile)); err != nil || info.Size() > 256<<10 {
		t.Errorf("closed at %d bytes (%v)", info.Size(), err)
	}
}

// Fails if Check passes over a record that cannot be read, a stray body or a
// missing index entry.
func TestCheckFindsDamage(t *testing.T) {
	id := newID()
	key, err := idKey("gid", id)
	if err != nil {
		t.Fatal(err)
	}
	intent := func(in Intent) string {
		v, err := encodeIntent(in)
		if err != nil {
			t.Fatal(err)
		}
		return string(v)
	}
	put := func(value string, path ...string) func(*Tx) error {
		return func(tx *Tx) error {
			b, err := tx.bucket(path...)
			if err != nil {
				return err
			}
			return b.Put(key, []byte(value))
		}
	}
	for name, hurt := range map[string]func(*Tx) error{
		"unknown version": put("\x09{}", bucketEntities),
		"cut off JSON":    put("\x01{", bucketHomes),
		"short token":     put("\x02", bucketTokens),
		"short brief":     put("\x01\xff\xff\xff\xff", bucketBriefs, briefEntries),
		"stray brief id":  put("\x01\x00\x00\x00\x00\x00\x00\x00\x00", bucketBriefs, briefIDs),
		"short key":       put("\x01", bucketKeys),
		"short held":      put("\x01", bucketHeld, heldIndex),
		"wrong count":     put(string(localCount{n: 7}.encode()), bucketHeld, heldCounts),
		"old count":       put("\x01\x00\x00\x00\x00", bucketHeld, heldCounts),
		"stray mail":      put("\x01x", bucketHeld, heldBodies),
		"stray body":      put("\x01x", bucketOutbox, outboxBodies),
		"no index":        put(intent(Intent{}), bucketOutbox, outboxIntents),
		"wrong index": func(tx *Tx) error {
			if err := put(intent(Intent{State: IntentEnded}), bucketOutbox, outboxIntents)(tx); err != nil {
				return err
			}
			b, err := tx.bucket(bucketOutbox, outboxOpen)
			if err != nil {
				return err
			}
			return b.Put(u64(0), append([]byte{recordVersion}, key...))
		},
		"no bucket": func(tx *Tx) error { return tx.bolt.DeleteBucket([]byte(bucketTrace)) },
		"short seen": func(tx *Tx) error {
			b, err := tx.bucket(bucketSeen)
			if err != nil {
				return err
			}
			slot, err := tx.slot(b, 1, true)
			if err != nil {
				return err
			}
			return slot.Put(key, []byte("\x01"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := openAt(t, Options{Dir: privateDir(t)})
			if err := s.Check(t.Context()); err != nil {
				t.Fatalf("before: %v", err)
			}
			err := s.db.Load().Update(func(tx *bolt.Tx) error { return hurt(&Tx{bolt: tx}) })
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Check(t.Context()); !fault.Is(err, fault.StoreUnavailable) {
				t.Errorf("check: %v, want STORE_UNAVAILABLE", err)
			}
			if err := s.Close(); err != nil { // before the helper checks it, too
				t.Fatal(err)
			}
		})
	}
}
