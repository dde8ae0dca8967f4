package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"

	"github.com/hashicorp/go-hclog"
	mcpgo "github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
)

// stdioWorkers is the most the library takes: with fewer, some blocked calls
// hold up all others (library facts §1).
const stdioWorkers = 100

// callHeader carries the JSON-RPC id of a call from the library's hook to our
// middleware. On stdio no client can set a header.
const callHeader = "Bridged-Call"

// ServeStdio offers the tools over in and out until in ends or ctx does. g is a
// client of the daemon's local API. Nothing but protocol goes to out; what a
// call brought counts as written when its line was. One per process: the
// library has one stdio session.
func ServeStdio(ctx context.Context, g Gateway, version string, log hclog.Logger, in io.Reader, out io.Writer) error {
	return serveStdio(ctx, &adapter{log: log, every: progressEvery}, g, version, in, out)
}

func serveStdio(ctx context.Context, a *adapter, g Gateway, version string, in io.Reader, out io.Writer) error {
	lines := &lineWriter{out: out, receipts: map[string]*Receipt{}}
	defer lines.lose()
	hooks := &server.Hooks{}
	hooks.AddBeforeCallTool(func(_ context.Context, id any, req *mcpgo.CallToolRequest) {
		if key, err := json.Marshal(mcpgo.NewRequestId(id)); err == nil {
			req.Header.Set(callHeader, string(key))
		}
	})
	tools := newTools(a, g, version, server.WithHooks(hooks), server.WithToolHandlerMiddleware(lines.withReceipt))
	s := server.NewStdioServer(tools)
	server.WithErrorLogger(a.log.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}))(s)
	server.WithWorkerPoolSize(stdioWorkers)(s)
	err := s.Listen(ctx, in, lines)
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// lineWriter passes the library's lines on and settles the receipt of the call
// that a line answers. The library writes each message with one Write, one at
// a time.
type lineWriter struct {
	out io.Writer

	mu       sync.Mutex
	receipts map[string]*Receipt // by JSON-RPC id
	settling sync.WaitGroup
}

func (l *lineWriter) withReceipt(next server.ToolHandlerFunc) server.ToolHandlerFunc {
	return func(ctx context.Context, req mcpgo.CallToolRequest) (*mcpgo.CallToolResult, error) {
		ctx, receipt := WithReceipt(ctx)
		l.mu.Lock()
		l.receipts[req.Header.Get(callHeader)] = receipt
		l.mu.Unlock()
		return next(ctx, req)
	}
}

// Write sends one message.
func (l *lineWriter) Write(p []byte) (int, error) {
	n, err := l.out.Write(p)
	var m struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
	}
	if json.Unmarshal(p, &m) != nil || m.Method != "" || len(m.ID) == 0 {
		return n, err
	}
	l.mu.Lock()
	receipt := l.receipts[string(m.ID)]
	delete(l.receipts, string(m.ID))
	l.mu.Unlock()
	if receipt != nil {
		// It asks the daemon; the next line must not wait for that.
		l.settling.Go(func() { receipt.Settle(err == nil && n == len(p)) })
	}
	return n, err
}

// lose settles what was never written, after the library has ended.
func (l *lineWriter) lose() {
	for _, r := range l.receipts {
		r.Settle(false)
	}
	l.settling.Wait()
}
