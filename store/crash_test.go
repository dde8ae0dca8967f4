package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
)

// putFamily writes a brief, a held entry, an intent and a seen entry that all
// go by id.
func putFamily(tx *Tx, id string) error {
	if err := tx.PutBrief(Brief{GID: id, MsgID: id}); err != nil {
		return err
	}
	if err := tx.PutHeld(Held{GID: id, MsgID: id, Local: true, Body: []byte(id)}); err != nil {
		return err
	}
	if err := tx.PutIntent(Intent{MsgID: id, State: IntentIntended, Body: []byte(id)}); err != nil {
		return err
	}
	return tx.PutSeen(1_000, id, id, Seen{Outcome: "injecting"})
}

// wantFamily says what is missing of what putFamily wrote.
func wantFamily(tx *Tx, id string) error {
	_, brief, err := tx.BriefByMsg(id, id)
	if err != nil {
		return err
	}
	held, err := tx.HeldIndex(id)
	if err != nil {
		return err
	}
	in, intent, err := tx.Intent(id)
	if err != nil {
		return err
	}
	_, seen, err := tx.SeenOf(1_000, id, id)
	if err != nil {
		return err
	}
	if !brief || len(held) != 1 || !intent || string(in.Body) != id || !seen {
		return fmt.Errorf("%s: brief %v, held %d, intent %v with body %q, seen %v", id, brief, len(held), intent, in.Body, seen)
	}
	return nil
}

// Fails if a caller is answered before the commit that carries its write.
func TestKillLosesNothingAcknowledged(t *testing.T) {
	dir := privateDir(t)
	var acknowledged []string
	for round := range 5 {
		c := startChild(t, roleWrite, dir)
		if got := c.line(t); got != "open" {
			t.Fatalf("first line %q", got)
		}
		for range 100 + rand.IntN(400) {
			acknowledged = append(acknowledged, c.line(t))
		}
		acknowledged = append(acknowledged, c.kill()...)

		s := openAt(t, Options{Dir: dir})
		view(t, s, func(tx *Tx) error {
			for _, id := range acknowledged {
				if err := wantFamily(tx, id); err != nil {
					t.Fatalf("round %d of %d writes: %v", round, len(acknowledged), err)
				}
			}
			return nil
		})
		if err := s.Check(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
