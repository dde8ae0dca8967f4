package store

import (
	"encoding/binary"
	"encoding/hex"
	"time"
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

// putEvent writes ev into the bucket of its hour.
func (tx *Tx) putEvent(ev Event) error {
	b, err := tx.bucket(bucketTrace)
	if err != nil {
		return err
	}
	key, err := traceKey(ev.TraceID)
	if err != nil {
		return err
	}
	hour, err := hourOf(ev.At)
	if err != nil {
		return err
	}
	slot, err := tx.slot(b, hour, true)
	if err != nil {
		return err
	}
	slot.FillPercent = orderedFill
	seq, err := tx.sequence(slot, 0)
	if err != nil {
		return err
	}
	key = append(key, millisKey(ev.At)...)
	return tx.put(slot, append(key, u32(uint32(seq))...), encodeEvent(ev))
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
	for hour, _ := c.First(); hour != nil; hour, _ = c.Next() {
		slot := b.Bucket(hour)
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
	return events, nil
}

// PruneTrace drops the hours that ended more than seven days before now, each
// as a whole.
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
