// Package fslog has the kernel tell, in order, what is done to the files of
// directories (inotify), so that a test can say what was there at every moment
// and not only in the end.
package fslog

import (
	"encoding/binary"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// verbs are what a Log tells, each followed by a space and the file's name, or
// "." for the directory itself. A rename is "from OLD" and "to NEW", a link is
// "create NEW"; "close" is that of a file that was open for writing.
var verbs = []struct {
	mask uint32
	verb string
}{
	{unix.IN_CREATE, "create"}, {unix.IN_MODIFY, "write"}, {unix.IN_ATTRIB, "chmod"}, {unix.IN_CLOSE_WRITE, "close"},
	{unix.IN_MOVED_FROM, "from"}, {unix.IN_MOVED_TO, "to"}, {unix.IN_DELETE, "delete"},
}

// Log is what was done since Open. It is for one goroutine.
type Log struct {
	t    testing.TB
	fd   int
	buf  []byte
	rest []byte // of buf, not told yet
}

// Open begins a log of dirs that ends with the test.
func Open(t testing.TB, dirs ...string) *Log {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	var mask uint32
	for _, v := range verbs {
		mask |= v.mask
	}
	for _, dir := range dirs {
		if _, err := unix.InotifyAddWatch(fd, dir, mask); err != nil {
			t.Fatalf("watch %s: %v", dir, err)
		}
	}
	return &Log{t: t, fd: fd, buf: make([]byte, 64<<10)}
}

// Next waits up to limit for the next event; "" if none comes.
func (l *Log) Next(limit time.Duration) string {
	l.t.Helper()
	for deadline := time.Now().Add(limit); len(l.rest) == 0; {
		n, err := unix.Read(l.fd, l.buf)
		switch {
		case err == nil:
			l.rest = l.buf[:n]
		case errors.Is(err, unix.EINTR):
		case !errors.Is(err, unix.EAGAIN):
			l.t.Fatal(err)
		default:
			left := time.Until(deadline)
			if left <= 0 {
				return ""
			}
			if _, err := unix.Poll([]unix.PollFd{{Fd: int32(l.fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1); err != nil && !errors.Is(err, unix.EINTR) {
				l.t.Fatal(err)
			}
		}
	}
	mask, length := binary.NativeEndian.Uint32(l.rest[4:]), binary.NativeEndian.Uint32(l.rest[12:])
	name := strings.TrimRight(string(l.rest[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+length]), "\x00")
	l.rest = l.rest[unix.SizeofInotifyEvent+length:]
	if name == "" {
		name = "."
	}
	for _, v := range verbs {
		if mask&v.mask != 0 {
			return v.verb + " " + name
		}
	}
	l.t.Fatalf("the kernel lost events of %s (%x)", name, mask)
	return ""
}

// Told are the events of all that has returned.
func (l *Log) Told() (events []string) {
	l.t.Helper()
	for e := l.Next(0); e != ""; e = l.Next(0) {
		events = append(events, e)
	}
	return events
}

// InOneStep fails the test if file, of which events tell, got its name before
// its text and mode were those it has now, or was gone for a moment: who reads
// it, or comes after a kill at any moment, then has what it was or what it is.
func InOneStep(t testing.TB, events []string, file string) {
	t.Helper()
	base, named := filepath.Base(file), false
	for _, e := range events {
		verb, name, _ := strings.Cut(e, " ")
		switch {
		case name == base && !named && (verb == "to" || verb == "create"):
			named = true
		case name == base && verb != "close", // close: of what was there before
			named && (verb == "write" || verb == "chmod"): // it may have another name too
			t.Errorf("%s is not replaced in one step: %q, of %q", base, e, events)
		}
	}
	if !named {
		t.Errorf("%s is not replaced: %q", base, events)
	}
}
