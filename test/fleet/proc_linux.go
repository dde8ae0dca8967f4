package fleet

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// dieWithParent takes a daemon along when the test that runs it is killed.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// LimitFiles has every write of the running daemon fail that would make a file
// longer than n bytes or lies behind them, as on a full disk; no privilege is
// needed. FreeFiles takes it back.
func (h *Host) LimitFiles(n uint64) error { return h.limitFiles(n) }

// FreeFiles ends LimitFiles.
func (h *Host) FreeFiles() error { return h.limitFiles(unix.RLIM_INFINITY) }

func (h *Host) limitFiles(n uint64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cmd == nil {
		return errors.New(h.Name + " does not run")
	}
	var limit unix.Rlimit
	if err := unix.Prlimit(h.cmd.Process.Pid, unix.RLIMIT_FSIZE, nil, &limit); err != nil {
		return err
	}
	limit.Cur = min(n, limit.Max)
	return unix.Prlimit(h.cmd.Process.Pid, unix.RLIMIT_FSIZE, &limit, nil)
}
