package store

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// Fails if the events of a busy hour all lie in one bucket, where each costs a
// page of its own, if a flow that lies in several parts of the hour is not found
// whole and in the order of its times, or if a part outlives its hour.
func TestABusyHourIsKeptInParts(t *testing.T) {
	s := runningStore(t, Options{})
	at := pruneNow.UnixMilli()
	var want []string
	for round := range 3 {
		for i := range eventBatch {
			s.Trace(Event{TraceID: fmt.Sprintf("%032x", i*7919+1), At: at})
		}
		early, late := fmt.Sprint("early ", round), fmt.Sprint("late ", round)
		s.Trace(Event{TraceID: traceA, Step: late, At: at + 100 + int64(round)}) // handed in before what was done first
		s.Trace(Event{TraceID: traceA, Step: early, At: at + int64(round)})
		want = append(want, early, late)
		if err := s.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	slices.SortFunc(want, strings.Compare) // all early ones, then all late ones
	var got []string
	for _, ev := range events(t, s, traceA) {
		got = append(got, ev.Step)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the flow came back as %q, want %q", got, want)
	}
	sizes := func() (all []int) {
		view(t, s, func(tx *Tx) error {
			return tx.bolt.Bucket([]byte(bucketTrace)).ForEachBucket(func(k []byte) error {
				all = append(all, tx.bolt.Bucket([]byte(bucketTrace)).Bucket(k).Stats().KeyN)
				return nil
			})
		})
		return all
	}
	if got, want := sizes(), []int{eventBatch, eventBatch, eventBatch, 6}; !slices.Equal(got, want) {
		t.Errorf("parts of %v events, want %v", got, want)
	}
	if err := checkTrace(s); err != nil {
		t.Error(err)
	}
	write(t, s, func(tx *Tx) error { return tx.PruneTrace(pruneNow.Add(traceLife + 2*time.Hour)) })
	if got := sizes(); len(got) != 0 {
		t.Errorf("parts of %v events are left of an hour that is over", got)
	}
}

func checkTrace(s *Store) error {
	return s.View(func(tx *Tx) error {
		return tx.eachSlot(bucketTrace, func(k, v []byte) error { _, err := decodeEvent(k, v); return err })
	})
}
