package migrations

import (
	"bytes"
	"encoding/binary"
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
	// Behind is how many messages stood behind the batch that had never been
	// taken.
	Behind int `json:"behind,omitempty"`
}

var (
	bucketQueues = []byte("queues") // queue → progress
	bucketIDs    = []byte("ids")    // queue's own message id → queue and entry of its first
	bucketMoved  = []byte("moved")  // queue, 0, number → entry: all that was numbered
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
		for _, name := range [][]byte{bucketQueues, bucketIDs, bucketMoved} {
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

// past is what earlier runs numbered of a queue, in its order: what they moved,
// which a broker that is killed may hand out again because it lost the acks of
// it, and behind that what they may not have moved.
type past struct {
	all    []entry
	open   map[uint64]bool // numbers of those that may not have been moved
	behind int             // how many more lay in the queue then
	found  bool            // where it goes on is known: at all[0], if nobody else published between
}

func (j *Journal) past(queue string) (p past, err error) {
	p.open = map[uint64]bool{}
	err = j.db.View(func(tx *bolt.Tx) error {
		var last progress
		if err := read(tx, queue, &last); err != nil {
			return err
		}
		p.behind = last.Behind
		now := map[uint64]entry{}
		for _, e := range last.Batch {
			now[e.Number], p.open[e.Number] = e, true
		}
		c := tx.Bucket(bucketMoved).Cursor()
		for k, v := c.Seek(movedKey(queue, 0)); k != nil && bytes.HasPrefix(k, movedKey(queue, 0)[:len(queue)+1]); k, v = c.Next() {
			var e entry
			if err := json.Unmarshal(v, &e); err != nil {
				return fmt.Errorf("the record of a message of %s: %w", queue, err)
			}
			if newer, ok := now[e.Number]; ok {
				e = newer
				delete(now, e.Number)
			}
			p.all = append(p.all, e)
		}
		for _, e := range last.Batch { // what an older version numbered stands only here
			if _, left := now[e.Number]; left {
				p.all = append(p.all, e)
			}
		}
		return nil
	})
	if err != nil {
		return p, journalFault(err)
	}
	return p, nil
}

func movedKey(queue string, number uint64) []byte {
	return binary.BigEndian.AppendUint64(append([]byte(queue), 0), number)
}

// forget drops what is known of a queue that is no more, but for its numbers.
func (j *Journal) forget(queue string) error {
	err := j.db.Update(func(tx *bolt.Tx) error {
		c := tx.Bucket(bucketMoved).Cursor()
		prefix := movedKey(queue, 0)[:len(queue)+1]
		for k, _ := c.Seek(prefix); k != nil && bytes.HasPrefix(k, prefix); k, _ = c.Seek(prefix) {
			if err := c.Delete(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return journalFault(err)
	}
	return nil
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
// behind is how many messages that were never taken stand behind it.
func (j *Journal) number(queue string, known []entry, fresh []Old, behind int, from, to string, ts int64) (all []entry, err error) {
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
			text, err := json.Marshal(e)
			if err != nil {
				return err
			}
			if err := tx.Bucket(bucketMoved).Put(movedKey(queue, e.Number), text); err != nil {
				return err
			}
		}
		for i := range all {
			if ts-all[i].TS > stale.Milliseconds() {
				all[i].TS = ts
			}
		}
		p.Batch, p.Behind = all, behind
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

// recall returns what of batch, which stands at the head of a queue of that many
// messages, earlier runs numbered. Acks are given in the order of the queue, so
// what stands there again is an end of all that they numbered; how long an end,
// say the length of the queue and the broker's mark on what was taken before.
func (p *past) recall(batch []Old, ready int, now time.Time) (known []entry) {
	if p.found && p.fits(0, batch, now) {
		return p.cut(0, batch)
	}
	marked := 0
	for marked < len(batch) && batch[marked].Redelivered {
		marked++
	}
	from := len(p.all) - max(0, ready-p.behind)
	if 0 < marked && marked < len(batch) {
		from = max(from, len(p.all)-marked)
	}
	for from = max(from, 0); from < len(p.all); from++ {
		if p.fits(from, batch, now) {
			return p.cut(from, batch)
		}
	}
	return nil
}

// fits reports whether batch can be all[from:], as far as both go.
func (p *past) fits(from int, batch []Old, now time.Time) bool {
	for i, e := range p.all[from:] {
		if i == len(batch) {
			break
		}
		taken := batch[i].Redelivered || p.open[e.Number] && now.Sub(time.UnixMilli(e.TS)) <= unmarked
		if batch[i].hash() != e.Hash || !taken {
			return false
		}
	}
	return len(batch) > 0
}

// cut takes what batch is out of all, and what stands before it.
func (p *past) cut(from int, batch []Old) []entry {
	n := min(len(p.all)-from, len(batch))
	known := p.all[from : from+n]
	p.all, p.found = p.all[from+n:], n > 0
	return known
}
