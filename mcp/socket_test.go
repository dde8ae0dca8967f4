package mcp

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Fails if others can reach the socket or its directory, whatever the umask.
func TestSocketIsPrivate(t *testing.T) {
	t.Attr("threat", "U3")
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	path := filepath.Join(privateTemp(t), "new", "b.sock")
	l, err := listenSocket(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for p, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700} {
		info, err := os.Lstat(p)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", p, info.Mode(), err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	open := privateTemp(t)
	if err := os.Chmod(open, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := listenSocket(filepath.Join(open, "b.sock")); err == nil || !strings.Contains(err.Error(), "chmod 0700") {
		t.Errorf("in a directory that others can look into: %v", err)
	}
}

// Fails if who only looks at a socket's place does not see what keeps a daemon
// from listening there, or others from being kept out; or makes something.
func TestALookAtTheSocketsPlace(t *testing.T) {
	dir := filepath.Join(privateTemp(t), "new")
	path := filepath.Join(dir, "b.sock")
	if err := CheckSocket(path); err != nil {
		t.Errorf("before a first start: %v", err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the look made it: %v", err)
	}
	l, err := listenSocket(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := CheckSocket(path); err != nil {
		t.Errorf("while a daemon listens: %v", err)
	}
	for at, mode := range map[string]os.FileMode{path: 0o660, dir: 0o711} {
		if err := os.Chmod(at, mode); err != nil {
			t.Fatal(err)
		}
		if err := CheckSocket(path); err == nil || !strings.Contains(err.Error(), "run: chmod") || !strings.HasSuffix(err.Error(), at) {
			t.Errorf("%s with mode %o: %v", at, mode, err)
		}
		if err := os.Chmod(at, mode&0o700); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := CheckSocket(file); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("of a file: %v", err)
	}
}

// Fails if a crashed daemon's socket keeps the next one from starting.
func TestStaleSocketIsReplaced(t *testing.T) {
	t.Attr("threat", "U3")
	path := filepath.Join(privateTemp(t), "b.sock")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := listenSocket(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if conn, err := net.Dial("unix", path); err != nil {
		t.Error(err)
	} else {
		_ = conn.Close()
	}
}

// Fails if a second daemon takes a live one's socket, or does not say whose it is.
func TestBusySocketIsLeftAlone(t *testing.T) {
	t.Attr("threat", "U3")
	r := start(t, withSocket(t))
	_, err := listenSocket(r.Socket)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", os.Getpid())) {
		t.Errorf("%v", err)
	}
	if status, body, _ := r.doSocket(t, request{method: "GET", path: "/healthz"}); status != 200 {
		t.Errorf("the first daemon: %d %s", status, body)
	}
}

// Fails if what is no socket is removed.
func TestFileInTheWayIsLeftAlone(t *testing.T) {
	t.Attr("threat", "U3")
	path := filepath.Join(privateTemp(t), "b.sock")
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listenSocket(path); err == nil || !strings.Contains(err.Error(), "is not a socket") {
		t.Errorf("%v", err)
	}
	if b, err := os.ReadFile(path); string(b) != "mine" {
		t.Errorf("the file is gone: %v", err)
	}
}

// Fails if a stop leaves its socket behind, or removes the one of a daemon that
// started in the meantime.
func TestOnlyOurOwnSocketIsRemoved(t *testing.T) {
	t.Attr("threat", "U3")
	r := start(t, withSocket(t))
	r.stop()
	if _, err := os.Lstat(r.Socket); !os.IsNotExist(err) {
		t.Errorf("the socket stayed: %v", err)
	}
	r = start(t, withSocket(t))
	if err := os.Remove(r.Socket); err != nil {
		t.Fatal(err)
	}
	next, err := net.ListenUnix("unix", &net.UnixAddr{Name: r.Socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	r.stop()
	if _, err := os.Lstat(r.Socket); err != nil {
		t.Errorf("the next daemon's socket was removed: %v", err)
	}
}

// Fails if a path that the system cannot take is not told in words.
func TestLongSocketPath(t *testing.T) {
	path := filepath.Join(privateTemp(t), strings.Repeat("d", 100), "b.sock")
	if _, err := listenSocket(path); err == nil || !strings.Contains(err.Error(), "choose a shorter data_dir") {
		t.Errorf("%v", err)
	}
}

// Fails if a client tells its token to a socket that another user serves, or root
// and the own user are kept from theirs.
func TestWhoMayServeTheSocket(t *testing.T) {
	t.Attr("threat", "U3")
	at := &net.UnixAddr{Name: "/run/b.sock", Net: "unix"}
	for _, c := range []struct {
		uid, own uint32
		want     bool
	}{{1000, 1000, true}, {0, 1000, true}, {1000, 0, true}, {1001, 1000, false}} {
		if err := checkServer(c.uid, c.own, at); (err == nil) != c.want {
			t.Errorf("user %d for user %d: %v", c.uid, c.own, err)
		}
	}
}

// Fails if the kernel's word on who is at the other end is not asked for.
func TestPeerUID(t *testing.T) {
	t.Attr("threat", "U2")
	path := filepath.Join(privateTemp(t), "b.sock")
	l, err := listenSocket(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var d net.Dialer
	conn, err := d.DialContext(context.Background(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if uid, err := peerUID(server); err != nil || uid != uint32(os.Getuid()) {
		t.Errorf("user %d, %v", uid, err)
	}
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if _, err := peerUID(a); err == nil {
		t.Error("a connection that is no unix socket has a user")
	}
}
