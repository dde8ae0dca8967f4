package inbox

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"fleetd/migrations"
	"fleetd/store"
)

// Whoever reads a copy of the store gets nobody's token. Fails when a token
// stands in it, or a daemon that is given the same file knows it no more.
func TestTheStoreHoldsNoToken(t *testing.T) {
	t.Attr("threat", "U4")
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	open := func() (w *world, done func()) {
		st, err := store.Open(t.Context(), store.Options{Dir: dir, Steps: migrations.Steps})
		if err != nil {
			t.Fatal(err)
		}
		ran := make(chan error, 1)
		go func() { ran <- st.Run(context.Background()) }()
		w = newWorldOn(t, st)
		w.begin(func(c *Config) { c.Secret = func() string { return "br_secret-of-a-token" } })
		return w, func() {
			w.stop()
			if err := errors.Join(st.Close(), <-ran); err != nil {
				t.Fatal(err)
			}
		}
	}
	w, done := open()
	_, token, _, err := w.in.Register(t.Context(), Registration{Name: "m", Kind: store.Main})
	if err != nil || token != "br_secret-of-a-token" {
		t.Fatalf("%q, %v", token, err)
	}
	done()
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if bytes.Contains(text, []byte("secret-of-a-token")) {
			t.Errorf("%s holds the token", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	w, done = open()
	if e, ok, _ := w.in.ByToken(token); e.Name != "m" {
		t.Errorf("after a restart it is %q's (%v)", e.Name, ok)
	}
	done()
}
