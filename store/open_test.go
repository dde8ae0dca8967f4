package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"fleetd/fault"
	"fleetd/migrations"

	bolt "go.etcd.io/bbolt"
)

// refused opens the store and returns the sentence of the refusal.
func refused(t *testing.T, opts Options) string {
	t.Helper()
	if opts.Steps == nil {
		opts.Steps = migrations.Steps
	}
	s, err := Open(t.Context(), opts)
	if err == nil {
		t.Fatal("opened", s.Close())
	}
	if !fault.Is(err, fault.StoreUnavailable) {
		t.Errorf("error %v, want STORE_UNAVAILABLE", err)
	}
	return err.Error()
}

func wantWords(t *testing.T, sentence string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(sentence, w) {
			t.Errorf("%q does not say %q", sentence, w)
		}
	}
}

// Fails if a second daemon waits for ever, gets in, or is not told who holds
// the store; or if a killed holder keeps the next one out.
func TestHeldStoreNamesItsHolder(t *testing.T) {
	dir := privateDir(t)
	c := startChild(t, roleWrite, dir)
	c.line(t)
	wantWords(t, refused(t, Options{Dir: dir}), fmt.Sprintf("process %d", c.cmd.Process.Pid), "started 20", "data_dir")
	c.kill()
	s := openAt(t, Options{Dir: dir})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(holderPath(s.Path())); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the holder file after Close: %v, want none", err)
	}
}

// Fails if who only looks is told otherwise than who opens, or makes something.
func TestALookTellsWhatOpenWould(t *testing.T) {
	dir := filepath.Join(privateDir(t), "data")
	for _, look := range []func(string) error{Inspect, InUse} {
		if err := look(dir); err != nil {
			t.Errorf("of what is not there: %v", err)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the look made it: %v", err)
	}
	s := openAt(t, Options{Dir: dir})
	if err := Inspect(dir); err != nil {
		t.Errorf("of one that is open: %v", err)
	}
	wantWords(t, fmt.Sprint(InUse(dir)), fmt.Sprintf("process %d", os.Getpid()), "data_dir")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := InUse(dir); err != nil {
		t.Errorf("of one that is closed: %v", err)
	}
	for path, mode := range map[string]os.FileMode{s.Path(): 0o604, dir: 0o750} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		wantWords(t, fmt.Sprint(Inspect(dir)), "chmod", path)
		if err := os.Chmod(path, mode&0o700); err != nil {
			t.Fatal(err)
		}
	}
}

// Fails if a holder file that is missing or of a dead process is believed.
func TestHolderIsNotMadeUp(t *testing.T) {
	dir := privateDir(t)
	s := openAt(t, Options{Dir: dir})
	if err := os.WriteFile(holderPath(s.Path()), []byte(`{"pid":2147483646}`), 0o600); err != nil {
		t.Fatal(err)
	}
	wantWords(t, refused(t, Options{Dir: dir}), "another process", "2147483646", "is gone")
	if err := os.Remove(holderPath(s.Path())); err != nil {
		t.Fatal(err)
	}
	wantWords(t, refused(t, Options{Dir: dir}), "another process", "left no name")
}

// Fails if the store is made readable for others, or one that is gets opened.
func TestOnlyTheOwnerMayReadTheStore(t *testing.T) {
	t.Attr("threat", "U1")
	parent := privateDir(t)
	dir := filepath.Join(parent, "a", "b")
	s := openAt(t, Options{Dir: dir})
	for path, want := range map[string]os.FileMode{dir: 0o700, s.Path(): 0o600, holderPath(s.Path()): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode %v (%v), want %v", path, info.Mode().Perm(), err, want)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	chmod := func(path string, mode os.FileMode) {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	chmod(s.Path(), 0o640)
	wantWords(t, refused(t, Options{Dir: dir}), "0640", "chmod 0600 "+s.Path())
	chmod(s.Path(), 0o600)
	chmod(dir, 0o750)
	wantWords(t, refused(t, Options{Dir: dir}), "0750", "chmod 0700 "+dir)
	chmod(dir, 0o700)

	link := filepath.Join(parent, "link")
	if err := os.Mkdir(link, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(s.Path(), filepath.Join(link, DefaultFile)); err != nil {
		t.Fatal(err)
	}
	wantWords(t, refused(t, Options{Dir: link}), "not a regular file")
	if err := openAt(t, Options{Dir: dir}).Close(); err != nil {
		t.Error(err)
	}
}

// foreign is a file that belongs to the user after this one.
type foreign struct{ fs.FileInfo }

func (f foreign) Sys() any {
	st := *f.FileInfo.Sys().(*syscall.Stat_t)
	st.Uid++
	return &st
}

// Fails if a file of another user is opened.
func TestForeignOwnerIsRefused(t *testing.T) {
	dir := privateDir(t)
	if err := openAt(t, Options{Dir: dir}).Close(); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, DefaultFile))
	if err != nil {
		t.Fatal(err)
	}
	// Only root may give files away, so the other user is made up here.
	err = checkAccess("file", "x", foreign{info}, 0o600)
	if !fault.Is(err, fault.StoreUnavailable) {
		t.Fatalf("error %v, want STORE_UNAVAILABLE", err)
	}
	wantWords(t, err.Error(), fmt.Sprint(os.Geteuid()+1), "chown")
}

// Fails if a damaged or a strange file crashes the daemon or is taken for an
// empty store.
func TestStrangeFilesAreRefused(t *testing.T) {
	t.Attr("threat", "U1")
	dir := privateDir(t)
	path := filepath.Join(dir, DefaultFile)
	if err := os.WriteFile(path, []byte(strings.Repeat("not a database ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	wantWords(t, refused(t, Options{Dir: dir}), path, "invalid database")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error { _, err := tx.CreateBucket([]byte("strange")); return err })
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	wantWords(t, refused(t, Options{Dir: dir}), path, "not a store of bridged")
}

// Fails if a damaged page ends the process, or is opened over.
func TestDamagedPagesAreRefused(t *testing.T) {
	dir := privateDir(t)
	s := openAt(t, Options{Dir: dir})
	stop := start(t, s)
	for range 20 { // so that there are branch pages, and pages in the file's order
		write(t, s, func(tx *Tx) error {
			for range 20 {
				if err := putFamily(tx, newID()); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := errors.Join(stop(), s.Close()); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, DefaultFile)
	sound, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	page := os.Getpagesize()
	root := int(binary.LittleEndian.Uint64(sound[rootOffset(sound, page):]))
	damage := map[string]func(b []byte) []byte{
		"zeros":     func(b []byte) []byte { clear(b[root*page : (root+1)*page]); return b },
		"ones":      func(b []byte) []byte { fill(b[root*page+16:(root+1)*page], 0xff); return b },
		"another":   func(b []byte) []byte { copy(b[root*page:], b[(root-1)*page:root*page]); return b },
		"truncated": func(b []byte) []byte { return b[:root*page] },
	}
	for name, hurt := range damage {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(path, hurt(bytes.Clone(sound)), 0o600); err != nil {
				t.Fatal(err)
			}
			wantWords(t, refused(t, Options{Dir: dir}), path, "is damaged", "restore")
		})
	}
	if err := os.WriteFile(path, sound, 0o600); err != nil {
		t.Fatal(err)
	}
	openAt(t, Options{Dir: dir})
}

// Fails if a store that was closed in good order is read through at every
// start, one that was not is opened unread, or a damaged page that is met later
// ends the process.
func TestOnlyAStoreThatWasNotClosedIsReadThrough(t *testing.T) {
	dir := privateDir(t)
	path := filepath.Join(dir, DefaultFile)
	s := openAt(t, Options{Dir: dir})
	stop := start(t, s)
	id := newID()
	write(t, s, func(tx *Tx) error { return tx.PutSeen(0, id, id, Seen{Host: strings.Repeat("marker", 40)}) })
	for range 200 { // so that it has a page of its own
		write(t, s, func(tx *Tx) error { return tx.PutSeen(0, newID(), newID(), Seen{Host: strings.Repeat("x", 250)}) })
	}
	hurt := func(file []byte) []byte { return hurtMarked(file, "markermarker") }
	read := func() []byte {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	killed := read()
	if err := errors.Join(stop(), s.Close()); err != nil {
		t.Fatal(err)
	}
	closed := read()
	if err := os.WriteFile(path, hurt(killed), 0o600); err != nil {
		t.Fatal(err)
	}
	wantWords(t, refused(t, Options{Dir: dir}), path, "is damaged")

	if err := os.WriteFile(path, hurt(closed), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), Options{Dir: dir, Steps: migrations.Steps})
	if err != nil {
		t.Fatalf("a closed store is read through: %v", err)
	}
	err = s.View(func(tx *Tx) error { _, _, err := tx.SeenOf(0, id, id); return err })
	if !fault.Is(err, fault.StoreUnavailable) {
		t.Errorf("a damaged page: %v, want STORE_UNAVAILABLE", err)
	}
	killed = read() // it is open, so no more counts as closed
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, killed, 0o600); err != nil {
		t.Fatal(err)
	}
	wantWords(t, refused(t, Options{Dir: dir}), path, "is damaged")
}

// hurtMarked damages the pages that hold the marker.
func hurtMarked(file []byte, marker string) []byte {
	file = bytes.Clone(file)
	page := os.Getpagesize()
	for at := range len(file) / page {
		if p := file[at*page : (at+1)*page]; bytes.Contains(p, []byte(marker)) {
			fill(p[:16], 0xff)
		}
	}
	return file
}

func fill(b []byte, with byte) {
	for i := range b {
		b[i] = with
	}
}

// rootOffset finds the root bucket's page number in the newer meta page: after
// the page's header of 16 bytes come magic, version, page size and flags, 4
// bytes each; the root page, its sequence, the freelist, the high water mark
// and the transaction, 8 bytes each.
func rootOffset(file []byte, page int) int {
	const root, txid = 16 + 16, 16 + 16 + 32
	if binary.LittleEndian.Uint64(file[txid:]) > binary.LittleEndian.Uint64(file[page+txid:]) {
		return root
	}
	return page + root
}

// Fails if a cancelled start opens the store all the same.
func TestCancelledOpen(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir, _ := filled(t) // nothing to migrate, which looks at ctx as well
	_, err := Open(ctx, Options{Dir: dir, Steps: migrations.Steps})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
}
