package agent_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"fleetd/test/agent"
	"fleetd/test/freeport"

	"github.com/google/go-cmp/cmp"
	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
)

const msgID = "0198c2aa-1111-7222-8333-444455556666"

// call is one tool call as the gateway saw it.
type call struct {
	Tool  string
	Args  map[string]any
	Token string
}

// gateway is a small MCP server with the tools that an agent calls.
type gateway struct {
	mu    sync.Mutex
	calls []call
	long  string // what bridge_read gives, in parts of 1000 bytes
}

func (g *gateway) handler(opts ...server.StreamableHTTPOption) http.Handler {
	s := server.NewMCPServer("bridge", "1")
	for _, name := range []string{"bridge_reply", "bridge_read", "bridge_ask", "bridge_send"} {
		s.AddTool(mcp.NewTool(name), func(ctx context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.calls = append(g.calls, call{Tool: name, Args: r.GetArguments(), Token: r.Header.Get("Authorization")})
			switch name {
			case "bridge_ask":
				return mcp.NewToolResultStructuredOnly(map[string]any{"answer": "forty-two"}), nil
			case "bridge_read":
				offset := r.GetInt("offset", 0)
				end := min(offset+1000, len(g.long))
				part := map[string]any{"content": g.long[offset:end], "offset": offset}
				if end < len(g.long) {
					part["next_offset"] = end
				}
				return mcp.NewToolResultStructuredOnly(part), nil
			}
			return mcp.NewToolResultStructuredOnly(map[string]any{"state": "replied"}), nil
		})
	}
	return server.NewStreamableHTTPServer(s, opts...)
}

func (g *gateway) seen(tool string) []call {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []call
	for _, c := range g.calls {
		if c.Tool == tool {
			out = append(out, c)
		}
	}
	return out
}

func serve(t *testing.T, g *gateway) string {
	t.Helper()
	srv := httptest.NewServer(g.handler())
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
	return srv.URL
}

func brief(content string) string {
	return fmt.Sprintf("[bridge SEND from main@hosta, message %s]\n%s\n[bridge end of message %s. To reply, call the tool bridge_reply with in_reply_to %q.]", msgID, content, msgID, msgID)
}

// Fails if a brief typed into the pane is not answered over MCP as the agent
// of that pane, with the id it was asked to answer.
func TestAnswersABriefOverMCP(t *testing.T) {
	g := &gateway{}
	p := inPane(t, "claude", map[string]string{"BRIDGED_URL": serve(t, g), "BRIDGED_TOKEN": "tok-1"}, "--echo", "--replies", "2", "--reply-gap", "20ms").ready()
	p.paste(brief("line one\nline two"))
	p.sees("line two", "bridge end of message")
	p.keys("enter")
	p.eventually("two replies", func() bool { return len(p.events("reply")) == 2 })
	want := []call{
		{Tool: "bridge_reply", Token: "Bearer tok-1", Args: map[string]any{"content": "line one\nline two", "in_reply_to": msgID}},
		{Tool: "bridge_reply", Token: "Bearer tok-1", Args: map[string]any{"content": "line one\nline two (2)", "in_reply_to": msgID}},
	}
	if diff := cmp.Diff(want, g.seen("bridge_reply")); diff != "" {
		t.Fatalf("replies (-want +got):\n%s", diff)
	}
}

// Fails if an announced brief is answered without having been read to its end.
func TestFetchesWhatWasOnlyAnnounced(t *testing.T) {
	g := &gateway{long: strings.Repeat("0123456789", 250)}
	p := inPane(t, "codex", map[string]string{"BRIDGED_URL": serve(t, g)}, "--echo").ready()
	p.paste(fmt.Sprintf("[bridge SEND from main@hosta, 2500 bytes: call bridge_read with msg_id %s, answer with bridge_reply]", msgID))
	p.sees(msgID, "bridge_reply]")
	p.keys("enter")
	if e := p.event("read"); e.Text != g.long {
		t.Fatalf("read %d of %d bytes: %s", len(e.Text), len(g.long), e.Error)
	}
	p.event("reply")
	if got := g.seen("bridge_reply"); len(got) != 1 || got[0].Args["content"] != g.long {
		t.Fatalf("replies: %v", got)
	}
}

// Fails if a question before the answer, or a call of the script, is not made,
// or what wants no reply gets one or has the calls made.
func TestAsksAndCallsBeforeItAnswers(t *testing.T) {
	g := &gateway{}
	p := inPane(t, "opencode", map[string]string{"BRIDGED_URL": serve(t, g), "AGENT_ASK": "how many?", "AGENT_REPLY_WITH": "ok"},
		"--call", `bridge_send {"to":"other"}`).ready()
	p.paste(fmt.Sprintf("[bridge NOTICE from x@y, message %s]\njust so\n[bridge end of message %s. No reply is expected.]", msgID, msgID))
	p.keys("enter")
	p.event("turn-end")
	p.paste(brief("count them"))
	p.keys("enter")
	if e := p.event("reply"); e.Text != "ok (answer: forty-two)" || e.Error != "" {
		t.Fatalf("reply: %+v", e)
	}
	if n := len(g.seen("bridge_reply")); n != 1 {
		t.Fatalf("%d replies, want 1", n)
	}
	if got := g.seen("bridge_send"); len(got) != 1 || got[0].Args["to"] != "other" {
		t.Fatalf("scripted calls: %v", got)
	}
}

// Fails if a reply is lost because the gateway was down when it was due, or
// went away between two replies.
func TestRepliesWhenTheGatewayComesBack(t *testing.T) {
	addr, err := freeport.Addr()
	if err != nil {
		t.Fatal(err)
	}
	session, err := agent.NewSession("claude", "http://"+addr, "tok")
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for range 2 { // not there yet; gone and back
		done := make(chan error, 1)
		go func() {
			_, err := session.Call(ctx, "bridge_reply", map[string]any{"content": "x"})
			done <- err
		}()
		select {
		case err := <-done:
			t.Fatalf("answered without a gateway: %v", err)
		case <-time.After(100 * time.Millisecond): // it keeps trying
		}
		g := &gateway{}
		ln, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		srv := &http.Server{Handler: g.handler(server.WithStateful(true))} // knows no session of before
		served := make(chan struct{})
		go func() { defer close(served); _ = srv.Serve(ln) }()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if len(g.seen("bridge_reply")) != 1 {
			t.Fatalf("replies: %v", g.calls)
		}
		_ = srv.Close()
		<-served
	}
}
