package store

import "time"

// homeLife is how long a home is remembered after its last sign of life
// (design §4).
const homeLife = 15 * 24 * time.Hour

// Home is what signed presence said about where a gid lives (design §4): its
// identity, not its liveness.
type Home struct {
	GID      string
	Host     string
	Name     string
	Kind     EntityKind
	Groups   []string
	LastSign int64 // Unix ms
	Gone     bool
}

// PutHome stores h under its gid, new or not.
func (tx *Tx) PutHome(h Home) error { return putByID(tx, bucketHomes, h.GID, h) }

// Home returns the home of gid.
func (tx *Tx) Home(gid string) (Home, bool, error) {
	return getByID[Home](tx, bucketHomes, gid)
}

// Homes returns all homes, in order of their gids.
func (tx *Tx) Homes() ([]Home, error) { return allByID[Home](tx, bucketHomes) }

// PruneHomes forgets the homes whose last sign of life is more than 15 days
// old.
func (tx *Tx) PruneHomes(now time.Time) error {
	b, err := tx.bucket(bucketHomes)
	if err != nil {
		return err
	}
	limit := now.Add(-homeLife).UnixMilli()
	var old [][]byte
	err = b.ForEach(func(k, v []byte) error {
		var h Home
		if err := decode(bucketHomes, v, &h); err != nil {
			return err
		}
		if h.LastSign < limit {
			old = append(old, clone(k))
		}
		return nil
	})
	if err != nil {
		return err
	}
	return tx.deleteAll(b, old)
}
