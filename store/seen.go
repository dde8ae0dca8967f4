package store

import (
	"encoding/binary"
	"fmt"
	"time"

	"fleetd/fault"

	bolt "go.etcd.io/bbolt"
)

// seenDays is how many whole days of the seen-set are kept: the horizon of 8
// days (design §4) and the day that is running.
const seenDays = 9

const dayMillis = 24 * 60 * 60 * 1000

// Outcome is what became of a message at its recipient (design §1).
type Outcome string

// The outcomes of a message. What is held for a client is waiting, too.
const (
	Waiting   Outcome = "waiting"
	Injecting Outcome = "injecting"
	Injected  Outcome = "injected"
	Drained   Outcome = "drained" // its client has fetched it
	Failed    Outcome = "failed"
)

// Arrived reports whether its recipient has the message.
func (o Outcome) Arrived() bool { return o == Injected || o == Drained }

// Seen is what became of a message at one local recipient (design §6).
type Seen struct {
	Outcome  Outcome
	Reason   string // error code, of a failure
	BodyHash [32]byte
	Boot     uint64 // boot epoch of the gateway that recorded it
	Host     string // that signed the message; only it may ask (design §5)
}

// seenHead is the fixed part of a Seen's value: version, Boot, BodyHash,
// lengths of Outcome and Host.
const seenHead = 1 + 8 + 32 + 1 + 1

// dayOf returns the number of the day of a signed time. The signed time, not
// the arrival, decides: a replay then meets its own bucket (library fact §2).
func dayOf(ts int64) (uint32, error) {
	if ts < 0 || ts/dayMillis > int64(^uint32(0)) {
		return 0, bad("time in Unix milliseconds", fmt.Sprint(ts), nil)
	}
	return uint32(ts / dayMillis), nil
}

// PutSeen records what became of msgID at gid. ts is the signed time of the
// envelope, Unix ms.
func (tx *Tx) PutSeen(ts int64, msgID, gid string, s Seen) error {
	b, err := tx.bucket(bucketSeen)
	if err != nil {
		return err
	}
	day, err := dayOf(ts)
	if err != nil {
		return err
	}
	key, err := pairKey("message id", msgID, "gid", gid)
	if err != nil {
		return err
	}
	if len(s.Outcome) > 255 || len(s.Host) > 255 {
		return fault.New(fault.Internal, "the outcome or the host of a message is too long to be stored; see the log")
	}
	slot, err := tx.slot(b, day, true)
	if err != nil {
		return err
	}
	slot.FillPercent = looseFill
	return tx.put(slot, key, encodeSeen(s))
}

func encodeSeen(s Seen) []byte {
	v := make([]byte, 0, seenHead+len(s.Outcome)+len(s.Host)+len(s.Reason))
	v = append(v, recordVersion)
	v = binary.BigEndian.AppendUint64(v, s.Boot)
	v = append(v, s.BodyHash[:]...)
	v = append(v, byte(len(s.Outcome)), byte(len(s.Host)))
	v = append(v, s.Outcome...)
	v = append(v, s.Host...)
	return append(v, s.Reason...)
}

func decodeSeen(v []byte) (Seen, error) {
	if len(v) < seenHead || v[0] != recordVersion {
		return Seen{}, short(bucketSeen, len(v), seenHead)
	}
	s := Seen{Boot: binary.BigEndian.Uint64(v[1:9])}
	copy(s.BodyHash[:], v[9:41])
	n, m, rest := int(v[41]), int(v[42]), v[seenHead:]
	if len(rest) < n+m {
		return Seen{}, short(bucketSeen, len(rest), n+m)
	}
	s.Outcome, s.Host, s.Reason = Outcome(rest[:n]), string(rest[n:n+m]), string(rest[n+m:])
	return s, nil
}

// SeenOf returns what became of msgID at gid, looking only into the day of
// ts, the signed time of the envelope.
func (tx *Tx) SeenOf(ts int64, msgID, gid string) (Seen, bool, error) {
	b, err := tx.bucket(bucketSeen)
	if err != nil {
		return Seen{}, false, err
	}
	day, err := dayOf(ts)
	if err != nil {
		return Seen{}, false, err
	}
	key, err := pairKey("message id", msgID, "gid", gid)
	if err != nil {
		return Seen{}, false, err
	}
	slot, err := tx.slot(b, day, false)
	if err != nil || slot == nil {
		return Seen{}, false, err
	}
	return seenIn(slot, key)
}

// FindSeen returns what became of msgID at gid whatever its day, newest day
// first: a QUERY does not say when the message was signed.
func (tx *Tx) FindSeen(msgID, gid string) (Seen, bool, error) {
	b, err := tx.bucket(bucketSeen)
	if err != nil {
		return Seen{}, false, err
	}
	key, err := pairKey("message id", msgID, "gid", gid)
	if err != nil {
		return Seen{}, false, err
	}
	c := b.Cursor()
	for day, _ := c.Last(); day != nil; day, _ = c.Prev() {
		slot := b.Bucket(day)
		if slot == nil {
			continue
		}
		if s, ok, err := seenIn(slot, key); ok || err != nil {
			return s, ok, err
		}
	}
	return Seen{}, false, nil
}

func seenIn(slot *bolt.Bucket, key []byte) (Seen, bool, error) {
	v := slot.Get(key)
	if v == nil {
		return Seen{}, false, nil
	}
	s, err := decodeSeen(v)
	return s, err == nil, err
}

// PruneSeen drops the days that ended more than nine days before now, each as
// a whole.
func (tx *Tx) PruneSeen(now time.Time) error {
	b, err := tx.bucket(bucketSeen)
	if err != nil {
		return err
	}
	today, err := dayOf(now.UnixMilli())
	if err != nil || today < seenDays {
		return err
	}
	return tx.dropSlots(b, today-seenDays)
}
