package audit

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fleetd/fault"
)

func open(t *testing.T, now *time.Time) *Log {
	t.Helper()
	l, err := Open(Path(t.TempDir()), func() time.Time { return *now })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func write(t *testing.T, l *Log, a Act) {
	t.Helper()
	if err := l.Write(a); err != nil {
		t.Fatal(err)
	}
}

func acts(t *testing.T, path string) (out []Act) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var a Act
		if err := json.Unmarshal(s.Bytes(), &a); err != nil {
			t.Fatalf("%v in %s", err, s.Bytes())
		}
		out = append(out, a)
	}
	return out
}

// Fails when an act loses a part of it, is not in the order of time, breaks a
// line, or when a later start begins anew.
func TestActsAreKept(t *testing.T) {
	now := time.Date(2026, 11, 30, 8, 0, 0, 0, time.UTC)
	l := open(t, &now)
	want := Act{Time: now, Verb: "spawn", Who: "a\nb", From: "hosta", Host: "hostb", Profile: "aide", GID: "g", Outcome: "begun", Code: "X", TraceID: "t"}
	write(t, l, want)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := Open(l.path, l.now)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	write(t, l, Act{Verb: "stop", Outcome: "stopped"})
	got := acts(t, l.path)
	if len(got) != 2 || got[0] != want || got[1].Verb != "stop" {
		t.Errorf("got %+v", got)
	}
	if info, err := os.Stat(l.path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// Fails when the log grows without bound, loses acts that are young, or leaves
// a file that others can read.
func TestTheLogIsRotated(t *testing.T) {
	t.Attr("threat", "U1 G8")
	now := time.Unix(1_800_000_000, 0)
	l := open(t, &now)
	pad := strings.Repeat("x", 64<<10)
	const n = 150 // more than fits
	for i := range n {
		write(t, l, Act{Verb: "spawn", Outcome: "begun", GID: fmt.Sprint(i), Who: pad})
	}
	files, err := filepath.Glob(l.path + "*")
	if err != nil || len(files) != keepFiles+1 {
		t.Fatalf("%v, %v", files, err)
	}
	next := n - 1
	for i := range keepFiles + 1 {
		path := l.path
		if i > 0 {
			path = fmt.Sprintf("%s.%d", l.path, i)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o600 || info.Size() > fileBytes {
			t.Errorf("%s: %v of %d bytes, %v", path, info.Mode(), info.Size(), err)
		}
		got := []string{}
		f, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(f)) {
			var a Act
			if err := json.Unmarshal([]byte(line), &a); err != nil {
				t.Fatal(err)
			}
			got = append(got, a.GID)
		}
		for j := len(got) - 1; j >= 0; j-- {
			if got[j] != fmt.Sprint(next) {
				t.Fatalf("%s: act %s, want %d", path, got[j], next)
			}
			next--
		}
	}
}

// Fails when a host can push out what was done by what changes nothing, when its
// refusals hide those of another or of another verb, when something that was
// done is left out, or when how many there were is not told.
func TestWhatChangedNothingDoesNotPushOutWhatWasDone(t *testing.T) {
	t.Attr("threat", "G8")
	now := time.Unix(1_800_000_000, 0)
	l := open(t, &now)
	write(t, l, Act{Verb: "spawn", From: "hosta", Outcome: "spawned"})
	nothing := []Act{
		{Verb: "stop", From: "hostx", Outcome: Refused, Code: "NOT_ALLOWED"},
		{Verb: "spawn", From: "hostx", Outcome: Refused},
		{Verb: "trace", From: "hostx", Outcome: "told"},
		{Verb: "trace", From: "hostx", Outcome: "failed", Code: "BAD_REQUEST"},
		{Verb: "trace", From: "hosta", Outcome: "asked"},
		{Verb: "stop", From: "hosta", Outcome: "asked"},
	}
	for range 2_000 {
		for _, a := range nothing {
			write(t, l, a)
		}
	}
	write(t, l, Act{Verb: "stop", From: "hosty", Outcome: Refused})
	write(t, l, Act{Verb: "stop", From: "hostx", Outcome: "stopped"})
	now = now.Add(time.Hour)
	write(t, l, Act{Verb: "stop", From: "hostx", Outcome: Refused})
	for i := range 10 * gatheredMost { // as if more were trusted than can be
		write(t, l, Act{Verb: "stop", From: fmt.Sprint("host", i), Outcome: Refused})
	}
	got := acts(t, l.path)
	if len(got) > gatheredBurst*(len(nothing)+1)+gatheredMost+4 || got[0].Outcome != "spawned" {
		t.Fatalf("%d acts, the first %+v", len(got), got[0])
	}
	tail := got[len(nothing)*gatheredBurst+1:]
	if tail[0].From != "hosty" || tail[1].Outcome != "stopped" || tail[2].From != "hostx" || tail[2].Unsaid != 2_000-gatheredBurst {
		t.Errorf("after the burst: %+v", tail[:3])
	}
	for _, outcome := range []string{"begun", "spawned", "stopped"} {
		before := len(acts(t, l.path))
		for range 2 * gatheredBurst {
			write(t, l, Act{Verb: "spawn", From: "hostx", Outcome: outcome})
		}
		if n := len(acts(t, l.path)) - before; n != 2*gatheredBurst {
			t.Errorf("%d acts of %s are left, want %d", n, outcome, 2*gatheredBurst)
		}
	}
}

// Fails when an act, or one of before, is lost because the files cannot be moved,
// or when nothing says that they cannot.
func TestAnActOutlivesARotationThatFails(t *testing.T) {
	t.Attr("threat", "G8")
	now := time.Unix(1_800_000_000, 0)
	l := open(t, &now)
	for i := range keepFiles - 1 {
		if err := os.WriteFile(fmt.Sprintf("%s.%d", l.path, i+1), []byte(fmt.Sprint(i+1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	last := fmt.Sprintf("%s.%d", l.path, keepFiles)
	if err := os.Mkdir(last, 0o700); err != nil { // no file takes its place
		t.Fatal(err)
	}
	write(t, l, Act{Verb: "spawn", Outcome: "begun", GID: "first", Who: strings.Repeat("x", fileBytes)})
	for _, gid := range []string{"second", "third"} {
		if err := l.Write(Act{Verb: "spawn", Outcome: "spawned", GID: gid}); !fault.Is(err, fault.Internal) || !strings.Contains(err.Error(), "rotate") {
			t.Errorf("%s: %v", gid, err)
		}
	}
	text, err := os.ReadFile(l.path)
	for _, gid := range []string{"first", "second", "third"} {
		if err != nil || !strings.Contains(string(text), gid) {
			t.Errorf("%s is lost, %v", gid, err)
		}
	}
	for i := 1; i < keepFiles; i++ {
		if text, err := os.ReadFile(fmt.Sprintf("%s.%d", l.path, i)); err != nil || string(text) != fmt.Sprint(i) {
			t.Errorf(".%d holds %q, %v", i, text, err)
		}
	}
	if err := os.Remove(last); err != nil {
		t.Fatal(err)
	}
	write(t, l, Act{Verb: "spawn", Outcome: "spawned", GID: "fourth"})
	if got := acts(t, l.path); len(got) != 1 || got[0].GID != "fourth" {
		t.Errorf("mended: %+v", got)
	}
}

// Fails when a log that others can read or change, or that is no file, is
// written to, or when it is not said how to mend it.
func TestALogThatOthersReachIsRefused(t *testing.T) {
	t.Attr("threat", "U1")
	for name, make := range map[string]func(path string) error{
		"readable": func(path string) error { return os.WriteFile(path, nil, 0o644) },
		"a link": func(path string) error {
			return errors.Join(os.WriteFile(path+".other", nil, 0o600), os.Symlink(path+".other", path))
		},
		"a folder": func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		path := Path(t.TempDir())
		if err := make(path); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(path, time.Now); !fault.Is(err, fault.NotAllowed) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
