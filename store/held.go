package store

import (
	"encoding/json"

	"fleetd/fault"

	bolt "go.etcd.io/bbolt"
)

// The held bucket has two parts. Bodies lie apart, so that neither listing nor
// changing an entry touches them.
const (
	heldEntries = "entries" // gid+seq → Held without body
	heldBodies  = "bodies"  // gid+seq → body
)

// Held is the index entry of mail that waits for a local entity (design §6).
// Only local mail has its Body here; other mail waits on the broker.
type Held struct {
	GID       string // the recipient
	Seq       uint64 // order of arrival in this store; PutHeld assigns it
	MsgID     string
	TraceID   string
	Kind      string
	From      string // gid, or _gateway@<host>
	FromHost  string
	FromName  string
	InReplyTo string
	Reason    string
	TurnID    string
	Hops      int
	TS        int64    // signed time, Unix ms
	ExpiresAt int64    // Unix ms
	At        int64    // of arrival, Unix ms
	Local     bool     // never touched the broker
	Offered   bool     // was handed to a client that may not have got it
	Size      int      // of the body in bytes, also where it is not stored
	Cost      int      // about what it takes of a client's result, in bytes
	BodyHash  [32]byte `json:"-"`
	Body      []byte   `json:"-"`
}

// heldHead is the fixed part of an entry's value: version, BodyHash; JSON
// follows.
const heldHead = 1 + 32

// PutHeld stores h. One with Seq 0 is new and gets the next number, else the
// record of that Seq is replaced. A nil Body leaves the stored one as it is.
func (tx *Tx) PutHeld(h Held) error {
	b, err := tx.ordered(bucketHeld, heldEntries)
	if err != nil {
		return err
	}
	if _, err := idKey("gid", h.GID); err != nil {
		return err
	}
	if h.Seq, err = tx.sequence(b, h.Seq); err != nil {
		return err
	}
	key, err := seqKey(h.GID, h.Seq)
	if err != nil {
		return err
	}
	js, err := json.Marshal(h)
	if err != nil {
		return fault.Wrap(err, fault.Internal, "a record could not be encoded for the store; see the log")
	}
	value := append([]byte{recordVersion}, h.BodyHash[:]...)
	if err := tx.put(b, key, append(value, js...)); err != nil || h.Body == nil {
		return err
	}
	bodies, err := tx.ordered(bucketHeld, heldBodies)
	if err != nil {
		return err
	}
	return tx.put(bodies, key, append([]byte{recordVersion}, h.Body...))
}

func decodeHeld(v []byte) (h Held, err error) {
	if len(v) < heldHead || v[0] != recordVersion {
		return h, short(bucketHeld, len(v), heldHead)
	}
	copy(h.BodyHash[:], v[1:heldHead])
	if err := json.Unmarshal(v[heldHead:], &h); err != nil {
		return h, damaged(bucketHeld, err)
	}
	return h, nil
}

// HeldIndex returns what is held for gid in order of Seq, without bodies: a
// cap full of local mail would be gigabytes.
func (tx *Tx) HeldIndex(gid string) ([]Held, error) {
	b, err := tx.bucket(bucketHeld, heldEntries)
	if err != nil {
		return nil, err
	}
	id, err := idKey("gid", gid)
	if err != nil {
		return nil, err
	}
	var all []Held
	err = prefixed(b, id, func(_, v []byte) error {
		h, err := decodeHeld(v)
		all = append(all, h)
		return err
	})
	return all, err
}

// HeldEntry returns one entry with its body.
func (tx *Tx) HeldEntry(gid string, seq uint64) (Held, bool, error) {
	entries, bodies, key, err := tx.heldAt(gid, seq)
	if err != nil {
		return Held{}, false, err
	}
	v := entries.Get(key)
	if v == nil {
		return Held{}, false, nil
	}
	h, err := decodeHeld(v)
	if err != nil {
		return Held{}, false, err
	}
	if body := bodies.Get(key); body != nil {
		h.Body = clone(body[1:])
	}
	return h, true, nil
}

// HasHeld reports whether there is an entry.
func (tx *Tx) HasHeld(gid string, seq uint64) (bool, error) {
	entries, _, key, err := tx.heldAt(gid, seq)
	return err == nil && entries.Get(key) != nil, err
}

// DeleteHeld forgets one entry and its body; neither need exist.
func (tx *Tx) DeleteHeld(gid string, seq uint64) error {
	entries, bodies, key, err := tx.heldAt(gid, seq)
	if err != nil {
		return err
	}
	return tx.deleteEach(key, entries, bodies)
}

func (tx *Tx) heldAt(gid string, seq uint64) (entries, bodies *bolt.Bucket, key []byte, err error) {
	if entries, err = tx.bucket(bucketHeld, heldEntries); err != nil {
		return nil, nil, nil, err
	}
	if bodies, err = tx.bucket(bucketHeld, heldBodies); err != nil {
		return nil, nil, nil, err
	}
	key, err = seqKey(gid, seq)
	return entries, bodies, key, err
}
