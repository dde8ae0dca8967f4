package keys

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"fleetd/fault"
)

const (
	tempNames = ".key-*"
	// leftAfter is when a hidden file is one that a kill left: writing one takes
	// milliseconds.
	leftAfter = 10 * time.Minute

	lockWait = 30 * time.Second
	lockStep = 10 * time.Millisecond
)

// lock keeps other processes from changing the files of dir until unlock, so
// that none writes over what another just added. It is gone with a kill.
// fs.ErrNotExist if there is no dir.
func lock(dir string) (unlock func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		return nil, asFault(err, dir)
	}
	for deadline := time.Now().Add(lockWait); ; time.Sleep(lockStep) {
		err = syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = d.Close() }, nil // the lock goes with it
		}
		switch held := errors.Is(err, syscall.EWOULDBLOCK); {
		case !held && !errors.Is(err, syscall.EINTR):
			return nil, errors.Join(fault.Wrap(err, fault.Internal, "could not lock %s; see that its file system has locks (flock)", dir), d.Close())
		case time.Now().After(deadline):
			return nil, errors.Join(fault.Wrap(err, fault.Conflict, "another process keeps changing the keys in %s; run it again once that has ended", dir), d.Close())
		}
	}
}

// publish puts text into path so that a reader, or a crash at any instruction,
// finds all of it or nothing. With keep an existing file is not replaced: the
// error is then fs.ErrExist. The directory must exist.
func publish(path string, text []byte, mode os.FileMode, keep bool) error {
	dir := filepath.Dir(path)
	sweep(dir)
	temp, err := writeTemp(dir, text, mode)
	if err != nil {
		return fault.Wrap(err, fault.Internal, "could not write into %s; see that the disk has room and the directory is yours", dir)
	}
	if keep {
		// A link, unlike a rename, never replaces what another process made.
		err = errors.Join(os.Link(temp, path), os.Remove(temp))
	} else if err = os.Rename(temp, path); err != nil {
		err = errors.Join(err, os.Remove(temp))
	}
	if err == nil {
		err = syncDir(dir)
	}
	if err != nil {
		return fault.Wrap(err, fault.Internal, "could not write %s; see that the disk has room and the directory is yours", path)
	}
	return nil
}

// sweep removes the hidden files that a kill left in dir. What it cannot remove
// does no harm.
func sweep(dir string) {
	names, _ := filepath.Glob(filepath.Join(dir, tempNames)) // the pattern is good, unless dir has one of its own
	for _, name := range names {
		if info, err := os.Lstat(name); err == nil && info.Mode().IsRegular() && time.Since(info.ModTime()) > leftAfter {
			_ = os.Remove(name)
		}
	}
}

// writeTemp writes a hidden file, which nobody takes for a key, down to the disk.
func writeTemp(dir string, text []byte, mode os.FileMode) (name string, err error) {
	f, err := os.CreateTemp(dir, tempNames)
	if err != nil {
		return "", err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), nil
}

// syncDir makes a change of names in dir survive a crash.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// makeDir makes dir, and what is missing above it, for us alone.
func makeDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fault.Wrap(err, fault.Internal, "could not make the directory %s; make it yourself or set another path", dir)
	}
	return nil
}
