package store

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"fleetd/fault"
)

// Inspect checks, as Open does, that the data directory dir and the store in it
// belong to this user alone, where they are there. It makes and opens nothing.
func Inspect(dir string) error {
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return openError(dir, err)
	}
	if err := checkAccess("directory", dir, info, 0o700); err != nil {
		return err
	}
	return checkFile(filepath.Join(dir, DefaultFile))
}

// prepareDir makes the data directory, or checks that the one that is there
// belongs to this user alone (design §10, §13).
func prepareDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fault.Wrap(err, fault.StoreUnavailable, "the data directory %s cannot be made; choose another with data_dir", dir)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return openError(dir, err)
	}
	return checkAccess("directory", dir, info, 0o700)
}

// checkFile checks the store's file, if there is one.
func checkFile(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return openError(path, err)
	}
	if !info.Mode().IsRegular() {
		return fault.New(fault.StoreUnavailable, "%s is not a regular file; move it away or choose another data_dir", path)
	}
	return checkAccess("file", path, info, 0o600)
}

// checkAccess refuses what others may open or own: the store holds message
// text.
func checkAccess(what, path string, info fs.FileInfo, mode fs.FileMode) error {
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return fault.New(fault.StoreUnavailable, "the %s %s belongs to user %d but the gateway runs as %d; run it as that user, or run: chown %d %s",
			what, path, st.Uid, os.Geteuid(), os.Geteuid(), path)
	}
	if have := info.Mode().Perm(); have&0o077 != 0 {
		return fault.New(fault.StoreUnavailable, "the %s %s is open to other users (mode %04o); run: chmod %04o %s", what, path, have, mode, path)
	}
	return nil
}
