package keys

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
)

// Fails when a host that was trusted by file isn't believed, one that wasn't
// is, or our own host needs a file.
func TestTrust(t *testing.T) {
	trust := open(t, trustDir(t, "hostb.pub", PublicLine("hostb", pubOf(1)), "hostc.pub", "\n# of the office\n"+strings.Replace(PublicLine("hostc", pubOf(2)), " hostc\n", " # no name, no newline", 1)))
	wantKeys(t, trust, "hosta", self)
	wantKeys(t, trust, "hostb", pubOf(1))
	wantKeys(t, trust, "hostc", pubOf(2))
	for _, stranger := range []string{"hostd", "", "..", "HOSTB", "hostb.pub", "../trust/hostb"} {
		wantKeys(t, trust, stranger)
	}
	wantProblems(t, trust)
	if got := trust.Hosts(); !slices.Equal(got, []string{"hosta", "hostb", "hostc"}) {
		t.Errorf("hosts %v", got)
	}
}

// Fails when mail signed with either key is refused while a host changes its
// key, or the old key still counts when its line is gone.
func TestRotation(t *testing.T) {
	t.Attr("threat", "B2")
	dir := trustDir(t, "hostb.pub", PublicLine("hostb", pubOf(1)))
	trust := open(t, dir)
	verify := func(key ed25519.PrivateKey) error {
		e := &envelope.Envelope{
			Kind: envelope.Send, MsgID: "0197b1c2-7a01-7000-8000-000000000001", TraceID: "4bf92f3577b34da6a3ce929d0e0e4736",
			From: "0197b1c2-7a00-7000-8000-00000000000a", To: "0197b1c2-7a00-7000-8000-00000000000b", Signer: "hostb", TS: 1, ExpiresAt: 2,
		}
		if err := e.Sign(key); err != nil {
			t.Fatal(err)
		}
		return e.Verify(trust)
	}
	for _, step := range []struct {
		lines    []byte
		old, new bool
	}{{[]byte{1}, true, false}, {[]byte{1, 2}, true, true}, {[]byte{2, 1, 2}, true, true}, {[]byte{2}, false, true}} {
		text := ""
		for _, n := range step.lines {
			text += PublicLine("hostb", pubOf(n))
		}
		write(t, filepath.Join(dir, "hostb.pub"), text, 0o644)
		trust.Reload()
		if old, new := verify(keyOf(1)), verify(keyOf(2)); (old == nil) != step.old || (new == nil) != step.new {
			t.Errorf("keys %v: old %v, new %v", step.lines, old, new)
		}
	}
	if err := os.Remove(filepath.Join(dir, "hostb.pub")); err != nil {
		t.Fatal(err)
	}
	trust.Reload()
	wantKeys(t, trust, "hostb")
	wantProblems(t, trust)
}

// Fails when a change of the same length within one tick of the file system's
// clock is overlooked.
func TestReloadSeesEveryChange(t *testing.T) {
	t.Attr("threat", "G7")
	dir := trustDir(t, "hostb.pub", PublicLine("hostb", pubOf(1)))
	path := filepath.Join(dir, "hostb.pub")
	trust := open(t, dir)
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, PublicLine("hostb", pubOf(2)), 0o644)
	if err := os.Chtimes(path, before.ModTime(), before.ModTime()); err != nil {
		t.Fatal(err)
	}
	trust.Reload()
	wantKeys(t, trust, "hostb", pubOf(2))
}

// Fails when trusting a host needs a restart, or a message that comes right
// after it is refused, also if the file came in the same step of the system's
// file times as the one before.
func TestAHostIsTrustedAtOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "trust") // not there yet
	trust := open(t, dir)
	c := &clock{time.Unix(1790000000, 0)}
	c.on(trust)
	wantKeys(t, trust, "hostb")
	for n, host := range []string{"hostb", "hostc", "hostd"} {
		offer := filepath.Join(t.TempDir(), host+".pub")
		write(t, offer, PublicLine(host, pubOf(byte(n))), 0o644)
		if _, _, err := Add(dir, "hosta", offer, false, time.Now()); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(dir, c.now, c.now); err != nil {
			t.Fatal(err)
		}
		wantKeys(t, trust, host, pubOf(byte(n)))
	}
}

// Fails when strangers can have us read a directory more than once a second in
// which nothing changed.
func TestUnknownHostReloadsOnceASecond(t *testing.T) {
	dir := trustDir(t, "hostc.pub", "# nobody yet\n")
	trust := open(t, dir)
	c := clock{time.Unix(1790000000, 0)}
	c.on(trust)
	wantKeys(t, trust, "hostc")
	write(t, filepath.Join(dir, "hostc.pub"), PublicLine("hostc", pubOf(2)), 0o644)
	c.now = c.now.Add(999 * time.Millisecond)
	wantKeys(t, trust, "hostc")
	c.now = c.now.Add(time.Millisecond)
	wantKeys(t, trust, "hostc", pubOf(2))
}

// Fails when a file that trusts nobody is silent about it, hides another, or
// crashes the gateway.
func TestProblems(t *testing.T) {
	good := PublicLine("hostb", pubOf(1))
	dir := trustDir(t, "hostb.pub", good, ".hostz.pub.swp", "rubbish",
		"Host C.pub", good, "hostd", good, "hoste.pub~", good,
		"empty.pub", "# nothing\n", "binary.pub", "\x00\xff\n", "large.pub", strings.Repeat("#", maxFile+1),
		"short.pub", "ed25519 AAAA short\n", "rsa.pub", strings.Replace(good, "ed25519", "ssh-rsa", 1),
		"ssh.pub", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKEY me@here\n",
		"hostf.pub", good, "comment.pub", strings.Replace(good, "hostb", "My_Laptop", 1),
		"zero.pub", PublicLine("zero", make(ed25519.PublicKey, 32)), "copy.pub", PublicLine("copy", self),
		"half.pub", "ed25519 broken half\n"+PublicLine("half", pubOf(3)),
	)
	if err := os.Mkdir(filepath.Join(dir, "dir.pub"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(dir, "link.pub")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe.pub"), 0o600); err != nil {
		t.Fatal(err)
	}
	trust := open(t, dir)
	wantProblems(t, trust, "Host C.pub", "trust/hostd", "hoste.pub~", "empty.pub", "binary.pub", "large.pub", "short.pub", "rsa.pub", "ssh.pub",
		"hostf.pub holds a key of host hostb", "comment.pub", "zero.pub holds a key under which anybody", "host copy include this host's own", "line 1 of "+dir+"/half.pub", "dir.pub", "link.pub", "pipe.pub")
	if got := trust.Hosts(); !slices.Equal(got, []string{"half", "hosta", "hostb"}) {
		t.Errorf("hosts %v", got)
	}
	wantKeys(t, trust, "half", pubOf(3))
	for _, err := range trust.Problems() {
		if fault.CodeOf(err) == fault.Internal {
			t.Errorf("a fault of the file is told as our own: %v", err)
		}
	}
}

// Fails when somebody else can decide whom we trust.
func TestTrustRefusesWhatOthersCanWrite(t *testing.T) {
	t.Attr("threat", "U1")
	for _, mode := range []os.FileMode{0o664, 0o646, 0o666} {
		dir := trustDir(t, "hostb.pub", PublicLine("hostb", pubOf(1)), "hostc.pub", PublicLine("hostc", pubOf(2)))
		if err := os.Chmod(filepath.Join(dir, "hostb.pub"), mode); err != nil {
			t.Fatal(err)
		}
		trust := open(t, dir)
		wantProblems(t, trust, "chmod 0644 ")
		wantKeys(t, trust, "hostb")
		wantKeys(t, trust, "hostc", pubOf(2))
	}
	for _, mode := range []os.FileMode{0o770, 0o702, os.ModeSticky | 0o777} {
		dir := trustDir(t, "hostb.pub", PublicLine("hostb", pubOf(1)))
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		trust := open(t, dir)
		wantProblems(t, trust, "chmod 07")
		wantKeys(t, trust, "hostb")
		wantKeys(t, trust, "hosta", self)
	}
}

// Fails when a file that another user put into the directory is trusted.
func TestTrustRefusesAnotherOwner(t *testing.T) {
	needRoot(t)
	for _, what := range []string{"hostb.pub", "."} {
		dir := trustDir(t, "hostb.pub", PublicLine("hostb", pubOf(1)))
		if err := os.Chown(filepath.Join(dir, what), 12345, 12345); err != nil {
			t.Fatal(err)
		}
		trust := open(t, dir)
		wantProblems(t, trust, "belongs to user 12345")
		wantKeys(t, trust, "hostb")
	}
}

// Fails when trusted hosts are refused because we ran out of file descriptors,
// or a file that can't be read for long is passed over in silence.
func TestReloadKeepsWhatItCannotRead(t *testing.T) {
	dir := trustDir(t, "hostb.pub", PublicLine("hostb", pubOf(1)), "hostc.pub", PublicLine("hostc", pubOf(2)))
	trust := open(t, dir)
	withoutDescriptors(t, func() { // until the end, or Keys would read it again
		trust.Reload()
		wantProblems(t, trust, "could not read "+dir)
		wantKeys(t, trust, "hostb", pubOf(1))
	})
	path := filepath.Join(dir, "hostb.pub")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("hostb.pub", path); err != nil { // a loop can't be opened
		t.Fatal(err)
	}
	trust.Reload()
	wantProblems(t, trust, "could not read "+path)
	wantKeys(t, trust, "hostb", pubOf(1))
	wantKeys(t, trust, "hostc", pubOf(2))
}

// withoutDescriptors runs f while no file can be opened.
func withoutDescriptors(t *testing.T, f func()) {
	t.Helper()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := limit
	none.Cur = 0
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
	}()
	f()
}

// Fails when a dead letter that we signed before we changed our key is no
// longer known as ours.
func TestEarlierKeysOfOurOwn(t *testing.T) {
	trust := open(t, trustDir(t, "hosta.pub", PublicLine("hosta", pubOf(1))+PublicLine("hosta", self)))
	wantKeys(t, trust, "hosta", self, pubOf(1))
	wantProblems(t, trust)
}

// Fails when a configuration that can't work is accepted.
func TestOpenTrustRefuses(t *testing.T) {
	dir := trustDir(t, "hostb.pub", "")
	for name, try := range map[string]func() (*Trust, error){
		"no host id":  func() (*Trust, error) { return OpenTrust(dir, "Host A", self) },
		"no key":      func() (*Trust, error) { return OpenTrust(dir, "hosta", nil) },
		"a file":      func() (*Trust, error) { return OpenTrust(filepath.Join(dir, "hostb.pub"), "hosta", self) },
		"a short key": func() (*Trust, error) { return OpenTrust(dir, "hosta", self[:31]) },
	} {
		if trust, err := try(); trust != nil || err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// Fails (under -race, or by a wrong key) when the roster asks for keys while
// they are read anew or added.
func TestTrustIsConcurrent(t *testing.T) {
	dir := trustDir(t, "hostb.pub", PublicLine("hostb", pubOf(1)))
	trust := open(t, dir)
	var hours atomic.Int64
	trust.now = func() time.Time { return time.Unix(3600*hours.Add(1), 0) } // every stranger has the directory read
	offers := t.TempDir()
	var wg sync.WaitGroup
	for n := range byte(4) {
		wg.Go(func() {
			for range 50 {
				if keys := trust.Keys("hostb"); len(keys) != 1 || !keys[0].Equal(pubOf(1)) {
					t.Errorf("hostb has keys %x", keys)
				}
				trust.Keys("stranger")
				trust.Problems()
				trust.Hosts()
			}
		})
		wg.Go(func() {
			host := fmt.Sprintf("host-%d", n)
			file := filepath.Join(offers, host+".pub")
			if err := os.WriteFile(file, []byte(PublicLine(host, pubOf(10+n))), 0o644); err != nil {
				t.Error(err)
			}
			if _, _, err := Add(dir, "hosta", file, false, time.Now()); err != nil {
				t.Error(err)
			}
			trust.Reload()
			if keys := trust.Keys(host); len(keys) != 1 {
				t.Errorf("%s was added and has keys %x", host, keys)
			}
		})
	}
	wg.Wait()
	wantProblems(t, trust)
}

// Fails when a fingerprint is not what other tools make of the same key.
func TestFingerprint(t *testing.T) {
	pub := pubOf(1)
	sum := sha256.Sum256(pub)
	want := "SHA256:" + strings.TrimRight(base64.StdEncoding.EncodeToString(sum[:]), "=")
	if got := Fingerprint(pub); got != want || len(got) != 50 {
		t.Errorf("Fingerprint = %s, want %s", got, want)
	}
	if Fingerprint(pub) == Fingerprint(pubOf(2)) {
		t.Error("two keys have one fingerprint")
	}
}

// Fails when a key is called weak that isn't: each of the list must let anybody
// sign, which shows in a made-up signature that fits one message in eight.
func TestWeakKeysAreWeak(t *testing.T) {
	t.Attr("threat", "B1")
	forged := append([]byte{1}, make([]byte, 63)...)
	forgeable := func(pub ed25519.PublicKey) bool {
		for i := range 500 {
			if ed25519.Verify(pub, fmt.Append(nil, i), forged) {
				return true
			}
		}
		return false
	}
	for text := range weak {
		pub, err := hex.DecodeString(text)
		if err != nil || !forgeable(pub) {
			t.Errorf("%s is not weak (%v)", text, err)
		}
		if _, problems := parsePublic("x", []byte(PublicLine("x", pub))); len(problems) != 1 {
			t.Errorf("%s is accepted", text)
		}
	}
	if forgeable(self) || bytes.Equal(self, make([]byte, 32)) {
		t.Error("the test calls an ordinary key weak")
	}
}
