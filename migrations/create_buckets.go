package migrations

import (
	"fmt"

	bolt "go.etcd.io/bbolt"
)

// createBuckets is step 1: the buckets of design §10. Some have parts: briefs and
// an index of them; the index of held mail, local mail, its bodies and counts;
// intents, their bodies, and an index each of the open and the ended ones.
func createBuckets(tx *bolt.Tx) error {
	for _, path := range [][]string{
		{"meta"},
		{"entities"}, {"tokens"},
		{"seen"},
		{"briefs"}, {"briefs", "entries"}, {"briefs", "ids"},
		{"held"}, {"held", "index"}, {"held", "local"}, {"held", "bodies"}, {"held", "counts"},
		{"outbox"}, {"outbox", "intents"}, {"outbox", "bodies"}, {"outbox", "open"}, {"outbox", "ended"},
		{"keys"},
		{"homes"},
		{"spawns"},
		{"trace"},
	} {
		if err := createPath(tx, path); err != nil {
			return fmt.Errorf("create bucket %v: %w", path, err)
		}
	}
	return nil
}

// createPath creates the last bucket of path inside the others.
func createPath(tx *bolt.Tx, path []string) error {
	b, err := tx.CreateBucketIfNotExists([]byte(path[0]))
	for _, name := range path[1:] {
		if err != nil {
			return err
		}
		b, err = b.CreateBucketIfNotExists([]byte(name))
	}
	return err
}
