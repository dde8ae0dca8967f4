package mcp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	mcpgo "github.com/mark3labs/mcp-go/mcp"
)

// bridge runs the stdio server on pipes.
type bridge struct {
	in  *io.PipeWriter
	out *io.PipeReader
	end func() // closes the input and waits for the server
}

func startStdio(t *testing.T, g Gateway, every time.Duration) *bridge {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	var running sync.WaitGroup
	running.Go(func() {
		err := serveStdio(context.Background(), &adapter{log: hclog.NewNullLogger(), every: every}, g, "test", inR, outW)
		if err != nil {
			t.Errorf("the bridge ended with %v", err)
		}
		_ = outW.Close()
	})
	b := &bridge{in: inW, out: outR}
	b.end = sync.OnceFunc(func() {
		_ = inW.Close()
		_ = outR.Close()
		running.Wait()
	})
	t.Cleanup(b.end)
	return b
}

// Fails if the tools are not the same over stdio, in either era, or if
// something else than protocol is written.
func TestStdioServesTheTools(t *testing.T) {
	for era, version := range eras {
		t.Run(era, func(t *testing.T) {
			g := &fakeGateway{poll: func(_ context.Context, a PollArgs) (PollResult, error) {
				return PollResult{Note: "from " + a.From}, nil
			}}
			b := startStdio(t, g, time.Hour)
			var seen strings.Builder
			c := client.NewClient(transport.NewIO(io.TeeReader(b.out, &seen), b.in, io.NopCloser(strings.NewReader(""))), client.WithProtocolVersion(version))
			if err := c.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := initialize(t.Context(), c, version); err != nil {
				t.Fatal(err)
			}
			list, err := c.ListTools(t.Context(), mcpgo.ListToolsRequest{})
			if err != nil || len(list.Tools) != len(toolNames) {
				t.Errorf("%d tools, %v", len(list.Tools), err)
			}
			if s, text, _ := mustCall(t, c, "bridge_poll", map[string]any{"target": "zoe"}); s["note"] != "from zoe" {
				t.Error(text)
			}
			if s, _, isError := mustCall(t, c, "bridge_poll", map[string]any{"form": "zoe"}); !isError {
				t.Error(s)
			}
			_ = c.Close()
			b.end()
			for line := range strings.Lines(seen.String()) {
				if !json.Valid([]byte(line)) || !strings.Contains(line, `"jsonrpc"`) {
					t.Errorf("no protocol: %q", line)
				}
			}
		})
	}
}

func stdioCall(id any, name string, args, meta string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%v,"method":"tools/call","params":{"name":%q,"arguments":%s,"_meta":%s}}`+"\n", id, name, args, meta)
}

// Fails if what a call brought counts as handed over before its line was
// written, never does, or does although the agent's end is closed.
func TestStdioReceiptFollowsTheLine(t *testing.T) {
	settled := make(chan string, 10)
	g := &fakeGateway{poll: func(ctx context.Context, a PollArgs) (PollResult, error) {
		OnWritten(ctx, func(written bool) { settled <- fmt.Sprint(a.From, " ", written) })
		return PollResult{}, nil
	}}
	b := startStdio(t, g, time.Hour)
	lines := bufio.NewReader(b.out)
	for _, id := range []any{7, `"a b"`, 1.5, 12345678901} {
		if _, err := io.WriteString(b.in, stdioCall(id, "bridge_poll", `{"from":"x"}`, `{}`)); err != nil {
			t.Fatal(err)
		}
		// The pipe has no buffer: nothing is written until somebody reads.
		select {
		case got := <-settled:
			t.Fatalf("settled as %s before the line was read", got)
		default:
		}
		if _, err := lines.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		if got := receive(t, "the receipt", settled); got != "x true" {
			t.Errorf("id %v: settled as %s", id, got)
		}
	}
	_ = b.out.CloseWithError(errors.New("the agent is gone"))
	if _, err := io.WriteString(b.in, stdioCall(8, "bridge_poll", `{"from":"y"}`, `{}`)); err != nil {
		t.Fatal(err)
	}
	if got := receive(t, "the receipt", settled); got != "y false" {
		t.Errorf("settled as %s", got)
	}
}

// Fails if some blocked calls hold up the others, or if the end of the input
// leaves them running.
func TestStdioCallsDoNotHoldEachOtherUp(t *testing.T) {
	const calls = 50
	begun := make(chan struct{}, calls)
	b := startStdio(t, &fakeGateway{poll: blocked(begun)}, time.Hour)
	for id := range calls {
		if _, err := io.WriteString(b.in, stdioCall(id, "bridge_poll", `{"wait_seconds":200}`, `{}`)); err != nil {
			t.Fatal(err)
		}
	}
	for range calls {
		receive(t, "a blocked call", begun)
	}
	b.end()
}

// Fails if a waiting call over stdio reports no progress, or to a client that
// did not ask for it.
func TestStdioProgress(t *testing.T) {
	begun := make(chan struct{}, 2)
	b := startStdio(t, &fakeGateway{poll: blocked(begun)}, time.Millisecond)
	lines := bufio.NewReader(b.out)
	for _, call := range []string{stdioCall(1, "bridge_poll", `{"wait_seconds":200}`, `{}`), stdioCall(2, "bridge_poll", `{"wait_seconds":200}`, `{"progressToken":"p2"}`)} {
		if _, err := io.WriteString(b.in, call); err != nil {
			t.Fatal(err)
		}
		receive(t, "the call", begun)
	}
	for range 3 {
		line, err := lines.ReadString('\n')
		if err != nil || !strings.Contains(line, "notifications/progress") || !strings.Contains(line, `"progressToken":"p2"`) {
			t.Errorf("%s, %v", line, err)
		}
	}
	// With nobody reading, the library's progress fills its channel and is
	// dropped there; the end must come all the same.
	b.end()
}
