package store

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"
)

// traceLife is how long trace events are kept.
const traceLife = 7 * 24 * time.Hour

const hourMillis = 60 * 60 * 1000

// Event is one step of a message on its way through this gateway. It never
// holds a body.
type Event struct {
	TraceID string // 32 lower-case hex digits
	MsgID   string
	Kind    string
	Step    string
	Host    string
	Entity  string
	Peer    string
	Outcome string
	Reason  string
	At      int64 // Unix ms
}

// partEvents is how many events fill a part of an hour. Keys lie all over
// their bucket, so that in a large one each event costs a page of its own;
// a part is as large as what a busy gateway commits at once.
const partEvents = eventBatch

// tracePart is a part of an hour.
type tracePart struct {
	hour   uint32
	bucket *bolt.Bucket
}

// partLen is the length of the name of a part: hour, number within it. The
// first part bears the hour alone, which is all that older files have.
const partLen = 4 + 4

// putEvent writes ev into the latest part of its hour.
func (tx *Tx) putEvent(ev Event) error {
	key, err := traceKey(ev.TraceID)
	if err != nil {
		return err
	}
	hour, err := hourOf(ev.At)
	if err != nil {
		return err
	}
	slot, err := tx.tracePart(hour)
	if err != nil {
		return err
	}
	seq, err := tx.sequence(slot, 0)
	if err != nil {
		return err
	}
	key = append(key, millisKey(ev.At)...)
	return tx.put(slot, append(key, u32(uint32(seq))...), encodeEvent(ev))
}

// tracePart returns the part of an hour that takes the next event.
func (tx *Tx) tracePart(hour uint32) (*bolt.Bucket, error) {
	if p := tx.part; p.bucket != nil && p.hour == hour && p.bucket.Sequence() < partEvents {
		return p.bucket, nil
	}
	b, err := tx.bucket(bucketTrace)
	if err != nil {
		return nil, err
	}
	name := u32(hour)
	if last := lastPart(b, name); last != nil {
		name = last
		if b.Bucket(last).Sequence() >= partEvents {
			name = nextPart(last)
		}
	}
	slot, err := tx.named(b, name)
	if err != nil {
		return nil, err
	}
	slot.FillPercent = looseFill
	tx.part = tracePart{hour, slot}
	return slot, nil
}

// lastPart is the name of the latest part of hour, nil if there is none.
func lastPart(b *bolt.Bucket, hour []byte) []byte {
	c := b.Cursor()
	behind := append(hour[:4:4], bytes.Repeat([]byte{0xff}, partLen-4)...)
	k, _ := c.Seek(behind)
	if k == nil {
		k, _ = c.Last()
	} else {
		k, _ = c.Prev()
	}
	if !bytes.HasPrefix(k, hour) {
		return nil
	}
	return clone(k)
}

func nextPart(name []byte) []byte {
	n := uint32(1)
	if len(name) == partLen {
		n += binary.BigEndian.Uint32(name[4:])
	}
	return append(name[:4:4], u32(n)...)
}

// texts are what an event's value holds, in this order; the rest is its key.
func (ev *Event) texts() []*string {
	return []*string{&ev.MsgID, &ev.Kind, &ev.Step, &ev.Host, &ev.Entity, &ev.Peer, &ev.Outcome, &ev.Reason}
}

// encodeEvent writes the version byte, then each text behind its length.
func encodeEvent(ev Event) []byte {
	size := 1
	for _, text := range ev.texts() {
		size += 1 + len(*text)
	}
	v := append(make([]byte, 0, size), recordVersion)
	for _, text := range ev.texts() {
		v = append(binary.AppendUvarint(v, uint64(len(*text))), *text...)
	}
	return v
}

// eventKeyLen is the length of a key: trace id, time, sequence number.
const eventKeyLen = idLen + 8 + 4

func decodeEvent(k, v []byte) (ev Event, err error) {
	if len(k) != eventKeyLen || len(v) == 0 || v[0] != recordVersion {
		return ev, damaged(bucketTrace, errDamaged)
	}
	ev.TraceID = hex.EncodeToString(k[:idLen])
	ev.At = int64(binary.BigEndian.Uint64(k[idLen : idLen+8]))
	rest := v[1:]
	for _, text := range ev.texts() {
		n, width := binary.Uvarint(rest)
		if width <= 0 || n > uint64(len(rest)-width) {
			return ev, damaged(bucketTrace, errDamaged)
		}
		*text, rest = string(rest[width:width+int(n)]), rest[width+int(n):]
	}
	return ev, nil
}

func hourOf(ms int64) (uint32, error) {
	if _, err := dayOf(ms); err != nil {
		return 0, err
	}
	return uint32(ms / hourMillis), nil
}

// TraceOf returns the events of traceID in the order of their times, as far as
// they are committed: at most a second late (Flush commits all).
func (tx *Tx) TraceOf(traceID string) ([]Event, error) {
	b, err := tx.bucket(bucketTrace)
	if err != nil {
		return nil, err
	}
	key, err := traceKey(traceID)
	if err != nil {
		return nil, err
	}
	var events []Event
	c := b.Cursor()
	for part, _ := c.First(); part != nil; part, _ = c.Next() {
		slot := b.Bucket(part)
		if slot == nil {
			continue
		}
		err := prefixed(slot, key, func(k, v []byte) error {
			ev, err := decodeEvent(k, v)
			events = append(events, ev)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	// What was done first may have been handed in later, and lie in a later part.
	slices.SortStableFunc(events, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	return events, nil
}

// PruneTrace drops the hours that ended more than seven days before now, each
// part as a whole.
func (tx *Tx) PruneTrace(now time.Time) error {
	b, err := tx.bucket(bucketTrace)
	if err != nil {
		return err
	}
	first, err := hourOf(max(now.Add(-traceLife).UnixMilli(), 0))
	if err != nil {
		return err
	}
	return tx.dropSlots(b, first)
}
