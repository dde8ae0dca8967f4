package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"github.com/creack/pty"

	"fleetd/test/fleet"
)

// run runs bridged on a terminal, as a user of the host would, and returns
// what the user sees.
func (t *tale) run(ctx context.Context, h *fleet.Host, args ...string) (string, error) {
	cmd := t.bridged(ctx, h, args...)
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 50, Cols: 200})
	if err != nil {
		return "", fmt.Errorf("run bridged %s: %w", args[0], err)
	}
	defer tty.Close()
	var seen bytes.Buffer
	if _, err := io.Copy(&seen, tty); err != nil && !errors.Is(err, syscall.EIO) { // EIO: the program has ended
		return "", fmt.Errorf("read what bridged %s prints: %w", args[0], err)
	}
	printed := strings.ReplaceAll(seen.String(), "\r\n", "\n")
	if err := cmd.Wait(); err != nil {
		return printed, fmt.Errorf("bridged %s on %s: %w\n%s", strings.Join(args, " "), h.Name, err, printed)
	}
	return printed, nil
}

// quoted is a command's arguments as one types them.
func quoted(args []string) string {
	words := slices.Clone(args)
	for i, w := range words {
		if strings.Contains(w, " ") {
			words[i] = `"` + w + `"`
		}
	}
	return strings.Join(words, " ")
}

// output runs bridged and returns its standard output.
func (t *tale) output(ctx context.Context, h *fleet.Host, args ...string) ([]byte, error) {
	out, err := t.bridged(ctx, h, args...).Output()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil, fmt.Errorf("bridged %s on %s: %w\n%s", strings.Join(args, " "), h.Name, err, failed.Stderr)
	}
	return out, err
}

func (t *tale) bridged(ctx context.Context, h *fleet.Host, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, t.fleet.Binary(), args...)
	cmd.Env, cmd.Dir = append(h.Environ(), "TERM=xterm"), t.fleet.Dir
	return cmd
}

// show runs a command of a host and tells what it printed.
func (t *tale) show(ctx context.Context, h *fleet.Host, args ...string) (string, error) {
	printed, err := t.run(ctx, h, args...)
	if err == nil {
		t.out.command(h.Name, "bridged "+quoted(args), printed)
	}
	return printed, err
}
