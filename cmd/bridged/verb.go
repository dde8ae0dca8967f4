package main

import (
	"context"

	"github.com/spf13/cobra"

	"fleetd/cmd/bridged/config"
)

// verb is the code of a command that asks the daemon one thing. prepare checks
// and reads what was given, while Ctrl-C ends the command as any other; nil:
// there is nothing to. ask is the question, show prints the answer for people.
func verb[R any](a *app, prepare func(cmd *cobra.Command, pos []string, cfg config.Config) error,
	ask func(ctx context.Context, c client, pos []string) (R, error), show func(w *printer, r R),
) func(*cobra.Command, []string) error {
	return a.run(func(cmd *cobra.Command, pos []string) error {
		c, cfg, err := a.dial(cmd)
		if err != nil {
			return err
		}
		if prepare != nil {
			if err := prepare(cmd, pos, cfg); err != nil {
				return err
			}
		}
		r, err := ask(a.signals(cmd.Context()), c, pos)
		if err != nil {
			return err
		}
		return a.emit(r, func(w *printer) { show(w, r) })
	})
}

// reading has prepare read the content, the last of most arguments, into to.
func (a *app) reading(to *string, most int) func(*cobra.Command, []string, config.Config) error {
	return func(_ *cobra.Command, pos []string, cfg config.Config) (err error) {
		*to, err = a.content(last(pos), len(pos) == most, cfg.Limits.ContentBytes)
		return err
	}
}
