package store

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const traceA = "0123456789abcdef0123456789abcdef"

func events(t testing.TB, s *Store, traceID string) []Event {
	t.Helper()
	var all []Event
	view(t, s, func(tx *Tx) (err error) {
		all, err = tx.TraceOf(traceID)
		return err
	})
	return all
}

// Fails if Later makes a commit of its own while others commit.
func TestRidersShareTheNextCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := runningStore(t, Options{})
		gid := newID()
		s.Later(putEntity(gid, "rider"))
		synctest.Wait() // the writer has looked, and waits
		write(t, s, putEntity(newID(), "x"))
		if name, err := entityNamed(s, gid); err != nil || name != "rider" {
			t.Errorf("rider: %q, %v", name, err)
		}
		if got := s.Stats().Commits; got != 1 {
			t.Errorf("%d commits, want 1", got)
		}
	})
}

// Fails if each commit takes the few events that wait, or Flush leaves some.
func TestTraceIsGathered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := runningStore(t, Options{})
		s.Trace(Event{TraceID: traceA, Step: "sent"})
		write(t, s, putEntity(newID(), "x"))
		if got := events(t, s, traceA); len(got) != 0 {
			t.Errorf("a commit took %+v", got)
		}
		if err := s.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := events(t, s, traceA); len(got) != 1 || got[0].Step != "sent" {
			t.Errorf("after Flush: %+v", got)
		}
		for range eventBatch {
			s.Trace(Event{TraceID: traceA})
		}
		synctest.Wait() // no time has passed
		if got := len(events(t, s, traceA)); got != 1+eventBatch {
			t.Errorf("%d events after a batch, want %d", got, 1+eventBatch)
		}
	})
}

// Fails if steps that one flow took within a millisecond come back in another
// order, though other flows' steps were traced between them.
func TestTraceKeepsTheOrderOfAMoment(t *testing.T) {
	s := openAt(t, Options{Dir: privateDir(t)})
	other := strings.Repeat("f", 32)
	var want []string
	for i := range 200 {
		step := fmt.Sprint("step ", i)
		want = append(want, step)
		s.Trace(Event{TraceID: other, At: 1, Step: "another's"})
		s.Trace(Event{TraceID: traceA, At: 1, Step: step})
	}
	start(t, s)
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, ev := range events(t, s, traceA) {
		got = append(got, ev.Step)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the steps came back as %q", got)
	}
}

// Fails if riders run out of the order in which they were handed in.
func TestRidersKeepTheirOrder(t *testing.T) {
	s := openAt(t, Options{Dir: privateDir(t)})
	gid := newID()
	for i := range 50 {
		s.Later(putEntity(gid, fmt.Sprint(i)))
	}
	start(t, s)
	var seen string
	write(t, s, func(tx *Tx) error {
		e, _, err := tx.Entity(gid)
		seen = e.Name
		return err
	})
	if seen != "49" {
		t.Errorf("a write after 50 riders saw the one of number %q, want 49", seen)
	}
}

// Fails if riders wait for a write that never comes.
func TestRidersAreWrittenAfterASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := runningStore(t, Options{})
		gid := newID()
		s.Later(putEntity(gid, "rider"))
		time.Sleep(riderDelay - time.Millisecond)
		synctest.Wait()
		if got := s.Stats().Commits; got != 0 {
			t.Errorf("%d commits before the delay was over, want 0", got)
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if _, err := entityNamed(s, gid); err != nil {
			t.Error(err)
		}

		s.Trace(Event{TraceID: traceA})
		time.Sleep(riderDelay + time.Millisecond)
		synctest.Wait()
		if got := len(events(t, s, traceA)); got != 1 {
			t.Errorf("%d events, want 1", got)
		}
	})
}

// Fails if many riders wait for the delay, or if one is dropped.
func TestManyRidersAreACommitOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := runningStore(t, Options{})
		gids := make([]string, 2*riderLimit)
		for i := range gids {
			gids[i] = newID()
			s.Later(putEntity(gids[i], "rider"))
			if i == 0 {
				synctest.Wait() // the writer has looked, and waits
			}
		}
		synctest.Wait() // no time has passed
		for i, gid := range gids {
			if _, err := entityNamed(s, gid); err != nil {
				t.Fatalf("rider %d: %v", i, err)
			}
		}
	})
}

// Fails if a rider's error spoils the commit for others.
func TestFailingRiderHurtsNobody(t *testing.T) {
	s := openAt(t, Options{Dir: privateDir(t)})
	gid := newID()
	s.Later(func(tx *Tx) error {
		return errors.Join(tx.PutEntity(Entity{GID: gid}), errors.New("boom"))
	})
	s.Later(func(*Tx) error { panic("a defect") })
	other := newID()
	s.Later(putEntity(other, "x"))
	start(t, s)
	write(t, s, putEntity(newID(), "y"))
	if _, err := entityNamed(s, gid); err == nil {
		t.Error("the failed rider left a record")
	}
	if _, err := entityNamed(s, other); err != nil {
		t.Error(err)
	}
}

// Fails if trace grows without bound, blocks, or drops without counting.
func TestTraceDropsAndCountsWhenFull(t *testing.T) {
	s := openAt(t, Options{Dir: privateDir(t)})
	for range eventCap + 3 {
		s.Trace(Event{TraceID: traceA})
	}
	s.Trace(Event{TraceID: "not a trace id"})
	if got := s.Stats().TraceDropped; got != 4 {
		t.Errorf("%d dropped, want 4", got)
	}
	start(t, s)
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := len(events(t, s, traceA)); got != eventCap {
		t.Errorf("%d events stored, want %d", got, eventCap)
	}
}
