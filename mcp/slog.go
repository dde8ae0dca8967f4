package mcp

import (
	"context"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// slogger lets the MCP library, which wants a slog.Logger, log through ours.
func slogger(log hclog.Logger) *slog.Logger { return slog.New(slogHandler{log}) }

type slogHandler struct{ log hclog.Logger }

func slogLevel(l slog.Level) hclog.Level {
	switch {
	case l >= slog.LevelError:
		return hclog.Error
	case l >= slog.LevelWarn:
		return hclog.Warn
	case l >= slog.LevelInfo:
		return hclog.Debug // the library's news are our details
	}
	return hclog.Trace
}

func (h slogHandler) Enabled(_ context.Context, l slog.Level) bool {
	return h.log.GetLevel() <= slogLevel(l)
}

func (h slogHandler) Handle(_ context.Context, r slog.Record) error {
	var args []any
	r.Attrs(func(a slog.Attr) bool {
		args = append(args, a.Key, a.Value.Any())
		return true
	})
	h.log.Log(slogLevel(r.Level), r.Message, args...)
	return nil
}

func (h slogHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	var args []any
	for _, a := range attrs {
		args = append(args, a.Key, a.Value.Any())
	}
	return slogHandler{h.log.With(args...)}
}

func (h slogHandler) WithGroup(name string) slog.Handler { return slogHandler{h.log.Named(name)} }
