// Command herdrsim serves a simulated herdr until SIGTERM or SIGINT and ends
// the programs it started; see the package fleetd/test/herdrsim.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"fleetd/test/herdrsim"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/pflag"
)

func main() {
	if err := run(os.Args[1:]); err != nil && !errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "herdrsim:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	opts := herdrsim.Options{Logger: hclog.New(&hclog.LoggerOptions{Name: "herdrsim", Output: os.Stderr})}
	fs := pflag.NewFlagSet("herdrsim", pflag.ContinueOnError)
	fs.StringVar(&opts.SocketPath, "socket", "", "path of the JSON socket (default: herdr.sock in a temporary directory)")
	version := fs.String("version", string(herdrsim.Base), "herdr to play: 0.8.0, base or 0.8.2")
	panes := fs.StringArray("pane", nil, "NAME=ARGV: make a pane with this label; words are split at blanks, no words is a shell")
	shell := fs.String("shell", "", "shell of new panes (default: $SHELL)")
	fast := fs.Bool("fast", false, "shorten herdr's time constants")
	if err := fs.Parse(args); err != nil {
		return err
	}
	switch opts.Version = herdrsim.Version(*version); opts.Version {
	case herdrsim.V080, herdrsim.Base, herdrsim.V082:
	default:
		return fmt.Errorf("unknown version %q: it is 0.8.0, base or 0.8.2", *version)
	}
	if *shell != "" {
		opts.Shell = []string{*shell}
	}
	if *fast {
		opts.Timing = herdrsim.Fast()
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer stop()
	srv, err := herdrsim.Start(context.Background(), opts)
	if err != nil {
		return err
	}
	if err := serve(ctx, srv, *panes); err != nil {
		return errors.Join(err, srv.Close())
	}
	return srv.Close()
}

// serve makes the panes, says where everything is, and waits.
func serve(ctx context.Context, srv *herdrsim.Server, panes []string) error {
	for _, p := range panes {
		name, argv, found := strings.Cut(p, "=")
		if !found {
			return fmt.Errorf("--pane %q is not NAME=ARGV", p)
		}
		place, err := srv.Run(name, strings.Fields(argv), nil, "")
		if err != nil {
			return fmt.Errorf("make the pane %s: %w", name, err)
		}
		fmt.Printf("pane %s %s %s\n", name, place.PaneID, place.TerminalID)
	}
	fmt.Printf("serving %s\n", srv.SocketPath())
	<-ctx.Done()
	return nil
}
