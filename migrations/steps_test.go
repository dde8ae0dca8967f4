package migrations

import (
	"errors"
	"fmt"
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

// Fails if a count loses an entry, or says that mail expires later than it does:
// it would stay past its end.
func TestCountsGetTheFirstExpiry(t *testing.T) {
	db, err := bolt.Open(filepath.Join(t.TempDir(), "steps.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	gids := []string{"aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb"}
	if err := db.Update(createBuckets); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	err = db.Update(func(tx *bolt.Tx) error {
		held := tx.Bucket([]byte("held"))
		var errs []error
		for i, expiry := range []int{0, 1_700_000, 1_600_000, 1_800_000} {
			key := fmt.Sprintf("%s%08d", gids[0], i)
			errs = append(errs, held.Bucket([]byte("local")).Put([]byte(key), fmt.Appendf(nil, "\x01%032d{\"ExpiresAt\":%d}", 0, expiry)))
		}
		errs = append(errs,
			held.Bucket([]byte("local")).Put([]byte(gids[1]+"00000009"), fmt.Appendf(nil, "\x01%032d{}", 0)),
			held.Bucket([]byte("counts")).Put([]byte(gids[0]), []byte("\x01\x00\x00\x00\x04")),
			held.Bucket([]byte("counts")).Put([]byte(gids[1]), []byte("\x01\x00\x00\x00\x01")),
			noteLocalExpiry(tx),
			held.Bucket([]byte("counts")).ForEach(func(k, v []byte) error {
				got[string(k)] = string(v)
				return nil
			}))
		return errors.Join(errs...)
	})
	want := map[string]string{
		gids[0]: "\x02\x00\x00\x00\x04\x00\x00\x00\x00\x00\x18\x6a\x00", // 1 600 000
		gids[1]: "\x02\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00",
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("counts (-want +got): %v\n%s", err, diff)
	}
}
