package main

import (
	"context"
	"crypto/rand"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/hashicorp/go-hclog"
	"github.com/mattn/go-isatty"

	"fleetd/cmd/bridged/config"
	"fleetd/mcp"
	"fleetd/mcp/api"
)

func main() { os.Exit(run(context.Background(), system(), os.Args[1:])) }

// system is the world of a real run.
func system() deps {
	version := buildVersion()
	return deps{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
		InTTY: isatty.IsTerminal(os.Stdin.Fd()), OutTTY: isatty.IsTerminal(os.Stdout.Fd()),
		Environ: os.Environ(),
		Binary:  binary(),
		Version: version,
		Rand:    rand.Reader,
		Signals: func(ctx context.Context) (context.Context, context.CancelFunc) {
			return signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
		},
		KeepPipe: func() { signal.Ignore(syscall.SIGPIPE) },
		Nowhere:  nowhere,
		Serve: func(ctx context.Context, cfg config.Config, log hclog.Logger) error {
			return serve(ctx, version, cfg, log)
		},
		Stdio: func(ctx context.Context, g mcp.Gateway, log hclog.Logger, in io.Reader, out io.Writer) error {
			return mcp.ServeStdio(ctx, g, version, log, in, out)
		},
		Dial: func(t target) client { return &api.Client{Socket: t.Socket, Token: t.Token, As: t.As, Retry: t.Retry} },
		OpenStore: func(ctx context.Context, cfg config.Config, log hclog.Logger) (maintained, error) {
			return openStore(ctx, cfg, log)
		},
	}
}

// binary is how others start this program: by its name where that is enough.
func binary() string {
	self, err := os.Executable()
	if err != nil {
		return "bridged"
	}
	if found, err := exec.LookPath("bridged"); err == nil && sameFile(found, self) {
		return "bridged"
	}
	return self
}

func sameFile(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}
