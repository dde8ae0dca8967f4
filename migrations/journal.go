package migrations

import (
	"bytes"
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

// Journal remembers how each message is sent, before it is, and that it was: a
// run that was broken off anywhere sends the same letters again, byte for byte,
// or none. Which message is which, the marks in the queues say, not the journal:
// without it a message still gets the id that it had. It is a file of its own,
// because the daemon holds the store while mail is moved. One process has it
// open.
type Journal struct{ db *bolt.DB }

// head is what the letters of one message say beside its content.
type head struct {
	ID    string `json:"id"`
	From  string `json:"from"`
	To    string `json:"to"`
	Limit int    `json:"limit"`
	TS    int64  `json:"ts"`             // Unix milliseconds
	Copy  bool   `json:"copy,omitempty"` // an earlier message had its id and its content
	Sent  bool   `json:"sent,omitempty"` // the broker has stored all its letters
}

// owner is who had an id first.
type owner struct {
	Queue string `json:"queue"`
	Key   string `json:"key"`
	Hash  string `json:"hash"`
	Head  head   `json:"head"`
}

// fate is what is known of a message that was about to be sent.
type fate int

const (
	untried fate = iota // none of its letters can have been stored
	inDoubt             // some may
	wasSent             // all are
)

var (
	bucketHands  = []byte("hands")  // queue → hand
	bucketHeads  = []byte("heads")  // queue, 0, mark, 0, key → head; of the mark itself no key and no head
	bucketOrders = []byte("orders") // queue, 0, mark, 0, hash → order
	bucketOwners = []byte("owners") // queue's own message id → owner
)

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
	j := &Journal{db}
	err = j.update(func(tx *bolt.Tx) error {
		for _, name := range [][]byte{bucketHands, bucketHeads, bucketOrders, bucketOwners} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return j, nil
}

// Close closes the file.
func (j *Journal) Close() error { return j.db.Close() }

func (j *Journal) update(change func(*bolt.Tx) error) error {
	if err := j.db.Update(change); err != nil {
		return journalFault(err)
	}
	return nil
}

func journalFault(err error) error {
	return fault.Wrap(err, fault.StoreUnavailable, "the journal of the migration cannot be used; nothing was moved without it. Mend what the cause says and run this again")
}

func get(tx *bolt.Tx, bucket []byte, key string, v any) (found bool, err error) {
	text := tx.Bucket(bucket).Get([]byte(key))
	if text == nil {
		return false, nil
	}
	if err := json.Unmarshal(text, v); err != nil {
		return false, fmt.Errorf("the record of %q in %s: %w", key, bucket, err)
	}
	return true, nil
}

func put(tx *bolt.Tx, bucket []byte, key string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return tx.Bucket(bucket).Put([]byte(key), text)
}

func headKey(queue, mark, key string) string { return queue + "\x00" + mark + "\x00" + key }

// hand is what a run took from a queue and does not know to be out of it or
// back: of a run that was cut off, the broker may hold it still.
type hand struct {
	Keys []string `json:"keys,omitempty"` // or about to be put there
	All  int      `json:"all,omitempty"`  // the whole queue, in which so many lay; 0 when it is not looked through
}

// UnmarshalJSON also reads the list of keys that the first journals had.
func (h *hand) UnmarshalJSON(text []byte) error {
	if bytes.HasPrefix(text, []byte("[")) {
		return json.Unmarshal(text, &h.Keys)
	}
	type fields hand
	return json.Unmarshal(text, (*fields)(h))
}

func (j *Journal) hand(queue string) (h hand, err error) {
	err = j.db.View(func(tx *bolt.Tx) error {
		_, err := get(tx, bucketHands, queue, &h)
		return err
	})
	if err != nil {
		return hand{}, journalFault(err)
	}
	return h, nil
}

func (j *Journal) holding(queue string, h hand) error {
	return j.update(func(tx *bolt.Tx) error { return put(tx, bucketHands, queue, h) })
}

// marking notes that mark is about to be put into queue, and what is in hand.
func (j *Journal) marking(queue, mark string, h hand) error {
	return j.update(func(tx *bolt.Tx) error {
		return errors.Join(put(tx, bucketHeads, headKey(queue, mark, ""), head{}), put(tx, bucketHands, queue, h))
	})
}

// knows reports whether mark is this journal's: it says which of the messages
// before it were sent, or about to be.
func (j *Journal) knows(queue, mark string) (known bool, err error) {
	err = j.db.View(func(tx *bolt.Tx) error {
		prefix := []byte(headKey(queue, mark, ""))
		k, _ := tx.Bucket(bucketHeads).Cursor().Seek(prefix)
		known = bytes.HasPrefix(k, prefix)
		return nil
	})
	if err != nil {
		return false, journalFault(err)
	}
	return known, nil
}

// orders are those of the equals in queue that were numbered anew.
func (j *Journal) orders(queue string) (map[equals]order, error) {
	all := map[equals]order{}
	err := j.db.View(func(tx *bolt.Tx) error {
		prefix := []byte(queue + "\x00")
		c := tx.Bucket(bucketOrders).Cursor()
		for k, _ := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, _ = c.Next() {
			mark, hash, _ := bytes.Cut(k[len(prefix):], []byte{0})
			var o order
			if _, err := get(tx, bucketOrders, string(k), &o); err != nil {
				return err
			}
			all[equals{string(mark), string(hash)}] = o
		}
		return nil
	})
	if err != nil {
		return nil, journalFault(err)
	}
	return all, nil
}

// reorder notes how equals in queue are numbered anew.
func (j *Journal) reorder(queue string, anew map[equals]order) error {
	return j.update(func(tx *bolt.Tx) error {
		for e, o := range anew {
			if err := put(tx, bucketOrders, headKey(queue, e.mark, e.hash), o); err != nil {
				return err
			}
		}
		return nil
	})
}

// keep drops how messages of queue were sent and numbered, except those before
// marks: what stands before no mark in the queue is out of it for good.
func (j *Journal) keep(queue string, marks map[string]bool) error {
	return j.update(func(tx *bolt.Tx) error {
		return errors.Join(keep(tx.Bucket(bucketHeads), queue, marks), keep(tx.Bucket(bucketOrders), queue, marks))
	})
}

func keep(b *bolt.Bucket, queue string, marks map[string]bool) error {
	var gone [][]byte
	prefix := []byte(queue + "\x00")
	c := b.Cursor()
	for k, _ := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, _ = c.Next() {
		if mark, _, _ := bytes.Cut(k[len(prefix):], []byte{0}); !marks[string(mark)] {
			gone = append(gone, bytes.Clone(k))
		}
	}
	for _, k := range gone {
		if err := b.Delete(k); err != nil {
			return err
		}
	}
	return nil
}

// terms are how a message is sent for which nothing was settled before.
type terms struct {
	from, to string
	limit    int
	ts, now  int64 // Unix milliseconds
}

// sending is how one message is sent this time.
type sending struct {
	head
	own      string // the message's own id, or ""
	was      *head  // how an earlier run sent it, or may have
	doubtful bool   // and that was otherwise
}

// begin commits how a batch is about to be sent, before it is.
func (j *Journal) begin(queue string, places []place, batch []Old, t terms) (all []sending, err error) {
	err = j.update(func(tx *bolt.Tx) error {
		all = make([]sending, len(batch)) // a commit that failed may be tried again
		keys := make([]string, len(batch))
		for i, p := range places {
			keys[i] = p.key
			at := headKey(queue, p.under, p.key)
			s := &all[i]
			s.own, _ = batch[i].ownID()
			known, err := get(tx, bucketHeads, at, &s.head)
			if err != nil {
				return err
			}
			if known {
				was := s.head
				s.was = &was
			}
			switch {
			case !known:
				if s.head, err = choose(tx, queue, p, batch[i], t); err != nil {
					return err
				}
			case s.Sent || s.goesOn(batch[i], t):
			case s.Copy: // of one that goes otherwise by now, or went
				if s.head, err = choose(tx, queue, p, batch[i], t); err != nil {
					return err
				}
				s.doubtful = !s.Copy
			default:
				// Under the same id its recipient would take it for a forgery.
				s.head, s.doubtful = head{From: t.from, To: t.to, Limit: t.limit, TS: t.now}, true
				s.ID = derive(p.key, t.from, t.to, t.limit, t.now)
				if err := renew(tx, s.own, p.key, s.head); err != nil {
					return err
				}
			}
			if err := put(tx, bucketHeads, at, s.head); err != nil {
				return err
			}
		}
		return put(tx, bucketHands, queue, hand{Keys: keys})
	})
	return all, err
}

// stale is how old the time of a letter may be that is published again: it must
// not arrive at the end of its life.
const stale = 5 * 24 * time.Hour

// early is how far it may be ahead: a clock is put right by a little unnoticed,
// but one that was far ahead would have the letter live for as much longer.
const early = time.Minute

// fresh reports whether a letter of ts can be published, at now (Unix milliseconds).
func fresh(ts, now int64) bool {
	age := now - ts
	return -early.Milliseconds() <= age && age <= stale.Milliseconds()
}

// goesOn reports whether what may have been sent under h can be sent so again.
func (h head) goesOn(o Old, t terms) bool {
	return h.From == t.from && h.To == t.to && fresh(h.TS, t.now) &&
		(h.Limit <= t.limit || len(asText(o.Body)) <= t.limit)
}

// choose says how a message is sent that never was: under its own id, unless
// another message has it.
func choose(tx *bolt.Tx, queue string, p place, o Old, t terms) (head, error) {
	h := head{ID: p.key, From: t.from, To: t.to, Limit: t.limit, TS: t.ts}
	id, ok := o.ownID()
	if !ok {
		return h, nil
	}
	var first owner
	taken, err := get(tx, bucketOwners, id, &first)
	switch {
	case err != nil:
		return h, err
	case !taken || first.Key == p.key:
		h.ID = id
		return h, put(tx, bucketOwners, id, owner{queue, p.key, p.hash, h})
	case first.Queue == queue && first.Hash == p.hash && (first.Head.Sent && fresh(first.Head.TS, t.now) || first.Head.goesOn(o, t)):
		// Not published, or like the first, so that its recipient takes it for
		// that one.
		h = first.Head
		h.Copy = true
	}
	return h, nil
}

// end notes what became of a batch, and what of it may still be in the queue
// though nobody else can see it.
func (j *Journal) end(queue string, places []place, all []sending, fates []fate, held hand) error {
	return j.update(func(tx *bolt.Tx) error {
		for i, p := range places {
			s := all[i]
			err := error(nil)
			switch at := headKey(queue, p.under, p.key); {
			case fates[i] == wasSent:
				s.Sent = true
				err = errors.Join(put(tx, bucketHeads, at, s.head), renew(tx, s.own, p.key, s.head))
			case fates[i] == untried && s.was != nil:
				err = errors.Join(put(tx, bucketHeads, at, s.was), renew(tx, s.own, p.key, *s.was))
			case fates[i] == untried:
				err = errors.Join(tx.Bucket(bucketHeads).Delete([]byte(at)), disown(tx, s.ID, p.key))
			}
			if err != nil {
				return err
			}
		}
		return put(tx, bucketHands, queue, held)
	})
}

// renew notes how the message with key is sent, if id is its: its copies are
// sent so.
func renew(tx *bolt.Tx, id, key string, h head) error {
	var o owner
	if owned, err := get(tx, bucketOwners, id, &o); err != nil || !owned || o.Key != key {
		return err
	}
	o.Head = h
	return put(tx, bucketOwners, id, o)
}

// disown gives id back, if it is that of the message with key.
func disown(tx *bolt.Tx, id, key string) error {
	var o owner
	if owned, err := get(tx, bucketOwners, id, &o); err != nil || !owned || o.Key != key {
		return err
	}
	return tx.Bucket(bucketOwners).Delete([]byte(id))
}
