package store

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"math"
	"slices"

	"fleetd/fault"

	bolt "go.etcd.io/bbolt"
)

// The held bucket has four parts. Local mail lies apart from the index of the
// broker's, since there can be much of it and nobody wants all at once; bodies
// lie apart, so that neither listing nor changing an entry touches them.
const (
	heldIndex  = "index"  // gid+seq → Held of mail that the broker keeps
	heldLocal  = "local"  // gid+seq → Held of local mail, without body
	heldBodies = "bodies" // gid+seq → body, of local mail
	heldCounts = "counts" // gid → localCount
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
	InReplyTo string
	Reason    string
	TurnID    string
	Hops      int
	TS        int64 // signed time, Unix ms
	ExpiresAt int64 // Unix ms
	At        int64 // of arrival, Unix ms
	Local     bool  // never touched the broker
	Offered   bool  // was handed to a client that may not have got it
	Size      int   // of the body in bytes, also where it is not stored
	Cost      int   // about what it takes of a client's result, in bytes
	// How often a main was told that mail of this sender waits, and when last, in
	// Unix ms; on one message of each sender.
	Announced   int      `json:",omitempty"`
	AnnouncedAt int64    `json:",omitempty"`
	BodyHash    [32]byte `json:"-"`
	Body        []byte   `json:"-"`
}

// heldHead is the fixed part of an entry's value: version, BodyHash; JSON
// follows.
const heldHead = 1 + 32

// heldBuckets holds the four parts while an entry is read or changed.
type heldBuckets struct{ index, local, bodies, counts *bolt.Bucket }

func (tx *Tx) held() (o heldBuckets, err error) {
	if tx.heldParts.index != nil {
		return tx.heldParts, nil
	}
	for name, part := range map[string]**bolt.Bucket{
		heldIndex: &o.index, heldLocal: &o.local, heldBodies: &o.bodies, heldCounts: &o.counts,
	} {
		if *part, err = tx.ordered(bucketHeld, name); err != nil {
			return o, err
		}
	}
	tx.heldParts = o
	return o, nil
}

// PutHeld stores h. One with Seq 0 is new and gets the next number, else the
// record of that Seq is replaced. A nil Body leaves the stored one as it is.
func (tx *Tx) PutHeld(h Held) error {
	o, err := tx.held()
	if err != nil {
		return err
	}
	if _, err := idKey("gid", h.GID); err != nil {
		return err
	}
	if h.Seq, err = tx.sequence(o.index, h.Seq); err != nil {
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
	value := append(append([]byte{recordVersion}, h.BodyHash[:]...), js...)
	if !h.Local {
		return tx.put(o.index, key, value)
	}
	if _, err := tx.delete(o.index, key); err != nil {
		return err
	}
	if o.local.Get(key) == nil {
		if err := tx.countLocal(o, key[:idLen], 1, h.ExpiresAt); err != nil {
			return err
		}
	}
	if err := tx.put(o.local, key, value); err != nil || h.Body == nil {
		return err
	}
	return tx.put(o.bodies, key, append([]byte{recordVersion}, h.Body...))
}

// localCount says how much local mail a recipient has, and since when there may
// be some that has expired: who only waits for that time need not read it all.
type localCount struct {
	n      int
	expiry int64 // nothing expires before, Unix ms; 0: nothing does at all
}

// countVersion is the first byte of a localCount; up to schema 1 they had no
// expiry.
const countVersion = 2

// countLocal adds n to the number of entries of local mail of the gid id.
func (tx *Tx) countLocal(o heldBuckets, id []byte, n int, expiry int64) error {
	c, err := decodeCount(o.counts.Get(id))
	if err != nil {
		return err
	}
	if c.n += n; c.n <= 0 {
		_, err := tx.delete(o.counts, id)
		return err
	}
	c.expiry = Sooner(c.expiry, expiry)
	return tx.put(o.counts, clone(id), c.encode())
}

// Sooner is the earlier of two times of which 0 is never.
func Sooner(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

func (c localCount) encode() []byte {
	return append(append([]byte{countVersion}, u32(uint32(c.n))...), u64(uint64(c.expiry))...)
}

func decodeCount(v []byte) (c localCount, err error) {
	switch {
	case v == nil:
		return c, nil
	case len(v) != 1+4+8 || v[0] != countVersion:
		return c, damaged(bucketHeld, errDamaged)
	}
	return localCount{int(binary.BigEndian.Uint32(v[1:])), int64(binary.BigEndian.Uint64(v[5:]))}, nil
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

// HeldIndex returns what is held for gid in order of Seq, without bodies.
func (tx *Tx) HeldIndex(gid string) ([]Held, error) {
	all, err := tx.HeldOnBroker(gid)
	if err != nil {
		return nil, err
	}
	local, err := tx.HeldLocal(gid, 0, math.MaxInt)
	all = append(all, local...)
	slices.SortFunc(all, func(a, b Held) int { return cmp.Compare(a.Seq, b.Seq) })
	return all, err
}

// HeldOnBroker returns the index of mail for gid that the broker keeps, in order
// of Seq.
func (tx *Tx) HeldOnBroker(gid string) ([]Held, error) {
	o, err := tx.held()
	if err != nil {
		return nil, err
	}
	return heldAfter(o.index, gid, 0, math.MaxInt)
}

// HeldLocal returns up to most entries of local mail for gid whose Seq is above
// after, in order of Seq and without bodies.
func (tx *Tx) HeldLocal(gid string, after uint64, most int) ([]Held, error) {
	o, err := tx.held()
	if err != nil {
		return nil, err
	}
	return heldAfter(o.local, gid, after, most)
}

func heldAfter(b *bolt.Bucket, gid string, after uint64, most int) (all []Held, err error) {
	first, err := seqKey(gid, after+1)
	if err != nil {
		return nil, err
	}
	c := b.Cursor()
	for k, v := c.Seek(first); len(all) < most && bytes.HasPrefix(k, first[:idLen]); k, v = c.Next() {
		h, err := decodeHeld(v)
		if err != nil {
			return nil, err
		}
		all = append(all, h)
	}
	return all, nil
}

// CountLocal returns how many entries of local mail gid has, and the time (Unix
// ms) before which none of them expires: a bound, not always the first expiry;
// 0 if none expires at all.
func (tx *Tx) CountLocal(gid string) (n int, expiry int64, err error) {
	o, err := tx.held()
	if err != nil {
		return 0, 0, err
	}
	id, err := idKey("gid", gid)
	if err != nil {
		return 0, 0, err
	}
	c, err := decodeCount(o.counts.Get(id))
	return c.n, c.expiry, err
}

// RaiseLocalExpiry sets the bound of CountLocal to what the caller read: expiry,
// of all entries of local mail for gid up to the one with Seq last.
func (tx *Tx) RaiseLocalExpiry(gid string, last uint64, expiry int64) error {
	since, err := tx.HeldLocal(gid, last, math.MaxInt)
	if err != nil {
		return err
	}
	for _, h := range since {
		expiry = Sooner(expiry, h.ExpiresAt)
	}
	o, err := tx.held()
	if err != nil {
		return err
	}
	id, err := idKey("gid", gid)
	if err != nil {
		return err
	}
	c, err := decodeCount(o.counts.Get(id))
	if err != nil || c.n == 0 || c.expiry == expiry {
		return err
	}
	c.expiry = expiry
	return tx.put(o.counts, clone(id), c.encode())
}

// LastHeld returns the highest Seq that any entry had.
func (tx *Tx) LastHeld() (uint64, error) {
	o, err := tx.held()
	if err != nil {
		return 0, err
	}
	return o.index.Sequence(), nil
}

// HeldEntry returns one entry with its body.
func (tx *Tx) HeldEntry(gid string, seq uint64) (Held, bool, error) {
	o, err := tx.held()
	if err != nil {
		return Held{}, false, err
	}
	key, err := seqKey(gid, seq)
	if err != nil {
		return Held{}, false, err
	}
	v := o.local.Get(key)
	if v == nil {
		v = o.index.Get(key)
	}
	if v == nil {
		return Held{}, false, nil
	}
	h, err := decodeHeld(v)
	if err != nil {
		return Held{}, false, err
	}
	if body := o.bodies.Get(key); body != nil {
		h.Body = clone(body[1:])
	}
	return h, true, nil
}

// HasLocal reports whether there is an entry of local mail.
func (tx *Tx) HasLocal(gid string, seq uint64) (bool, error) {
	o, err := tx.held()
	if err != nil {
		return false, err
	}
	key, err := seqKey(gid, seq)
	return err == nil && o.local.Get(key) != nil, err
}

// DeleteHeld forgets one entry, with its body if it is of local mail; it need
// not exist.
func (tx *Tx) DeleteHeld(gid string, seq uint64) error {
	o, err := tx.held()
	if err != nil {
		return err
	}
	key, err := seqKey(gid, seq)
	if err != nil {
		return err
	}
	if _, err := tx.delete(o.index, key); err != nil {
		return err
	}
	if was, err := tx.delete(o.local, key); !was || err != nil {
		return err
	}
	if err := tx.countLocal(o, key[:idLen], -1, 0); err != nil {
		return err
	}
	_, err = tx.delete(o.bodies, key)
	return err
}
