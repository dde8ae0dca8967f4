package keys

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"fleetd/fault"
)

// Fails when the key of a gateway changes over a restart, or others can read it.
func TestLoadOrCreate(t *testing.T) {
	t.Attr("threat", "U1")
	path := filepath.Join(t.TempDir(), "state", "bridged", "gateway.key")
	seed := bytes.Repeat([]byte{9}, ed25519.SeedSize)
	key, created, err := LoadOrCreate(path, bytes.NewReader(seed))
	if err != nil || !created || !key.Equal(ed25519.NewKeyFromSeed(seed)) {
		t.Fatalf("first start: created %v, %v", created, err)
	}
	for path, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700, filepath.Dir(filepath.Dir(path)): 0o700} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode %v, want %v (%v)", path, info.Mode(), want, err)
		}
	}
	again, created, err := LoadOrCreate(path, rand.Reader)
	if err != nil || created || !again.Equal(key) {
		t.Errorf("second start: created %v, same key %v, %v", created, again.Equal(key), err)
	}
	if names := list(t, filepath.Dir(path)); len(names) != 1 {
		t.Errorf("left behind: %v", names)
	}
}

// Fails when two processes that start at once go on with different keys.
func TestLoadOrCreateRace(t *testing.T) {
	for range 20 {
		path := filepath.Join(t.TempDir(), "gateway.key")
		var (
			wg   sync.WaitGroup
			mu   sync.Mutex
			keys []ed25519.PrivateKey
			made int
		)
		for range 8 {
			wg.Go(func() {
				key, created, err := LoadOrCreate(path, rand.Reader)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Errorf("LoadOrCreate: %v", err)
				}
				if keys = append(keys, key); created {
					made++
				}
			})
		}
		wg.Wait()
		for _, key := range keys {
			if !key.Equal(keys[0]) {
				t.Fatal("two keys for one path")
			}
		}
		if names := list(t, filepath.Dir(path)); made != 1 || len(names) != 1 {
			t.Fatalf("%d created it, files %v", made, names)
		}
	}
}

// Fails when a key that somebody else may know or exchange is used, or the
// error doesn't say how to mend it.
func TestLoadRefusesWhatOthersCanReach(t *testing.T) {
	t.Attr("threat", "U1")
	for name, tc := range map[string]struct {
		path string // relative to the parent of the key's directory
		mode os.FileMode
		want string // "" for accepted
	}{
		"read-only":                {"d/key", 0o400, ""},
		"group may read":           {"d/key", 0o640, "chmod 0600 "},
		"all may read":             {"d/key", 0o604, "chmod 0600 "},
		"group may write":          {"d/key", 0o620, "chmod 0600 "},
		"executable":               {"d/key", 0o700, "chmod 0600 "},
		"directory can be read":    {"d", 0o755, ""},
		"directory is the group's": {"d", 0o770, "chmod 0700 "},
		"directory is everybody's": {"d", 0o777, "chmod 0700 "},
		"sticky directory":         {"d", os.ModeSticky | 0o777, ""},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			path := filepath.Join(root, "d", "key")
			mustCreate(t, path)
			if err := os.Chmod(filepath.Join(root, tc.path), tc.mode); err != nil {
				t.Fatal(err)
			}
			_, created, err := LoadOrCreate(path, rand.Reader)
			switch {
			case created:
				t.Error("made a new key over the old one")
			case tc.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tc.want != "" && (!fault.Is(err, fault.NotAllowed) || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("%v; want NOT_ALLOWED with %q", err, tc.want)
			}
		})
	}
}

// Fails when a key is made where others can exchange it.
func TestCreateRefusesAnOpenDirectory(t *testing.T) {
	t.Attr("threat", "U1")
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, created, err := LoadOrCreate(filepath.Join(dir, "key"), rand.Reader); created || !fault.Is(err, fault.NotAllowed) {
		t.Errorf("created %v, %v", created, err)
	}
	if names := list(t, dir); len(names) != 0 {
		t.Errorf("left behind: %v", names)
	}
}

// Fails when a key is used that another user put there, or root is told to take
// it from him, whose gateway could not use it any more.
func TestLoadRefusesAnotherOwner(t *testing.T) {
	needRoot(t)
	for _, what := range []string{"d/key", "d"} {
		root := t.TempDir()
		path := filepath.Join(root, "d", "key")
		mustCreate(t, path)
		if err := os.Chown(filepath.Join(root, what), 12345, 12345); err != nil {
			t.Fatal(err)
		}
		_, created, err := LoadOrCreate(path, rand.Reader)
		if created || !fault.Is(err, fault.NotAllowed) || !strings.Contains(err.Error(), "sudo -u '#12345'") || strings.Contains(err.Error(), "chown") {
			t.Errorf("%s of user 12345: created %v, %v", what, created, err)
		}
	}
}

// Fails when a file that is no key is used, overwritten, or hangs the start.
func TestLoadRefusesWhatIsNoKey(t *testing.T) {
	good := func() string {
		path := filepath.Join(t.TempDir(), "key")
		mustCreate(t, path)
		return read(t, path)
	}()
	for name, text := range map[string]string{
		"empty":          "",
		"text":           "not a key\n",
		"public line":    PublicLine("hosta", pubOf(1)),
		"cut short":      good[:len(good)/2],
		"two keys":       good + good,
		"other PEM":      strings.ReplaceAll(good, "PRIVATE KEY", "PUBLIC KEY"),
		"rubbish in PEM": "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
		"other kind":     otherKey,
		"large":          strings.Repeat("\n", maxFile+1),
	} {
		path := filepath.Join(t.TempDir(), "key")
		write(t, path, text, 0o600)
		_, created, err := LoadOrCreate(path, rand.Reader)
		if created || err == nil || fault.Is(err, fault.Internal) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: created %v, %v", name, created, err)
		}
		if read(t, path) != text {
			t.Errorf("%s: the file was overwritten", name)
		}
	}
	path := filepath.Join(t.TempDir(), "key")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "key")
	if err := os.Symlink(filepath.Join(t.TempDir(), "nothing"), link); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{path: "no regular file", link: "a link to nothing", t.TempDir(): "no regular file"} {
		_, created, err := LoadOrCreate(path, rand.Reader)
		if created || !fault.Is(err, fault.BadRequest) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: created %v, %v", path, created, err)
		}
	}
}

// Fails when a first start that goes wrong leaves half a key behind, or none
// of the reasons in its error.
func TestCreateFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "key")
	if _, created, err := LoadOrCreate(path, strings.NewReader("short")); created || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("short random source: created %v, %v", created, err)
	}
	if names := list(t, dir); len(names) != 0 {
		t.Errorf("left behind: %v", names)
	}
	write(t, path, "", 0o600)
	if _, created, err := LoadOrCreate(filepath.Join(path, "below", "key"), rand.Reader); created || !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("below a file: created %v, %v", created, err)
	}
}
