package keys

import (
	"crypto/ed25519"
	"crypto/rand"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"fleetd/fault"
)

// Fails when a change of the own key signs with the new one too early, loses the
// old one for the mail that is still under way, leaves a key that others can
// read, or cannot go on after a crash between its two steps.
func TestRotate(t *testing.T) {
	t.Attr("threat", "U1")
	dir := t.TempDir()
	path, trust := filepath.Join(dir, "gateway.key"), filepath.Join(dir, "trust")
	mustCreate(t, path)
	old, err := load(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := Rotate(path, trust, "hosta", today); !fault.Is(err, fault.BadRequest) {
		t.Errorf("without a next key: %v", err)
	}
	draw := func() ed25519.PublicKey {
		t.Helper()
		next, err := Next(path, trust, "hosta", rand.Reader, today)
		if err != nil {
			t.Fatal(err)
		}
		return next
	}
	next := draw()
	if key, _, err := LoadOrCreate(path, nil); err != nil || !key.Equal(old) {
		t.Errorf("the new key signs before it is applied: %v", err)
	}
	if !draw().Equal(next) {
		t.Error("asked again, the next key is another")
	}
	// A crash left the old key in the trust file and nothing more.
	public := old.Public().(ed25519.PublicKey)
	if err := appendKeys(filepath.Join(trust, "hosta.pub"), "hosta", []ed25519.PublicKey{public}, today); err != nil {
		t.Fatal(err)
	}
	was, is, err := Rotate(path, trust, "hosta", today)
	if err != nil || !was.Equal(public) || !is.Equal(next) {
		t.Fatalf("it came to %v", err)
	}
	if key, created, err := LoadOrCreate(path, nil); err != nil || created || !next.Equal(key.Public()) {
		t.Errorf("the key in place is another, or %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key file: %v, %v", info.Mode(), err)
	}
	if names := list(t, dir); !slices.Equal(names, []string{"gateway.key", "trust"}) {
		t.Errorf("there is %v", names)
	}
	own, err := OpenTrust(trust, "hosta", is)
	if err != nil {
		t.Fatal(err)
	}
	wantKeys(t, own, "hosta", is, was)
	wantProblems(t, own)
}

// Fails when a next key that others could have read is put in place.
func TestRotateRefusesAKeyThatOthersCanReach(t *testing.T) {
	t.Attr("threat", "U1")
	path := filepath.Join(t.TempDir(), "gateway.key")
	mustCreate(t, path)
	if _, err := Next(path, filepath.Join(t.TempDir(), "trust"), "hosta", rand.Reader, today); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path+nextSuffix, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Rotate(path, t.TempDir(), "hosta", today); !fault.Is(err, fault.NotAllowed) {
		t.Errorf("it reads %v", err)
	}
}

// Commands like migrate sign with the key on the disk, and the daemon was started
// with the one before. Fails when the daemon refuses its own host's mail between
// the change and its restart.
func TestTheRunningDaemonBelievesTheNextKey(t *testing.T) {
	dir := t.TempDir()
	path, folder := filepath.Join(dir, "gateway.key"), filepath.Join(dir, "trust")
	mustCreate(t, path)
	old, err := load(path)
	if err != nil {
		t.Fatal(err)
	}
	daemon, err := OpenTrust(folder, "hosta", old.Public().(ed25519.PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Next(path, folder, "hosta", rand.Reader, today); err != nil {
		t.Fatal(err)
	}
	daemon.Reload() // it does so every few seconds, and others need longer to trust it
	was, is, err := Rotate(path, folder, "hosta", today)
	if err != nil {
		t.Fatal(err)
	}
	wantKeys(t, daemon, "hosta", was, is)
}
