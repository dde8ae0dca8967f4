package store

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fleetd/fault"
)

// names returns the entities of s.
func names(s *Store) (map[string]string, error) {
	all := map[string]string{}
	err := s.View(func(tx *Tx) error {
		list, err := tx.Entities()
		for _, e := range list {
			all[e.GID] = e.Name
		}
		return err
	})
	return all, err
}

// killed returns the store as the next start would find it if this process
// were killed now.
func killed(t *testing.T, s *Store) *Store {
	t.Helper()
	data, err := os.ReadFile(s.path)
	if err != nil {
		t.Fatal(err)
	}
	dir := privateDir(t)
	if err := os.WriteFile(filepath.Join(dir, DefaultFile), data, 0o600); err != nil {
		t.Fatal(err)
	}
	return openAt(t, Options{Dir: dir})
}

// become changes the entities from what they are to what they shall be.
func become(tx *Tx, now, then map[string]string) error {
	for gid := range now {
		if _, stays := then[gid]; !stays {
			if err := tx.DeleteEntity(gid); err != nil {
				return err
			}
		}
	}
	for gid, name := range then {
		if now[gid] != name {
			if err := putEntity(gid, name)(tx); err != nil {
				return err
			}
		}
	}
	return nil
}

// Fails if a commit that was answered with an error because its last sync
// failed can be read afterwards, is there after a kill or after the next
// commit, or takes along what was stored before.
func TestACommitWhoseSyncFailedIsNotThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{}
		s := runningStore(t, Options{Synced: g.pass})
		want := map[string]string{}
		gids := make([]string, 200)
		for i := range gids {
			gids[i] = newID()
		}
		rng := rand.New(rand.NewPCG(1, 2))
		for round := range 25 {
			fails, next := rng.IntN(3) == 0, maps.Clone(want)
			for range 1 + rng.IntN(40) { // these change, far apart in the file
				if gid := gids[rng.IntN(len(gids))]; rng.IntN(3) == 0 {
					delete(next, gid)
				} else {
					next[gid] = strings.Repeat("x", 1+rng.IntN(3000))
				}
			}
			if fails {
				g.fail(errDisk)
			}
			err := s.Write(t.Context(), func(tx *Tx) error { return become(tx, want, next) })
			switch {
			case err == nil && !fails:
				want = next
			case !fails || !errors.Is(err, errDisk):
				t.Fatalf("round %d (fails %v): write %v", round, fails, err)
			}
			if got, err := names(s); err != nil || !maps.Equal(got, want) {
				t.Fatalf("round %d (fails %v): read %d records, %v; want the %d that were acknowledged", round, fails, len(got), err, len(want))
			}
			if fails {
				left := killed(t, s)
				if got, err := names(left); err != nil || !maps.Equal(got, want) {
					t.Fatalf("round %d: after a kill %d records, %v; want the %d that were acknowledged", round, len(got), err, len(want))
				}
				time.Sleep(probeLast) // the probe fails as well, in the same way
				g.fail(nil)
				time.Sleep(2 * probeLast)
				synctest.Wait()
				if err := s.Healthy(); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// Fails if a reader meets the moment in which a failed commit is taken back:
// an error, or half of what one commit wrote.
func TestReadersOutliveAFailedSync(t *testing.T) {
	g := &gate{}
	s := runningStore(t, Options{Synced: g.pass})
	one, other := newID(), newID()
	both := func(name string) func(*Tx) error {
		return func(tx *Tx) error { return errors.Join(putEntity(one, name)(tx), putEntity(other, name)(tx)) }
	}
	write(t, s, both("0"))
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				got, err := names(s)
				if err != nil || got[one] != got[other] || len(got) != 2 {
					t.Errorf("read %q, %v", got, err)
					return
				}
			}
		})
	}
	for i := range 5 {
		g.fail(errDisk)
		if err := s.Write(t.Context(), both(fmt.Sprint("lost", i))); !errors.Is(err, errDisk) {
			t.Errorf("write %v", err)
		}
		g.fail(nil)
		await(t, "recovery", func() bool { return s.Healthy() == nil })
		write(t, s, both(fmt.Sprint(i)))
	}
	close(done)
	wg.Wait()
}

// Fails if somebody is told that his write failed while it stands and cannot be
// taken back; if he is not told once it is; or if he waits for ever.
func TestACommitThatCannotBeTakenBackIsNotCalledFailed(t *testing.T) {
	for _, heals := range []bool{true, false} {
		t.Run(fmt.Sprint("heals ", heals), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sync, wipe := &gate{}, &gate{}
				s := runningStore(t, Options{Synced: sync.pass, hooks: hooks{wipe: wipe.pass}})
				gid := newID()
				sync.fail(errDisk)
				wipe.fail(errDisk)
				told := make(chan error, 1)
				go func() { told <- s.Write(t.Context(), putEntity(gid, "x")) }()
				time.Sleep(answerBound / 2)
				select {
				case err := <-told:
					t.Fatalf("told %v while it stands", err)
				default:
				}
				if err := s.Write(t.Context(), putEntity(newID(), "y")); !fault.Is(err, fault.StoreUnavailable) {
					t.Errorf("another write meanwhile: %v", err)
				}
				sync.fail(nil)
				if heals {
					wipe.fail(nil)
				}
				err := receive(t, "an answer", told)
				if doubt := strings.Contains(err.Error(), "may be stored"); !fault.Is(err, fault.StoreUnavailable) || doubt == heals {
					t.Errorf("told %v", err)
				}
				wipe.fail(nil)
				time.Sleep(2 * probeLast)
				synctest.Wait()
				if _, err := entityNamed(s, gid); err == nil || s.Healthy() != nil {
					t.Errorf("it stands in the end, or the store did not recover: %v", s.Healthy())
				}
				write(t, s, putEntity(gid, "x"))
			})
		})
	}
}
