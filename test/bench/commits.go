package main

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	bolt "go.etcd.io/bbolt"

	"fleetd/migrations"
	"fleetd/store"
)

// commitsFor is how long one side of a round writes.
const commitsFor = 700 * time.Millisecond

// storeCommit is writes of 64 callers at once through the store's one writer,
// against a transaction of bbolt for each: the same record into the same kind
// of bucket, with the same options of the file.
func storeCommit(ctx context.Context, h *host) error {
	dir := filepath.Join(h.dir, "commits")
	st, err := store.Open(ctx, store.Options{Dir: dir, Steps: migrations.Steps})
	if err != nil {
		return err
	}
	defer st.Close()
	run, stop := context.WithCancel(ctx)
	var writer sync.WaitGroup
	writer.Go(func() { _ = st.Run(run) }) // what it could not write, no caller was told to be written
	defer writer.Wait()
	defer stop()
	raw, err := openRaw(filepath.Join(dir, "raw.db"))
	if err != nil {
		return err
	}
	defer raw.Close()
	for _, c := range []struct {
		callers int
		bars    []bar
	}{{64, []bar{ratioAtLeast(15)}}, {16, nil}, {1, nil}} {
		o, b, err := h.sides(h.rounds, func() (float64, error) {
			return writes(c.callers, func() error { return putRaw(raw) })
		}, func() (float64, error) {
			return writes(c.callers, func() error { return putSeen(ctx, st) })
		})
		if err != nil {
			return err
		}
		line{name: fmt.Sprintf("store_commit_%d", c.callers), unit: "writes/s", ours: o, base: b, bars: c.bars}.print()
	}
	return nil
}

// writes has callers write for a while and returns their rate.
func writes(callers int, write func() error) (float64, error) {
	var n atomic.Int64
	var failed atomic.Pointer[error]
	var all sync.WaitGroup
	begin := time.Now()
	for range callers {
		all.Go(func() {
			for time.Since(begin) < commitsFor && failed.Load() == nil {
				if err := write(); err != nil {
					failed.Store(&err)
					return
				}
				n.Add(1)
			}
		})
	}
	all.Wait()
	if err := failed.Load(); err != nil {
		return 0, *err
	}
	return float64(n.Load()) / time.Since(begin).Seconds(), nil
}

func putSeen(ctx context.Context, st *store.Store) error {
	id, now := newID(), time.Now().UnixMilli()
	return st.Write(ctx, func(tx *store.Tx) error {
		return tx.PutSeen(now, id, id, store.Seen{Outcome: "injecting", Host: "hosta"})
	})
}

var rawBucket = []byte("seen")

func openRaw(path string) (*bolt.DB, error) {
	db, err := bolt.Open(path, 0o600, &bolt.Options{
		Timeout: time.Second, FreelistType: bolt.FreelistMapType, NoFreelistSync: true, InitialMmapSize: 256 << 20,
	})
	if err != nil {
		return nil, err
	}
	return db, db.Update(func(tx *bolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(rawBucket)
		return err
	})
}

// putRaw puts a key and a value as long as those of a seen entry.
func putRaw(db *bolt.DB) error {
	id := uuid.Must(uuid.NewV7())
	key := append(append([]byte{}, id[:]...), id[:]...)
	value := make([]byte, 1+8+32+2+len("injecting")+len("hosta"))
	return db.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket(rawBucket)
		b.FillPercent = 0.9
		return b.Put(key, value)
	})
}
