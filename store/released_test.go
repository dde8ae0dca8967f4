package store

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"fleetd/migrations"
)

// unpacked puts the file of a schema, as it is in the field, into a data
// directory.
func unpacked(t *testing.T, schema int) (dir string) {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "test", "testdata", fmt.Sprintf("store-schema-%d.db.gz", schema)))
	if err != nil {
		t.Fatalf("there has to be a file of every schema: %v", err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	dir = privateDir(t)
	if err := os.WriteFile(filepath.Join(dir, DefaultFile), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Each file has one worker, kept. Fails when a file that was written by an
// earlier version cannot be opened, or what it holds cannot be read or written.
func TestFilesOfEverySchemaOpen(t *testing.T) {
	for schema := 1; schema <= len(migrations.Steps); schema++ {
		dir := unpacked(t, schema)
		s := openAt(t, Options{Dir: dir})
		stop := start(t, s)
		const gid = "01a22a58-63ec-7107-baf4-0aa5f44799fa"
		name, err := entityNamed(s, gid)
		if err != nil || name != "kept" {
			t.Errorf("schema %d: the worker is %q, %v", schema, name, err)
		}
		write(t, s, putEntity(gid, "renamed"))
		if name, err := entityNamed(s, gid); err != nil || name != "renamed" {
			t.Errorf("schema %d: the worker is %q, %v after it was renamed", schema, name, err)
		}
		if err := errors.Join(stop(), s.Check(t.Context()), s.Close()); err != nil {
			t.Errorf("schema %d: %v", schema, err)
		}
	}
}
