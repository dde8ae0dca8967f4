package keys

import (
	"crypto/ed25519"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"fleetd/fabric/envelope"
	"fleetd/fault"
)

const (
	suffix = ".pub"
	// publicModes are the permissions that a trust file may have: whoever can
	// write it decides whom we believe.
	publicModes = 0o755
	publicMode  = 0o600 // of those that we write
)

type keysByHost map[string][]ed25519.PublicKey

// readDir reads every trust file of dir. A directory that isn't there trusts
// nobody, and neither does one in which others may put files. What can't be
// read although it may be keeps its keys from before.
func readDir(dir string, before keysByHost) (keys keysByHost, problems []error) {
	keys = keysByHost{}
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return keys, nil
	}
	if err == nil {
		err = checkDir(dir, info)
	}
	var files []os.DirEntry
	if err == nil {
		files, err = os.ReadDir(dir)
	}
	if err != nil {
		if unread(err) {
			maps.Copy(keys, before)
		}
		return keys, []error{asFault(err, dir)}
	}
	for _, file := range files {
		if strings.HasPrefix(file.Name(), ".") {
			continue // half-written by us or by an editor
		}
		host, found, errs := readFile(filepath.Join(dir, file.Name()))
		if len(errs) == 1 && unread(errs[0]) {
			found = before[host]
		}
		if len(found) > 0 {
			keys[host] = found
		}
		problems = append(problems, errs...)
	}
	return keys, problems
}

// unread reports whether err is a failure to read, which says nothing of what
// there is to read.
func unread(err error) bool {
	return fault.Is(err, fault.Internal) && !errors.Is(err, fs.ErrPermission)
}

// CheckDir refuses a trust directory that is another user's, or into which
// others may put files. One that is not there is fine.
func CheckDir(dir string) error {
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return asFault(err, dir)
	}
	return checkDir(dir, info)
}

func checkDir(dir string, info os.FileInfo) error {
	if mode := info.Mode().Perm(); mode&0o022 != 0 {
		return fault.New(fault.NotAllowed, "%s has mode %04o, so that others may add trusted keys; nobody is trusted until you look through it and run: chmod %04o %s", dir, mode, mode&^0o022, dir)
	}
	return checkOwner(dir, info, false)
}

// readFile reads the trust file <host>.pub.
func readFile(path string) (host string, keys []ed25519.PublicKey, problems []error) {
	host, ok := strings.CutSuffix(filepath.Base(path), suffix)
	if !ok || !envelope.ValidHost(host) {
		return "", nil, []error{fault.New(fault.BadRequest, "%q is not named <host>%s after a host id; rename or remove it", path, suffix)}
	}
	text, _, err := readOwn(path, publicModes, false)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(path); err == nil {
			return host, nil, []error{fault.New(fault.BadRequest, "%s is a link to nothing; mend or remove it", path)}
		}
		return host, nil, nil // removed since it was listed
	}
	if err != nil {
		return host, nil, []error{asFault(err, path)}
	}
	entries, problems := parsePublic(path, text)
	for _, e := range entries {
		if e.host != "" && e.host != host {
			problems = append(problems, fault.New(fault.BadRequest,
				"%s holds a key of host %s; move the line to %s%s, or correct it if that host got a new id", path, e.host, e.host, suffix))
			continue
		}
		if !contains(keys, e.pub) {
			keys = append(keys, e.pub)
		}
	}
	return host, keys, problems
}
