package store

import (
	"sync"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// benchWriters shares b.N writes among 64 goroutines.
func benchWriters(b *testing.B, write func(id string) error) {
	b.Helper()
	work := make(chan string)
	var wg sync.WaitGroup
	b.ResetTimer()
	for range 64 {
		wg.Go(func() {
			for id := range work {
				if err := write(id); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for range b.N {
		work <- newID()
	}
	close(work)
	wg.Wait()
	b.StopTimer()
}

// BenchmarkWrite64 is 64 callers through the one writer. Compare with
// BenchmarkUpdate64.
func BenchmarkWrite64(b *testing.B) {
	s := runningStore(b, Options{})
	benchWriters(b, func(id string) error {
		return s.Write(b.Context(), func(tx *Tx) error { return tx.PutSeen(0, id, id, Seen{Outcome: "injecting"}) })
	})
	b.ReportMetric(float64(s.Stats().Commits)/float64(b.N), "commits/op")
	_ = s.Close()
}

// BenchmarkUpdate64 is the same with a transaction for each.
func BenchmarkUpdate64(b *testing.B) {
	s := openAt(b, Options{Dir: privateDir(b)})
	db := s.db.Load()
	benchWriters(b, func(id string) error {
		return db.Update(func(tx *bolt.Tx) error {
			return (&Tx{bolt: tx}).PutSeen(0, id, id, Seen{Outcome: "injecting"})
		})
	})
}
