package keys

import (
	"crypto/ed25519"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"fleetd/fault"
)

// nextSuffix ends the name of the key that will follow the gateway's own, until
// it does.
const nextSuffix = ".next"

// Next returns the key that will follow the one in path, drawn now if there is
// none yet. Nothing is signed with it before Rotate, so that others can be told
// to trust it first. Our own host self does so from now on: once it is in place
// a command like migrate signs with it, and the daemon that was started before
// reads what that sent.
func Next(path, trustDir, self string, rand io.Reader, now time.Time) (ed25519.PublicKey, error) {
	key, _, err := LoadOrCreate(path+nextSuffix, rand)
	if err != nil {
		return nil, err
	}
	pub := key.Public().(ed25519.PublicKey)
	return pub, trustOwn(trustDir, self, now, pub)
}

// Drawn returns the key that Next drew and Rotate did not put in the place of the
// one in path yet; nil if there is none.
func Drawn(path string) (ed25519.PublicKey, error) {
	key, err := load(path + nextSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return key.Public().(ed25519.PublicKey), nil
}

// Rotate puts the key that Next drew in the place of the one in path, in one
// step. Both are first added to the trust file of our own host self: what was
// signed with the earlier one stays known as ours (design §6, dead letters). Run
// again after a crash it goes on.
func Rotate(path, trustDir, self string, now time.Time) (was, is ed25519.PublicKey, err error) {
	old, err := load(path)
	if err != nil {
		return nil, nil, asFault(err, path)
	}
	next, err := load(path + nextSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fault.New(fault.BadRequest, "there is no next key yet; run `bridged keys rotate` without --apply, and have the other hosts trust what it prints")
	}
	if err != nil {
		return nil, nil, err
	}
	was, is = old.Public().(ed25519.PublicKey), next.Public().(ed25519.PublicKey)
	if err := trustOwn(trustDir, self, now, was, is); err != nil {
		return nil, nil, err
	}
	if err := errors.Join(os.Rename(path+nextSuffix, path), syncDir(filepath.Dir(path))); err != nil {
		return nil, nil, fault.Wrap(err, fault.Internal, "could not put the new key in place; see that %s is yours, and run it again", filepath.Dir(path))
	}
	return was, is, nil
}

// trustOwn adds keys of our own host to its trust file.
func trustOwn(trustDir, self string, now time.Time, pubs ...ed25519.PublicKey) error {
	file := filepath.Join(trustDir, self+suffix)
	if err := usable(trustDir, file); err != nil {
		return err
	}
	unlock, err := lock(trustDir)
	if err != nil {
		return asFault(err, trustDir)
	}
	defer unlock()
	_, known, _ := readFile(file) // usable has said what is wrong with it
	return appendKeys(file, self, without(pubs, known...), now)
}
