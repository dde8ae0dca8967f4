package main

import (
	"context"
	"fmt"

	"fleetd/cmd/bridged/config"
	"fleetd/fault"
	"fleetd/store"
)

// settleHost decides under which host id the daemon runs on this store, and
// notes it there. Entities live on the host that made them for good (design
// §4), so a store that holds some goes on under its own id or not at all.
func settleHost(ctx context.Context, st *store.Store, cfg config.Config) (host, warning string, err error) {
	err = st.Write(ctx, func(tx *store.Tx) error {
		stored, err := tx.HostID()
		if err != nil {
			return err
		}
		entities, err := tx.Entities()
		if err != nil {
			return err
		}
		if host, warning, err = hostOf(cfg, stored, len(entities)); err != nil {
			return err
		}
		if host == stored {
			return nil
		}
		return tx.PutHostID(host)
	})
	return host, warning, err
}

// hostOf is that decision. stored is "" in a new store; entities of any state
// count, since mail for those that are gone may still come.
func hostOf(cfg config.Config, stored string, entities int) (host, warning string, err error) {
	switch {
	case stored == "" || stored == cfg.Host:
		return cfg.Host, "", nil
	case !cfg.HostGiven:
		return stored, fmt.Sprintf("hostname is now %s; this data_dir belongs to host %s, which is kept; set host: %s to silence this, and so that `bridged keys show` says the same", cfg.Host, stored, stored), nil
	case entities > 0:
		return "", "", usageError{fault.New(fault.Conflict, "the data_dir %s belongs to host %s, whose entities keep their home, and host is set to %s; set host: %s, or give %s another data_dir", cfg.DataDir, stored, cfg.Host, stored, cfg.Host)}
	}
	return cfg.Host, "", nil
}
