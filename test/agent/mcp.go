package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"
)

// Session is an agent's MCP session with the gateway over streamable HTTP. It
// opens on the first call and again after a failure; calls are tried again
// with growing pauses while the gateway is down, as an agent whose model tries
// again would.
type Session struct {
	url     string
	headers map[string]string
	info    mcp.Implementation
	version string

	mu     sync.Mutex
	client *client.Client
}

// programs is how each kind shows itself (agent-facts §8).
var programs = map[string]struct{ name, version, agent, protocol string }{
	"claude":   {"claude-code", "2.1.197", "claude-code/2.1.197 (cli)", "2025-11-25"},
	"codex":    {"codex-mcp-client", "0.171.0", "codex-mcp-client/0.171.0", "2025-06-18"},
	"opencode": {"opencode", "1.18.33", "opencode/1.18.33", "2025-11-25"},
}

// NewSession prepares a session; nothing is sent yet. A URL without a path
// means its /mcp.
func NewSession(kind, rawURL, token string) (*Session, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, fmt.Errorf("the gateway's URL: %w", err)
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/mcp"
	}
	program := programs[kind]
	s := &Session{
		url: u.String(), headers: map[string]string{"User-Agent": program.agent},
		info: mcp.Implementation{Name: program.name, Version: program.version}, version: program.protocol,
	}
	if token != "" {
		s.headers["Authorization"] = "Bearer " + token
	}
	return s, nil
}

// toolError is what a tool answered as its failure: no reason to try again.
type toolError struct{ text string }

func (e *toolError) Error() string { return e.text }

// Call calls a tool and returns its structured content, or the text as
// {"text": …} when there is none.
func (s *Session) Call(ctx context.Context, tool string, args map[string]any) (map[string]any, error) {
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval = 50 * time.Millisecond
	pauses.MaxInterval = time.Second
	return backoff.Retry(ctx, func() (map[string]any, error) {
		res, err := s.try(ctx, tool, args)
		if failed, ok := errors.AsType[*toolError](err); ok {
			return nil, backoff.Permanent(error(failed))
		}
		if err != nil {
			s.drop()
		}
		return res, err
	}, backoff.WithBackOff(pauses), backoff.WithMaxElapsedTime(0))
}

func (s *Session) try(ctx context.Context, tool string, args map[string]any) (map[string]any, error) {
	c, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	req := mcp.CallToolRequest{}
	req.Params.Name, req.Params.Arguments = tool, args
	res, err := c.CallTool(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", tool, err)
	}
	text := ""
	for _, content := range res.Content {
		if t, ok := content.(mcp.TextContent); ok {
			text += t.Text
		}
	}
	if res.IsError {
		return nil, &toolError{text: text}
	}
	if res.StructuredContent == nil {
		return map[string]any{"text": text}, nil
	}
	raw, err := json.Marshal(res.StructuredContent)
	if err != nil {
		return nil, &toolError{text: "the result cannot be read: " + err.Error()}
	}
	out := map[string]any{}
	if err := json.Unmarshal(raw, &out); err != nil {
		return nil, &toolError{text: "the result is no object: " + err.Error()}
	}
	return out, nil
}

// open returns the session's client, initialised.
func (s *Session) open(ctx context.Context) (*client.Client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client != nil {
		return s.client, nil
	}
	//lint:ignore SA1019 the agents played here keep the older protocol's listening stream
	c, err := client.NewStreamableHttpClient(s.url, transport.WithHTTPHeaders(s.headers), transport.WithContinuousListening(),
		transport.WithHTTPLogger(slog.New(slog.DiscardHandler))) // its log would be drawn over the screen
	if err != nil {
		return nil, fmt.Errorf("make an MCP client: %w", err)
	}
	req := mcp.InitializeRequest{}
	req.Params.ProtocolVersion, req.Params.ClientInfo = s.version, s.info
	err = c.Start(context.WithoutCancel(ctx)) // the listening stream outlives this turn
	if err == nil {
		_, err = c.Initialize(ctx, req)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open an MCP session: %w", err), c.Close())
	}
	s.client = c
	return c, nil
}

// drop forgets the client after a failure; the next call opens a new session.
func (s *Session) drop() {
	s.mu.Lock()
	c := s.client
	s.client = nil
	s.mu.Unlock()
	if c != nil {
		_ = c.Close() // it failed already; its farewell may fail too
	}
}

// Close ends the session.
func (s *Session) Close() { s.drop() }
