package store

import (
	"bytes"

	bolt "go.etcd.io/bbolt"
)

// EntityKind is what an entity is (design §1).
type EntityKind string

// The kinds of entities.
const (
	Worker       EntityKind = "worker"       // an agent in a herdr pane, into which its mail is injected
	Main         EntityKind = "main"         // an MCP client, which fetches its mail
	Orchestrator EntityKind = "orchestrator" // the same
)

// Known reports whether k is one of the kinds above: other hosts may have more.
func (k EntityKind) Known() bool { return k == Worker || k == Main || k == Orchestrator }

// EntityState is how far the life of an Entity is (design §9).
type EntityState string

// The states of an Entity.
const (
	EntityLaunching EntityState = "launching" // it has a name and a token; nobody is told of it
	EntityLive      EntityState = "live"
	EntityStopping  EntityState = "stopping" // its end is on record and under way, also after a crash
	EntityGone      EntityState = "gone"     // nothing is left of it; the gid never lives again
)

// Entity is the identity of something local with an inbox (design §1).
type Entity struct {
	GID       string
	Kind      EntityKind
	Name      string
	Groups    []string
	Pane      string // of a worker
	Terminal  string
	AgentKind string
	Leader    string // the process that leads the terminal's session; "": not known
	State     EntityState
	Launched  bool  // the gateway opened its pane
	KeepPane  bool  // it stopped by itself: its pane is left to whoever opened it
	CreatedAt int64 // Unix ms
	GoneAt    int64 // Unix ms, 0 while it lives
}

// Ended reports whether e takes no part any more: its end has begun.
func (e Entity) Ended() bool { return e.State == EntityStopping || e.State == EntityGone }

// PutEntity stores e under its gid, new or not.
func (tx *Tx) PutEntity(e Entity) error {
	return putByID(tx, bucketEntities, e.GID, e)
}

// Entity returns the entity of gid.
func (tx *Tx) Entity(gid string) (Entity, bool, error) {
	return getByID[Entity](tx, bucketEntities, gid)
}

// Entities returns all entities, gone ones too, in order of their gids, which
// is the order in which they were made.
func (tx *Tx) Entities() ([]Entity, error) {
	return allByID[Entity](tx, bucketEntities)
}

// DeleteEntity forgets gid and its tokens.
func (tx *Tx) DeleteEntity(gid string) error {
	if err := deleteByID(tx, bucketEntities, gid); err != nil {
		return err
	}
	return tx.DeleteTokens(gid)
}

// PutToken makes the token with this hash one of gid's. Tokens themselves are
// never stored.
func (tx *Tx) PutToken(hash [32]byte, gid string) error {
	b, err := tx.bucket(bucketTokens)
	if err != nil {
		return err
	}
	id, err := idKey("gid", gid)
	if err != nil {
		return err
	}
	return tx.put(b, hash[:], append([]byte{recordVersion}, id...))
}

// TokenOwner returns the gid whose token has this hash.
func (tx *Tx) TokenOwner(hash [32]byte) (gid string, ok bool, err error) {
	b, err := tx.bucket(bucketTokens)
	if err != nil {
		return "", false, err
	}
	v := b.Get(hash[:])
	if v == nil {
		return "", false, nil
	}
	if len(v) != 1+idLen || v[0] != recordVersion {
		return "", false, damaged(bucketTokens, errDamaged)
	}
	return idText(v[1:]), true, nil
}

// DeleteTokens forgets all tokens of gid. It scans them: there are a few per
// entity.
func (tx *Tx) DeleteTokens(gid string) error {
	b, err := tx.bucket(bucketTokens)
	if err != nil {
		return err
	}
	id, err := idKey("gid", gid)
	if err != nil {
		return err
	}
	var own [][]byte
	err = b.ForEach(func(k, v []byte) error {
		if len(v) == 1+idLen && bytes.Equal(v[1:], id) {
			own = append(own, clone(k))
		}
		return nil
	})
	if err != nil {
		return err
	}
	return tx.deleteAll(b, own)
}

func (tx *Tx) deleteAll(b *bolt.Bucket, keys [][]byte) error {
	for _, k := range keys {
		if _, err := tx.delete(b, k); err != nil {
			return err
		}
	}
	return nil
}
