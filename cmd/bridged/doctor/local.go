package doctor

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"fleetd/fabric/keys"
	"fleetd/mcp"
	"fleetd/store"
)

// The room that has to be left where the store lies. Its file grows by 16 MiB
// at a time, and a second one is made when it is moved forward or compacted.
const (
	roomFail = 32 << 20
	roomWarn = 512 << 20
)

// files checks who can reach what is this user's alone.
func (p Patient) files(r *report) {
	before := len(*r)
	cfg := p.Config
	if err := store.Inspect(cfg.DataDir); err != nil {
		r.fault("files", err)
	}
	if err := mcp.CheckSocket(cfg.Socket); err != nil {
		r.fault("files", err)
	}
	key, err := keys.Load(cfg.KeyPath())
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing {
		r.fault("files", err)
	}
	if err := keys.CheckDir(cfg.TrustDir); err != nil {
		r.fault("files", err)
	} else if key != nil {
		p.trustFiles(r, key.Public().(ed25519.PublicKey))
	}
	switch {
	case len(*r) > before:
	case missing:
		r.add(OK, "files", "there is no key yet at "+cfg.KeyPath(), "the daemon makes it at its first start; if it ran before, data_dir is another one")
	default:
		r.add(OK, "files", fmt.Sprintf("key, store and socket in %s and the keys in %s are out of others' reach", cfg.DataDir, cfg.TrustDir), "")
	}
}

// trustFiles says which files of the trust folder trust nobody.
func (p Patient) trustFiles(r *report, own ed25519.PublicKey) {
	trust, err := keys.OpenTrust(p.Config.TrustDir, p.Config.Host, own)
	if err != nil {
		r.fault("trust", err)
		return
	}
	for _, problem := range trust.Problems() {
		r.fault("trust", problem)
	}
}

// disk looks how much can still be written where the store lies.
func (p Patient) disk(r *report) {
	dir := p.Config.DataDir
	for dir != filepath.Dir(dir) { // the folder that is there by now
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		dir = filepath.Dir(dir)
	}
	free, err := p.Free(dir)
	if err != nil {
		r.add(Warn, "disk", fmt.Sprintf("how much room is left in %s cannot be told (%v)", dir, err), "see df "+dir)
		return
	}
	what := fmt.Sprintf("%d MiB are free where the store lies (%s)", free>>20, dir)
	switch {
	case free < roomFail:
		r.add(Fail, "disk", what, "free some, or nothing can be accepted; or move data_dir")
	case free < roomWarn:
		r.add(Warn, "disk", what, "free some: on a full disk nothing is accepted")
	default:
		r.add(OK, "disk", what, "")
	}
}
