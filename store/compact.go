package store

import (
	"context"
	"errors"
	"os"

	"fleetd/fault"

	bolt "go.etcd.io/bbolt"
)

// compactTx is how much Compact copies in one transaction, in bytes.
const compactTx = 1 << 20

// compactAlloc is by how much the copy grows at a time, in bytes; the library's
// 16 MiB would be more than most stores hold.
const compactAlloc = 64 << 10

// Compact writes the live records into a new file and puts it in the place of
// the old one, which never shrinks by itself. It returns the sizes before and
// after, in bytes. It is refused while Run runs and needs room for the new
// file; killed anywhere it leaves the old file as it was. The lock on the store
// is held throughout.
func (s *Store) Compact(ctx context.Context) (before, after int64, err error) {
	if err := s.offline("compacted"); err != nil {
		return 0, 0, err
	}
	src := s.db.Load()
	if src == nil {
		return 0, 0, errClosed()
	}
	if err := ctx.Err(); err != nil {
		return 0, 0, fault.Wrap(err, fault.StoreUnavailable, "compacting was cancelled before it began; nothing changed")
	}
	before, err = fileSize(s.path)
	if err == nil {
		err = s.replace(src)
	}
	if err == nil {
		after, err = fileSize(s.path)
	}
	if err != nil {
		return 0, 0, fault.Wrap(err, fault.StoreUnavailable, "the store %s could not be compacted; no record is lost, see the cause and try again", s.path)
	}
	return before, after, nil
}

func fileSize(path string) (int64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// replace copies src and swaps it for the copy, which holds a lock of its own
// from its beginning.
func (s *Store) replace(src *bolt.DB) error {
	tmp := compactTemp(s.path)
	dst, err := s.compactInto(tmp, src)
	if err == nil {
		err = os.Rename(tmp, s.path)
	}
	if err != nil {
		if dst != nil {
			err = errors.Join(err, dst.Close())
		}
		return errors.Join(err, removeLeftovers(s.path))
	}
	s.db.Store(dst)
	return errors.Join(syncDir(s.opts.Dir), src.Close())
}

// compactInto makes the copy, durable and checked. It returns the open file
// also when it fails.
func (s *Store) compactInto(tmp string, src *bolt.DB) (*bolt.DB, error) {
	if err := removeLeftovers(s.path); err != nil {
		return nil, err
	}
	opts := s.opts.boltOptions()
	opts.NoSync = true // one sync at the end
	dst, err := openBolt(tmp, opts)
	if err != nil {
		return nil, err
	}
	usual := dst.AllocSize
	dst.AllocSize = compactAlloc
	if err := bolt.Compact(dst, src, compactTx); err != nil {
		return dst, err
	}
	dst.NoSync, dst.AllocSize = false, usual
	if err := dst.Sync(); err != nil {
		return dst, err
	}
	return dst, errors.Join(checkPages(dst)...)
}
