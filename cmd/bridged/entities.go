package main

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"fleetd/cmd/bridged/config"
	"fleetd/mcp"
	"fleetd/store"
)

var kinds = []string{string(store.Worker), string(store.Main), string(store.Orchestrator)}

// registered is the JSON of a registration: the result and what to write into
// the MCP clients.
type registered struct {
	mcp.RegisterResult
	Clients []snippet `json:"clients"`
}

func (a *app) registerCmd() *cobra.Command {
	var args mcp.RegisterArgs
	cmd := &cobra.Command{
		Use:   "register NAME --kind KIND",
		Short: "Make or change an agent or a main of this host",
		Long: `Make or change an entity of this host and print its id, its token (once: the
store keeps only a hash) and what to write into its MCP client. A worker is the
agent in a herdr pane; a main or an orchestrator is an MCP client that takes its
mail by itself.

An agent needs its token before it starts, and its pane is known after: register
a worker once without --pane, start the agent with the token, then register it
again with --pane. Its mail waits meanwhile.`,
		Example: "  bridged register main --kind main\n  bridged register reviewer --kind worker --group reviewers\n  bridged register reviewer --kind worker --pane wQ:p2",
		GroupID: groupHost,
		Args:    cobra.ExactArgs(1),
		RunE: a.run(func(cmd *cobra.Command, pos []string) error {
			if err := checkKind(args.Kind); err != nil {
				return err
			}
			c, cfg, err := a.dial(cmd)
			if err != nil {
				return err
			}
			args.Name = pos[0]
			r, err := c.Register(a.signals(cmd.Context()), args)
			if err != nil {
				return err
			}
			out := registered{r, snippets(r.URL, a.stdioCommand(cfg))}
			err = a.emit(out, func(w *printer) { printRegistered(w, out) })
			if r.Kind == store.Worker && r.Pane == "" {
				a.note("\n%s has no pane yet, so its mail waits; once its agent runs: bridged register %s --kind worker --pane PANE (inside the pane: $HERDR_PANE_ID)", r.Name, r.Name)
			}
			return err
		}),
	}
	kindFlag(cmd, &args.Kind, "`KIND` of the entity: worker, main or orchestrator")
	cmd.Flags().StringVar(&args.Pane, "pane", "", "the herdr `PANE` that it runs in, as wQ:p2: a worker gets its messages there, a main a line when mail waits")
	cmd.Flags().BoolVar(&args.NewToken, "new-token", false, "replace the token of one that exists; the old one is worth nothing any more")
	cmd.Flags().StringSliceVar(&args.Groups, "group", nil, "a `GROUP` that it belongs to; can be repeated")
	return cmd
}

// kindFlag adds --kind, with the kinds there are for shells to complete.
func kindFlag(cmd *cobra.Command, to *store.EntityKind, usage string) {
	cmd.Flags().StringVar((*string)(to), "kind", "", usage)
	if err := cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions(slices.Clone(kinds), cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the flag stands in the line above
	}
}

func checkKind(kind store.EntityKind) error {
	switch {
	case kind == "":
		return usagef("add --kind worker, --kind main or --kind orchestrator")
	case !kind.Known():
		return usagef("--kind %q is not known; write %s", kind, strings.Join(kinds, ", "))
	}
	return nil
}

// stdioCommand is how an MCP client starts `bridged mcp` so that it finds this
// daemon with no other environment than its token.
func (a *app) stdioCommand(cfg config.Config) []string {
	command := []string{a.Binary, "mcp"}
	plain, err := config.Load(config.Source{Environ: []string{"HOME=" + a.getenv("HOME")}, Hostname: "any"})
	if err != nil || plain.Socket != cfg.Socket {
		command = append(command, "--socket", cfg.Socket)
	}
	return command
}

func printRegistered(w *printer, r registered) {
	created := "changed"
	if r.Created {
		created = "created"
	}
	token := r.Token
	if token == "" {
		token = "(unchanged; it was shown when it was made; lost: --new-token)"
	}
	w.record("state", created, "name", r.Name+"@"+r.Host, "gid", r.GID, "kind", string(r.Kind), "pane", r.Pane, "token", token)
	if r.Token != "" {
		w.line("\n# The token is shown this once. Put it into the environment that the agent is started from:")
		w.line("export BRIDGED_TOKEN=%s", shellQuote(r.Token))
	}
	for _, s := range r.Clients {
		w.line("\n# %s", s.Title)
		w.content(s.Text)
	}
}

// shellQuote makes s one word for a POSIX shell.
func shellQuote(s string) string {
	plain := func(r rune) bool {
		return r == '-' || r == '_' || r == '.' || r == '/' || r == ':' || r == '=' ||
			'0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func (a *app) unregisterCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "unregister NAME",
		Short: "End an agent or a main of this host",
		Long: `End an entity: its pane is closed, its senders are told, its inbox is emptied
and removed, its token is worth nothing any more. Its id never comes back.`,
		GroupID: groupHost,
		Args:    cobra.ExactArgs(1),
		RunE: verb(a, nil, func(ctx context.Context, c client, pos []string) (mcp.UnregisterResult, error) {
			return c.Unregister(ctx, mcp.UnregisterArgs{Name: pos[0]})
		}, func(w *printer, r mcp.UnregisterResult) {
			w.record("state", r.State, "gid", r.GID, "note", forShell(r.Note))
		}),
	}
}
