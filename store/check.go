package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"fleetd/fault"

	bolt "go.etcd.io/bbolt"
)

// maxProblems bounds what Check reports.
const maxProblems = 100

// offline refuses maintenance while the writer runs.
func (s *Store) offline(what string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase == running || s.phase == draining {
		return fault.New(fault.Conflict, "the store is in use, so it cannot be %s; stop the daemon first", what)
	}
	return nil
}

// Check reads the whole file and returns nil if its pages and all its records
// are sound, else STORE_UNAVAILABLE whose cause lists up to a hundred problems.
// It is refused while Run runs. A check that has begun goes through the file
// even if ctx ends; then its verdict is ctx's error.
func (s *Store) Check(ctx context.Context) error {
	if err := s.offline("checked"); err != nil {
		return err
	}
	db := s.db.Load()
	if db == nil {
		return errClosed()
	}
	problems := checkPages(db)
	if len(problems) == 0 { // records of broken pages cannot be walked
		problems = s.checkRecords()
	}
	if err := ctx.Err(); err != nil {
		return fault.Wrap(err, fault.StoreUnavailable, "the check of %s was cancelled; run it again", s.path)
	}
	if len(problems) == 0 {
		return nil
	}
	return fault.Wrap(errors.Join(problems...), fault.StoreUnavailable,
		"the store %s is damaged; keep a copy of it, restore an earlier one or start with an empty one", s.path)
}

// checkPages drains the library's channel to its end: its sender waits for
// that.
func checkPages(db *bolt.DB) (problems []error) {
	err := db.View(func(tx *bolt.Tx) error {
		for err := range tx.Check() {
			if len(problems) < maxProblems {
				problems = append(problems, err)
			}
		}
		return nil
	})
	if err != nil {
		problems = append(problems, err)
	}
	return problems
}

// checkRecords reads every record of the families of fixed depth with its own
// decoder, and in seen and trace each entry of each slot.
func (s *Store) checkRecords() (problems []error) {
	note := func(err error) {
		if err != nil && len(problems) < maxProblems {
			problems = append(problems, err)
		}
	}
	err := s.View(func(tx *Tx) error {
		_, err := tx.Boot()
		note(err)
		_, err = tx.HostID()
		note(err)
		note(checkIDs[Entity](tx, bucketEntities))
		note(checkIDs[Home](tx, bucketHomes))
		note(checkIDs[Spawn](tx, bucketSpawns))
		note(tx.each(nil, bucketTokens, func(_, v []byte) error { return wantVersion(bucketTokens, v) }))
		note(tx.checkBriefs())
		note(tx.each(nil, bucketKeys, func(_, v []byte) error { _, err := decodeKey(v); return err }))
		note(tx.eachSlot(bucketSeen, func(_, v []byte) error { _, err := decodeSeen(v); return err }))
		note(tx.eachSlot(bucketTrace, func(k, v []byte) error { _, err := decodeEvent(k, v); return err }))
		note(tx.checkHeld())
		note(tx.checkOutbox())
		return nil
	})
	note(err)
	return problems
}

func wantVersion(bucket string, v []byte) error {
	if len(v) == 0 || v[0] != recordVersion {
		return damaged(bucket, errDamaged)
	}
	return nil
}

func checkIDs[T any](tx *Tx, bucket string) error {
	return tx.each(nil, bucket, func(_, v []byte) error {
		var record T
		return decode(bucket, v, &record)
	})
}

// each walks the bucket at name and parts.
func (tx *Tx) each(parts []string, name string, fn func(k, v []byte) error) error {
	b, err := tx.bucket(append([]string{name}, parts...)...)
	if err != nil {
		return err
	}
	return b.ForEach(fn)
}

// eachSlot walks all nested buckets of the bucket name.
func (tx *Tx) eachSlot(name string, fn func(k, v []byte) error) error {
	b, err := tx.bucket(name)
	if err != nil {
		return err
	}
	return b.ForEachBucket(func(k []byte) error { return b.Bucket(k).ForEach(fn) })
}

// checkBriefs compares the index with the briefs.
func (tx *Tx) checkBriefs() error {
	b, ids, err := tx.briefBuckets()
	if err != nil {
		return err
	}
	n := 0
	err = b.ForEach(func(_, v []byte) error {
		br, err := decodeBrief(v)
		if err != nil {
			return err
		}
		n++
		if found, ok, err := tx.BriefByMsg(br.GID, br.MsgID); err != nil || !ok || found.Seq != br.Seq {
			return damaged(bucketBriefs, fmt.Errorf("brief %s is missing in the index (%w)", br.MsgID, err))
		}
		return nil
	})
	if have := ids.Stats().KeyN; err == nil && have != n {
		err = damaged(bucketBriefs, fmt.Errorf("%d index entries for %d briefs", have, n))
	}
	return err
}

// checkHeld compares bodies and counts with the entries.
func (tx *Tx) checkHeld() error {
	o, err := tx.held()
	if err != nil {
		return err
	}
	local := map[string]localCount{}
	for _, b := range []*bolt.Bucket{o.index, o.local} {
		err := b.ForEach(func(k, v []byte) error {
			h, err := decodeHeld(v)
			if b == o.local {
				c := local[string(k[:idLen])]
				local[string(k[:idLen])] = localCount{c.n + 1, Sooner(c.expiry, h.ExpiresAt)}
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	err = o.counts.ForEach(func(k, v []byte) error {
		says, err := decodeCount(v)
		has := local[string(k)]
		switch {
		case err != nil:
		case says.n != has.n:
			err = damaged(bucketHeld, fmt.Errorf("the count of %s says %d, it has %d entries", idText(k), says.n, has.n))
		case Sooner(says.expiry, has.expiry) != says.expiry:
			err = damaged(bucketHeld, fmt.Errorf("local mail of %s expires before its count says", idText(k)))
		}
		delete(local, string(k))
		return err
	})
	if err != nil {
		return err
	}
	if len(local) > 0 {
		return damaged(bucketHeld, fmt.Errorf("%d recipients have local mail but no count", len(local)))
	}
	return o.bodies.ForEach(func(k, v []byte) error {
		if o.local.Get(k) == nil {
			return damaged(bucketHeld, fmt.Errorf("body of mail for %s without an entry", idText(k[:idLen])))
		}
		return wantVersion(bucketHeld, v)
	})
}

// checkOutbox compares the indexes with the intents.
func (tx *Tx) checkOutbox() error {
	o, err := tx.outbox()
	if err != nil {
		return err
	}
	intents := 0
	err = o.intents.ForEach(func(id, v []byte) error {
		in, err := decodeIntent(v)
		if err != nil {
			return err
		}
		intents++
		indexed := o.ended.Get(endedKey(in.EndedAt, id)) != nil
		if in.State != IntentEnded {
			v := o.open.Get(u64(in.Seq))
			indexed = len(v) == 1+idLen && bytes.Equal(v[1:], id)
		}
		if !indexed {
			return damaged(bucketOutbox, fmt.Errorf("intent %s is missing in its index", idText(id)))
		}
		return nil
	})
	if err != nil {
		return err
	}
	if n := o.open.Stats().KeyN + o.ended.Stats().KeyN; n != intents {
		return damaged(bucketOutbox, fmt.Errorf("%d index entries for %d intents", n, intents))
	}
	return o.bodies.ForEach(func(id, v []byte) error {
		if o.intents.Get(id) == nil {
			return damaged(bucketOutbox, fmt.Errorf("body of %s without an intent", idText(id)))
		}
		return wantVersion(bucketOutbox, v)
	})
}
