package keys

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Since says since when keys of host are trusted, by fingerprint: what their
// lines say, else when their file was last written. A host without a file has
// none.
func Since(dir, host string) (map[string]time.Time, error) {
	path := filepath.Join(dir, host+suffix)
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, asFault(err, path)
	}
	text, _, err := readOwn(path, publicModes, false)
	if err != nil {
		return nil, asFault(err, path)
	}
	entries, _ := parsePublic(path, text) // bad lines are told with the trust itself
	since := map[string]time.Time{}
	for _, e := range entries {
		if e.since.IsZero() {
			e.since = info.ModTime()
		}
		if was, ok := since[Fingerprint(e.pub)]; !ok || e.since.Before(was) {
			since[Fingerprint(e.pub)] = e.since
		}
	}
	return since, nil
}

// MadeAt is when the key file path was last written.
func MadeAt(path string) (time.Time, error) {
	info, err := os.Stat(path)
	if err != nil {
		return time.Time{}, asFault(err, path)
	}
	return info.ModTime(), nil
}
