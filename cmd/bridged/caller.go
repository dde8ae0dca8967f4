package main

import (
	"strings"

	"github.com/spf13/cobra"

	"fleetd/cmd/bridged/config"
)

// asFlag lets the host's own user speak for an entity.
func (a *app) asFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.as, "as", "", "speak for the local entity `NAME` ($BRIDGED_AS); goes before $BRIDGED_TOKEN")
}

// dial makes the client of the daemon that cmd's configuration names, with the
// identity that is given most expressly: --as, the token of the environment (an
// agent in its pane has one), $BRIDGED_AS.
func (a *app) dial(cmd *cobra.Command) (client, config.Config, error) {
	t, cfg, err := a.target(cmd)
	if err != nil {
		return nil, cfg, err
	}
	a.dialled = true
	return a.Dial(t), cfg, nil
}

func (a *app) target(cmd *cobra.Command) (target, config.Config, error) {
	cfg, err := a.config(cmd)
	if err != nil {
		return target{}, cfg, err
	}
	t := target{Socket: cfg.Socket, As: a.as}
	if t.As == "" {
		if t.Token = a.getenv("BRIDGED_TOKEN"); t.Token == "" {
			t.As = a.getenv("BRIDGED_AS")
		}
	}
	return t, cfg, nil
}

// getenv reads the environment that the command was given.
func (a *app) getenv(name string) string {
	value := ""
	for _, pair := range a.Environ { // the last of equals, as the shell has it
		if n, v, ok := strings.Cut(pair, "="); ok && n == name {
			value = v
		}
	}
	return value
}
