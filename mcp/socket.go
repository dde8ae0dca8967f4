package mcp

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"fleetd/fault"
)

// maxSocketPath is what the kernel's sockaddr_un takes on Linux, without the
// closing zero.
const maxSocketPath = 107

// socketListener is a unix socket that only the daemon's own user can reach.
type socketListener struct {
	*net.UnixListener
	path string
	file fs.FileInfo // the socket we made
}

// listenSocket opens the socket at path: mode 0600 in a directory 0700. It is
// bound under another name in that directory and gets its own by a link, so it
// is never there with a wider mode, and never in the place of another one.
func listenSocket(path string) (*socketListener, error) {
	if err := privateDir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	if err := clearStale(path); err != nil {
		return nil, err
	}
	temp := filepath.Join(filepath.Dir(path), fmt.Sprintf(".s%d", os.Getpid()))
	if n := max(len(path), len(temp)); n > maxSocketPath {
		return nil, fault.New(fault.BadRequest, "the path of the unix socket %s is %d bytes long, the system takes %d; choose a shorter data_dir.", path, n, maxSocketPath)
	}
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, socketFault(err, path)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: temp, Net: "unix"})
	if err != nil {
		return nil, socketFault(err, path)
	}
	l.SetUnlinkOnClose(false)
	file, err := publish(temp, path)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &socketListener{UnixListener: l, path: path, file: file}, nil
}

// publish gives the bound socket its mode and its name.
func publish(temp, path string) (fs.FileInfo, error) {
	err := os.Chmod(temp, 0o600)
	if err == nil {
		err = os.Link(temp, path)
	}
	err = errors.Join(err, os.Remove(temp))
	if errors.Is(err, fs.ErrExist) {
		return nil, fault.Wrap(err, fault.Conflict, "another daemon opened the unix socket %s at this very moment; only one can run.", path)
	}
	if err != nil {
		return nil, socketFault(err, path)
	}
	file, err := os.Lstat(path)
	if err != nil {
		return nil, socketFault(err, path)
	}
	return file, nil
}

// privateDir makes dir with mode 0700, or insists that it is one already.
func privateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return socketFault(err, dir)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return socketFault(err, dir)
	}
	return checkPrivate(dir, info)
}

// CheckSocket says what keeps a daemon from listening at path, or others from
// being kept out of it, short of a daemon that listens there. It makes nothing.
func CheckSocket(path string) error {
	dir := filepath.Dir(path)
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return socketFault(err, path)
	}
	if err := checkPrivate(dir, info); err != nil {
		return err
	}
	info, err = os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return socketFault(err, path)
	case info.Mode().Type() != fs.ModeSocket:
		return noSocket(path)
	case info.Mode().Perm()&0o077 != 0:
		return fault.New(fault.NotAllowed, "other users can use the unix socket %s; run: chmod 0600 %s", path, path)
	}
	return nil
}

func noSocket(path string) error {
	return fault.New(fault.Conflict, "%s is in the way of the unix socket and is not a socket; it was left alone. Move it, or choose another data_dir.", path)
}

func checkPrivate(dir string, info fs.FileInfo) error {
	if info.Mode().Perm()&0o077 != 0 {
		return fault.New(fault.NotAllowed, "other users can look into %s, where the unix socket lies; run: chmod 0700 %s", dir, dir)
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && int(stat.Uid) != os.Geteuid() {
		return fault.New(fault.NotAllowed, "%s, where the unix socket lies, belongs to user %d and the daemon runs as user %d; make sure it is yours and run: chown %d %s", dir, stat.Uid, os.Geteuid(), os.Geteuid(), dir)
	}
	return nil
}

// clearStale removes what a crashed daemon left at path. A socket that answers
// is a live daemon's, and what is no socket is not ours.
func clearStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return socketFault(err, path)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return noSocket(path)
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		holder := peerName(conn)
		_ = conn.Close() // only asked whether somebody is there
		return fault.New(fault.Conflict, "another daemon (%s) is running and serves the unix socket %s; stop it first, or give this one another data_dir.", holder, path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return socketFault(err, path)
	}
	return removeSame(path, info)
}

// removeSame removes path only if it is still the file that was looked at.
func removeSame(path string, file fs.FileInfo) error {
	now, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return socketFault(err, path)
	}
	if !os.SameFile(now, file) {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return socketFault(err, path)
	}
	return nil
}

// Close stops listening and removes the socket if it is still ours.
func (l *socketListener) Close() error {
	err := l.UnixListener.Close()
	if errors.Is(err, net.ErrClosed) {
		return err // closed before, removed before
	}
	return errors.Join(err, removeSame(l.path, l.file))
}

func socketFault(err error, path string) error {
	return fault.Wrap(err, fault.Internal, "cannot open the unix socket at %s; see the cause.", path)
}
