package main

import (
	"time"

	"github.com/spf13/cobra"

	"fleetd/cmd/bridged/config"
)

func (a *app) serveCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "serve",
		Short:   "Run the daemon of this host",
		GroupID: groupHost,
		Args:    cobra.NoArgs,
		RunE:    a.run(a.serve),
	}
	config.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) serve(cmd *cobra.Command, _ []string) error {
	cfg, err := a.config(cmd)
	if err != nil {
		return err
	}
	log := newLogger(cfg.Log, a.Err)
	for _, w := range cfg.Warnings {
		log.Warn(w)
	}
	return a.Serve(a.signals(cmd.Context()), cfg, log)
}

// restartTime is how long a restart of the daemon may take without an agent
// seeing it.
const restartTime = 5 * time.Second

func (a *app) mcpCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "Serve the tools over standard input and output, for MCP clients",
		Long: `Serve the daemon's tools over standard input and output. The daemon may be
restarted meanwhile; the client does not notice. Who the client is says
$BRIDGED_TOKEN, else --as.`,
		GroupID: groupHost,
		Args:    cobra.NoArgs,
		RunE: a.run(func(cmd *cobra.Command, _ []string) error {
			t, cfg, err := a.target(cmd)
			if err != nil {
				return err
			}
			t.Retry = restartTime
			return a.Stdio(a.signals(cmd.Context()), a.Dial(t), newLogger(cfg.Log, a.Err), a.In, a.Out)
		}),
	}
	a.asFlag(cmd)
	config.AddFlags(cmd.Flags(), "log.level", "log.json")
	return cmd
}
