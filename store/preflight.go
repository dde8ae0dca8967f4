package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"

	"fleetd/fault"

	bolt "go.etcd.io/bbolt"
)

// preflight reads through the file before it is opened for writing. Without a
// stored freelist the library scans all pages at open, in a goroutine of its
// own: what panics there ends the process, and a damaged file would be a stack
// trace at every start. Here it is an error with a sentence. A sealed file has
// its freelist, and is opened without either.
func preflight(path string, opts bolt.Options) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		return nil
	}
	if err != nil {
		return openError(path, err)
	}
	opts.ReadOnly = true
	opts.InitialMmapSize = 0
	db, err := bolt.Open(path, 0o600, &opts)
	if err != nil {
		return err
	}
	cause := readThrough(db)
	if err := db.Close(); err != nil {
		return openError(path, err)
	}
	if cause != nil {
		return fault.Wrap(fmt.Errorf("%w: %w", errDamage, cause), fault.StoreUnavailable,
			"the store %s is damaged; move it away and restore a copy if there is one (a backup, %s.schema-*.bak), or start with an empty one", path, path)
	}
	return nil
}

// readThrough visits every bucket and key of a file that is not sealed. Pages that point out of the file
// fault, and those that are not what they say panic; both are errors here.
func readThrough(db *bolt.DB) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	tx, err := db.Begin(false)
	if err != nil {
		return err
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
		err = errors.Join(err, tx.Rollback())
	}()
	if sealed(tx) {
		return nil
	}
	return tx.ForEach(func(_ []byte, b *bolt.Bucket) error { return readBucket(b, nil) })
}

// readBucket reads b and its nested buckets. Their keys must rise, which also
// touches every one.
func readBucket(b *bolt.Bucket, last []byte) error {
	return b.ForEach(func(k, v []byte) error {
		if last != nil && string(k) <= string(last) {
			return errors.New("keys are out of order")
		}
		last = k
		if v != nil {
			return nil
		}
		if nested := b.Bucket(k); nested != nil {
			return readBucket(nested, nil)
		}
		return errors.New("a nested bucket is missing")
	})
}

// seal makes the last commit before a file is closed: it stores the freelist,
// which others leave out, and a mark that it does.
func seal(db *bolt.DB) error {
	db.NoFreelistSync = false
	return db.Update(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte(bucketMeta)).Put(keyClosed, present)
	})
}

func sealed(tx *bolt.Tx) bool {
	meta := tx.Bucket([]byte(bucketMeta))
	return meta != nil && meta.Get(keyClosed) != nil
}

// unseal takes the mark away before anything else is written.
func unseal(db *bolt.DB) error {
	var is bool
	if err := db.View(func(tx *bolt.Tx) error { is = sealed(tx); return nil }); err != nil || !is {
		return err
	}
	return db.Update(func(tx *bolt.Tx) error { return tx.Bucket([]byte(bucketMeta)).Delete(keyClosed) })
}
