package main

import (
	"context"

	"fleetd/store"
)

// crashed reports whether the run before did not end in good order. It counts
// for this start alone.
func crashed(ctx context.Context, st *store.Store) (bool, error) {
	clean := false
	err := st.Write(ctx, func(tx *store.Tx) (err error) {
		clean, err = tx.TakeClean()
		return err
	})
	return !clean, err
}

// endsWell notes that all parts but the store have ended in good order.
func (g *gateway) endsWell() {
	ctx, cancel := context.WithTimeout(context.Background(), stopBound)
	defer cancel()
	if err := g.store.Write(ctx, (*store.Tx).PutClean); err != nil {
		g.log.Warn("the next start takes this end for a crash: mail that was not shown may be marked redelivered", "error", err)
	}
}
