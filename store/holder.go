package store

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"fleetd/fault"
)

// holder says who has the store open; the lock itself is nameless (library
// fact §2).
type holder struct {
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
}

func holderPath(path string) string { return path + ".holder" }

// writeHolder notes this process beside the file. Only the holder of the lock
// calls it.
func writeHolder(path string, now time.Time) error {
	js, err := json.Marshal(holder{PID: os.Getpid(), Started: now})
	if err != nil {
		return err
	}
	tmp := holderPath(path) + ".tmp"
	if err := os.WriteFile(tmp, js, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, holderPath(path)) // whole or not at all for a reader
}

func removeHolder(path string) error {
	if err := os.Remove(holderPath(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// InUse returns nil while no process has the store in dir open, else what Open
// would say. It holds a lock for a moment that others may hold too, and that a
// daemon which starts meanwhile waits for.
func InUse(dir string) error {
	path := filepath.Join(dir, DefaultFile)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return openError(path, err)
	}
	defer f.Close()
	switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return heldError(path)
	case err != nil:
		return openError(path, err)
	}
	return nil
}

// heldError names the process that holds the lock of path.
func heldError(path string) error {
	const mend = "stop it, or give this one another data_dir"
	var h holder
	js, err := os.ReadFile(holderPath(path))
	if err == nil {
		err = json.Unmarshal(js, &h)
	}
	if err != nil || h.PID <= 0 {
		return fault.Wrap(err, fault.StoreUnavailable, "the store %s is in use by another process, which left no name (\"fuser %s\" finds it); %s", path, path, mend)
	}
	since := h.Started.Format(time.RFC3339)
	if errors.Is(syscall.Kill(h.PID, 0), syscall.ESRCH) {
		return fault.New(fault.StoreUnavailable, "the store %s is in use by another process; its last known holder, process %d started %s, is gone (\"fuser %s\" finds the new one); %s",
			path, h.PID, since, path, mend)
	}
	return fault.New(fault.StoreUnavailable, "the store %s is in use by process %d, started %s; %s", path, h.PID, since, mend)
}
