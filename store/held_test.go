package store

import (
	"fmt"
	"testing"
)

// Fails if the time before which no local mail expires is later than what is
// there: it would stay past its end; or if it stays once that mail is gone: all
// of a backlog would be read for nothing.
func TestNoLocalMailExpiresBeforeItsBound(t *testing.T) {
	s := runningStore(t, Options{Dir: privateDir(t)})
	gid := newID()
	put := func(expiresAt int64) func(*Tx) error {
		return func(tx *Tx) error {
			return tx.PutHeld(Held{GID: gid, MsgID: newID(), Local: true, ExpiresAt: expiresAt, Body: []byte("x")})
		}
	}
	remove := func(seq uint64) func(*Tx) error {
		return func(tx *Tx) error { return tx.DeleteHeld(gid, seq) }
	}
	raise := func(last uint64, expiry int64) func(*Tx) error {
		return func(tx *Tx) error { return tx.RaiseLocalExpiry(gid, last, expiry) }
	}
	for i, step := range []struct {
		do     func(*Tx) error
		count  int
		expiry int64
	}{
		{put(0), 1, 0},
		{put(500), 2, 500},
		{put(400), 3, 400},
		{put(600), 4, 400},
		{raise(3, 400), 4, 400},
		{remove(3), 3, 400},
		{raise(3, 500), 3, 500}, // what came after the reading counts too
		{remove(2), 2, 500},
		{raise(2, 0), 2, 600},
		{put(700), 3, 600},
		{remove(4), 2, 600},
		{raise(4, 0), 2, 700},
		{remove(5), 1, 700},
		{raise(5, 0), 1, 0},
		{remove(1), 0, 0},
		{raise(5, 900), 0, 0},
	} {
		write(t, s, step.do)
		view(t, s, func(tx *Tx) error {
			n, expiry, err := tx.CountLocal(gid)
			if err == nil && (n != step.count || expiry != step.expiry) {
				err = fmt.Errorf("step %d: %d that expire from %d, want %d from %d", i, n, expiry, step.count, step.expiry)
			}
			return err
		})
	}
}
