package keys

import (
	"crypto/ed25519"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
)

// Add trusts the keys in file: `bridged keys trust FILE`. The host they belong
// to is named in their lines, else by the file's name <host>.pub; it is returned
// with the fingerprints of the keys, for people to compare.
//
// Our own host self can't be added, nor a key that is another host's already.
// A host that is trusted with other keys is a fault.Conflict, unless more asks
// for the new keys beside the old ones, for the time in which the host changes
// its key. Keys that are trusted already are no error. The lines say since when
// they are there, which is now.
func Add(dir, self, file string, more bool, now time.Time) (host string, fingerprints []string, err error) {
	host, keys, err := readOffer(file)
	if err != nil {
		return "", nil, err
	}
	if host == self {
		return "", nil, fault.New(fault.BadRequest, "%s names host %s, which is this one and always trusted; trust the file of the other host, or give one of the two another host id", file, host)
	}
	path := filepath.Join(dir, host+suffix)
	if err := usable(dir, path); err != nil {
		return "", nil, err
	}
	unlock, err := lock(dir)
	if err != nil {
		return "", nil, err
	}
	defer unlock()
	known, _ := readDir(dir, nil) // the problems of other files are not ours here
	if err := checkOffer(known, host, keys, more); err != nil {
		return "", nil, err
	}
	if err := appendKeys(path, host, without(keys, known[host]...), now); err != nil {
		return "", nil, err
	}
	return host, fingerprintsOf(keys), nil
}

// Revoke takes the trust from host: from the key with that fingerprint, or from
// all its keys if it is "". It returns the fingerprints of the revoked keys.
func Revoke(dir, host, fingerprint string) ([]string, error) {
	stranger := fault.New(fault.BadRequest, "host %.80q is not trusted here; see `bridged keys list`", host)
	if !envelope.ValidHost(host) {
		return nil, stranger
	}
	unlock, err := lock(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, stranger
	}
	if err != nil {
		return nil, err
	}
	defer unlock()
	path := filepath.Join(dir, host+suffix)
	_, keys, problems := readFile(path)
	if len(keys)+len(problems) == 0 {
		return nil, stranger
	}
	if fingerprint != "" && len(problems) > 0 {
		return nil, problems[0] // would be lost by writing the file anew
	}
	if fingerprint != "" && !slices.ContainsFunc(keys, func(k ed25519.PublicKey) bool { return Fingerprint(k) == fingerprint }) {
		return nil, fault.New(fault.BadRequest, "host %s has no key %.80q; see `bridged keys list`", host, fingerprint)
	}
	if fingerprint == "" || len(keys) == 1 {
		if err := errors.Join(os.Remove(path), syncDir(dir)); err != nil {
			return nil, fault.Wrap(err, fault.Internal, "could not remove %s; see that the directory is yours", path)
		}
		return fingerprintsOf(keys), nil
	}
	if err := dropKey(path, fingerprint); err != nil {
		return nil, err
	}
	return []string{fingerprint}, nil
}

// dropKey takes the lines with one key out of a trust file and leaves all others
// as they are, comments too.
func dropKey(path, fingerprint string) error {
	text, mode, err := readOwn(path, publicModes, false)
	if err != nil {
		return asFault(err, path)
	}
	var left []byte
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(strings.SplitN(line, "#", 2)[0])
		if len(words) > 0 {
			if e, _ := parseLine(words); e.pub != nil && Fingerprint(e.pub) == fingerprint {
				continue
			}
		}
		left = append(left, line...)
	}
	return publish(path, left, mode, false)
}

// readOffer reads a file that came from another host. Whoever calls has decided
// to trust it, so its owner and mode don't matter.
func readOffer(file string) (host string, keys []ed25519.PublicKey, err error) {
	text, err := readAny(file)
	if err != nil {
		return "", nil, err
	}
	entries, problems := parsePublic(file, text)
	if len(problems) > 0 {
		return "", nil, problems[0]
	}
	if name, pub := strings.CutSuffix(filepath.Base(file), suffix); pub && envelope.ValidHost(name) {
		host = name
	}
	for _, e := range entries {
		if e.host != "" && host != "" && e.host != host {
			return "", nil, fault.New(fault.BadRequest, "%s is host %s's by its name or an earlier line, and holds a key of host %s; if you mean that one, name the file %s%s, one for each host", file, host, e.host, e.host, suffix)
		}
		if e.host != "" {
			host = e.host
		}
		if !contains(keys, e.pub) {
			keys = append(keys, e.pub)
		}
	}
	if host == "" {
		return "", nil, fault.New(fault.BadRequest, "%s does not say whose key it holds; name it <host>%s", file, suffix)
	}
	return host, keys, nil
}

func readAny(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fault.Wrap(err, fault.BadRequest, "%s cannot be opened; name the file that `bridged keys show` of the other host was written to", file)
	}
	defer f.Close()
	return readAll(file, f)
}

// usable refuses to add to a directory or a file that a person has to mend
// first: what is added would not be believed.
func usable(dir, path string) error {
	if err := makeDir(dir); err != nil {
		return err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return asFault(err, dir)
	}
	if err := checkDir(dir, info); err != nil {
		return err
	}
	if _, _, problems := readFile(path); len(problems) > 0 {
		return problems[0]
	}
	return nil
}

func checkOffer(known keysByHost, host string, keys []ed25519.PublicKey, more bool) error {
	for _, other := range slices.Sorted(maps.Keys(known)) {
		for _, pub := range keys {
			if other != host && contains(known[other], pub) {
				return fault.New(fault.Conflict, "the key %s is trusted as host %s already, and a key can't speak for two; if that host got a new id, run first: bridged keys revoke %s", Fingerprint(pub), other, other)
			}
		}
	}
	strange := without(keys, known[host]...)
	if more || len(known[host]) == 0 || len(strange) == 0 {
		return nil
	}
	return fault.New(fault.Conflict, "host %s is trusted with the key %s already, and this is %s; ask its owner whether it has a new key, then trust that beside the old one (--beside), or revoke the old one first",
		host, Fingerprint(known[host][0]), Fingerprint(strange[0]))
}

// appendKeys adds lines to a trust file and leaves those in it, and its mode, as
// they are.
func appendKeys(path, host string, keys []ed25519.PublicKey, now time.Time) error {
	if len(keys) == 0 {
		return nil
	}
	text, mode, err := readOwn(path, publicModes, false)
	if errors.Is(err, fs.ErrNotExist) {
		mode, err = publicMode, nil
	}
	if err != nil {
		return asFault(err, path)
	}
	if len(text) > 0 && text[len(text)-1] != '\n' {
		text = append(text, '\n')
	}
	for _, pub := range keys {
		text = append(text, strings.TrimSuffix(PublicLine(host, pub), "\n")+" # "+sinceMark+now.UTC().Format(time.RFC3339)+"\n"...)
	}
	return publish(path, text, mode, false)
}

func fingerprintsOf(keys []ed25519.PublicKey) (all []string) {
	for _, pub := range keys {
		all = append(all, Fingerprint(pub))
	}
	return all
}
