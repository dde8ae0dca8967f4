package keys

import (
	"errors"
	"os"
	"path/filepath"

	"fleetd/fault"
)

// publish puts text into path so that a reader, or a crash at any instruction,
// finds all of it or nothing. With keep an existing file is not replaced: the
// error is then fs.ErrExist. The directory must exist.
func publish(path string, text []byte, mode os.FileMode, keep bool) error {
	dir := filepath.Dir(path)
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

// writeTemp writes a hidden file, which nobody takes for a key, down to the disk.
func writeTemp(dir string, text []byte, mode os.FileMode) (name string, err error) {
	f, err := os.CreateTemp(dir, ".key-*")
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
