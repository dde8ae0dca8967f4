package mcp

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// seen tells what the kernel says that do did in dir: "create NAME" and "chmod
// NAME" in their order, NAME being "." for dir itself.
func seen(t *testing.T, dir string, do func()) []string {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_ATTRIB); err != nil {
		t.Fatal(err)
	}
	do()
	var events []string
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Read(fd, buf)
		if errors.Is(err, unix.EAGAIN) { // what do did is told before do returns
			return events
		}
		if err != nil {
			t.Fatal(err)
		}
		for rest := buf[:n]; len(rest) > 0; {
			mask, length := binary.NativeEndian.Uint32(rest[4:]), binary.NativeEndian.Uint32(rest[12:])
			name := strings.TrimRight(string(rest[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+length]), "\x00")
			rest = rest[unix.SizeofInotifyEvent+length:]
			switch {
			case mask&unix.IN_Q_OVERFLOW != 0:
				t.Fatal("the kernel lost events")
			case name == "":
				name = "."
			}
			what := "create "
			if mask&unix.IN_ATTRIB != 0 {
				what = "chmod "
			}
			events = append(events, what+name)
		}
	}
}

// Fails if there is a moment at which somebody else could connect: if the
// directory is ever there with a wider mode than 0700, or the socket's name
// before its mode is 0600, whatever the umask.
func TestAtNoMomentIsTheSocketOpen(t *testing.T) {
	t.Attr("threat", "U3")
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	parent := privateTemp(t)
	dir := filepath.Join(parent, "new")
	path := filepath.Join(dir, "b.sock")
	listen := func() {
		l, err := listenSocket(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
	}
	private := func(path string, mode os.FileMode) {
		t.Helper()
		if info, err := os.Lstat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	// A mode that is right in the end and was never changed was right at once.
	if events := seen(t, parent, listen); !slices.Equal(events, []string{"create new"}) {
		t.Errorf("the directory: %q", events)
	}
	private(dir, 0o700)

	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	events := seen(t, dir, listen)
	named := slices.Index(events, "create b.sock")
	if named < 0 {
		t.Fatalf("the socket got its name otherwise: %q", events)
	}
	for i, e := range events {
		if e == "chmod ." || strings.HasPrefix(e, "chmod ") && i > named {
			t.Errorf("%s, of %q", e, events)
		}
	}
	private(path, 0o600)
	private(dir, 0o700)
}
