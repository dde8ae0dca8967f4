package keys

import (
	"bytes"
	"crypto/ed25519"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
)

// lazyEvery bounds how often an unknown signer, whom anybody can make up, has
// us read a directory in which nothing was put or taken away.
const lazyEvery = time.Second

// sameTick is more than the step in which file times advance: two changes
// within it can have one time.
const sameTick = 20 * time.Millisecond

// Trust is the directory of <host>.pub files, read into memory. It is safe for
// use by several goroutines, and starts none.
type Trust struct {
	dir, self string
	selfPub   ed25519.PublicKey
	now       func() time.Time

	seen atomic.Pointer[snapshot]
	mu   sync.Mutex // held while the directory is read
	made time.Time  // the directory's modification time, as of the last reading
	lazy time.Time  // when an unknown host last had it read
}

var _ envelope.Trust = (*Trust)(nil)

// snapshot is one reading of the directory; it is never changed.
type snapshot struct {
	keys     keysByHost
	problems []error
}

// OpenTrust reads dir, which need not exist yet. The key selfPub of our own
// host self is always trusted; a file <self>.pub may hold earlier keys of ours,
// so that what was signed with them is still known as our own (design §6, dead
// letters). Only unusable arguments are errors here: see Problems for those of
// single files.
func OpenTrust(dir, self string, selfPub ed25519.PublicKey) (*Trust, error) {
	if !envelope.ValidHost(self) {
		return nil, fault.New(fault.BadRequest, "%.80q is no host id; set host to lower-case letters, digits and dashes, at most 63", self)
	}
	if len(selfPub) != ed25519.PublicKeySize {
		return nil, fault.New(fault.Internal, "the public key of this host has %d bytes, not %d", len(selfPub), ed25519.PublicKeySize)
	}
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return nil, fault.New(fault.BadRequest, "trust_dir %s is no directory; set trust_dir to one that holds <host>.pub files", dir)
	}
	t := &Trust{dir: dir, self: self, selfPub: slices.Clone(selfPub), now: time.Now}
	t.seen.Store(&snapshot{})
	t.Reload()
	return t, nil
}

// Keys returns the keys with which host may sign, none if it is not trusted. A
// host that isn't known has the directory read again where a file came since,
// for its first message may follow at once, and else at most once a second. The
// caller must not change the keys.
func (t *Trust) Keys(host string) []ed25519.PublicKey {
	if keys := t.seen.Load().keys[host]; keys != nil || !envelope.ValidHost(host) {
		return keys
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := t.now(); t.lazy.IsZero() || now.Sub(t.lazy) >= lazyEvery || !modified(t.dir).Equal(t.made) {
		t.lazy = now
		t.reload()
	}
	return t.seen.Load().keys[host]
}

// Reload reads the directory again, so that files that were added, changed or
// removed take effect. All files are read: they are few and small, and size and
// time don't tell every change. What the system fails to read, for want of file
// descriptors say, keeps the keys it had: a host's mail is not to be refused
// for a trouble of ours.
func (t *Trust) Reload() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reload()
}

func (t *Trust) reload() {
	t.made = modified(t.dir) // before the reading, so that what comes during it has us read again
	if age := t.now().Sub(t.made); age >= 0 && age < sameTick {
		t.made = time.Time{}
	}
	keys, problems := readDir(t.dir, t.seen.Load().keys)
	for host, theirs := range keys {
		if host == t.self || !contains(theirs, t.selfPub) {
			continue
		}
		problems = append(problems, fault.New(fault.Conflict,
			"the keys of host %s include this host's own, %s, which is not trusted for it; if the data directory was copied, remove the key file on one of the two hosts and trust its new key", host, Fingerprint(t.selfPub)))
		if keys[host] = without(theirs, t.selfPub); len(keys[host]) == 0 {
			delete(keys, host)
		}
	}
	keys[t.self] = append([]ed25519.PublicKey{t.selfPub}, without(keys[t.self], t.selfPub)...)
	t.seen.Store(&snapshot{keys: keys, problems: problems})
}

// Problems lists what is wrong with the directory and its files, as of the last
// reading. A bad file or line trusts nobody, and hides no other.
func (t *Trust) Problems() []error { return slices.Clone(t.seen.Load().problems) }

// Hosts lists the hosts that are trusted, ours included, in order.
func (t *Trust) Hosts() []string { return slices.Sorted(maps.Keys(t.seen.Load().keys)) }

// modified is when a file was last put into dir or taken away, zero if there is
// no telling.
func modified(dir string) time.Time {
	info, err := os.Stat(dir)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

func contains(keys []ed25519.PublicKey, pub ed25519.PublicKey) bool {
	return slices.ContainsFunc(keys, func(k ed25519.PublicKey) bool { return bytes.Equal(k, pub) })
}

// without returns a new slice of the keys that are none of others.
func without(keys []ed25519.PublicKey, others ...ed25519.PublicKey) []ed25519.PublicKey {
	return slices.DeleteFunc(slices.Clone(keys), func(k ed25519.PublicKey) bool { return contains(others, k) })
}
