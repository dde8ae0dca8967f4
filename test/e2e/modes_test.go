package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What has to be this user's alone and is not keeps the daemon from starting,
// and what it says mends it. Fails when it starts over a key, a store, a socket's
// folder or a folder of trusted keys that others can reach or that is another's,
// or when the command that it prints does not mend it; and when something in the
// data_dir is left open to others by what makes it or writes it anew.
func TestWhatOthersCanReachIsRefusedAtTheStart(t *testing.T) {
	t.Attr("threat", "U1 U2")
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*bound)
	defer cancel()
	sockets := t.TempDir()
	if err := os.Chmod(sockets, 0o700); err != nil {
		t.Fatal(err)
	}
	f := newFleet(t, "")
	h := addHost(t, ctx, f, "hosta", "BRIDGED_SOCKET="+filepath.Join(sockets, "s"))
	if err := h.Stop(); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(f.Dir, "hosta")
	if err := os.MkdirAll(filepath.Join(dir, "trust"), 0o700); err != nil {
		t.Fatal(err)
	}
	modes := map[string]os.FileMode{
		filepath.Join(dir, "data"): 0o755, filepath.Join(dir, "data", "gateway.key"): 0o640, filepath.Join(dir, "data", "bridged.db"): 0o604,
		filepath.Join(dir, "trust"): 0o777, sockets: 0o711,
	}
	mend := regexp.MustCompile(`run: (ch\w+) (\d+) (/\S+)`)
	for path, mode := range modes {
		spoil := map[string]func() error{"mode": func() error { return os.Chmod(path, mode) }}
		if os.Geteuid() == 0 { // nobody else can give a file away
			spoil["owner"] = func() error { return os.Chown(path, 65534, -1) }
		}
		for what, do := range spoil {
			if err := do(); err != nil {
				t.Fatal(err)
			}
			out, errs, err := bridged(ctx, h, "serve")
			if base := filepath.Base(path); what == "owner" && (base == "gateway.key" || base == "trust") { // root takes no keys from their user
				if err == nil || !strings.Contains(errs, path+" belongs to user 65534") || !strings.Contains(errs, "sudo -u '#65534'") {
					t.Fatalf("over another's %s: %v: %s%s", base, err, out, errs)
				}
				if err := os.Chown(path, os.Geteuid(), -1); err != nil {
					t.Fatal(err)
				}
				continue
			}
			m := mend.FindStringSubmatch(strings.TrimSuffix(errs, ")\n"))
			if err == nil || m == nil || m[3] != path {
				t.Fatalf("over %s with another %s: %v: %s%s", path, what, err, out, errs)
			}
			if out, err := exec.CommandContext(ctx, m[1], m[2], m[3]).CombinedOutput(); err != nil {
				t.Fatalf("%v: %v, %s", m, err, out)
			}
		}
	}
	for _, args := range [][]string{{"store", "compact"}, {"keys", "rotate"}, {"keys", "rotate", "--apply"}, {"keys", "rotate"}} {
		if out, errs, err := bridged(ctx, h, args...); err != nil {
			t.Fatalf("bridged %q: %v: %s%s", args, err, out, errs)
		}
	}
	if err := h.Start(ctx); err != nil {
		t.Errorf("mended, it does not start: %v", err)
	}
	err := filepath.WalkDir(filepath.Join(dir, "data"), func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
