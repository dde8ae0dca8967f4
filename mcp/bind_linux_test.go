package mcp

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"fleetd/test/fslog"
)

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
	log := fslog.Open(t, parent)
	listen()
	if events := log.Told(); !slices.Equal(events, []string{"create new"}) {
		t.Errorf("the directory: %q", events)
	}
	private(dir, 0o700)

	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	log = fslog.Open(t, dir)
	listen()
	events := log.Told()
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
