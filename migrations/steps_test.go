package migrations

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"
)

// buckets lists the buckets of tx as paths.
func buckets(tx *bolt.Tx) (all []string, err error) {
	err = tx.ForEach(func(name []byte, b *bolt.Bucket) error {
		all = append(all, string(name))
		return b.ForEachBucket(func(k []byte) error {
			all = append(all, string(name)+"/"+string(k))
			return nil
		})
	})
	return all, err
}

// Fails if step 1 is changed after files have taken it, or if a step cannot be
// taken on what the one before left.
func TestStepsLeadToTodaysBuckets(t *testing.T) {
	want := []string{
		"briefs", "briefs/entries", "briefs/ids", "entities", "held", "held/bodies", "held/counts", "held/index", "held/local", "homes", "keys", "meta",
		"outbox", "outbox/bodies", "outbox/ended", "outbox/intents", "outbox/open",
		"seen", "spawns", "tokens", "trace",
	}
	db, err := bolt.Open(filepath.Join(t.TempDir(), "steps.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	for i, step := range Steps {
		if err := db.Update(step); err != nil {
			t.Fatalf("step %d: %v", i+1, err)
		}
	}
	err = db.View(func(tx *bolt.Tx) error {
		got, err := buckets(tx)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("buckets (-want +got):\n%s", diff)
		}
		for err := range tx.Check() {
			t.Error(err)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
