package store

import (
	"encoding/binary"
	"encoding/json"
	"time"

	"fleetd/fault"
)

const (
	// KeyLife is how long an idempotency key stands for its message (design §5).
	KeyLife = 24 * time.Hour
	// maxKeyText bounds an idempotency key, in bytes.
	maxKeyText = 1024
	// pruneLimit is the most entries that one PruneKeys removes: random keys
	// are dear to delete (library fact §2), and no commit should last long.
	pruneLimit = 10_000
)

// Key is what an idempotency key stands for (design §5).
type Key struct {
	MsgID     string   // or the spawnId
	TraceID   string   // of that message
	ExpiresAt int64    // end of its life, Unix ms
	To        string   `json:",omitempty"` // gid of its recipient; of a broadcast ""
	InReplyTo string   `json:",omitempty"` // of a reply: the brief that it answers
	Call      string   // the call that used it: send, reply, broadcast, spawn
	Hash      [32]byte `json:"-"` // of content and recipient
	At        int64    `json:"-"` // Unix ms
}

// keyHead is the fixed part of a Key's value: version, At, Hash; JSON
// follows. Pruning reads no further.
const keyHead = 1 + 8 + 32

// idempotencyKey is gid, then the caller's text.
func idempotencyKey(gid, key string) ([]byte, error) {
	id, err := idKey("gid", gid)
	if err != nil {
		return nil, err
	}
	if key == "" || len(key) > maxKeyText {
		return nil, fault.New(fault.BadRequest, "an idempotency key has 1 to %d bytes, this one has %d; use a shorter one", maxKeyText, len(key))
	}
	return append(id, key...), nil
}

// PutKey notes what key of gid stands for.
func (tx *Tx) PutKey(gid, key string, k Key) error {
	b, err := tx.bucket(bucketKeys)
	if err != nil {
		return err
	}
	bk, err := idempotencyKey(gid, key)
	if err != nil {
		return err
	}
	rest, err := json.Marshal(k)
	if err != nil {
		return fault.Wrap(err, fault.Internal, "a record could not be encoded for the store; see the log")
	}
	v := append([]byte{recordVersion}, millisKey(k.At)...)
	v = append(v, k.Hash[:]...)
	return tx.put(b, bk, append(v, rest...))
}

// KeyOf returns what key of gid stands for. It may be older than 24 hours and
// not yet pruned: At says.
func (tx *Tx) KeyOf(gid, key string) (Key, bool, error) {
	b, err := tx.bucket(bucketKeys)
	if err != nil {
		return Key{}, false, err
	}
	bk, err := idempotencyKey(gid, key)
	if err != nil {
		return Key{}, false, err
	}
	v := b.Get(bk)
	if v == nil {
		return Key{}, false, nil
	}
	k, err := decodeKey(v)
	return k, err == nil, err
}

// DeleteKey forgets a key, which need not exist.
func (tx *Tx) DeleteKey(gid, key string) error {
	b, err := tx.bucket(bucketKeys)
	if err != nil {
		return err
	}
	bk, err := idempotencyKey(gid, key)
	if err != nil {
		return err
	}
	_, err = tx.delete(b, bk)
	return err
}

func decodeKey(v []byte) (Key, error) {
	if len(v) < keyHead+1 || v[0] != recordVersion {
		return Key{}, short(bucketKeys, len(v), keyHead+1)
	}
	k := Key{At: int64(binary.BigEndian.Uint64(v[1:9]))}
	copy(k.Hash[:], v[9:keyHead])
	if err := json.Unmarshal(v[keyHead:], &k); err != nil {
		return Key{}, damaged(bucketKeys, err)
	}
	return k, nil
}

// PruneKeys forgets keys older than 24 hours, ten thousand at most: the rest is
// left to the next call.
func (tx *Tx) PruneKeys(now time.Time) error {
	b, err := tx.bucket(bucketKeys)
	if err != nil {
		return err
	}
	limit := now.Add(-KeyLife).UnixMilli()
	var old [][]byte
	c := b.Cursor()
	for k, v := c.First(); k != nil && len(old) < pruneLimit; k, v = c.Next() {
		if len(v) < keyHead {
			return short(bucketKeys, len(v), keyHead)
		}
		if int64(binary.BigEndian.Uint64(v[1:9])) < limit {
			old = append(old, clone(k))
		}
	}
	return tx.deleteAll(b, old)
}
