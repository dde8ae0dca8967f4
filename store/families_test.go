package store

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// mustWrite runs steps in one transaction and fails on the first error.
func mustWrite(t *testing.T, s *Store, fn func(tx *Tx, must func(error))) {
	t.Helper()
	write(t, s, func(tx *Tx) (err error) {
		fn(tx, func(e error) {
			if err == nil {
				err = e
			}
		})
		return err
	})
}

// Fails if the boot epoch repeats or goes back with the clock.
func TestBootEpochOnlyRises(t *testing.T) {
	s := runningStore(t, Options{})
	var got []uint64
	for _, ms := range []int64{1000, 5, -7, 2000, 2000} {
		var boot uint64
		write(t, s, func(tx *Tx) (err error) {
			boot, err = tx.NextBoot(time.UnixMilli(ms))
			return err
		})
		got = append(got, boot)
	}
	for _, raised := range []uint64{5000, 3000} { // the second must not take it back
		var boot uint64
		write(t, s, func(tx *Tx) error { return tx.RaiseBoot(raised) })
		write(t, s, func(tx *Tx) (err error) {
			boot, err = tx.NextBoot(time.UnixMilli(2000))
			return err
		})
		got = append(got, boot)
	}
	if want := []uint64{1000, 1001, 1002, 2000, 2001, 5001, 5002}; !slices.Equal(got, want) {
		t.Errorf("boots %v, want %v", got, want)
	}
}

// Fails if a crash is taken for an end in good order: of the first start, of a
// run that said nothing at its end, or of one before that did.
func TestOnlyTheRunBeforeIsSaidToHaveEndedWell(t *testing.T) {
	s := runningStore(t, Options{})
	take := func() (clean bool) {
		write(t, s, func(tx *Tx) (err error) {
			clean, err = tx.TakeClean()
			return err
		})
		return clean
	}
	got := []bool{take()}
	write(t, s, (*Tx).PutClean)
	got = append(got, take(), take())
	if want := []bool{false, true, false}; !slices.Equal(got, want) {
		t.Errorf("ended well: %v, want %v", got, want)
	}
}

// Fails if an entity's tokens outlive it, or others' go with it.
func TestTokensGoWithTheirEntity(t *testing.T) {
	t.Attr("threat", "U4")
	s := runningStore(t, Options{})
	a, b := newID(), newID()
	mustWrite(t, s, func(tx *Tx, must func(error)) {
		must(tx.PutEntity(Entity{GID: a}))
		must(tx.PutToken([32]byte{1}, a))
		must(tx.PutToken([32]byte{2}, a))
		must(tx.PutToken([32]byte{3}, b))
		must(tx.DeleteEntity(a))
	})
	view(t, s, func(tx *Tx) error {
		for i, want := range map[byte]bool{1: false, 2: false, 3: true} {
			if _, ok, err := tx.TokenOwner([32]byte{i}); ok != want || err != nil {
				t.Errorf("token %d: found %v (%v), want %v", i, ok, err, want)
			}
		}
		return nil
	})
}

// Fails if briefs or held mail come in another order than they were put, mix
// with another's, or if a number is given twice.
func TestSequencesKeepOrderPerRecipient(t *testing.T) {
	s := runningStore(t, Options{})
	a, b := newID(), newID()
	var msgs []string
	mustWrite(t, s, func(tx *Tx, must func(error)) {
		msgs = nil
		for range 300 { // more than one byte of sequence
			id := newID()
			msgs = append(msgs, id)
			must(tx.PutBrief(Brief{GID: a, MsgID: id}))
			must(tx.PutBrief(Brief{GID: b, MsgID: newID()}))
			must(tx.PutHeld(Held{GID: a, MsgID: id}))
			must(tx.PutHeld(Held{GID: b, MsgID: newID()}))
		}
		must(tx.PutHeld(Held{GID: a, Seq: 1000, MsgID: "own number"}))
		must(tx.PutHeld(Held{GID: a, MsgID: "after it"}))
	})
	view(t, s, func(tx *Tx) error {
		briefs, err := tx.Briefs(a)
		if err != nil {
			return err
		}
		held, err := tx.HeldIndex(a)
		if err != nil {
			return err
		}
		var gotBriefs, gotHeld []string
		for _, br := range briefs {
			gotBriefs = append(gotBriefs, br.MsgID)
		}
		for _, h := range held {
			gotHeld = append(gotHeld, h.MsgID)
		}
		if diff := cmp.Diff(msgs, gotBriefs); diff != "" {
			t.Errorf("briefs:\n%s", diff)
		}
		if diff := cmp.Diff(append(msgs, "own number", "after it"), gotHeld); diff != "" {
			t.Errorf("held:\n%s", diff)
		}
		return nil
	})
	mustWrite(t, s, func(tx *Tx, must func(error)) {
		br, _, err := tx.BriefByMsg(a, msgs[7])
		must(err)
		br.State = "open"
		must(tx.PutBrief(br))
		must(tx.DeleteBrief(a, br.Seq+2))
	})
	view(t, s, func(tx *Tx) error {
		briefs, err := tx.Briefs(a)
		if len(briefs) != 299 || briefs[7].State != "open" {
			t.Errorf("%d briefs, the eighth %+v", len(briefs), briefs[7])
		}
		for i, want := range map[int]bool{7: true, 8: false, 9: true} {
			br, found, err := tx.BriefByMsg(a, msgs[i])
			if found != want || found && br.MsgID != msgs[i] || err != nil {
				t.Errorf("brief %d: %v %+v (%v), want %v", i, found, br, err, want)
			}
			if _, found, err := tx.BriefByMsg(b, msgs[i]); found || err != nil {
				t.Errorf("brief %d is found at another: %v", i, err)
			}
		}
		return err
	})
}

// Fails if a change of an entry loses or rewrites its body, or a body outlives
// its entry.
func TestHeldBodiesFollowTheirEntries(t *testing.T) {
	s := runningStore(t, Options{})
	gid := newID()
	want := func(seq uint64, offered bool, body string, found bool) {
		t.Helper()
		view(t, s, func(tx *Tx) error {
			h, ok, err := tx.HeldEntry(gid, seq)
			if ok != found || h.Offered != offered || string(h.Body) != body || err != nil {
				t.Errorf("%v %+v (%v), want %v, offered %v, body %q", ok, h, err, found, offered, body)
			}
			has, err := tx.HasLocal(gid, seq)
			if has != found {
				t.Errorf("has %v (%v), want %v", has, err, found)
			}
			return err
		})
	}
	mustWrite(t, s, func(tx *Tx, must func(error)) {
		must(tx.PutHeld(Held{GID: gid, Local: true, Body: []byte("x")}))
		must(tx.PutHeld(Held{GID: gid, Local: true, Body: []byte("y")}))
	})
	mustWrite(t, s, func(tx *Tx, must func(error)) {
		must(tx.PutHeld(Held{GID: gid, Seq: 1, Local: true, Offered: true}))
		must(tx.DeleteHeld(gid, 2))
		must(tx.DeleteHeld(gid, 99)) // was never there
	})
	want(1, true, "x", true)
	want(2, false, "", false)
	mustWrite(t, s, func(tx *Tx, must func(error)) { must(tx.PutHeld(Held{GID: gid, Seq: 2, Local: true})) })
	want(2, false, "", true)
}

// Fails if a change of state loses or rewrites the body, the order of leaving,
// or the intent's place in the list of open or ended ones.
func TestIntentLife(t *testing.T) {
	s := runningStore(t, Options{})
	ids := []string{newID(), newID(), newID()}
	body := make([]byte, 256<<10)
	mustWrite(t, s, func(tx *Tx, must func(error)) {
		for _, i := range []int{2, 0, 1} { // not in the order of their ids
			must(tx.PutIntent(Intent{MsgID: ids[i], State: IntentIntended, Body: body}))
		}
	})
	var cost int64
	mustWrite(t, s, func(tx *Tx, must func(error)) {
		in, _, err := tx.Intent(ids[0])
		must(err)
		in.State, in.Seq = IntentAccepted, 0
		before := tx.bytes
		must(tx.PutIntent(in)) // with its body
		in.Body = nil
		must(tx.PutIntent(in)) // and without
		cost = tx.bytes - before
	})
	if cost > 4<<10 {
		t.Errorf("two changes of state wrote %d bytes: the body again", cost)
	}
	open := func(want ...string) {
		t.Helper()
		view(t, s, func(tx *Tx) error {
			all, err := tx.OpenIntents()
			var got []string
			for _, in := range all {
				got = append(got, fmt.Sprintf("%d %s %d", slices.Index(ids, in.MsgID), in.State, len(in.Body)))
			}
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				t.Errorf("open intents (%v):\n%s", err, diff)
			}
			return nil
		})
	}
	open("2 intended 262144", "0 accepted 262144", "1 intended 262144")
	mustWrite(t, s, func(tx *Tx, must func(error)) {
		must(tx.DropBody(ids[0]))
		must(tx.PutIntent(Intent{MsgID: ids[2], State: IntentEnded, EndedAt: 2000}))
	})
	open("0 accepted 0", "1 intended 262144")
	mustWrite(t, s, func(tx *Tx, must func(error)) {
		must(tx.PutIntent(Intent{MsgID: ids[1], State: IntentEnded, EndedAt: 1000}))
		must(tx.PutIntent(Intent{MsgID: ids[1], State: IntentEnded, EndedAt: 1500})) // a correction
		must(tx.PutIntent(Intent{MsgID: ids[0], State: IntentEnded, EndedAt: 3000}))
		must(tx.PutIntent(Intent{MsgID: ids[0], State: IntentAccepted})) // open again
	})
	open("0 accepted 0")
	ended := func(before int64, want ...int) {
		t.Helper()
		view(t, s, func(tx *Tx) error {
			all, err := tx.EndedBefore(time.UnixMilli(before))
			var got []int
			for _, in := range all {
				got = append(got, slices.Index(ids, in.MsgID))
			}
			if !slices.Equal(got, want) || err != nil {
				t.Errorf("ended before %d: %v (%v), want %v", before, got, err, want)
			}
			return nil
		})
	}
	ended(1500)
	ended(2000, 1)
	ended(9000, 1, 2)
	mustWrite(t, s, func(tx *Tx, must func(error)) {
		for _, id := range ids {
			must(tx.DeleteIntent(id))
		}
	})
	open()
	ended(9000)
}
