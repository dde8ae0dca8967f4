package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"fleetd/fault"

	"github.com/hashicorp/go-hclog"
	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	mcpgo "github.com/mark3labs/mcp-go/mcp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what has to come.
const patience = time.Minute

// fakeGateway answers as the test says; a verb without a function answers with
// who asked.
type fakeGateway struct {
	send   func(context.Context, SendArgs) (SendResult, error)
	poll   func(context.Context, PollArgs) (PollResult, error)
	roster func(context.Context, RosterArgs) (RosterResult, error)
}

func (g *fakeGateway) Send(ctx context.Context, a SendArgs) (SendResult, error) {
	if g.send != nil {
		return g.send(ctx, a)
	}
	return SendResult{State: StateQueued, To: a.To, MsgID: "m-1"}, nil
}

func (g *fakeGateway) Poll(ctx context.Context, a PollArgs) (PollResult, error) {
	if g.poll != nil {
		return g.poll(ctx, a)
	}
	return PollResult{Note: a.From}, nil
}

func (g *fakeGateway) Read(_ context.Context, a ReadArgs) (ReadResult, error) {
	return ReadResult{MsgID: a.MsgID, Offset: a.Offset}, nil
}

func (g *fakeGateway) Reply(_ context.Context, a ReplyArgs) (ReplyResult, error) {
	return ReplyResult{State: StateQueued, InReplyTo: a.InReplyTo}, nil
}

func (g *fakeGateway) Spawn(_ context.Context, a SpawnArgs) (SpawnResult, error) {
	return SpawnResult{State: "spawned:" + a.Profile + "@" + a.Host}, nil
}

func (g *fakeGateway) Stop(_ context.Context, a StopArgs) (StopResult, error) {
	return StopResult{State: "stopped:" + a.Target}, nil
}

func (g *fakeGateway) Ask(_ context.Context, a AskArgs) (AskResult, error) {
	return AskResult{State: StateAnswered, Answer: a.Question}, nil
}

func (g *fakeGateway) Answer(_ context.Context, a AnswerArgs) (SendResult, error) {
	return SendResult{State: StateInjected, TurnID: a.TurnID}, nil
}

func (g *fakeGateway) Broadcast(_ context.Context, a BroadcastArgs) (BroadcastResult, error) {
	return BroadcastResult{Group: a.Group}, nil
}

func (g *fakeGateway) Info(context.Context) (InfoResult, error) {
	return InfoResult{Host: "hosta"}, nil
}

func (g *fakeGateway) Groups(_ context.Context, a GroupsArgs) (GroupsResult, error) {
	return GroupsResult{Name: a.Name, Groups: append([]string{}, a.Add...)}, nil
}

func (g *fakeGateway) Roster(ctx context.Context, a RosterArgs) (RosterResult, error) {
	if g.roster != nil {
		return g.roster(ctx, a)
	}
	return RosterResult{Self: "hosta"}, nil
}

func (g *fakeGateway) Trace(_ context.Context, a TraceArgs) (TraceResult, error) {
	return TraceResult{TraceID: a.TraceID}, nil
}

func (g *fakeGateway) Whoami(ctx context.Context) (WhoamiResult, error) {
	c, ok := CallerFrom(ctx)
	if !ok {
		return WhoamiResult{}, fault.New(fault.NotAuthenticated, "nobody.")
	}
	return WhoamiResult{GID: c.GID, Name: c.Name, Kind: c.Kind}, nil
}

func (g *fakeGateway) Register(_ context.Context, a RegisterArgs) (RegisterResult, error) {
	return RegisterResult{Name: a.Name, Kind: a.Kind, Token: "tok-new", Created: true}, nil
}

func (g *fakeGateway) Unregister(_ context.Context, a UnregisterArgs) (UnregisterResult, error) {
	return UnregisterResult{State: "gone:" + a.Name}, nil
}

// blocked is a gateway call that says when it has begun and waits for its
// context.
func blocked(begun chan<- struct{}) func(context.Context, PollArgs) (PollResult, error) {
	return func(ctx context.Context, _ PollArgs) (PollResult, error) {
		begun <- struct{}{}
		<-ctx.Done()
		return PollResult{}, ctx.Err()
	}
}

var (
	ann  = Caller{GID: "gid-ann", Name: "ann", Kind: "main"}
	bob  = Caller{GID: "gid-bob", Name: "bob", Kind: "worker"}
	dflt = Caller{GID: "gid-main", Name: "main", Kind: "main"}
)

type fakeIdentities struct{ defaultMain bool }

func (fakeIdentities) ByToken(t string) (Caller, bool) {
	switch t {
	case "tok-ann":
		return ann, true
	case "tok-bob":
		return bob, true
	}
	return Caller{}, false
}

func (fakeIdentities) ByName(n string) (Caller, bool) {
	if n == "ann" || n == ann.GID {
		return ann, true
	}
	return Caller{}, false
}

func (f fakeIdentities) DefaultMain() (Caller, bool) { return dflt, f.defaultMain }

// running is a server under test.
type running struct {
	*Server
	url  string // http://127.0.0.1:port
	stop func() // ends it and waits; may be called twice
}

func start(t *testing.T, change ...func(*Server)) *running {
	t.Helper()
	var logged syncBuffer
	s := &Server{
		Listen: "127.0.0.1:0", Gateway: &fakeGateway{}, Admin: &fakeGateway{}, Identities: fakeIdentities{},
		Log: hclog.New(&hclog.LoggerOptions{Output: &logged, Level: hclog.Trace}), Version: "test", StopGrace: 100 * time.Millisecond,
		answerWait: patience, // who answers late is no fault of the stop
	}
	for _, c := range change {
		c(s)
	}
	if err := s.Bind(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("the server ended with %v", err)
			}
		case <-time.After(patience):
			t.Error("the server did not stop")
		}
		// What a stop has to cut off was not stopped in order, and no log ever
		// holds content or a token.
		for _, never := range []string{"did not end in time", "tok-ann", "tok-bob", "secret content"} {
			if log := logged.String(); strings.Contains(log, never) {
				t.Errorf("the log says %q:\n%s", never, log)
			}
		}
	})
	t.Cleanup(stop)
	return &running{Server: s, url: "http://" + s.Addr().String(), stop: stop}
}

// syncBuffer is a buffer for several writers.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func with(g *fakeGateway) func(*Server) { return func(s *Server) { s.Gateway = g } }

func withSocket(t *testing.T) func(*Server) {
	dir := privateTemp(t)
	return func(s *Server) { s.Socket = filepath.Join(dir, "b.sock") }
}

// privateTemp is a short directory of mode 0700: socket paths are short.
func privateTemp(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "b")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// eras are the two protocols every tool has to serve.
var eras = map[string]string{"legacy": mcpgo.ProtocolVersion20251125, "modern": mcpgo.ProtocolVersion20260728}

// dial connects a real client of one era.
func dial(t *testing.T, url, token, version string, opts ...transport.StreamableHTTPCOption) *client.Client {
	t.Helper()
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	opts = append(opts, transport.WithHTTPBasicClient(&http.Client{Transport: tr}))
	if token != "" {
		opts = append(opts, transport.WithHTTPHeaders(map[string]string{"Authorization": "Bearer " + token}))
	}
	trans, err := transport.NewStreamableHTTP(url+"/mcp", opts...)
	if err != nil {
		t.Fatal(err)
	}
	c := client.NewClient(trans, client.WithProtocolVersion(version))
	t.Cleanup(func() { _ = c.Close() })
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := initialize(t.Context(), c, version); err != nil {
		t.Fatal(err)
	}
	return c
}

func initialize(ctx context.Context, c *client.Client, version string) error {
	var req mcpgo.InitializeRequest
	req.Params.ProtocolVersion = version
	req.Params.ClientInfo = mcpgo.Implementation{Name: "test", Version: "1"}
	_, err := c.Initialize(ctx, req)
	return err
}

func callTool(ctx context.Context, c *client.Client, name string, args any) (*mcpgo.CallToolResult, error) {
	var req mcpgo.CallToolRequest
	req.Params.Name = name
	req.Params.Arguments = args
	return c.CallTool(ctx, req)
}

// mustCall calls a tool and returns its structure and text.
func mustCall(t *testing.T, c *client.Client, name string, args any) (structure map[string]any, text string, isError bool) {
	t.Helper()
	r, err := callTool(t.Context(), c, name, args)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	structure, _ = r.StructuredContent.(map[string]any)
	if len(r.Content) == 1 {
		if tc, ok := r.Content[0].(mcpgo.TextContent); ok {
			text = tc.Text
		}
	}
	return structure, text, r.IsError
}

// errorOf returns code and message of a failed call's structure.
func errorOf(structure map[string]any) (code, message string) {
	e, _ := structure["error"].(map[string]any)
	code, _ = e["code"].(string)
	message, _ = e["message"].(string)
	return code, message
}

// request is one plain HTTP request; host "" leaves the real one.
type request struct {
	method, path, body, host string
	header                   map[string]string
}

func (r *running) do(t *testing.T, req request) (status int, body string, header http.Header) {
	t.Helper()
	tr := &http.Transport{DisableKeepAlives: true}
	return doWith(t, &http.Client{Transport: tr}, r.url, req)
}

func doWith(t *testing.T, hc *http.Client, url string, req request) (int, string, http.Header) {
	t.Helper()
	hr, err := http.NewRequestWithContext(t.Context(), req.method, url+req.path, strings.NewReader(req.body))
	if err != nil {
		t.Fatal(err)
	}
	hr.Host = req.host
	if req.body != "" {
		hr.Header.Set("Content-Type", "application/json")
		hr.Header.Set("Accept", "application/json, text/event-stream")
	}
	for k, v := range req.header {
		hr.Header.Set(k, v)
	}
	res, err := hc.Do(hr)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b), res.Header
}

// doSocket is a plain request over the unix socket.
func (r *running) doSocket(t *testing.T, req request) (status int, body string, header http.Header) {
	t.Helper()
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", r.Socket)
	}}
	return doWith(t, &http.Client{Transport: tr}, "http://x", req)
}

// receive takes the next value, or fails the test.
func receive[T any](t *testing.T, what string, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatalf("timed out waiting for %s", what)
		panic("unreachable")
	}
}

func toJSON(t *testing.T, v any) []byte {
	t.Helper()
	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(v); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

var bearerAnn = map[string]string{"Authorization": "Bearer tok-ann"}
