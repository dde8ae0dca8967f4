// Command bridged is the gateway of an agent fleet: the daemon of a host and
// the command line that talks to it (design §11).
//
// Here live the commands, how they print and how they fail, and the wiring of
// the daemon. What a verb does is the daemon's; the commands ask it over its
// local socket, through the same interface as the tools.
package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/agnivade/levenshtein"
	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"fleetd/cmd/bridged/config"
	"fleetd/mcp"
)

// client is a running daemon, asked over its local socket.
type client interface {
	mcp.Gateway
	mcp.Admin
	mcp.DeadLetters
	mcp.Doctor
}

// target says which daemon is asked, and as whom.
type target struct {
	Socket string // path of the daemon's local API
	Token  string // "": the user of this process, as As
	As     string // local entity to speak for; "": whom the daemon takes the user for
	// Retry is how long a call waits for a daemon that is not there.
	Retry time.Duration
}

// maintained is a store that no daemon has open.
type maintained interface {
	Check(ctx context.Context) error
	Compact(ctx context.Context) (before, after int64, err error)
	Close() error
}

// deps is what the commands need of the world. A command whose dependency is
// nil is not offered.
type deps struct {
	In       io.Reader
	Out, Err io.Writer
	InTTY    bool // In is a terminal
	OutTTY   bool // Out is a terminal: tables instead of tabs, controls made visible

	Environ  []string  // as os.Environ
	Hostname string    // "": the system's
	Binary   string    // how this program is called in lines to copy
	Version  string    // of this build
	Rand     io.Reader // for keys

	// Signals ends a context when the user or the service manager asks for it;
	// nil leaves the context as it is.
	Signals func(context.Context) (context.Context, context.CancelFunc)

	// KeepPipe has a write to a broken pipe fail instead of end the process; nil:
	// it does already.
	KeepPipe func()
	// Nowhere reports that what is written to Out or Err cannot be seen although
	// the write succeeds; nil: never.
	Nowhere func(io.Writer) bool

	// Serve runs the daemon until ctx ends.
	Serve func(ctx context.Context, cfg config.Config, log hclog.Logger) error
	// Stdio serves the tools of g to the MCP client at in and out until in ends.
	Stdio func(ctx context.Context, g mcp.Gateway, log hclog.Logger, in io.Reader, out io.Writer) error
	// Dial makes a client; it may connect as late as the first call.
	Dial func(target) client
	// OpenStore opens the store for maintenance.
	OpenStore func(ctx context.Context, cfg config.Config, log hclog.Logger) (maintained, error)
}

// app is one run of the command line.
type app struct {
	deps
	file    string // --config
	as      string // --as
	json    bool   // --json
	started bool   // a command's own code has begun: errors are no longer of usage
	dialled bool   // the command asks a daemon
	stop    context.CancelFunc
	receipt *mcp.Receipt // of the call that may bring mail, nil without one
}

const (
	groupMessages = "messages"
	groupFleet    = "fleet"
	groupHost     = "host"
)

// root is the whole command tree.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "bridged",
		Short: "Gateway of an agent fleet: one address for every agent, on this host and on others",
		Long: `bridged is the gateway of an agent fleet, one daemon per host. Coding agents in
herdr panes and main sessions that are MCP clients get one address each, and
messages move between them: on one host without any broker, across hosts over
AMQP. Without a command it serves, like "bridged serve".`,
		Version:           a.Version,
		Args:              knownCommand,
		SilenceErrors:     true, // run prints them, with their code
		SilenceUsage:      true,
		DisableAutoGenTag: true,
	}
	root.SetIn(a.In)
	root.SetOut(a.Out)
	root.SetErr(a.Err)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%v; see '%s --help'", err, cmd.CommandPath())
	})
	root.PersistentFlags().StringVar(&a.file, "config", "", "configuration `FILE` (default ~/.config/bridged/bridged.yaml; $BRIDGED_CONFIG)")
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print results and errors in JSON")
	config.AddFlags(root.PersistentFlags(), "data_dir", "socket")
	root.AddGroup(
		&cobra.Group{ID: groupMessages, Title: "Messages:"},
		&cobra.Group{ID: groupFleet, Title: "Fleet:"},
		&cobra.Group{ID: groupHost, Title: "This host:"},
	)
	root.SetHelpCommandGroupID(groupHost)
	root.SetCompletionCommandGroupID(groupHost)
	if a.Serve != nil {
		root.RunE = a.run(a.serve)
		config.AddFlags(root.Flags())
		root.AddCommand(a.serveCmd())
	}
	if a.Stdio != nil && a.Dial != nil {
		root.AddCommand(a.mcpCmd())
	}
	if a.Dial != nil {
		root.AddCommand(a.sendCmd(), a.pollCmd(), a.readCmd(), a.replyCmd(), a.askCmd(), a.answerCmd(), a.broadcastCmd())
		root.AddCommand(a.spawnCmd(), a.stopCmd(), a.rosterCmd(), a.traceCmd(), a.whoamiCmd())
		root.AddCommand(a.registerCmd(), a.groupsCmd(), a.unregisterCmd())
		root.AddCommand(a.dlqCmd())
		root.AddCommand(a.migrateCmd(), a.doctorCmd())
	}
	if a.OpenStore != nil {
		root.AddCommand(a.storeCmd())
	}
	root.AddCommand(a.keysCmd(), a.versionCmd())
	return root
}

// run marks the line between usage and failure for a command's own code.
func (a *app) run(fn func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		a.started = true
		return fn(cmd, args)
	}
}

// group is a command that only holds others. cobra alone would print its help
// and succeed whatever is asked of it.
func (a *app) group(cmd *cobra.Command, subs ...*cobra.Command) *cobra.Command {
	cmd.AddCommand(subs...)
	cmd.Args = knownCommand
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return usagef("%s needs a command: %s", cmd.CommandPath(), names(subs))
	}
	return cmd
}

// knownCommand refuses what is left over where a command was expected, and
// names the nearest.
func knownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2
	hint := fmt.Sprintf("see '%s --help'", cmd.CommandPath())
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 { // in the order of their names
		nearest := slices.MinFunc(near, func(x, y string) int {
			return cmp.Compare(levenshtein.ComputeDistance(args[0], x), levenshtein.ComputeDistance(args[0], y))
		})
		hint = fmt.Sprintf("did you mean '%s %s'?", cmd.CommandPath(), nearest)
	}
	return usagef("there is no command %q; %s", cmd.CommandPath()+" "+args[0], hint)
}

func names(cmds []*cobra.Command) string {
	out := ""
	for i, c := range cmds {
		if i > 0 {
			out += ", "
		}
		out += c.Name()
	}
	return out
}

// config reads all layers for cmd.
func (a *app) config(cmd *cobra.Command) (config.Config, error) {
	cfg, err := config.Load(config.Source{
		File: a.file, Environ: a.Environ, Hostname: a.Hostname, Flags: config.FlagValues(cmd.Flags()),
	})
	if err != nil {
		return cfg, usageError{err}
	}
	return cfg, nil
}

// signals has ctx end when the user asks for it. Called as late as possible: a
// command that waits for its input must die of Ctrl-C as any other.
func (a *app) signals(ctx context.Context) context.Context {
	if a.Signals == nil || a.stop != nil {
		return ctx
	}
	ctx, a.stop = a.Signals(ctx)
	return ctx
}
