package keys

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"fleetd/fault"
)

const (
	secretMode = 0o600
	pemType    = "PRIVATE KEY" // PKCS #8, as openssl writes it
)

// LoadOrCreate returns the signing key in the PEM file path. If there is none,
// it draws one from rand and writes it with mode 0600, making missing parents
// with mode 0700; created is then true. Of several processes that do so at once
// one creates and all return the same key.
//
// A key that others could read or change, or that belongs to another user, is
// refused, as is a file that holds none: an old key is never overwritten. The
// errors say how to mend it.
func LoadOrCreate(path string, rand io.Reader) (key ed25519.PrivateKey, created bool, err error) {
	key, err = load(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, false, err
	}
	if key, err = create(path, rand); !errors.Is(err, fs.ErrExist) {
		return key, err == nil, err
	}
	if key, err = load(path); errors.Is(err, fs.ErrNotExist) {
		err = fault.Wrap(err, fault.BadRequest, "%s is a link to nothing; bring back what it pointed to, or remove it to get a new key", path)
	}
	return key, false, err
}

// Load returns the signing key in the PEM file path and makes none;
// fs.ErrNotExist if there is none. It refuses what LoadOrCreate refuses.
func Load(path string) (ed25519.PrivateKey, error) { return load(path) }

// create makes the key file; fs.ErrExist if another process was faster.
func create(path string, rand io.Reader) (ed25519.PrivateKey, error) {
	if err := makeDir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	if err := checkParent(path); err != nil {
		return nil, err
	}
	seed := make([]byte, ed25519.SeedSize)
	if _, err := io.ReadFull(rand, seed); err != nil {
		return nil, fault.Wrap(err, fault.Internal, "could not draw a key; the system's random source failed")
	}
	key := ed25519.NewKeyFromSeed(seed)
	text, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fault.Wrap(err, fault.Internal, "could not write the new key as PKCS #8")
	}
	if err := publish(path, pem.EncodeToMemory(&pem.Block{Type: pemType, Bytes: text}), secretMode, true); err != nil {
		return nil, err
	}
	return key, nil
}

// load reads the key file; fs.ErrNotExist if there is none.
func load(path string) (ed25519.PrivateKey, error) {
	text, _, err := readOwn(path, secretMode, true)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err != nil {
		return nil, asFault(err, path)
	}
	if err := checkParent(path); err != nil {
		return nil, err
	}
	return parsePrivate(path, text)
}

func parsePrivate(path string, text []byte) (ed25519.PrivateKey, error) {
	notKey := func(cause error) error {
		return fault.Wrap(cause, fault.BadRequest, "%s holds no Ed25519 key in PEM form; restore it from a copy, or move it away: "+
			"the gateway then makes a new key, which every other gateway must be told to trust", path)
	}
	block, rest := pem.Decode(text)
	if block == nil || block.Type != pemType || len(bytes.TrimSpace(rest)) != 0 {
		return nil, notKey(nil)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, notKey(err)
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, notKey(nil)
	}
	return key, nil
}

// checkParent refuses a directory in which others could put a key of their own
// in the place of ours. A sticky directory doesn't let them.
func checkParent(path string) error {
	dir := filepath.Dir(path)
	info, err := os.Stat(dir)
	if err != nil {
		return fault.Wrap(err, fault.Internal, "could not look at the directory %s", dir)
	}
	if info.Mode().Perm()&0o022 != 0 && info.Mode()&os.ModeSticky == 0 {
		return fault.New(fault.NotAllowed, "the directory %s has mode %04o, so that others may exchange the key in it; run: chmod 0700 %s",
			dir, info.Mode().Perm(), dir)
	}
	return checkOwner(dir, info, false)
}
