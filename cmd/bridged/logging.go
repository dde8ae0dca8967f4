package main

import (
	"io"

	"github.com/hashicorp/go-hclog"

	"fleetd/cmd/bridged/config"
)

// newLogger is the one log of a process, on standard error: standard output
// belongs to results, and in `bridged mcp` to the protocol.
func newLogger(c config.Log, w io.Writer) hclog.Logger {
	if c.JSON {
		w = inertJSON{w}
	}
	return hclog.New(&hclog.LoggerOptions{
		Name: "bridged", Level: hclog.LevelFromString(c.Level), JSONFormat: c.JSON, Output: w,
	})
}

// quietLogger is the log of a command whose result is printed: what happens on
// the way is told from warnings up, unless more was asked for.
func quietLogger(c config.Log, w io.Writer) hclog.Logger {
	if hclog.LevelFromString(c.Level) == hclog.Info {
		c.Level = "warn"
	}
	return newLogger(c, w)
}
