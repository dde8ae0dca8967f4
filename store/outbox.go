package store

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"time"

	"fleetd/fault"

	bolt "go.etcd.io/bbolt"
)

// The outbox bucket has four parts. Bodies lie apart, so that a change of
// state does not write them again; the two indexes spare the boot and the
// sweeper a scan of a day of ended intents.
const (
	outboxIntents = "intents" // msgId → Intent without body, its place in an index first
	outboxBodies  = "bodies"  // msgId → body
	outboxOpen    = "open"    // seq → msgId, of intents that are not ended
	outboxEnded   = "ended"   // EndedAt+msgId, of those that are
)

// IntentState is how far an Intent came.
type IntentState string

// The states of an Intent (design §5).
const (
	IntentIntended IntentState = "intended"
	IntentInDoubt  IntentState = "in_doubt"
	IntentAccepted IntentState = "accepted"
	IntentDeferred IntentState = "deferred"
	IntentEnded    IntentState = "ended"
)

// End is how an Intent ended as far as its sender knows or was told. Accepted
// and refused are the broker's word, the next four the recipient's.
type End string

// The ends of an Intent (design §5).
const (
	EndAccepted  End = "accepted" // nothing more will be heard of it
	EndRefused   End = "refused"  // nothing can arrive: the same id may be tried again
	EndInjected  End = "injected"
	EndReplied   End = "replied"
	EndAbandoned End = "abandoned"
	EndFailed    End = "failed"
	EndVerdict   End = "verdict" // EXPIRED, IN_DOUBT or a dead letter, said by this gateway
	EndDead      End = "dead"    // not yet: a dead letter was seen, and its recipient is asked
)

// Injected reports whether the recipient got it: only what was injected is
// answered or abandoned.
func (e End) Injected() bool { return e == EndInjected || e == EndReplied || e == EndAbandoned }

// Failed reports whether the sender was told that it did not arrive.
func (e End) Failed() bool { return e == EndFailed || e.Ours() }

// Ours reports whether this gateway came to it by itself, which what the
// recipient says may correct.
func (e End) Ours() bool { return e == EndVerdict || e == EndRefused }

// Known reports whether the sender knows what became of it: more about it is a
// correction.
func (e End) Known() bool { return e.Injected() || e.Failed() }

// Intent is a message that leaves for another host: what it says, how far it
// came and what became of it (design §5).
type Intent struct {
	MsgID         string
	Of            string `json:",omitempty"` // of one recipient's share of a broadcast: the broadcast; MsgID is derived then
	TraceID       string
	Kind          string
	From          string
	To            string // gid or broadcast key
	ToHost        string
	ToName        string
	ToKind        EntityKind
	InReplyTo     string `json:",omitempty"`
	Reason        string `json:",omitempty"`
	Hops          int    `json:",omitempty"`
	TS            int64  // Unix ms
	ExpiresAt     int64  // Unix ms
	State         IntentState
	Outcome       End         `json:",omitempty"` // once there is one
	OutcomeReason string      `json:",omitempty"`
	Seq           uint64      // order of leaving; PutIntent assigns it
	Body          []byte      `json:"-"`
	Recipients    []Recipient `json:",omitempty"` // of a broadcast
	Key           string      `json:",omitempty"` // idempotency key, if the caller gave one
	EndedAt       int64       `json:",omitempty"` // Unix ms, 0 while open
	NextQuery     int64       `json:",omitempty"` // Unix ms
	Queries       int         `json:",omitempty"`
	Told          bool        `json:",omitempty"` // an end was told before: that nobody knows is no news
}

// Recipient is one entry of an Intent that several entities receive.
type Recipient struct {
	GID  string
	Host string
	Name string
}

// outboxBuckets holds the four parts while an intent is changed.
type outboxBuckets struct{ intents, bodies, open, ended *bolt.Bucket }

func (tx *Tx) outbox() (o outboxBuckets, err error) {
	if tx.outboxParts.intents != nil {
		return tx.outboxParts, nil
	}
	for name, part := range map[string]**bolt.Bucket{
		outboxIntents: &o.intents, outboxBodies: &o.bodies,
		outboxOpen: &o.open, outboxEnded: &o.ended,
	} {
		if *part, err = tx.ordered(bucketOutbox, name); err != nil {
			return o, err
		}
	}
	tx.outboxParts = o
	return o, nil
}

// intentHead is the fixed part of an intent's value: version, then what its
// index entry is made of: 1 if it is ended, Seq, EndedAt. JSON follows.
const intentHead = 1 + 1 + 8 + 8

func encodeIntent(in Intent) ([]byte, error) {
	js, err := json.Marshal(in)
	if err != nil {
		return nil, fault.Wrap(err, fault.Internal, "a record could not be encoded for the store; see the log")
	}
	v := append(make([]byte, 0, intentHead+len(js)), recordVersion, 0)
	if in.State == IntentEnded {
		v[1] = 1
	}
	v = append(append(v, u64(in.Seq)...), millisKey(in.EndedAt)...)
	return append(v, js...), nil
}

func decodeIntent(v []byte) (in Intent, err error) {
	if len(v) < intentHead || v[0] != recordVersion {
		return in, short(bucketOutbox, len(v), intentHead)
	}
	if err := json.Unmarshal(v[intentHead:], &in); err != nil {
		return in, damaged(bucketOutbox, err)
	}
	return in, nil
}

// PutIntent stores in under its MsgID, new or not. A Seq of 0 keeps the stored
// number; a new intent gets the next. A nil Body leaves the stored body as it
// is (DropBody removes it), an equal one is not written again.
func (tx *Tx) PutIntent(in Intent) error {
	o, err := tx.outbox()
	if err != nil {
		return err
	}
	id, err := idKey("message id", in.MsgID)
	if err != nil {
		return err
	}
	seq, known, err := tx.unindex(o, id)
	if err != nil {
		return err
	}
	if in.Seq == 0 {
		in.Seq = seq
	}
	if in.Seq, err = tx.sequence(o.intents, in.Seq); err != nil {
		return err
	}
	value, err := encodeIntent(in)
	if err != nil {
		return err
	}
	if err := tx.put(o.intents, id, value); err != nil {
		return err
	}
	if err := tx.putBody(o.bodies, id, in.Body, known); err != nil {
		return err
	}
	return tx.index(o, id, in)
}

func (tx *Tx) putBody(bodies *bolt.Bucket, id, body []byte, known bool) error {
	if body == nil {
		return nil
	}
	if known {
		if v := bodies.Get(id); len(v) > 0 && v[0] == recordVersion && bytes.Equal(v[1:], body) {
			return nil
		}
	}
	return tx.put(bodies, id, append([]byte{recordVersion}, body...))
}

func endedKey(endedAt int64, id []byte) []byte { return append(millisKey(endedAt), id...) }

func (tx *Tx) index(o outboxBuckets, id []byte, in Intent) error {
	if in.State == IntentEnded {
		return tx.put(o.ended, endedKey(in.EndedAt, id), present)
	}
	return tx.put(o.open, u64(in.Seq), append([]byte{recordVersion}, id...))
}

// unindex removes the index entry of the stored intent, if there is one, and
// returns its Seq.
func (tx *Tx) unindex(o outboxBuckets, id []byte) (seq uint64, known bool, err error) {
	v := o.intents.Get(id)
	if v == nil {
		return 0, false, nil
	}
	if len(v) < intentHead {
		return 0, true, short(bucketOutbox, len(v), intentHead)
	}
	seq = binary.BigEndian.Uint64(v[2:10])
	if v[1] == 1 {
		_, err = tx.delete(o.ended, append(clone(v[10:intentHead]), id...))
	} else {
		_, err = tx.delete(o.open, u64(seq))
	}
	return seq, true, err
}

// Intent returns the intent of msgID with its body, if that is still stored.
func (tx *Tx) Intent(msgID string) (Intent, bool, error) {
	o, err := tx.outbox()
	if err != nil {
		return Intent{}, false, err
	}
	id, err := idKey("message id", msgID)
	if err != nil {
		return Intent{}, false, err
	}
	return o.load(id)
}

func (o outboxBuckets) load(id []byte) (in Intent, ok bool, err error) {
	v := o.intents.Get(id)
	if v == nil {
		return in, false, nil
	}
	if in, err = decodeIntent(v); err != nil {
		return in, false, err
	}
	if body := o.bodies.Get(id); body != nil {
		in.Body = append([]byte{}, body[1:]...) // not nil: an empty body is one
	}
	return in, true, nil
}

// DropBody forgets the body of msgID; neither need exist. Putting an Intent
// that still carries the Body stores it again.
func (tx *Tx) DropBody(msgID string) error {
	o, err := tx.outbox()
	if err != nil {
		return err
	}
	id, err := idKey("message id", msgID)
	if err != nil {
		return err
	}
	_, err = tx.delete(o.bodies, id)
	return err
}

// DeleteIntent forgets msgID and its body; it need not exist.
func (tx *Tx) DeleteIntent(msgID string) error {
	o, err := tx.outbox()
	if err != nil {
		return err
	}
	id, err := idKey("message id", msgID)
	if err != nil {
		return err
	}
	if _, known, err := tx.unindex(o, id); err != nil || !known {
		return err
	}
	return tx.deleteEach(id, o.intents, o.bodies)
}

func (tx *Tx) deleteEach(key []byte, buckets ...*bolt.Bucket) error {
	for _, b := range buckets {
		if _, err := tx.delete(b, key); err != nil {
			return err
		}
	}
	return nil
}

// OpenIntents returns the intents that are not ended, in order of Seq, with
// the bodies that are still stored.
func (tx *Tx) OpenIntents() ([]Intent, error) {
	o, err := tx.outbox()
	if err != nil {
		return nil, err
	}
	var all []Intent
	err = o.open.ForEach(func(_, v []byte) error {
		if len(v) != 1+idLen {
			return short(bucketOutbox, len(v), 1+idLen)
		}
		in, ok, err := o.load(v[1:])
		if ok {
			all = append(all, in)
		}
		return err
	})
	return all, err
}

// EndedBefore returns the intents that ended before t, oldest first and
// without bodies.
func (tx *Tx) EndedBefore(t time.Time) ([]Intent, error) {
	o, err := tx.outbox()
	if err != nil {
		return nil, err
	}
	var all []Intent
	c := o.ended.Cursor()
	for k, _ := c.First(); k != nil; k, _ = c.Next() {
		if len(k) != 8+idLen {
			return nil, short(bucketOutbox, len(k), 8+idLen)
		}
		if int64(binary.BigEndian.Uint64(k[:8])) >= t.UnixMilli() {
			break
		}
		in, err := decodeIntent(o.intents.Get(k[8:]))
		if err != nil {
			return nil, err
		}
		all = append(all, in)
	}
	return all, nil
}
