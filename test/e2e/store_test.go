package e2e

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fleetd/test/rabbit"
)

// §14: store restored from an old copy. The gateway goes on: other hosts take
// it for the newer one that it is, and mail flows both ways. Fails when they
// keep to the boot that the copy knows nothing of, or a brief of before goes in
// again.
func TestStoreRestoredFromAnOldCopy(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 3*bound)
	defer cancel()
	f := newFleet(t, rabbit.URI(t))
	a, b := addHost(t, ctx, f, "hosta"), addHost(t, ctx, f, "hostb")
	if err := f.TrustEachOther(); err != nil {
		t.Fatal(err)
	}
	lead, bob := addMain(t, ctx, a, "lead"), addMain(t, ctx, b, "bob")
	far := addWorker(t, ctx, b, "far", "--reply-with", "far answer")
	ready(t, ctx, a, b)
	db := filepath.Join(f.Dir, "hosta", "data", "bridged.db")
	converse := func(mark string) {
		t.Helper()
		meet(t, ctx, a, b)
		seen(t, ctx, lead, "far@hostb")
		seen(t, ctx, bob, "lead@hosta")
		r, err := lead.Send(ctx, map[string]any{"to": "far@hostb", "content": mark, "wait_seconds": longest})
		if err != nil || r.State != "replied" {
			t.Fatalf("%s came to %+v, %v", mark, r, err)
		}
		if r, err := bob.Send(ctx, map[string]any{"to": "lead@hosta", "content": mark}); err != nil || r.State != "queued" {
			t.Fatalf("%s to lead came to %+v, %v", mark, r, err)
		}
		if m := next(t, ctx, lead); m.Content != mark || m.From != "bob@hostb" {
			t.Fatalf("lead got %+v, want %s", m, mark)
		}
	}
	again := func(change func()) {
		t.Helper()
		if err := a.Stop(); err != nil {
			t.Fatal(err)
		}
		change()
		revive(t, ctx, a)
		reconnect(t, ctx, lead)
	}

	converse("mark-first.")
	var old []byte
	again(func() {
		var err error
		if old, err = os.ReadFile(db); err != nil {
			t.Fatal(err)
		}
	})
	converse("mark-second.")
	again(func() {})
	again(func() {
		if err := os.WriteFile(db, old, 0o600); err != nil {
			t.Fatal(err)
		}
	})
	converse("mark-third.")
	for _, mark := range []string{"mark-first.", "mark-second.", "mark-third."} {
		prompted(t, ctx, far, mark)
	}
}

// A second daemon on the store of one that runs is told by whom it is held, and
// the first does not notice; a damaged file is not served from, nor touched.
// Fails when either starts all the same or does not say what to do.
func TestStoreThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	f := newFleet(t, "")
	a := addHost(t, ctx, f, "hosta")
	alice, bob := addMain(t, ctx, a, "alice"), addMain(t, ctx, a, "bob")
	refused := func(words ...string) {
		t.Helper()
		out, err := a.Command(ctx, "serve", "--listen", "127.0.0.1:0").CombinedOutput()
		if err == nil {
			t.Fatalf("it served:\n%s", out)
		}
		for _, w := range words {
			if !strings.Contains(string(out), w) {
				t.Errorf("it does not say %q:\n%s", w, out)
			}
		}
	}
	refused("is in use by process", "data_dir")
	if r, err := alice.Send(ctx, map[string]any{"to": "bob", "content": "hello"}); err != nil || r.State != "queued" {
		t.Fatalf("the first daemon's send came to %+v, %v", r, err)
	}
	if m := next(t, ctx, bob); m.Content != "hello" {
		t.Fatalf("bob got %+v", m)
	}
	if err := a.Kill(); err != nil {
		t.Fatal(err)
	}
	db := filepath.Join(f.Dir, "hosta", "data", "bridged.db")
	file, err := os.ReadFile(db)
	if err != nil {
		t.Fatal(err)
	}
	for i := 2 * os.Getpagesize(); i < len(file); i++ { // all but the two that say where the rest is
		file[i] = 0xff
	}
	if err := os.WriteFile(db, file, 0o600); err != nil {
		t.Fatal(err)
	}
	refused(db, "is damaged", "restore")
	after, err := os.ReadFile(db)
	if err != nil || !bytes.Equal(after, file) {
		t.Errorf("the damaged file was changed: %v", err)
	}
}
