package store

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fleetd/migrations"
	"fleetd/test/fslog"
)

// Fails if a compacted store, the copy before a schema step or the name of the
// holder is ever there half written, or with a mode that lets others read it.
func TestFilesOfTheStoreAreReplacedInOneStep(t *testing.T) {
	t.Attr("threat", "U1")
	dir, _ := filled(t)
	path := filepath.Join(dir, DefaultFile)
	log := fslog.Open(t, dir)
	s := openAt(t, Options{Dir: dir, Steps: nextSteps(addBucket)})
	opened := log.Told()
	if _, _, err := s.Compact(t.Context()); err != nil {
		t.Fatal(err)
	}
	compacted := log.Told()
	for file, events := range map[string][]string{holderPath(path): of(opened, holderPath(path)), backupPath(path, len(migrations.Steps)): of(opened, backupPath(path, len(migrations.Steps))), path: compacted} {
		fslog.InOneStep(t, events, file)
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, %v", file, info.Mode(), err)
		}
	}
	for _, e := range append(opened, compacted...) {
		if strings.HasPrefix(e, "chmod ") { // each has its mode from the beginning
			t.Errorf("%s", e)
		}
	}
}

// of are the events of one file.
func of(events []string, file string) (its []string) {
	base := filepath.Base(file)
	for _, e := range events {
		if _, name, _ := strings.Cut(e, " "); name == base {
			its = append(its, e)
		}
	}
	return its
}

// Fails if a kill in the middle of compacting leaves a store that is not whole,
// that lost a record, or that others can read.
func TestKilledWhileCompactingLosesNothing(t *testing.T) {
	t.Attr("threat", "U1")
	dir := privateDir(t)
	path := filepath.Join(dir, DefaultFile)
	kept := newID()
	s := openAt(t, Options{Dir: dir})
	stop := start(t, s)
	write(t, s, func(tx *Tx) error { return putFamily(tx, kept) })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	temp := filepath.Base(compactTemp(path))
	// Each is killed right after the kernel told such an event.
	for round, event := range []string{"create " + temp, "write " + temp, "from " + temp, "to " + DefaultFile} {
		log := fslog.Open(t, dir)
		c := startChild(t, roleCompact, dir)
		for left := 1 + round; left > 0; {
			e := log.Next(hang)
			if e == "" {
				t.Fatalf("no %q came", event)
			}
			if e == event {
				left--
			}
		}
		c.kill()
		s := openAt(t, Options{Dir: dir}) // checks the whole file in the end
		view(t, s, func(tx *Tx) error { return wantFamily(tx, kept) })
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("killed at %q: mode %v, %v", event, info.Mode(), err)
		}
		checkAndClose(t, s)
	}
}
