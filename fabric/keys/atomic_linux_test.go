package keys

import (
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fleetd/test/fslog"
)

// Fails when a file of keys is ever there with half of its text, with another
// mode, or not at all while it is written anew.
func TestFilesAreReplacedInOneStep(t *testing.T) {
	t.Attr("threat", "U1")
	dir := t.TempDir()
	path, trust := filepath.Join(dir, "gateway.key"), filepath.Join(dir, "trust")
	own, other := filepath.Join(trust, "hosta.pub"), filepath.Join(trust, "hostb.pub")
	if err := os.Mkdir(trust, 0o700); err != nil {
		t.Fatal(err)
	}
	offer := func(n byte) func() error {
		return func() error {
			file := filepath.Join(t.TempDir(), "hostb.pub")
			write(t, file, PublicLine("hostb", pubOf(n)), 0o644)
			_, _, err := Add(trust, "hosta", file, true, today)
			return err
		}
	}
	for _, act := range []struct {
		name  string
		files []string
		do    func() error
	}{
		{"the first start", []string{path}, func() error { _, _, err := LoadOrCreate(path, rand.Reader); return err }},
		{"trust a host", []string{other}, offer(1)},
		{"trust a second key", []string{other}, offer(2)},
		{"revoke the first", []string{other}, func() error { _, err := Revoke(trust, "hostb", Fingerprint(pubOf(1))); return err }},
		{"draw the next key", []string{path + nextSuffix, own}, func() error { _, err := Next(path, trust, "hosta", rand.Reader, today); return err }},
		{"rotate to it", []string{path, own}, func() error { _, _, err := Rotate(path, trust, "hosta", today); return err }},
	} {
		logs := map[string]*fslog.Log{dir: fslog.Open(t, dir), trust: fslog.Open(t, trust)}
		if err := act.do(); err != nil {
			t.Fatalf("%s: %v", act.name, err)
		}
		told := map[string][]string{dir: logs[dir].Told(), trust: logs[trust].Told()}
		for _, file := range act.files {
			fslog.InOneStep(t, told[filepath.Dir(file)], file)
			if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s: %s has mode %v, %v", act.name, file, info.Mode(), err)
			}
		}
	}
}

const childDir = "KEYS_TEST_DIR" // of a copy of the test binary that is to be killed

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		fmt.Fprintln(os.Stderr, rotateForEver(dir))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// rotateForEver changes the key in dir, and revokes the one before, until it is
// killed.
func rotateForEver(dir string) error {
	path, trust := filepath.Join(dir, "gateway.key"), filepath.Join(dir, "trust")
	for {
		if _, err := Next(path, trust, "hosta", rand.Reader, today); err != nil {
			return err
		}
		was, _, err := Rotate(path, trust, "hosta", today)
		if err != nil {
			return err
		}
		if _, err := Revoke(trust, "hosta", Fingerprint(was)); err != nil {
			return err
		}
	}
}

// Fails when a reader meets half a key or half a trust file while they are
// rewritten, when a kill in the middle leaves one, or when what it leaves cannot
// be gone on from.
func TestNoReaderAndNoKillFindsHalfAFile(t *testing.T) {
	t.Attr("threat", "U1")
	dir := t.TempDir()
	path, trust := filepath.Join(dir, "gateway.key"), filepath.Join(dir, "trust")
	own := filepath.Join(trust, "hosta.pub")
	mustCreate(t, path)
	key, err := load(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := trustOwn(trust, "hosta", today, key.Public().(ed25519.PublicKey)); err != nil {
		t.Fatal(err)
	}
	look := func() (key ed25519.PrivateKey, trusted []ed25519.PublicKey) {
		key, err := load(path)
		if err != nil {
			t.Errorf("the key: %v", err)
		}
		_, trusted, problems := readFile(own)
		if len(trusted) == 0 || len(problems) > 0 {
			t.Errorf("the trust file: %d keys, %v", len(trusted), problems)
		}
		for _, file := range []string{path, own} {
			if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s: mode %v, %v", file, info.Mode(), err)
			}
		}
		return key, trusted
	}
	// Each is killed right after the kernel told such an event for the nth time.
	for round, event := range []string{"create .key-", "write .key-", "chmod .key-", "close .key-", "delete .key-", "from .key-", "from gateway.key.next", "to hosta.pub", "to gateway.key"} {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childDir+"="+dir)
		cmd.Stderr = os.Stderr
		log := fslog.Open(t, dir, trust)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var reader sync.WaitGroup
		var killed atomic.Bool
		reader.Go(func() {
			for !killed.Load() && !t.Failed() {
				look()
			}
		})
		for left := 8 + round; left > 0; {
			e := log.Next(time.Minute)
			if e == "" || t.Failed() {
				t.Errorf("killed before %q came", event)
				break
			}
			if strings.HasPrefix(e, event) {
				left--
			}
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // says that it was killed
		killed.Store(true)
		reader.Wait()
		key, trusted := look()
		if key != nil && !contains(trusted, key.Public().(ed25519.PublicKey)) {
			t.Errorf("killed at %q: what is signed with the key is not known as our own", event)
		}
		if _, err := load(path + nextSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("killed at %q: the next key: %v", event, err)
		}
		if t.Failed() {
			return
		}
	}
	for _, d := range []string{dir, trust} {
		for _, name := range list(t, d) {
			if info, err := os.Stat(filepath.Join(d, name)); err != nil || !info.IsDir() && info.Mode().Perm() != 0o600 {
				t.Errorf("left behind: %s, %v, %v", name, info.Mode(), err)
			}
		}
	}
}
