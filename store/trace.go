package store

import (
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
	return tx.putRecord(slot, append(key, u32(uint32(seq))...), ev)
}

func hourOf(ms int64) (uint32, error) {
	if _, err := dayOf(ms); err != nil {
		return 0, err
	}
	return uint32(ms / hourMillis), nil
}

// TraceOf returns the events of traceID in the order of their times, as far as
// they are committed: at most a second late.
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
		err := prefixed(slot, key, func(_, v []byte) error {
			var ev Event
			err := decode(bucketTrace, v, &ev)
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
