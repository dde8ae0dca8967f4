package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleetd/cmd/bridged/config"
	"fleetd/fault"
)

// Fault: what one host shows is not what another can trust, or the fingerprints
// that people compare differ.
func TestTwoHostsTrustEachOther(t *testing.T) {
	a, b := newWorld(t), newWorld(t)
	a.deps.Rand, b.deps.Rand, b.deps.Hostname = rand.Reader, rand.Reader, "hostb"
	shown := b.run("keys", "show")
	if shown.code != 0 || !strings.HasPrefix(shown.out, "ed25519 ") || !strings.HasSuffix(shown.out, " hostb\n") ||
		!strings.Contains(shown.err, "a new key was made: HOME/.local/state/bridged/gateway.key\n") {
		t.Fatalf("%+v", shown)
	}
	again := b.run("keys", "show")
	_, print, ok := strings.Cut(again.err, "fingerprint of hostb: ")
	if !ok || again.out != shown.out || strings.Contains(again.err, "new key") {
		t.Fatalf("%+v", again)
	}
	print = strings.TrimSpace(print)
	file := a.write("usb/hostb.pub", shown.out)
	a.want(result{out: "host\tfingerprint\nhostb\t" + print + "\n"}, "keys", "trust", file)
	list := a.run("keys", "list")
	if list.code != 0 || !strings.Contains(list.out, "hosta (this host)\tSHA256:") || !strings.Contains(list.out, "hostb\t"+print+"\t20") {
		t.Errorf("%+v", list)
	}
	var got struct {
		Trusted  []trusted
		Problems []string
	}
	if err := json.Unmarshal([]byte(a.run("keys", "list", "--json").out), &got); err != nil || len(got.Trusted) != 2 || got.Trusted[1].Fingerprints[0] != print || !got.Trusted[0].Self {
		t.Errorf("%+v, %v", got, err)
	}
}

// Fault: a change of keys does not print what other hosts need, changes something
// before it is applied, or leaves the list without the day of a key, or without
// saying which of two is in use.
func TestKeysRotate(t *testing.T) {
	w := newWorld(t)
	w.deps.Rand = rand.Reader
	if r := w.run("keys", "rotate", "--apply"); r.code != 1 || !strings.Contains(r.err, "there is no next key yet") {
		t.Errorf("without a next key: %+v", r)
	}
	was := w.run("keys", "show").out
	next := w.run("keys", "rotate")
	lines := strings.SplitAfter(next.out, "\n")
	if next.code != 0 || len(lines) != 3 || lines[0] != was || lines[1] == was || w.run("keys", "show").out != was {
		t.Fatalf("the next key: %+v, it was %s", next, was)
	}
	if r := w.run("keys", "rotate"); r.out != next.out {
		t.Errorf("once more it is another: %+v", r)
	}
	if r := w.run("keys", "list"); !strings.Contains(r.out, "hosta (this host, current key)\t") || !strings.Contains(r.out, "hosta (this host, next key)\t") {
		t.Errorf("the list does not say which key is which: %+v", r)
	}
	if r := w.run("keys", "rotate", "--apply"); r.code != 0 || w.run("keys", "show").out != lines[1] {
		t.Errorf("applied: %+v", r)
	}
	var got struct{ Trusted []trusted }
	if err := json.Unmarshal([]byte(w.run("keys", "list", "--json").out), &got); err != nil || len(got.Trusted) != 1 || len(got.Trusted[0].Fingerprints) != 2 ||
		strings.Join(got.Trusted[0].Uses, " ") != "current earlier" {
		t.Fatalf("the list: %+v, %v", got, err)
	}
	for _, since := range got.Trusted[0].Since {
		if at, err := time.Parse(time.RFC3339, since); err != nil || time.Since(at) > time.Hour {
			t.Errorf("a key is there since %s, %v", since, err)
		}
	}
}

// Fault: one file that others may change, also this host's own, takes the list
// of all others away, or is passed over in silence.
func TestKeysListGoesOnBesideABadFile(t *testing.T) {
	w, b := newWorld(t), newWorld(t)
	w.deps.Rand, b.deps.Rand, b.deps.Hostname = rand.Reader, rand.Reader, "hostb"
	if r := w.run("keys", "trust", w.write("got/hostb.pub", b.run("keys", "show").out)); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	for _, bad := range []string{"hostc", w.deps.Hostname} {
		path := w.write(".config/bridged/trust/"+bad+".pub", w.run("keys", "show").out)
		if err := os.Chmod(path, 0o666); err != nil {
			t.Fatal(err)
		}
		if r := w.run("keys", "list"); r.code != 0 || strings.Count(r.err, bad+".pub has mode 0666") != 1 || !strings.Contains(r.out, "hostb\t") || strings.Contains(r.out, "0001-") {
			t.Errorf("beside %s: %+v", bad, r)
		}
	}
}

// Fault: a file of the trust directory that trusts nobody is passed over in
// silence, a host's second key is taken without being asked for, or a file that
// is not there is told as a fault of the gateway.
func TestTrustThatIsNoTrust(t *testing.T) {
	w := newWorld(t)
	w.deps.Rand = rand.Reader
	w.want(result{code: 2, err: "bridged: BAD_REQUEST: HOME/none.pub cannot be opened; name the file that `bridged keys show` of the other host was written to (open HOME/none.pub: no such file or directory)\n"},
		"keys", "trust", w.home+"/none.pub")
	w.write(".config/bridged/trust/hostc.pub", "nonsense\n")
	if r := w.run("keys", "list"); r.code != 0 || !strings.Contains(r.err, "warning: ") || !strings.Contains(r.err, "hostc.pub") || strings.Contains(r.out, "hostc") {
		t.Errorf("%+v", r)
	}
	first, second := newWorld(t), newWorld(t)
	var files []string
	for i, h := range []*world{first, second} {
		h.deps.Rand, h.deps.Hostname = rand.Reader, "hostb"
		files = append(files, w.write([]string{"one/hostb.pub", "two/hostb.pub"}[i], h.run("keys", "show").out))
	}
	if r := w.run("keys", "trust", files[0]); r.code != 0 {
		t.Errorf("%+v", r)
	}
	if r := w.run("keys", "trust", files[1]); r.code != 1 || !strings.Contains(r.err, "CONFLICT") {
		t.Errorf("%+v", r)
	}
	if r := w.run("keys", "trust", "--beside", files[1]); r.code != 0 {
		t.Errorf("%+v", r)
	}
	if r := w.run("keys", "list"); strings.Count(r.out, "hostb\t") != 2 {
		t.Errorf("%+v", r)
	}
}

// Fault: a key that was revoked is still trusted, the host's other key went
// with it, or an empty fingerprint takes them all.
func TestRevoke(t *testing.T) {
	w := newWorld(t)
	w.deps.Rand = rand.Reader
	var prints []string
	for i := range 2 {
		h := newWorld(t)
		h.deps.Rand, h.deps.Hostname = rand.Reader, "hostb"
		file := w.write([]string{"one/hostb.pub", "two/hostb.pub"}[i], h.run("keys", "show").out)
		r := w.run("keys", "trust", "--beside", file)
		prints = append(prints, strings.TrimSpace(r.out[strings.LastIndex(r.out, "SHA256:"):]))
	}
	if r := w.run("keys", "revoke", "hostb", ""); r.code != 2 || strings.Count(w.run("keys", "list").out, "hostb\t") != 2 {
		t.Errorf("%+v", r)
	}
	w.want(result{out: "host\tfingerprint\nhostb\t" + prints[0] + "\n"}, "keys", "revoke", "hostb", prints[0])
	if r := w.run("keys", "list"); strings.Contains(r.out, prints[0]) || !strings.Contains(r.out, prints[1]) {
		t.Errorf("%+v", r)
	}
	w.want(result{code: 1, err: "bridged: BAD_REQUEST: host hostb has no key \"" + prints[0] + "\"; see `bridged keys list`\n"}, "keys", "revoke", "hostb", prints[0])
	var got trusted
	r := w.run("keys", "revoke", "hostb", "--json")
	if err := json.Unmarshal([]byte(r.out), &got); err != nil || got.Host != "hostb" || len(got.Fingerprints) != 1 || got.Fingerprints[0] != prints[1] {
		t.Errorf("%+v, %v", r, err)
	}
	if r := w.run("keys", "list"); strings.Contains(r.out, "hostb") {
		t.Errorf("%+v", r)
	}
	w.want(result{code: 1, err: "bridged: BAD_REQUEST: host \"hostb\" is not trusted here; see `bridged keys list`\n"}, "keys", "revoke", "hostb")
}

// stubStore is a store of a known state.
type stubStore struct {
	check  error
	closed bool
}

func (s *stubStore) Check(context.Context) error { return s.check }
func (s *stubStore) Compact(context.Context) (before, after int64, err error) {
	return 4096, 1024, nil
}
func (s *stubStore) Close() error { s.closed = true; return nil }

// Fault: a store that is damaged, in use or not there is called sound; or it
// stays open.
func TestStore(t *testing.T) {
	w := newWorld(t)
	s := &stubStore{}
	w.deps.OpenStore = func(_ context.Context, cfg config.Config, log hclog.Logger) (maintained, error) {
		log.Info("not shown: the result is what counts")
		if cfg.DataDir != w.home+"/.local/state/bridged" {
			t.Errorf("opened in %s", cfg.DataDir)
		}
		return s, nil
	}
	w.want(result{code: 1, err: "bridged: STORE_UNAVAILABLE: there is no store at HOME/.local/state/bridged/bridged.db; the daemon makes it at its first start, or data_dir is another one\n"}, "store", "check")
	path := w.write(".local/state/bridged/bridged.db", "x")
	w.want(result{out: "state\tsound\nfile\tHOME/.local/state/bridged/bridged.db\n"}, "store", "check")
	if !s.closed {
		t.Error("left open")
	}
	w.want(result{out: "file\tHOME/.local/state/bridged/bridged.db\nbefore\t4096 bytes\nafter\t1024 bytes\n"}, "store", "compact")
	*s = stubStore{check: fault.Wrap(errors.New("page 3"), fault.StoreUnavailable, "it is damaged")}
	w.want(result{code: 1, err: "bridged: STORE_UNAVAILABLE: it is damaged (page 3)\n"}, "store", "check")
	if !s.closed {
		t.Error("left open after a failed check")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}
