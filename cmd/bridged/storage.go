package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"fleetd/fault"
)

func (a *app) storeCmd() *cobra.Command {
	return a.group(&cobra.Command{
		Use:     "store",
		Short:   "Check or compact the store, while the daemon is stopped",
		GroupID: groupHost,
	}, a.storeCheckCmd(), a.storeCompactCmd())
}

func (a *app) storeCheckCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "Read the whole store and tell whether it is sound",
		Args:  cobra.NoArgs,
		RunE: a.run(func(cmd *cobra.Command, _ []string) error {
			return a.withStore(cmd, func(ctx context.Context, path string, s maintained) error {
				if err := s.Check(ctx); err != nil {
					return err
				}
				out := struct {
					State string `json:"state"`
					File  string `json:"file"`
				}{"sound", path}
				return a.emit(out, func(w *printer) { w.record("state", out.State, "file", out.File) })
			})
		}),
	}
}

func (a *app) storeCompactCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "compact",
		Short: "Give back the room that the store does not need any more",
		Args:  cobra.NoArgs,
		RunE: a.run(func(cmd *cobra.Command, _ []string) error {
			return a.withStore(cmd, func(ctx context.Context, path string, s maintained) error {
				before, after, err := s.Compact(ctx)
				if err != nil {
					return err
				}
				out := struct {
					File   string `json:"file"`
					Before int64  `json:"bytes_before"`
					After  int64  `json:"bytes_after"`
				}{path, before, after}
				return a.emit(out, func(w *printer) {
					w.record("file", path, "before", fmt.Sprintf("%d bytes", before), "after", fmt.Sprintf("%d bytes", after))
				})
			})
		}),
	}
}

// withStore opens the store that is there (opening one that is not would make
// an empty one, and call that sound) and closes it whatever happens.
func (a *app) withStore(cmd *cobra.Command, fn func(context.Context, string, maintained) error) (err error) {
	cfg, err := a.config(cmd)
	if err != nil {
		return err
	}
	path := cfg.StorePath()
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return fault.New(fault.StoreUnavailable, "there is no store at %s; the daemon makes it at its first start, or data_dir is another one", path)
	} else if err != nil {
		return fault.Wrap(err, fault.StoreUnavailable, "the store %s cannot be looked at; run this as the daemon's user", path)
	}
	ctx := a.signals(cmd.Context())
	s, err := a.OpenStore(ctx, cfg, quietLogger(cfg.Log, a.Err))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return fn(ctx, path, s)
}
