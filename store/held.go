package store

import (
	"encoding/binary"
	"encoding/json"

	bolt "go.etcd.io/bbolt"
)

// The held bucket has two parts: the entries, and per gid their totals, so
// that a cap is checked without counting.
const (
	heldEntries = "entries" // gid+seq → Held
	heldTotals  = "totals"  // gid → count, local, local bytes
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
	TS        int64  // signed time, Unix ms
	ExpiresAt int64  // Unix ms
	At        int64  // of arrival, Unix ms
	Local     bool   // never touched the broker
	Offered   bool   // was handed to a client that may not have got it
	Size      int    // of the body in bytes, also where it is not stored
	Body      []byte `json:"-"`
}

// HeldTotals is what one gid has in the held index.
type HeldTotals struct {
	Count int   // entries
	Local int   // entries of local mail
	Bytes int64 // of the bodies stored here
}

// PutHeld stores h. One with Seq 0 is new and gets the next number, else the
// record of that Seq is replaced, body included.
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
	if err := tx.countHeld(b, key, -1); err != nil {
		return err
	}
	value, err := encodeBody(h, h.Body)
	if err != nil {
		return err
	}
	if err := tx.put(b, key, value); err != nil {
		return err
	}
	return tx.countHeld(b, key, 1)
}

// HeldOf returns what is held for gid in order of Seq, bodies included.
func (tx *Tx) HeldOf(gid string) ([]Held, error) {
	var all []Held
	err := tx.eachHeld(gid, func(v []byte) error {
		var h Held
		body, err := decodeBody(bucketHeld, v, &h)
		h.Body = body
		all = append(all, h)
		return err
	})
	return all, err
}

// HeldIndex is HeldOf without the bodies, for whoever only lists: a cap full
// of local mail would be gigabytes.
func (tx *Tx) HeldIndex(gid string) ([]Held, error) {
	var all []Held
	err := tx.eachHeld(gid, func(v []byte) error {
		h, _, err := heldHead(v)
		all = append(all, h)
		return err
	})
	return all, err
}

func (tx *Tx) eachHeld(gid string, fn func(value []byte) error) error {
	b, err := tx.bucket(bucketHeld, heldEntries)
	if err != nil {
		return err
	}
	id, err := idKey("gid", gid)
	if err != nil {
		return err
	}
	return prefixed(b, id, func(_, v []byte) error { return fn(v) })
}

// HeldEntry returns one entry with its body.
func (tx *Tx) HeldEntry(gid string, seq uint64) (Held, bool, error) {
	b, err := tx.bucket(bucketHeld, heldEntries)
	if err != nil {
		return Held{}, false, err
	}
	key, err := seqKey(gid, seq)
	if err != nil {
		return Held{}, false, err
	}
	v := b.Get(key)
	if v == nil {
		return Held{}, false, nil
	}
	var h Held
	body, err := decodeBody(bucketHeld, v, &h)
	h.Body = body
	return h, err == nil, err
}

// DeleteHeld forgets one entry, which need not exist.
func (tx *Tx) DeleteHeld(gid string, seq uint64) error {
	b, err := tx.bucket(bucketHeld, heldEntries)
	if err != nil {
		return err
	}
	key, err := seqKey(gid, seq)
	if err != nil {
		return err
	}
	if err := tx.countHeld(b, key, -1); err != nil {
		return err
	}
	_, err = tx.delete(b, key)
	return err
}

// CountHeld returns how many entries gid has.
func (tx *Tx) CountHeld(gid string) (int, error) {
	t, err := tx.HeldTotals(gid)
	return t.Count, err
}

// HeldTotals returns what gid has in the index, for its cap.
func (tx *Tx) HeldTotals(gid string) (HeldTotals, error) {
	b, err := tx.bucket(bucketHeld, heldTotals)
	if err != nil {
		return HeldTotals{}, err
	}
	id, err := idKey("gid", gid)
	if err != nil {
		return HeldTotals{}, err
	}
	return decodeTotals(b.Get(id))
}

// countHeld adds sign times the entry at key, if there is one, to the totals
// of its gid.
func (tx *Tx) countHeld(entries *bolt.Bucket, key []byte, sign int) error {
	v := entries.Get(key)
	if v == nil {
		return nil
	}
	h, size, err := heldHead(v)
	if err != nil {
		return err
	}
	totals, err := tx.bucket(bucketHeld, heldTotals)
	if err != nil {
		return err
	}
	id := key[:idLen]
	t, err := decodeTotals(totals.Get(id))
	if err != nil {
		return err
	}
	t.Count += sign
	t.Bytes += int64(sign) * int64(size)
	if h.Local {
		t.Local += sign
	}
	if t.Count <= 0 {
		_, err := tx.delete(totals, id)
		return err
	}
	return tx.put(totals, clone(id), encodeTotals(t))
}

// heldHead decodes an entry and the size of its body without copying that.
func heldHead(v []byte) (h Held, size int, err error) {
	js, body, err := splitBody(bucketHeld, v)
	if err != nil {
		return h, 0, err
	}
	if err := json.Unmarshal(js, &h); err != nil {
		return h, 0, damaged(bucketHeld, err)
	}
	return h, len(body), nil
}

func encodeTotals(t HeldTotals) []byte {
	v := append([]byte{recordVersion}, u32(uint32(t.Count))...)
	v = append(v, u32(uint32(t.Local))...)
	return binary.BigEndian.AppendUint64(v, uint64(t.Bytes))
}

func decodeTotals(v []byte) (HeldTotals, error) {
	if v == nil {
		return HeldTotals{}, nil
	}
	if len(v) != 1+4+4+8 || v[0] != recordVersion {
		return HeldTotals{}, damaged(bucketHeld, errDamaged)
	}
	return HeldTotals{
		Count: int(binary.BigEndian.Uint32(v[1:5])),
		Local: int(binary.BigEndian.Uint32(v[5:9])),
		Bytes: int64(binary.BigEndian.Uint64(v[9:17])),
	}, nil
}
