package migrations

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"fleetd/fault"
)

// JournalFile is the name of the journal in the data directory.
const JournalFile = "migrate.db"

// Journal remembers which number and id each message got, before it is
// published: a run that was killed anywhere publishes the same letter again,
// byte for byte, and its recipient knows it. It is a file of its own, because
// the daemon holds the store while mail is moved. One process has it open.
type Journal struct{ db *bolt.DB }

// entry is the place of one message in the journal.
type entry struct {
	Number uint64 `json:"n"`
	Hash   string `json:"hash"`
	MsgID  string `json:"id"`
	TS     int64  `json:"ts"` // Unix milliseconds
	From   string `json:"from"`
	To     string `json:"to"`
	Copy   bool   `json:"copy,omitempty"` // an earlier message had its id and its content
}

// progress is the journal's word on one queue.
type progress struct {
	Next  uint64  `json:"next"`
	Batch []entry `json:"batch"` // in the order of the queue; some may have been moved
}

var (
	bucketQueues = []byte("queues") // queue → progress
	bucketIDs    = []byte("ids")    // queue's own message id → queue and entry of its first
)

// owner is who had an id first.
type owner struct {
	Queue string `json:"queue"`
	Entry entry  `json:"entry"`
}

// OpenJournal opens the file at path, making it if there is none. CONFLICT:
// another migration has it open.
func OpenJournal(path string) (*Journal, error) {
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: time.Second})
	if errors.Is(err, berrors.ErrTimeout) {
		return nil, fault.New(fault.Conflict, "another migration is under way: it holds %s; wait for its end", path)
	}
	if err != nil {
		return nil, journalFault(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		for _, name := range [][]byte{bucketQueues, bucketIDs} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, journalFault(errors.Join(err, db.Close()))
	}
	return &Journal{db}, nil
}

// Close closes the file.
func (j *Journal) Close() error { return j.db.Close() }

func journalFault(err error) error {
	return fault.Wrap(err, fault.StoreUnavailable, "the journal of the migration cannot be used; nothing was moved without it. Mend what the cause says and run this again")
}

// batch is what an earlier run numbered of queue and may not have moved.
func (j *Journal) batch(queue string) (p progress, err error) {
	err = j.db.View(func(tx *bolt.Tx) error { return read(tx, queue, &p) })
	if err != nil {
		return p, journalFault(err)
	}
	return p, nil
}

func read(tx *bolt.Tx, queue string, p *progress) error {
	if v := tx.Bucket(bucketQueues).Get([]byte(queue)); v != nil {
		if err := json.Unmarshal(v, p); err != nil {
			return fmt.Errorf("the record of %s: %w", queue, err)
		}
	}
	return nil
}

func put(tx *bolt.Tx, bucket []byte, key string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return tx.Bucket(bucket).Put([]byte(key), text)
}

// stale is how old the time of a letter may be that is published again: it must
// not arrive at the end of its life.
const stale = 3 * 24 * time.Hour

// number commits the batch that is about to be moved: known, which an earlier
// run numbered, and behind it fresh, each with the next number.
func (j *Journal) number(queue string, known []entry, fresh []Old, from, to string, ts int64) (all []entry, err error) {
	err = j.db.Update(func(tx *bolt.Tx) error {
		var p progress
		if err := read(tx, queue, &p); err != nil {
			return err
		}
		all = append([]entry{}, known...)
		for _, o := range fresh {
			e := entry{Number: p.Next, Hash: o.hash(), TS: ts, From: from, To: to}
			if err := identify(tx, queue, o, &e); err != nil {
				return err
			}
			p.Next++
			all = append(all, e)
		}
		for i := range all {
			if ts-all[i].TS > stale.Milliseconds() {
				all[i].TS = ts
			}
		}
		p.Batch = all
		return put(tx, bucketQueues, queue, p)
	})
	if err != nil {
		return nil, journalFault(err)
	}
	return all, nil
}

// identify gives a message its id: its own, unless another message has it.
func identify(tx *bolt.Tx, queue string, o Old, e *entry) error {
	id, ok := o.ownID()
	if !ok {
		e.MsgID = derivedID(queue, e.Number, e.Hash)
		return nil
	}
	if v := tx.Bucket(bucketIDs).Get([]byte(id)); v != nil {
		var first owner
		if err := json.Unmarshal(v, &first); err != nil {
			return fmt.Errorf("the record of id %s: %w", id, err)
		}
		if first.Queue != queue || first.Entry.Hash != e.Hash {
			e.MsgID = derivedID(queue, e.Number, e.Hash)
			return nil
		}
		// Published like the first, so that its recipient takes it for that one.
		number := e.Number
		*e = first.Entry
		e.Number, e.Copy = number, true
		return nil
	}
	e.MsgID = id
	return put(tx, bucketIDs, id, owner{queue, *e})
}

// done notes that nothing numbered of queue is left to move.
func (j *Journal) done(queue string) error {
	err := j.db.Update(func(tx *bolt.Tx) error {
		var p progress
		if err := read(tx, queue, &p); err != nil {
			return err
		}
		p.Batch = nil
		return put(tx, bucketQueues, queue, p)
	})
	if err != nil {
		return journalFault(err)
	}
	return nil
}

// unmarked is for how long a message is taken for one of an earlier run although
// the broker does not say that it was taken before. Later it is one more of the
// same content.
const unmarked = 10 * time.Minute

// again returns what of batch, which an earlier run numbered, lies at the head
// of the queue now: messages are acked in their order, so it is an end of it.
func again(batch []entry, head []Old, now time.Time) []entry {
	for from := range batch {
		rest := batch[from:]
		if len(rest) <= len(head) && same(rest, head, now) {
			return rest
		}
	}
	return nil
}

func same(entries []entry, head []Old, now time.Time) bool {
	for i, e := range entries {
		old := now.Sub(time.UnixMilli(e.TS)) > unmarked
		if head[i].hash() != e.Hash || old && !head[i].Redelivered {
			return false
		}
	}
	return true
}
