package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"fleetd/fault"

	bolt "go.etcd.io/bbolt"
)

// Names of unfinished work beside the file; whoever holds the lock removes
// what a killed predecessor left.
func copyTemp(path string) string    { return path + ".bak.tmp" }
func compactTemp(path string) string { return path + ".compact" }

func backupPath(path string, version int) string {
	return fmt.Sprintf("%s.schema-%d.bak", path, version)
}

// newestCopy is the copy aside of the highest schema up to version, "" if there
// is none: a file that was written by a newer build from the start has none.
func newestCopy(path string, version int) string {
	for ; version > 0; version-- {
		if _, err := os.Stat(backupPath(path, version)); err == nil {
			return backupPath(path, version)
		}
	}
	return ""
}

func removeLeftovers(path string) error {
	for _, p := range []string{copyTemp(path), compactTemp(path)} {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// migrate brings the file to the schema of this build: the copy aside first,
// then each step in a transaction of its own together with its version number.
// Killed anywhere, it starts again where it was.
func (s *Store) migrate(ctx context.Context, db *bolt.DB) error {
	version, err := schemaOf(db)
	if err != nil {
		return openError(s.path, err)
	}
	target := len(s.opts.Steps)
	if version > target {
		remedy := "install the newer bridged that wrote it"
		if copied := newestCopy(s.path, target); copied != "" {
			remedy += ", or put back " + copied + ", the copy of before, which lacks what came since"
		}
		return fault.New(fault.StoreUnavailable, "the store %s has schema %d and this bridged knows %d; %s", s.path, version, target, remedy)
	}
	if version == target {
		return nil
	}
	if version > 0 {
		if err := s.copyAside(db, backupPath(s.path, version)); err != nil {
			return fault.Wrap(err, fault.StoreUnavailable, "the store %s has to be moved to schema %d but could not be copied aside first; make room and start again", s.path, target)
		}
		s.log.Info("store is moved to a newer schema", "from", version, "to", target, "copy", backupPath(s.path, version))
	}
	for v := version; v < target; v++ {
		if err := ctx.Err(); err != nil {
			return fault.Wrap(err, fault.StoreUnavailable, "the start was cancelled while the store was moved to schema %d; start again, it goes on at %d", target, v)
		}
		if err := takeStep(db, s.opts.Steps[v], v+1); err != nil {
			return fault.Wrap(err, fault.StoreUnavailable, "the store %s could not be moved from schema %d to %d and is unchanged by that step; see the cause and start again", s.path, v, v+1)
		}
	}
	return nil
}

// takeStep runs one step and records the version it leads to.
func takeStep(db *bolt.DB, step func(*bolt.Tx) error, version int) (err error) {
	defer func() {
		if p := recover(); p != nil { // the library has rolled back
			err = fmt.Errorf("the step panicked: %v", p)
		}
	}()
	return db.Update(func(tx *bolt.Tx) error {
		if err := step(tx); err != nil {
			return err
		}
		meta, err := tx.CreateBucketIfNotExists([]byte(bucketMeta))
		if err != nil {
			return err
		}
		return meta.Put(keySchema, u32(uint32(version)))
	})
}

// schemaOf returns the number of steps the file has taken, 0 for a new one.
func schemaOf(db *bolt.DB) (version int, err error) {
	err = db.View(func(tx *bolt.Tx) error {
		if k, _ := tx.Cursor().First(); k == nil {
			return nil
		}
		meta := tx.Bucket([]byte(bucketMeta))
		if meta == nil {
			return errors.New("the file has no meta bucket: it is not a store of bridged")
		}
		v := meta.Get(keySchema)
		if len(v) != 4 {
			return errors.New("the file says no schema version: it is not a store of bridged")
		}
		version = int(binary.BigEndian.Uint32(v))
		return nil
	})
	return version, err
}

// copyAside writes a copy of the file to target, durably and whole or not at
// all.
func (s *Store) copyAside(db *bolt.DB, target string) error {
	tmp := copyTemp(s.path)
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = db.View(func(tx *bolt.Tx) error {
		_, err := tx.WriteTo(f)
		return err
	})
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	if err := os.Rename(tmp, target); err != nil {
		return err
	}
	return syncDir(filepath.Dir(target))
}
