package store

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"fleetd/fault"
)

var errDisk = errors.New("no space left on device")

// Fails if a failed commit is answered with success to anybody, kills the
// writer, or needs a restart to be over; or if riders of it are lost.
func TestFailedCommitIsAnsweredAndRecoveredFrom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{}
		s := runningStore(t, Options{hooks: hooks{beforeCommit: g.pass}})
		kept, lost, rider := newID(), newID(), newID()
		write(t, s, putEntity(kept, "x"))
		if err := s.Healthy(); err != nil {
			t.Fatalf("healthy: %v", err)
		}

		g.fail(errDisk)
		s.Later(putEntity(rider, "rider"))
		s.Trace(Event{TraceID: traceA})
		for i, err := range all(20, func(int) error { return s.Write(t.Context(), putEntity(lost, "x")) }) {
			if !fault.Is(err, fault.StoreUnavailable) || !errors.Is(err, errDisk) {
				t.Errorf("writer %d: %v, want STORE_UNAVAILABLE because of the disk", i, err)
			}
		}
		down := s.Healthy()
		if !fault.Is(down, fault.StoreUnavailable) || !strings.Contains(down.Error(), s.down.since.Format(time.RFC3339)) {
			t.Errorf("healthy: %v, want STORE_UNAVAILABLE with since when", down)
		}
		time.Sleep(time.Minute) // probes fail meanwhile
		if err := s.Write(t.Context(), putEntity(lost, "x")); !fault.Is(err, fault.StoreUnavailable) {
			t.Errorf("write during the outage: %v", err)
		}
		if _, err := entityNamed(s, kept); err != nil {
			t.Errorf("reading during the outage: %v", err)
		}

		g.fail(nil)
		time.Sleep(2 * probeLast)
		synctest.Wait()
		if err := s.Healthy(); err != nil {
			t.Fatalf("after the outage: %v", err)
		}
		write(t, s, putEntity(newID(), "y"))
		if _, err := entityNamed(s, rider); err != nil {
			t.Errorf("a rider of the failed commit: %v", err)
		}
		if got := len(events(t, s, traceA)); got != 1 {
			t.Errorf("%d events of the failed commit, want 1", got)
		}
		if _, err := entityNamed(s, lost); err == nil {
			t.Error("a write that was answered with an error is in the file")
		}
	})
}

// Fails if a sync that fails after the file was written is taken for success,
// or if what stands in the file then is in the way of the same write later.
func TestFailedSyncIsNoSuccessAndNoObstacle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{}
		s := runningStore(t, Options{Synced: g.pass})
		gid := newID()
		once := func(tx *Tx) error {
			if _, found, err := tx.Entity(gid); found || err != nil {
				return err
			}
			return putEntity(gid, "x")(tx)
		}
		g.fail(errDisk)
		if err := s.Write(t.Context(), once); !fault.Is(err, fault.StoreUnavailable) || s.Healthy() == nil {
			t.Errorf("write %v, healthy %v; want STORE_UNAVAILABLE", err, s.Healthy())
		}
		g.fail(nil)
		time.Sleep(2 * probeLast)
		synctest.Wait()
		write(t, s, once)
		if _, err := entityNamed(s, gid); err != nil {
			t.Error(err)
		}
	})
}

// Fails if an error of the library itself, here a file that may not grow, does
// not read as an outage.
func TestFullFileIsAnOutageUntilThereIsRoom(t *testing.T) {
	var s *Store
	var room atomic.Bool
	s = openAt(t, Options{Dir: privateDir(t), MaxSize: 17 << 20, hooks: hooks{beforeCommit: func() error {
		if room.Load() {
			s.db.Load().MaxSize = 0
		}
		return nil
	}}})
	start(t, s)
	gid := newID()
	body := make([]byte, 256<<10)
	var err error
	for err == nil {
		err = s.Write(t.Context(), func(tx *Tx) error {
			return tx.PutHeld(Held{GID: gid, MsgID: newID(), Local: true, Body: body})
		})
	}
	if !fault.Is(err, fault.StoreUnavailable) || s.Stats().Failures == 0 {
		t.Fatalf("write %v, %d failures; want STORE_UNAVAILABLE and counted", err, s.Stats().Failures)
	}
	var held []Held
	view(t, s, func(tx *Tx) (err error) {
		held, err = tx.HeldIndex(gid)
		return err
	})
	if len(held) == 0 {
		t.Error("nothing of what was acknowledged before can be read")
	}
	room.Store(true)
	await(t, "recovery", func() bool { return s.Healthy() == nil })
	write(t, s, func(tx *Tx) error {
		return tx.PutHeld(Held{GID: gid, MsgID: newID(), Local: true, Body: body})
	})
}

// Fails if a few bytes that still fit end an outage in which no body does.
func TestProbeIsAsLargeAsWhatFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s *Store
		var room atomic.Int64
		room.Store(4 << 10)
		s = openAt(t, Options{Dir: privateDir(t), hooks: hooks{beforeCommit: func() error {
			if s.lastBytes > room.Load() {
				return errDisk
			}
			return nil
		}}})
		start(t, s)
		err := s.Write(t.Context(), func(tx *Tx) error {
			return tx.PutHeld(Held{GID: newID(), Local: true, Body: make([]byte, 64<<10)})
		})
		if !errors.Is(err, errDisk) {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if s.Healthy() == nil {
			t.Error("taken for healthy while what failed would fail again")
		}
		room.Store(1 << 20)
		time.Sleep(time.Minute)
		synctest.Wait()
		if err := s.Healthy(); err != nil {
			t.Errorf("with room: %v", err)
		}
		view(t, s, func(tx *Tx) error {
			if b, err := tx.bucket(bucketMeta); err != nil || b.Get(keyProbe) != nil {
				t.Errorf("the probe's record stays (%v)", err)
			}
			return nil
		})
	})
}

// Fails if the end of the daemon hangs on a disk that does not come back, or
// hides what could not be written.
func TestEndDuringAnOutageSaysWhatWasLost(t *testing.T) {
	g := &gate{}
	s := openAt(t, Options{Dir: privateDir(t), hooks: hooks{beforeCommit: g.pass}})
	stop := start(t, s)
	g.fail(errDisk)
	s.Later(putEntity(newID(), "rider"))
	if err := s.Write(context.Background(), putEntity(newID(), "x")); !fault.Is(err, fault.StoreUnavailable) {
		t.Fatal(err)
	}
	if err := stop(); !fault.Is(err, fault.StoreUnavailable) {
		t.Errorf("Run returned %v, want STORE_UNAVAILABLE", err)
	}
	if got := s.Stats().LaterLost; got != 1 {
		t.Errorf("%d lost, want 1", got)
	}
}

// Fails if a disk that hangs, which returns no error, reads as health, or for
// good once it answers.
func TestADiskThatHangsIsNotHealthy(t *testing.T) {
	g := &gate{}
	s := runningStore(t, Options{Synced: g.pass})
	synced, answer := g.shut()
	done := make(chan error, 1)
	go func() { done <- s.Write(context.Background(), putEntity(newID(), "x")) }()
	receive(t, "the sync", synced)
	s.mu.Lock()
	s.began = s.began.Add(-hangBound)
	s.mu.Unlock()
	if err := s.Healthy(); !fault.Is(err, fault.StoreUnavailable) || !strings.Contains(err.Error(), "has not answered") {
		t.Errorf("healthy: %v, want STORE_UNAVAILABLE with what is wrong", err)
	}
	answer()
	if err := receive(t, "the write", done); err != nil {
		t.Error(err)
	}
	if err := s.Healthy(); err != nil {
		t.Errorf("after it answered: %v", err)
	}
}
