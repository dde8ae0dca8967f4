package keys

import (
	"crypto/ed25519"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fleetd/fault"
)

// offer writes a file as it came from another host.
func offer(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	write(t, path, text, 0o666) // as it may lie in a download folder
	return path
}

// Fails when `keys trust` doesn't lead to trust, takes the key for another
// host's, or shows a fingerprint that isn't the key's.
func TestAdd(t *testing.T) {
	bare := strings.Replace(PublicLine("", pubOf(1)), " \n", "\n", 1)
	for name, file := range map[string]string{
		"named by line":     offer(t, "download.txt", PublicLine("hostb", pubOf(1))),
		"named by file":     offer(t, "hostb.pub", bare),
		"named by both":     offer(t, "hostb.pub", PublicLine("hostb", pubOf(1))),
		"file is no host's": offer(t, "Key of B.pub", PublicLine("hostb", pubOf(1))),
		"twice the same":    offer(t, "hostb.pub", bare+PublicLine("hostb", pubOf(1))),
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "config", "trust")
			for range 2 { // the second time changes nothing
				host, prints, err := Add(dir, "hosta", file, false, today)
				if err != nil || host != "hostb" || !slices.Equal(prints, []string{Fingerprint(pubOf(1))}) {
					t.Fatalf("Add: %q, %v, %v", host, prints, err)
				}
			}
			if got := read(t, filepath.Join(dir, "hostb.pub")); got != strings.TrimSpace(PublicLine("hostb", pubOf(1)))+" # since 2026-11-30T08:00:00Z\n" {
				t.Errorf("wrote %q", got)
			}
			trust := open(t, dir)
			wantKeys(t, trust, "hostb", pubOf(1))
			wantProblems(t, trust)
			if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 || len(list(t, dir)) != 1 {
				t.Errorf("%v, %v, %v", info.Mode(), list(t, dir), err)
			}
		})
	}
}

// Fails when of keys that are trusted and revoked at the same time, by several
// people or scripts, one is lost or stays.
func TestChangesAtTheSameTime(t *testing.T) {
	const many = 4
	for range 5 {
		dir := trustDir(t, "hostb.pub", PublicLine("hostb", pubOf(50))+PublicLine("hostb", pubOf(51)))
		var files []string
		for n := range byte(many) {
			files = append(files, offer(t, "hostb.pub", PublicLine("hostb", pubOf(n))))
		}
		var all sync.WaitGroup
		for _, file := range files {
			all.Go(func() {
				if _, _, err := Add(dir, "hosta", file, true, today); err != nil {
					t.Error(err)
				}
			})
		}
		all.Go(func() {
			if _, err := Revoke(dir, "hostb", Fingerprint(pubOf(50))); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			if err := trustOwn(dir, "hosta", today, pubOf(60)); err != nil {
				t.Error(err)
			}
		})
		all.Wait()
		trust := open(t, dir)
		wantProblems(t, trust)
		keys := trust.Keys("hostb")
		for n := range byte(many) {
			if !contains(keys, pubOf(n)) {
				t.Fatalf("key %d was lost", n)
			}
		}
		if len(keys) != many+1 || contains(keys, pubOf(50)) {
			t.Fatalf("%d keys are trusted, want %d", len(keys), many+1)
		}
	}
}

// Fails when what a kill left in the middle of a write stays for ever, or when
// what another process is about to put in place is removed.
func TestWhatAKillLeftIsRemoved(t *testing.T) {
	dir := trustDir(t, ".key-1", "left", ".key-2", "in use", ".other", "not ours")
	for _, name := range []string{".key-1", ".other"} {
		if err := os.Chtimes(filepath.Join(dir, name), time.Time{}, time.Now().Add(-2*leftAfter)); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := Add(dir, "hosta", offer(t, "hostb.pub", PublicLine("hostb", pubOf(1))), false, today); err != nil {
		t.Fatal(err)
	}
	if names := list(t, dir); !slices.Equal(names, []string{".key-2", ".other", "hostb.pub"}) {
		t.Errorf("there are %v", names)
	}
}

// Fails when a file gives trust that nobody meant to give.
func TestAddRefuses(t *testing.T) {
	b, c := PublicLine("hostb", pubOf(1)), PublicLine("hostc", pubOf(2))
	for name, tc := range map[string]struct {
		file, text string
		more       bool
		want       fault.Code
	}{
		"our own host":         {"x", PublicLine("hosta", pubOf(5)), true, fault.BadRequest},
		"nobody's":             {"x", "ed25519 " + strings.Fields(b)[1], false, fault.BadRequest},
		"name and line differ": {"hostd.pub", PublicLine("hoste", pubOf(5)), false, fault.BadRequest},
		"two hosts":            {"x", PublicLine("hostd", pubOf(5)) + PublicLine("hoste", pubOf(6)), false, fault.BadRequest},
		"one bad line":         {"x", PublicLine("hostd", pubOf(5)) + "rubbish", false, fault.BadRequest},
		"another key":          {"x", PublicLine("hostb", pubOf(5)), false, fault.Conflict},
		"one more key":         {"x", b + PublicLine("hostb", pubOf(5)), false, fault.Conflict},
		"another host's key":   {"x", PublicLine("hostd", pubOf(1)), true, fault.Conflict},
		"empty":                {"hostd.pub", "", false, fault.BadRequest},
		"a private key":        {"hostd.pub", otherKey, false, fault.BadRequest},
		"large":                {"hostd.pub", strings.Repeat("#", maxFile+1), false, fault.TooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			dir := trustDir(t, "hostb.pub", b, "hostc.pub", c)
			host, prints, err := Add(dir, "hosta", offer(t, tc.file, tc.text), tc.more, time.Now())
			if host != "" || prints != nil || fault.CodeOf(err) != tc.want {
				t.Errorf("Add: %q, %v, %v; want %s", host, prints, err, tc.want)
			}
			if got := read(t, filepath.Join(dir, "hostb.pub")) + read(t, filepath.Join(dir, "hostc.pub")); got != b+c || len(list(t, dir)) != 2 {
				t.Errorf("the directory was changed: %v, %q", list(t, dir), got)
			}
		})
	}
	if _, _, err := Add(trustDir(t), "hosta", filepath.Join(t.TempDir(), "none"), false, time.Now()); !errors.Is(err, fs.ErrNotExist) || !fault.Is(err, fault.BadRequest) {
		t.Errorf("no such file: %v", err)
	}
}

var today = time.Date(2026, 11, 30, 9, 0, 0, 0, time.FixedZone("", 3600))

// Fails when the day on which a key was trusted is lost or made up, or when a
// file that is rewritten loses a comment or gets a wider mode.
func TestSinceWhenAKeyIsTrusted(t *testing.T) {
	dir := trustDir(t, "hostb.pub", "# Bea's machine\n"+PublicLine("hostb", pubOf(1)))
	path := filepath.Join(dir, "hostb.pub")
	before := today.AddDate(0, -1, 0)
	if err := errors.Join(os.Chmod(path, 0o600), os.Chtimes(path, before, before)); err != nil {
		t.Fatal(err)
	}
	want := func(n byte, at time.Time) {
		t.Helper()
		since, err := Since(dir, "hostb")
		if got := since[Fingerprint(pubOf(n))]; err != nil || !got.Equal(at) {
			t.Errorf("key %d is there since %s, %v; want %s", n, got, err, at)
		}
	}
	want(1, before) // of a line that a person wrote its file tells
	for n := byte(2); n <= 3; n++ {
		if _, _, err := Add(dir, "hosta", offer(t, "x", PublicLine("hostb", pubOf(n))), true, today.AddDate(0, 0, int(n))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Revoke(dir, "hostb", Fingerprint(pubOf(2))); err != nil {
		t.Fatal(err)
	}
	want(3, today.AddDate(0, 0, 3))
	want(2, time.Time{})
	wantKeys(t, open(t, dir), "hostb", pubOf(1), pubOf(3))
	if text := read(t, path); !strings.HasPrefix(text, "# Bea's machine\n") {
		t.Errorf("wrote %q", text)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 || len(list(t, dir)) != 1 {
		t.Errorf("the file: %v, %v, beside it %v", info.Mode(), err, list(t, dir))
	}
	if since, err := Since(dir, "hostz"); len(since) != 0 || err != nil {
		t.Errorf("of a stranger: %v, %v", since, err)
	}
}

// Fails when a new key replaces the old one, or a comment in the file is lost.
func TestAddBesideTheOldKey(t *testing.T) {
	dir := trustDir(t, "hostb.pub", "# Bea's machine\n"+strings.TrimSpace(PublicLine("hostb", pubOf(1))))
	if _, prints, err := Add(dir, "hosta", offer(t, "x", PublicLine("hostb", pubOf(2))), true, time.Now()); err != nil || !slices.Equal(prints, []string{Fingerprint(pubOf(2))}) {
		t.Fatalf("Add: %v, %v", prints, err)
	}
	wantKeys(t, open(t, dir), "hostb", pubOf(1), pubOf(2))
	if text := read(t, filepath.Join(dir, "hostb.pub")); !strings.HasPrefix(text, "# Bea's machine\n") {
		t.Errorf("wrote %q", text)
	}
}

// Fails when a key is added where it would not be believed, or over a file that
// a person has to look at.
func TestAddWantsASoundPlace(t *testing.T) {
	file := offer(t, "x", PublicLine("hostb", pubOf(1)))
	broken := trustDir(t, "hostb.pub", "rubbish")
	wide := trustDir(t)
	if err := os.Chmod(wide, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{broken, wide, filepath.Join(broken, "hostb.pub")} {
		if _, _, err := Add(dir, "hosta", file, true, time.Now()); err == nil {
			t.Errorf("added to %s", dir)
		}
	}
	if read(t, filepath.Join(broken, "hostb.pub")) != "rubbish" || len(list(t, wide)) != 0 {
		t.Error("something was written")
	}
	if _, _, err := Add(trustDir(t, "hostz.pub", "rubbish"), "hosta", file, false, time.Now()); err != nil {
		t.Errorf("another host's file is in the way: %v", err)
	}
}

// Fails when a revoked key is still believed, or another key goes with it.
func TestRevoke(t *testing.T) {
	t.Attr("threat", "G7")
	dir := trustDir(t, "hostb.pub", PublicLine("hostb", pubOf(1))+PublicLine("hostb", pubOf(2)), "hostc.pub", PublicLine("hostc", pubOf(3)), "hostd.pub", "rubbish")
	for _, tc := range []struct {
		host, print string
		want        []ed25519.PublicKey // revoked; nil is an error
		left        []string
	}{
		{"hostb", Fingerprint(pubOf(3)), nil, []string{"hostb.pub", "hostc.pub", "hostd.pub"}},
		{"hostz", "", nil, []string{"hostb.pub", "hostc.pub", "hostd.pub"}},
		{"../trust/hostb", "", nil, []string{"hostb.pub", "hostc.pub", "hostd.pub"}},
		{"hostb", Fingerprint(pubOf(1)), []ed25519.PublicKey{pubOf(1)}, []string{"hostb.pub", "hostc.pub", "hostd.pub"}},
		{"hostb", Fingerprint(pubOf(2)), []ed25519.PublicKey{pubOf(2)}, []string{"hostc.pub", "hostd.pub"}},
		{"hostd", "SHA256:", nil, []string{"hostc.pub", "hostd.pub"}},
		{"hostd", "", []ed25519.PublicKey{}, []string{"hostc.pub"}},
	} {
		prints, err := Revoke(dir, tc.host, tc.print)
		if (err == nil) != (tc.want != nil) || !slices.Equal(prints, fingerprintsOf(tc.want)) {
			t.Errorf("Revoke(%s, %s): %v, %v", tc.host, tc.print, prints, err)
		}
		if got := list(t, dir); !slices.Equal(got, tc.left) {
			t.Errorf("Revoke(%s, %s) left %v", tc.host, tc.print, got)
		}
		if tc.print == Fingerprint(pubOf(1)) {
			wantKeys(t, open(t, dir), "hostb", pubOf(2))
		}
	}
}
