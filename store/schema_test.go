package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fleetd/fault"
	"fleetd/migrations"

	bolt "go.etcd.io/bbolt"
)

// nextSteps is today's schema and one step more.
func nextSteps(step func(*bolt.Tx) error) []func(*bolt.Tx) error {
	return append(migrations.Steps[:len(migrations.Steps):len(migrations.Steps)], step)
}

func addBucket(tx *bolt.Tx) error {
	_, err := tx.CreateBucket([]byte("added"))
	return err
}

// filled makes a store with one entity and closes it.
func filled(t *testing.T) (dir, gid string) {
	t.Helper()
	dir, gid = privateDir(t), newID()
	s := openAt(t, Options{Dir: dir})
	stop := start(t, s)
	write(t, s, putEntity(gid, "kept"))
	if err := errors.Join(stop(), s.Check(t.Context()), s.Close()); err != nil {
		t.Fatal(err)
	}
	return dir, gid
}

func hasBucket(t *testing.T, s *Store, name string) bool {
	t.Helper()
	var has bool
	view(t, s, func(tx *Tx) error {
		has = tx.bolt.Bucket([]byte(name)) != nil
		return nil
	})
	return has
}

// Fails if a newer file is opened, if the refusal names a copy to restore that
// is not there, or leaves the lock.
func TestNewerSchemaIsRefused(t *testing.T) {
	dir, _ := filled(t)
	if err := openAt(t, Options{Dir: dir, Steps: nextSteps(addBucket)}).Close(); err != nil {
		t.Fatal(err)
	}
	today := len(migrations.Steps)
	newer, known := fmt.Sprintf("schema %d", today+1), fmt.Sprintf("knows %d", today)
	copied := backupPath(filepath.Join(dir, DefaultFile), today)
	wantWords(t, refused(t, Options{Dir: dir}), newer, known, "newer bridged", copied)
	if err := os.Remove(copied); err != nil {
		t.Fatal(err)
	}
	sentence := refused(t, Options{Dir: dir})
	wantWords(t, sentence, newer, known, "newer bridged")
	if strings.Contains(sentence, ".bak") {
		t.Errorf("without a copy it reads %q", sentence)
	}
	if err := openAt(t, Options{Dir: dir, Steps: nextSteps(addBucket)}).Close(); err != nil {
		t.Fatal(err)
	}
}

// Fails if a file is changed before there is a copy of it, if the copy is not
// the old file, or if a new store makes one.
func TestOlderSchemaIsCopiedAsideAndMovedForward(t *testing.T) {
	t.Attr("threat", "U1")
	dir, gid := filled(t)
	if copies, _ := filepath.Glob(filepath.Join(dir, "*.bak*")); len(copies) != 0 {
		t.Errorf("a new store has copies %v", copies)
	}
	s := openAt(t, Options{Dir: dir, Steps: nextSteps(addBucket)})
	if _, err := entityNamed(s, gid); err != nil || !hasBucket(t, s, "added") {
		t.Errorf("after the step: entity %v, added %v", err, hasBucket(t, s, "added"))
	}
	backup := backupPath(s.Path(), len(migrations.Steps))
	if info, err := os.Stat(backup); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("copy: %v, mode %v", err, info.Mode())
	}
	old := openAt(t, Options{Dir: dir, File: filepath.Base(backup)})
	if _, err := entityNamed(old, gid); err != nil || hasBucket(t, old, "added") {
		t.Errorf("the copy: entity %v, added %v", err, hasBucket(t, old, "added"))
	}
}

// Fails if a step that fails or panics leaves half of itself, or the lock.
func TestFailedStepChangesNothing(t *testing.T) {
	dir, gid := filled(t)
	for _, step := range []func(*bolt.Tx) error{
		func(tx *bolt.Tx) error { return errors.Join(addBucket(tx), errors.New("boom")) },
		func(tx *bolt.Tx) error { _ = addBucket(tx); panic("boom") },
	} {
		wantWords(t, refused(t, Options{Dir: dir, Steps: nextSteps(step)}), fmt.Sprintf("schema %d to %d", len(migrations.Steps), len(migrations.Steps)+1), "boom")
	}
	s := openAt(t, Options{Dir: dir})
	if _, err := entityNamed(s, gid); err != nil || hasBucket(t, s, "added") {
		t.Errorf("entity %v, added %v", err, hasBucket(t, s, "added"))
	}
}

// Fails if a daemon killed inside a step leaves a file that the next start
// cannot move forward, if that takes a step again that was taken, or if the copy
// of before the first is changed.
func TestKilledInAStepStartsAgain(t *testing.T) {
	dir, gid := filled(t)
	c := startChild(t, roleMigrate, dir)
	if got := c.line(t); got != "in step" {
		t.Fatalf("child says %q", got)
	}
	c.kill()
	twice := append(nextSteps(addBucket), func(tx *bolt.Tx) error {
		_, err := tx.CreateBucket([]byte("later"))
		return err
	})
	s := openAt(t, Options{Dir: dir, Steps: twice}) // adding a bucket again would fail
	if _, err := entityNamed(s, gid); err != nil || !hasBucket(t, s, "added") || !hasBucket(t, s, "later") {
		t.Errorf("entity %v, added %v, later %v", err, hasBucket(t, s, "added"), hasBucket(t, s, "later"))
	}
	before := openAt(t, Options{Dir: dir, File: filepath.Base(backupPath(s.Path(), len(migrations.Steps)))})
	if _, err := entityNamed(before, gid); err != nil || hasBucket(t, before, "added") {
		t.Errorf("the copy of before: entity %v, added %v", err, hasBucket(t, before, "added"))
	}
}

// Fails if what a kill during a copy leaves stays for ever, or is in the way.
func TestLeftoversAreRemoved(t *testing.T) {
	dir, _ := filled(t)
	path := filepath.Join(dir, DefaultFile)
	for _, p := range []string{copyTemp(path), compactTemp(path)} {
		if err := os.WriteFile(p, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	openAt(t, Options{Dir: dir})
	for _, p := range []string{copyTemp(path), compactTemp(path)} {
		if _, err := os.Stat(p); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v, want it gone", p, err)
		}
	}
}

// Fails if a program without steps makes a store without buckets.
func TestOpenNeedsSteps(t *testing.T) {
	if _, err := Open(t.Context(), Options{Dir: privateDir(t)}); !fault.Is(err, fault.Internal) {
		t.Errorf("error %v, want INTERNAL", err)
	}
}
