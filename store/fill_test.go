package store

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"
)

// fullness is how much of the pages of bucket's parts is in use.
func fullness(t *testing.T, s *Store, bucket string) (share float64) {
	t.Helper()
	view(t, s, func(tx *Tx) error {
		b, used, all := tx.bolt.Bucket([]byte(bucket)), 0, 0
		err := b.ForEachBucket(func(k []byte) error {
			part := b.Bucket(k).Stats()
			used, all = used+part.LeafInuse, all+part.LeafAlloc
			return nil
		})
		share = float64(used) / float64(all)
		return err
	})
	return share
}

// Fails if the pages of the trace and of the seen-set, which are most of a
// store, are left more than half empty by traffic as it is: a few steps of
// flows a second, and mail that is settled in about the order of its ids.
func TestPagesOfSteadyTrafficAreNotLeftEmpty(t *testing.T) {
	const entries, atOnce, behind = 2000, 20, 200
	random := rand.New(rand.NewSource(1))
	s := runningStore(t, Options{})
	at := pruneNow.UnixMilli()
	for i := range entries {
		s.Trace(Event{TraceID: fmt.Sprintf("%016x%016x", random.Uint64(), i), MsgID: newID(), Kind: "SEND", Step: "received", Host: "hosta", At: at})
		if i%atOnce == 0 {
			if err := s.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	gid := newID()
	order := make([]int, entries) // of ids that rise, each settled when up to so many later ones are
	settled := make([]float64, entries)
	for i := range order {
		order[i], settled[i] = i, float64(i)+behind*random.Float64()
	}
	slices.SortFunc(order, func(a, b int) int { return int(1000 * (settled[a] - settled[b])) })
	for some := range slices.Chunk(order, atOnce) {
		write(t, s, func(tx *Tx) error {
			for _, i := range some {
				id := fmt.Sprintf("0198c2f0-0000-7000-8000-%012x", i)
				if err := tx.PutSeen(at, id, gid, Seen{Outcome: Injected, Host: "hosta"}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for _, bucket := range []string{bucketTrace, bucketSeen} {
		if share := fullness(t, s, bucket); share < 0.55 {
			t.Errorf("the pages of %q are %.2f full", bucket, share)
		}
	}
}
