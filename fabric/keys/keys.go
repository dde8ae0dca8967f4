// Package keys holds the files of design §4 and §13 that say who is believed:
// the gateway's own signing key, and one file of public keys for each gateway
// that it trusts. There is no trust on first use: a host is trusted because
// somebody put its file there.
//
// It reads, checks and writes these files. What is signed with the keys, and
// what a good signature may say, is the business of envelope and fabric.
package keys

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"io"
	"os"
	"syscall"

	"fleetd/fault"
)

// maxFile is the most that a key file may have, in bytes; hundreds of keys fit.
const maxFile = 64 << 10

// Fingerprint is what two people compare over the phone: the SHA-256 of the 32
// raw bytes of the public key, written as ssh writes it.
func Fingerprint(pub ed25519.PublicKey) string {
	sum := sha256.Sum256(pub)
	return "SHA256:" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// readOwn reads a small regular file that belongs to us, or where it is no
// secret to root, and whose permissions are within allowed. The checks are made
// on the open file, so that it can't be exchanged in between. It returns the
// permissions too.
func readOwn(path string, allowed os.FileMode, secret bool) ([]byte, os.FileMode, error) {
	// Without O_NONBLOCK a named pipe would hold us up for ever.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() {
		return nil, 0, fault.New(fault.BadRequest, "%s is no regular file; remove it or set another path", path)
	}
	if err := checkOwner(path, info, secret); err != nil {
		return nil, 0, err
	}
	if extra := info.Mode().Perm() &^ allowed; extra != 0 {
		return nil, 0, fault.New(fault.NotAllowed, "%s has mode %04o, so that others may %s it; make sure nobody did and run: chmod %04o %s",
			path, info.Mode().Perm(), verb(secret), info.Mode().Perm()&allowed, path)
	}
	text, err := readAll(path, f)
	return text, info.Mode().Perm(), err
}

// readAll reads r, which is the file path, if it is small.
func readAll(path string, r io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, asFault(err, path)
	}
	if len(text) > maxFile {
		return nil, fault.New(fault.TooLarge, "%s has more than %d bytes; that is no key file", path, maxFile)
	}
	return text, nil
}

func verb(secret bool) string {
	if secret {
		return "use"
	}
	return "change"
}

// checkOwner demands that path is ours. What is no secret may be root's.
func checkOwner(path string, info os.FileInfo, secret bool) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fault.New(fault.Internal, "this system does not tell who owns %s", path)
	}
	owner, us := int(stat.Uid), os.Geteuid()
	if owner == us || owner == 0 && !secret {
		return nil
	}
	if us == 0 {
		return fault.New(fault.NotAllowed, "%s belongs to user %d and this runs as root, whose keys they are not; run it as that user: sudo -u '#%d' bridged …, or with a config that names files of root's",
			path, owner, owner)
	}
	return fault.New(fault.NotAllowed, "%s belongs to user %d and the gateway runs as user %d; make sure it is yours and run: chown %d %s",
		path, owner, us, us, path)
}

// asFault gives an error of the system a sentence.
func asFault(err error, path string) error {
	if _, ok := errors.AsType[*fault.Error](err); ok {
		return err
	}
	return fault.Wrap(err, fault.Internal, "could not read %s; see that it is there and yours", path)
}
