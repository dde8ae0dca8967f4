package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"fleetd/fault"
)

// Exit codes besides 0.
const (
	exitFailure = 1 // it was tried and failed
	exitUsage   = 2 // command line or configuration are wrong; nothing was done
)

// usageError marks an error of whoever wrote the command line or the
// configuration.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error {
	return usageError{fault.New(fault.BadRequest, format, args...)}
}

// run executes args and returns the exit code. Nothing that goes wrong shows a
// stack.
func run(ctx context.Context, d deps, args []string) (code int) {
	a := &app{deps: d}
	defer func() {
		if a.stop != nil {
			a.stop()
		}
		if p := recover(); p != nil {
			a.settle(false)
			code = a.report(fault.New(fault.Internal, "bridged met an error of its own (%v); please report it with what was done", p), args)
		}
	}()
	root := a.root()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil {
		if !a.started {
			err = asUsage(cmd, err)
		}
		code = a.report(err, args) // an error may carry mail: the notice that a message failed
	}
	a.settle(true) // where an output failed, it is settled already
	return code
}

// asUsage gives an error of the command line library our form.
func asUsage(cmd *cobra.Command, err error) error {
	if _, ours := errors.AsType[usageError](err); ours {
		return err
	}
	return usagef("%s; see '%s --help'", strings.TrimSpace(err.Error()), cmd.CommandPath())
}

// report prints err to standard error and returns the exit code for it.
func (a *app) report(err error, args []string) int {
	code := exitFailure
	if errors.Is(err, errUnhealthy) {
		return code
	}
	_, usage := errors.AsType[usageError](err)
	if usage {
		code = exitUsage
	}
	f := *fault.From(err)
	if a.dialled && !usage { // of the daemon
		f.Sentence = forShell(f.Sentence)
	}
	if errors.Is(err, context.Canceled) && !errors.As(err, new(*fault.Error)) {
		f = *fault.New(fault.Internal, "interrupted; what was accepted before stays accepted")
	}
	if !a.json && !asksJSON(args) {
		if _, err := fmt.Fprintln(a.Err, "bridged: "+visible(f.Error())); err != nil || a.nowhere(a.Err) {
			a.settle(false)
		}
		return code
	}
	type detail struct {
		Code    fault.Code `json:"code"`
		Message string     `json:"message"`
		Cause   string     `json:"cause,omitempty"`
	}
	d := detail{Code: f.Code, Message: f.Sentence}
	if f.Cause != nil {
		d.Cause = f.Cause.Error()
	}
	enc := json.NewEncoder(inertJSON{a.Err})
	enc.SetEscapeHTML(false)
	err = enc.Encode(map[string]detail{"error": d})
	if err != nil || a.nowhere(a.Err) {
		a.settle(false)
	}
	if err != nil {
		return exitFailure // standard error is gone; there is nobody left to tell
	}
	return code
}

// asksJSON finds --json where the command line could not be read to its end.
func asksJSON(args []string) bool {
	for _, arg := range args {
		switch arg {
		case "--":
			return false
		case "--json", "--json=true":
			return true
		}
	}
	return false
}
