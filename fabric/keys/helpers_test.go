package keys

import (
	"bytes"
	"crypto/ecdh"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// otherKey is a PKCS #8 file of another kind of key (X25519).
var otherKey = func() string {
	key, err := ecdh.X25519().NewPrivateKey(bytes.Repeat([]byte{1}, 32))
	if err != nil {
		panic(err)
	}
	text, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		panic(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: pemType, Bytes: text}))
}()

// pubOf is the nth public key of the tests.
func pubOf(n byte) ed25519.PublicKey { return keyOf(n).Public().(ed25519.PublicKey) }

func keyOf(n byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{n}, ed25519.SeedSize))
}

// self is the key of our own host, hosta, in tests.
var self = pubOf(100)

// trustDir makes a trust directory of the files, name and text in turn.
func trustDir(t *testing.T, files ...string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "trust")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(files); i += 2 {
		write(t, filepath.Join(dir, files[i]), files[i+1], 0o644)
	}
	return dir
}

func open(t *testing.T, dir string) *Trust {
	t.Helper()
	trust, err := OpenTrust(dir, "hosta", self)
	if err != nil {
		t.Fatal(err)
	}
	return trust
}

// clock is a time that only the test moves.
type clock struct{ now time.Time }

func (c *clock) on(trust *Trust) { trust.now = func() time.Time { return c.now } }

// wantKeys fails the test if host isn't trusted with exactly the keys.
func wantKeys(t *testing.T, trust *Trust, host string, want ...ed25519.PublicKey) {
	t.Helper()
	if got := trust.Keys(host); !slices.EqualFunc(got, want, func(a, b ed25519.PublicKey) bool { return a.Equal(b) }) {
		t.Errorf("keys of %s: %x, want %x", host, got, want)
	}
}

// wantProblems fails the test if the problems aren't one for each of the words,
// in whatever order.
func wantProblems(t *testing.T, trust *Trust, words ...string) {
	t.Helper()
	problems := trust.Problems()
	for _, word := range words {
		if !slices.ContainsFunc(problems, func(err error) bool { return strings.Contains(err.Error(), word) }) {
			t.Errorf("no problem tells of %q: %v", word, problems)
		}
	}
	if len(problems) != len(words) {
		t.Errorf("%d problems, want %d: %v", len(problems), len(words), problems)
	}
}

func mustCreate(t *testing.T, path string) {
	t.Helper()
	if _, created, err := LoadOrCreate(path, rand.Reader); err != nil || !created {
		t.Fatalf("created %v, %v", created, err)
	}
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil { // whatever the umask
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func list(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can give a file to another user")
	}
}
