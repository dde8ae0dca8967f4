package store

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"fleetd/fault"
	"fleetd/migrations"
)

// Fails if damage that is met while the store runs passes for health or for an
// outage that ends by itself, if it is not said or said at each try, if it ends
// the process, or if the next start opens the file as if nothing were.
func TestDamageThatIsMetIsNoOutage(t *testing.T) {
	page := func(file []byte) []byte { return hurtMarked(file, "markermarker") }
	record := func(file []byte) []byte { // another version
		return bytes.ReplaceAll(file, []byte("\x01{\"GID\""), []byte("\xff{\"GID\""))
	}
	id := newID()
	for _, c := range []struct {
		name    string
		hurt    func([]byte) []byte
		meet    func(*Store) error
		refused bool // by the next start
	}{
		{"a page in a read", page, func(s *Store) error {
			return s.View(func(tx *Tx) error { _, _, err := tx.SeenOf(0, id, id); return err })
		}, true},
		{"a page in a write", page, func(s *Store) error {
			return s.Write(t.Context(), func(tx *Tx) error { return tx.PutSeen(0, id, id, Seen{}) })
		}, true},
		{"a record", record, func(s *Store) error {
			return s.View(func(tx *Tx) error { _, err := tx.Entities(); return err })
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := privateDir(t)
			path := filepath.Join(dir, DefaultFile)
			s := openAt(t, Options{Dir: dir})
			stop := start(t, s)
			write(t, s, func(tx *Tx) error {
				return errors.Join(putEntity(newID(), "a")(tx), tx.PutSeen(0, id, id, Seen{Host: strings.Repeat("marker", 40)}))
			})
			write(t, s, func(tx *Tx) (err error) {
				for range 200 { // so that the marker has a page of its own
					err = errors.Join(err, tx.PutSeen(0, newID(), newID(), Seen{Host: strings.Repeat("x", 250)}))
				}
				return err
			})
			if err := errors.Join(stop(), s.Close()); err != nil {
				t.Fatal(err)
			}
			file, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, c.hurt(file), 0o600); err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			opts := Options{Dir: dir, Steps: migrations.Steps, Logger: hclog.New(&hclog.LoggerOptions{Output: &log})}
			if s, err = Open(t.Context(), opts); err != nil {
				t.Fatal(err)
			}
			stop = start(t, s)
			write(t, s, putEntity(newID(), "b")) // it is not met yet
			if err := s.Healthy(); err != nil {
				t.Fatal(err)
			}
			for _, err := range []error{c.meet(s), c.meet(s), s.Healthy(), s.Write(t.Context(), putEntity(newID(), "c"))} {
				if !fault.Is(err, fault.StoreUnavailable) {
					t.Fatalf("%v, want STORE_UNAVAILABLE", err)
				}
				wantWords(t, err.Error(), "bridged store check")
				if strings.Contains(err.Error(), "by itself") {
					t.Errorf("it is called an outage: %v", err)
				}
			}
			if err := errors.Join(stop(), s.Close()); err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(log.String(), "THE STORE IS DAMAGED"); n != 1 {
				t.Errorf("said %d times, want once:\n%s", n, log.String())
			}
			s, err = Open(t.Context(), opts)
			if err == nil {
				_ = s.Close()
			}
			if (err != nil) != c.refused {
				t.Errorf("the next start: %v", err)
			}
		})
	}
}

// Fails if who queued behind a commit waits for ever because a read met damage
// meanwhile, if he is told success, or if that commit is not answered as it
// ended.
func TestDamageAnswersWhoWaits(t *testing.T) {
	g := &gate{}
	s := runningStore(t, Options{Synced: g.pass})
	synced, answer := g.shut()
	write := func() <-chan error {
		done := make(chan error, 1)
		go func() { done <- s.Write(context.Background(), putEntity(newID(), "x")) }()
		return done
	}
	first := write()
	receive(t, "the sync", synced)
	waiting := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.queue) - s.riders
	}
	s.Later(putEntity(newID(), "rider"))
	queued := []<-chan error{write(), write(), write()}
	await(t, "three that wait", func() bool { return waiting() == len(queued) })
	if err := s.View(func(*Tx) error { return damaged(bucketEntities, errors.New("a bad record")) }); !fault.Is(err, fault.StoreUnavailable) {
		t.Fatal(err)
	}
	answer()
	if err := receive(t, "the commit under way", first); err != nil {
		t.Errorf("the commit under way: %v", err)
	}
	for _, done := range queued {
		err := receive(t, "an answer to who waits", done)
		if !fault.Is(err, fault.StoreUnavailable) {
			t.Fatalf("%v, want STORE_UNAVAILABLE", err)
		}
		wantWords(t, err.Error(), "bridged store check")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if lost := s.Stats().LaterLost; lost != 1 {
		t.Errorf("%d riders counted as lost, want 1", lost)
	}
}

// Fails if a file that has lost its beginning while the store runs ends the
// process, or keeps readers, writers or Close waiting for ever.
func TestAFileWithoutABeginningIsDamaged(t *testing.T) {
	read := func(s *Store) error { return s.View(func(*Tx) error { return nil }) }
	write := func(s *Store) error { return s.Write(context.Background(), putEntity(newID(), "x")) }
	zero := func(path string) error {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteAt(make([]byte, 2*os.Getpagesize()), 0)
		return errors.Join(err, f.Close())
	}
	empty := func(path string) error { return os.Truncate(path, 0) }
	for name, c := range map[string]struct {
		hurt  func(path string) error
		first func(*Store) error
		sync  bool // it is hurt, and the commit fails, in its last sync
	}{
		"zeroed, read":        {zero, read, false},
		"zeroed, written":     {zero, write, false},
		"zeroed in a commit":  {zero, write, true},
		"emptied, read":       {empty, read, false},
		"emptied, written":    {empty, write, false},
		"emptied in a commit": {empty, write, true},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(privateDir(t), DefaultFile)
			hurts := false
			s, err := Open(t.Context(), Options{Dir: filepath.Dir(path), Steps: migrations.Steps, Synced: func() error {
				if !hurts {
					return nil
				}
				return errors.Join(c.hurt(path), errDisk)
			}})
			if err != nil {
				t.Fatal(err)
			}
			stop := start(t, s)
			if err := write(s); err != nil {
				t.Fatal(err)
			}
			if hurts = c.sync; !hurts {
				if err := c.hurt(path); err != nil {
					t.Fatal(err)
				}
			}
			for _, ask := range []func(*Store) error{c.first, read, write, read} {
				done := make(chan error, 1)
				go func() { done <- ask(s) }()
				if err := receive(t, "an answer", done); !fault.Is(err, fault.StoreUnavailable) {
					t.Fatalf("%v, want STORE_UNAVAILABLE", err)
				}
			}
			wantWords(t, s.Healthy().Error(), "is damaged", "bridged store check")
			done := make(chan error, 1)
			go func() { done <- errors.Join(stop(), s.Close()) }()
			if err := receive(t, "the end", done); err != nil {
				t.Error(err)
			}
		})
	}
}

// Fails if a defect of the program is taken for damage, which stops all work.
func TestADefectIsNoDamage(t *testing.T) {
	s := runningStore(t, Options{})
	defect := func(*Tx) error { var none *Entity; none.Name = "x"; return nil }
	if err := s.View(defect); !fault.Is(err, fault.StoreUnavailable) {
		t.Errorf("read: %v", err)
	}
	if err := s.Write(t.Context(), defect); !fault.Is(err, fault.Internal) {
		t.Errorf("write: %v", err)
	}
	if err := s.Healthy(); err != nil {
		t.Errorf("healthy: %v", err)
	}
	write(t, s, putEntity(newID(), "x"))
}
