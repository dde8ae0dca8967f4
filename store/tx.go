package store

import (
	"bytes"
	"fmt"

	"fleetd/fault"

	bolt "go.etcd.io/bbolt"
)

// The buckets of design §10. Step 1 of the schema creates them; their names
// are part of the file's form and never change without a step.
const (
	bucketMeta     = "meta"
	bucketEntities = "entities"
	bucketTokens   = "tokens"
	bucketSeen     = "seen"
	bucketBriefs   = "briefs"
	bucketHeld     = "held"
	bucketOutbox   = "outbox"
	bucketKeys     = "keys"
	bucketHomes    = "homes"
	bucketSpawns   = "spawns"
	bucketTrace    = "trace"
)

// orderedFill packs the pages of buckets whose keys arrive in rising order
// (library fact §2: a quarter smaller than the default of 0.5).
const orderedFill = 0.9

// looseFill is for keys that arrive in any order, as those of the trace, or in
// about the order of their times, as those of the seen-set: a mail is drained
// long after it was sent. Pages that are packed leave no room for what comes
// between, and what is split off them stays nearly empty: at 0.9 they end up
// 0.4 full, at 0.7 two thirds, also where all keys rise.
const looseFill = 0.7

// Tx is one transaction, given to the functions of Write, Later and View and
// invalid after they return. What its methods return is a copy and may be
// kept. A Tx of a View refuses to write.
type Tx struct {
	bolt    *bolt.Tx
	changes int   // puts and deletes so far
	bytes   int64 // size of what was put

	// The parts of two buckets, once they were asked for.
	outboxParts outboxBuckets
	heldParts   heldBuckets
	part        tracePart // the one that took the latest event
}

// bucket returns the bucket at path, from the root down.
func (tx *Tx) bucket(path ...string) (*bolt.Bucket, error) {
	b := tx.bolt.Bucket([]byte(path[0]))
	for _, name := range path[1:] {
		if b == nil {
			break
		}
		b = b.Bucket([]byte(name))
	}
	if b == nil {
		return nil, damaged(path[0], fmt.Errorf("bucket %v is missing", path))
	}
	return b, nil
}

// ordered returns the bucket at path set up for keys in rising order.
func (tx *Tx) ordered(path ...string) (*bolt.Bucket, error) {
	b, err := tx.bucket(path...)
	if err == nil {
		b.FillPercent = orderedFill
	}
	return b, err
}

func (tx *Tx) put(b *bolt.Bucket, key, value []byte) error {
	if err := b.Put(key, value); err != nil {
		return fault.Wrap(err, fault.Internal, "a record was not accepted by the store; see the log")
	}
	tx.changes++
	tx.bytes += int64(len(key) + len(value))
	return nil
}

// delete removes key, which need not exist, and reports whether it did.
func (tx *Tx) delete(b *bolt.Bucket, key []byte) (bool, error) {
	c := b.Cursor()
	if k, _ := c.Seek(key); !bytes.Equal(k, key) {
		return false, nil
	}
	if err := c.Delete(); err != nil {
		return false, fault.Wrap(err, fault.Internal, "a record could not be removed from the store; see the log")
	}
	tx.changes++
	return true, nil
}

// putRecord encodes v and stores it under key.
func (tx *Tx) putRecord(b *bolt.Bucket, key []byte, v any) error {
	value, err := encode(v)
	if err != nil {
		return err
	}
	return tx.put(b, key, value)
}

// sequence returns want, or for 0 the next number of b's own sequence, 1
// first. A want beyond the sequence moves it, so that no number is given twice.
func (tx *Tx) sequence(b *bolt.Bucket, want uint64) (uint64, error) {
	last := b.Sequence()
	if want != 0 && want <= last {
		return want, nil
	}
	if want == 0 {
		want = last + 1
	}
	if err := b.SetSequence(want); err != nil {
		return 0, fault.Wrap(err, fault.Internal, "the store gave no sequence number; see the log")
	}
	tx.changes++
	return want, nil
}

// slot returns the nested bucket of b that is named by a number (a day, an
// hour), nil if there is none and create is false.
func (tx *Tx) slot(b *bolt.Bucket, number uint32, create bool) (*bolt.Bucket, error) {
	name := u32(number)
	if !create {
		return b.Bucket(name), nil
	}
	return tx.named(b, name)
}

// named returns the nested bucket of b of that name, a new one if there is none.
func (tx *Tx) named(b *bolt.Bucket, name []byte) (*bolt.Bucket, error) {
	if s := b.Bucket(name); s != nil {
		return s, nil
	}
	s, err := b.CreateBucket(name)
	if err != nil {
		return nil, fault.Wrap(err, fault.Internal, "the store could not begin a new bucket; see the log")
	}
	tx.changes++
	return s, nil
}

// dropSlots removes the nested buckets of b numbered below first, whole.
func (tx *Tx) dropSlots(b *bolt.Bucket, first uint32) error {
	var old [][]byte
	limit := u32(first)
	c := b.Cursor()
	for k, _ := c.First(); k != nil && bytes.Compare(k, limit) < 0; k, _ = c.Next() {
		old = append(old, clone(k))
	}
	for _, k := range old {
		if err := b.DeleteBucket(k); err != nil {
			return fault.Wrap(err, fault.Internal, "old records could not be removed from the store; see the log")
		}
		tx.changes++
	}
	return nil
}

// prefixed calls fn for each entry whose key begins with prefix, in order.
// Neither slice may be kept; fn must not write.
func prefixed(b *bolt.Bucket, prefix []byte, fn func(key, value []byte) error) error {
	c := b.Cursor()
	for k, v := c.Seek(prefix); k != nil && bytes.HasPrefix(k, prefix); k, v = c.Next() {
		if err := fn(k, v); err != nil {
			return err
		}
	}
	return nil
}
