package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/client"
	mcpgo "github.com/mark3labs/mcp-go/mcp"
)

const (
	whoamiCall = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"bridge_whoami","arguments":{}}}`
	// modernFields are what a request of the newer protocol carries in _meta.
	modernFields = `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}`
	// oldSession is an id as a daemon before the restart made it.
	oldSession = "mcp-session-0b5be1f2-6a0c-4c8e-9d0d-6a1b2c3d4e5f"
)

// Fails if a token that is not known gets in, or is taken for no token and so
// for the default main.
func TestWrongTokenIsNobody(t *testing.T) {
	r := start(t, func(s *Server) { s.Identities = fakeIdentities{defaultMain: true} })
	for _, auth := range []string{"Bearer wrong", "Bearer", "Bearer ", "Basic dG9rLWFubg==", "tok-ann", ""} {
		t.Run(auth, func(t *testing.T) {
			for _, path := range []string{"/mcp", "/api/v1/whoami"} {
				status, body, header := r.do(t, request{method: "POST", path: path, body: whoamiCall, header: map[string]string{"Authorization": auth}})
				if status != 401 || !strings.HasPrefix(header.Get("WWW-Authenticate"), "Bearer") || !strings.Contains(body, "NOT_AUTHENTICATED") {
					t.Errorf("%s: %d %q %s", path, status, header.Get("WWW-Authenticate"), body)
				}
			}
		})
	}
	status, body, _ := r.do(t, request{method: "POST", path: "/mcp", body: whoamiCall, header: map[string]string{"Authorization": "Bearer wrong"}})
	var rpc struct{ Error struct{ Data faultDetail } }
	if err := json.Unmarshal([]byte(body), &rpc); err != nil || rpc.Error.Data.Code != "NOT_AUTHENTICATED" {
		t.Errorf("the body is no JSON-RPC error: %d %s", status, body)
	}
}

// Fails if a client without a token is somebody although no default main is
// set, is not the default main although one is, or may use REST.
func TestNoTokenIsTheDefaultMainIfThereIsOne(t *testing.T) {
	r := start(t)
	if status, body, _ := r.do(t, request{method: "POST", path: "/mcp", body: whoamiCall}); status != 401 {
		t.Errorf("without a default main: %d %s", status, body)
	}
	r = start(t, func(s *Server) { s.Identities = fakeIdentities{defaultMain: true} })
	c := dial(t, r.url, "", eras["legacy"])
	if s, text, _ := mustCall(t, c, "bridge_whoami", nil); s["name"] != "main" {
		t.Errorf("with a default main: %s", text)
	}
	if status, body, _ := r.do(t, request{method: "POST", path: "/api/v1/whoami", body: "{}"}); status != 401 {
		t.Errorf("REST without a token: %d %s", status, body)
	}
}

// Fails if a web page can reach any path, by its origin or by a host name that
// it made point here.
func TestWebPagesAreKeptOut(t *testing.T) {
	r := start(t, func(s *Server) {
		s.Identities = fakeIdentities{defaultMain: true}
		s.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("metric 1\n")) })
	})
	port := strings.TrimPrefix(r.url, "http://127.0.0.1")
	paths := []request{
		{method: "POST", path: "/mcp", body: whoamiCall, header: map[string]string{"Mcp-Session-Id": oldSession}},
		{method: "POST", path: "/api/v1/whoami", body: "{}", header: bearerAnn},
		{method: "GET", path: "/healthz"}, {method: "GET", path: "/readyz"}, {method: "GET", path: "/metrics"},
	}
	for _, req := range append(paths, request{method: "GET", path: "/mcp"}, request{method: "GET", path: "/nowhere"}) {
		for name, change := range map[string]func(*request){
			"foreign origin": func(q *request) { q.header["Origin"] = "https://evil.example" },
			"other port":     func(q *request) { q.header["Origin"] = "http://localhost:1" },
			"null origin":    func(q *request) { q.header["Origin"] = "null" },
			"cross-site":     func(q *request) { q.header["Sec-Fetch-Site"] = "cross-site" },
			"foreign host":   func(q *request) { q.host = "evil.example" + port },
			"host with ours": func(q *request) { q.host = "127.0.0.1.evil.example" },
		} {
			q := copyRequest(req)
			change(&q)
			if status, body, _ := r.do(t, q); status != 403 {
				t.Errorf("%s %s with %s: %d %s", q.method, q.path, name, status, body)
			}
		}
	}
	for _, req := range paths {
		for _, host := range []string{"", "localhost" + port, "127.0.0.1", "[::1]" + port, "LOCALHOST"} {
			q := copyRequest(req)
			q.host = host
			if host == "" {
				q.header["Origin"] = r.url
			}
			if status, body, _ := r.do(t, q); status != 200 {
				t.Errorf("%s %s for host %q: %d %s", q.method, q.path, host, status, body)
			}
		}
	}
}

func copyRequest(q request) request {
	header := map[string]string{}
	for k, v := range q.header {
		header[k] = v
	}
	q.header = header
	return q
}

// Fails if a body beyond the cap is read, or a small one is not.
func TestBodyIsCapped(t *testing.T) {
	r := start(t, func(s *Server) { s.BodyLimit = 1000 })
	for _, path := range []string{"/mcp", "/api/v1/send"} {
		status, body, _ := r.do(t, request{method: "POST", path: path, header: bearerAnn,
			body: `{"to":"a","content":"` + strings.Repeat("x", 1000) + `"}`})
		if status != 413 || !strings.Contains(body, "TOO_LARGE") {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if status, body, _ := r.do(t, request{method: "POST", path: "/api/v1/send", header: bearerAnn, body: `{"to":"a","content":"b"}`}); status != 200 {
		t.Errorf("a small one: %d %s", status, body)
	}
}

// blockingPoll starts a poll that blocks in the gateway and returns its end.
func blockingPoll(t *testing.T, c *client.Client, args map[string]any) (result <-chan string, cancel context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	done := make(chan string, 1)
	go func() {
		r, err := callTool(ctx, c, "bridge_poll", args)
		if err != nil {
			done <- "error: " + err.Error()
			return
		}
		done <- r.Content[0].(mcpgo.TextContent).Text
	}()
	return done, cancel
}

// Fails if the cancel of one client without a session ends another one's call:
// both number their requests from 1.
func TestOneClientCannotCancelAnother(t *testing.T) {
	begun, release := make(chan struct{}, 1), make(chan struct{})
	g := &fakeGateway{poll: func(ctx context.Context, _ PollArgs) (PollResult, error) {
		begun <- struct{}{}
		select {
		case <-release:
			return PollResult{Note: "mail"}, nil
		case <-ctx.Done():
			return PollResult{}, ctx.Err()
		}
	}}
	r := start(t, with(g))
	victim := dial(t, r.url, "tok-ann", eras["modern"])
	done, _ := blockingPoll(t, victim, nil)
	receive(t, "the call", begun)

	cancel := func(id int, meta string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d%s}}`, id, meta)
	}
	modernMeta := `,"_meta":{` + modernFields + `}`
	for id := range 20 {
		for _, q := range []request{
			{body: cancel(id, ""), header: map[string]string{}},
			{body: cancel(id, modernMeta), header: map[string]string{"Mcp-Protocol-Version": "2026-07-28"}},
			{body: cancel(id, modernMeta), header: map[string]string{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Session-Id": oldSession}},
			{body: strings.Replace(cancel(id, modernMeta), `"method"`, `"METHOD"`, 1), header: map[string]string{"Mcp-Protocol-Version": "2026-07-28"}},
		} {
			q.method, q.path = "POST", "/mcp"
			q.header["Authorization"] = "Bearer tok-bob"
			if status, body, _ := r.do(t, q); status != 202 {
				t.Fatalf("the cancel got %d %s", status, body)
			}
		}
	}
	close(release)
	if text := receive(t, "the poll", done); !strings.Contains(text, `"note":"mail"`) {
		t.Errorf("another client's cancel ended the call: %s", text)
	}
}

// Fails if a client can no longer cancel its own call, in either era.
func TestClientCancelsItsOwnCall(t *testing.T) {
	ended := make(chan struct{}, 1)
	begun := make(chan struct{}, 1)
	g := &fakeGateway{poll: func(ctx context.Context, _ PollArgs) (PollResult, error) {
		begun <- struct{}{}
		<-ctx.Done()
		ended <- struct{}{}
		return PollResult{}, ctx.Err()
	}}
	r := start(t, with(g))
	for era, version := range eras {
		t.Run(era, func(t *testing.T) {
			_, cancel := blockingPoll(t, dial(t, r.url, "tok-ann", version), map[string]any{"wait_seconds": 200})
			receive(t, "the call", begun)
			cancel()
			receive(t, "the end of the call", ended)
		})
	}
	t.Run("by notification", func(t *testing.T) {
		s := r.open(t, http.MethodPost, pollCall(eras["legacy"], ""), legacyHeader())
		defer s.close()
		receive(t, "the call", begun)
		status, body, _ := r.do(t, request{method: "POST", path: "/mcp", header: legacyHeader(),
			body: `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":42}}`})
		if status != 202 {
			t.Errorf("%d %s", status, body)
		}
		receive(t, "the end of the call", ended)
	})
}

// Fails if somebody who knows another identity's session id can use it, or if
// the refusal is a 404, which would make a client start anew.
func TestSessionBelongsToItsIdentity(t *testing.T) {
	r := start(t)
	// Not used yet by its owner: only made.
	status, body, header := r.do(t, request{method: "POST", path: "/mcp", header: bearerAnn,
		body: `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`})
	stolen := header.Get("Mcp-Session-Id")
	if stolen == "" {
		t.Fatalf("no session: %d %s", status, body)
	}
	for _, q := range []request{{method: "POST", body: whoamiCall}, {method: "GET"}, {method: "DELETE"}} {
		q.path = "/mcp"
		q.header = map[string]string{"Authorization": "Bearer tok-bob", "Mcp-Session-Id": stolen}
		if status, body, _ := r.do(t, q); status != 403 || !strings.Contains(body, "NOT_ALLOWED") {
			t.Errorf("%s with a foreign session: %d %s", q.method, status, body)
		}
	}
	owner := map[string]string{"Authorization": "Bearer tok-ann", "Mcp-Session-Id": stolen}
	if status, body, _ := r.do(t, request{method: "POST", path: "/mcp", body: whoamiCall, header: owner}); status != 200 {
		t.Errorf("the owner: %d %s", status, body)
	}
}

// Fails if a client whose session is older than the daemon is sent away after a
// restart, whatever it asks, its answer to a ping included.
func TestOldSessionGoesOnAfterRestart(t *testing.T) {
	r := start(t)
	header := map[string]string{"Authorization": "Bearer tok-ann", "Mcp-Session-Id": oldSession, "Mcp-Protocol-Version": "2025-11-25"}
	status, body, _ := r.do(t, request{method: "POST", path: "/mcp", body: whoamiCall, header: header})
	if status != 200 || !strings.Contains(body, `"name":"ann"`) {
		t.Errorf("a call: %d %s", status, body)
	}
	for _, answer := range []string{`{"jsonrpc":"2.0","id":7,"result":{}}`, `{"jsonrpc":"2.0","id":7,"result":{"x":1}}`, `{"jsonrpc":"2.0","id":7,"error":{"code":-32601,"message":"no ping"}}`} {
		if status, body, _ := r.do(t, request{method: "POST", path: "/mcp", body: answer, header: header}); status != 202 {
			t.Errorf("%s: %d %s", answer, status, body)
		}
	}
	for _, method := range []string{"PUT", "OPTIONS"} {
		if status, body, _ := r.do(t, request{method: method, path: "/mcp", header: header}); status != 405 {
			t.Errorf("%s: %d %s", method, status, body)
		}
	}
}

// Fails if mail counts as handed over although the client was gone, or as lost
// although it was written.
func TestReceiptSaysWhetherTheAnswerWasWritten(t *testing.T) {
	begun, settled := make(chan struct{}, 1), make(chan bool, 1)
	block := make(chan struct{}) // closed: no more blocking
	g := &fakeGateway{poll: func(ctx context.Context, _ PollArgs) (PollResult, error) {
		OnWritten(ctx, func(written bool) { settled <- written })
		begun <- struct{}{}
		select {
		case <-ctx.Done():
		case <-block:
		}
		return PollResult{Messages: []Message{{Content: "mail"}}}, nil // although the client may be gone
	}}
	r := start(t, with(g))
	for era, version := range eras {
		for _, wait := range []int{0, 100} { // 100: as an event stream that has begun
			t.Run(fmt.Sprint("hung up/", era, wait), func(t *testing.T) {
				_, cancel := blockingPoll(t, dial(t, r.url, "tok-ann", version), map[string]any{"wait_seconds": wait})
				receive(t, "the call", begun)
				cancel()
				if receive(t, "the receipt", settled) {
					t.Error("the client had hung up and its mail counts as handed over")
				}
			})
		}
	}
	close(block)
	for era, version := range eras {
		for _, wait := range []int{0, 100} {
			t.Run(fmt.Sprint("written/", era, wait), func(t *testing.T) {
				done, _ := blockingPoll(t, dial(t, r.url, "tok-ann", version), map[string]any{"wait_seconds": wait})
				receive(t, "the call", begun)
				if text := receive(t, "the poll", done); !strings.Contains(text, "mail") {
					t.Error(text)
				}
				if !receive(t, "the receipt", settled) {
					t.Error("the client got its mail and it counts as lost")
				}
			})
		}
	}
}

// brokenWriter is a connection that takes nothing although it looks alive.
type brokenWriter struct{ header http.Header }

func (w brokenWriter) Header() http.Header              { return w.header }
func (w brokenWriter) WriteHeader(int)                  {}
func (w brokenWriter) Write([]byte) (int, error)        { return 0, errors.New("connection reset") }
func (w brokenWriter) FlushError() error                { return errors.New("connection reset") }
func (w brokenWriter) SetReadDeadline(time.Time) error  { return nil }
func (w brokenWriter) SetWriteDeadline(time.Time) error { return nil }

// Fails if mail counts as handed over although the connection took none of it.
func TestFailedWriteIsNoReceipt(t *testing.T) {
	settled := make(chan bool, 1)
	r := start(t, with(&fakeGateway{poll: func(ctx context.Context, _ PollArgs) (PollResult, error) {
		OnWritten(ctx, func(written bool) { settled <- written })
		return PollResult{}, nil
	}}))
	r.do(t, request{method: "GET", path: "/healthz"}) // it is up
	for path, body := range map[string]string{"/mcp": pollCall(eras["legacy"], ""), "/api/v1/poll": `{}`} {
		req := httptest.NewRequest(http.MethodPost, r.url+path, strings.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		for k, v := range legacyHeader() {
			req.Header.Set(k, v)
		}
		r.outermost(r.tcpHandler()).ServeHTTP(brokenWriter{http.Header{}}, req)
		if receive(t, "the receipt", settled) {
			t.Errorf("%s: settled as written", path)
		}
	}
}

// Fails if the notice that comes as an error, such as that a message failed,
// counts as lost although the client got it, and so comes again and again.
func TestAnErrorCarriesAReceiptToo(t *testing.T) {
	settled := make(chan bool, 1)
	g := &fakeGateway{send: func(ctx context.Context, _ SendArgs) (SendResult, error) {
		OnWritten(ctx, func(written bool) { settled <- written })
		return SendResult{}, fmt.Errorf("its pane is gone")
	}}
	r := start(t, with(g))
	c := dial(t, r.url, "tok-ann", eras["legacy"])
	if _, text, isError := mustCall(t, c, "bridge_send", map[string]any{"to": "a", "content": "b"}); !isError {
		t.Error(text)
	}
	if !receive(t, "the receipt", settled) {
		t.Error("MCP: a written error counts as lost")
	}
	r.do(t, request{method: "POST", path: "/api/v1/send", body: `{"to":"a","content":"b"}`, header: bearerAnn})
	if !receive(t, "the receipt", settled) {
		t.Error("REST: a written error counts as lost")
	}
}

// Fails if a waiting call gives no sign of life before its answer, if progress
// goes to the session's GET stream, where it keeps nobody patient, or if it is
// sent to a client that did not ask.
func TestWaitingCallBeginsAtOnceAndReportsProgress(t *testing.T) {
	release := make(chan struct{})
	g := &fakeGateway{poll: func(ctx context.Context, _ PollArgs) (PollResult, error) {
		select {
		case <-release:
		case <-ctx.Done():
		}
		return PollResult{Note: "mail"}, nil
	}}
	r := start(t, with(g))
	for era, version := range eras {
		t.Run(era, func(t *testing.T) {
			// The session's GET stream is open, as every agent keeps it.
			get := r.open(t, http.MethodGet, "", legacyHeader())
			defer get.close()
			for _, token := range []string{"", `"progressToken":"p1"`} {
				post := r.open(t, http.MethodPost, pollCall(version, token), headerOf(version))
				if ct := post.res.Header.Get("Content-Type"); ct != "text/event-stream" {
					t.Errorf("the response began as %q", ct)
				}
				if token != "" {
					first := post.event(t)
					if !strings.Contains(first, "notifications/progress") || !strings.Contains(first, `"progressToken":"p1"`) {
						t.Errorf("the first event is %s", first)
					}
				}
				release <- struct{}{}
				last := post.event(t)
				if !strings.Contains(last, `"id":42`) || !strings.Contains(last, "mail") {
					t.Errorf("the last event is %s", last)
				}
				post.close()
			}
			if text := get.text(); strings.Contains(text, "progress") {
				t.Errorf("progress went to the GET stream: %s", text)
			}
		})
	}
}

// Fails if progress comes only once during a long wait.
func TestProgressRepeats(t *testing.T) {
	g := &fakeGateway{poll: func(ctx context.Context, _ PollArgs) (PollResult, error) {
		<-ctx.Done()
		return PollResult{}, ctx.Err()
	}}
	r := start(t, with(g), func(s *Server) { s.progress = time.Millisecond })
	post := r.open(t, http.MethodPost, pollCall(eras["legacy"], `"progressToken":7`), legacyHeader())
	defer post.close()
	for range 5 {
		if e := post.event(t); !strings.Contains(e, `"progressToken":7`) {
			t.Errorf("event %s", e)
		}
	}
}

func legacyHeader() map[string]string { return headerOf(eras["legacy"]) }

func headerOf(version string) map[string]string {
	h := map[string]string{"Authorization": "Bearer tok-ann", "Mcp-Protocol-Version": version, "Accept": "application/json, text/event-stream"}
	if version == eras["modern"] {
		h["Mcp-Method"], h["Mcp-Name"] = "tools/call", "bridge_poll"
	} else {
		h["Mcp-Session-Id"] = oldSession
	}
	return h
}

func pollCall(version, meta string) string {
	if version == eras["modern"] {
		meta = strings.TrimSuffix(modernFields+","+meta, ",")
	}
	return `{"jsonrpc":"2.0","id":42,"method":"tools/call","params":{"name":"bridge_poll","arguments":{"wait_seconds":100},"_meta":{` + meta + `}}}`
}

// stream is an open response.
type stream struct {
	res    *http.Response
	close  func()
	events chan string
	mu     sync.Mutex
	seen   strings.Builder
}

// open sends a request and returns when its response has begun.
func (r *running) open(t *testing.T, method, body string, header map[string]string) *stream {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	timer := time.AfterFunc(patience, cancel)
	req, err := http.NewRequestWithContext(ctx, method, r.url+"/mcp", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for k, v := range header {
		req.Header.Set(k, v)
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatalf("the response did not begin: %v", err)
	}
	s := &stream{res: res, events: make(chan string, 1000)}
	var reading sync.WaitGroup
	reading.Go(func() { s.read() })
	s.close = sync.OnceFunc(func() {
		timer.Stop()
		cancel()
		_ = res.Body.Close()
		reading.Wait()
	})
	t.Cleanup(s.close)
	return s
}

func (s *stream) read() {
	buf, rest := make([]byte, 4096), ""
	for {
		n, err := s.res.Body.Read(buf)
		s.mu.Lock()
		s.seen.Write(buf[:n])
		s.mu.Unlock()
		rest += string(buf[:n])
		for {
			event, after, ok := strings.Cut(rest, "\n\n")
			if !ok {
				break
			}
			s.events <- event
			rest = after
		}
		if err != nil {
			return
		}
	}
}

func (s *stream) event(t *testing.T) string {
	t.Helper()
	return receive(t, "an event", s.events)
}

func (s *stream) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen.String()
}

// Fails if the stop of the daemon cuts a waiting call off instead of answering
// it, whether its gateway looks at Draining or only at its context, or if an
// open stream keeps the daemon from stopping.
func TestStopAnswersWaitingCalls(t *testing.T) {
	for name, looks := range map[string]bool{"looks at Draining": true, "looks at its context": false} {
		for era, version := range eras {
			t.Run(name+"/"+era, func(t *testing.T) {
				begun := make(chan struct{}, 2)
				g := &fakeGateway{poll: blocked(begun)}
				if looks {
					g.poll = func(ctx context.Context, _ PollArgs) (PollResult, error) {
						begun <- struct{}{}
						<-Draining(ctx)
						return PollResult{}, Stopping()
					}
				}
				r := start(t, with(g))
				get := r.open(t, http.MethodGet, "", legacyHeader())
				defer get.close()
				done, _ := blockingPoll(t, dial(t, r.url, "tok-ann", version), map[string]any{"wait_seconds": 200})
				receive(t, "the call", begun)
				rest := make(chan string, 1)
				var asking sync.WaitGroup
				asking.Go(func() {
					_, body, _ := r.do(t, request{method: "POST", path: "/api/v1/poll", body: `{"wait_seconds":200}`, header: bearerAnn})
					rest <- body
				})
				receive(t, "the REST call", begun)
				r.stop()
				for what, text := range map[string]string{"MCP": receive(t, "the poll", done), "REST": receive(t, "the REST poll", rest)} {
					if !strings.Contains(text, "stopping, your message is safe") {
						t.Errorf("%s: %s", what, text)
					}
				}
				asking.Wait()
			})
		}
	}
}

// Fails if a listen stream of the newer protocol, which never ends by itself,
// holds up the stop of the daemon.
func TestStopEndsListenStreams(t *testing.T) {
	r := start(t, func(s *Server) { s.StopGrace = time.Hour })
	header := headerOf(eras["modern"])
	header["Mcp-Method"] = "subscriptions/listen"
	delete(header, "Mcp-Name")
	body := strings.Replace(pollCall(eras["modern"], ""), `"tools/call"`, `"subscriptions/listen"`, 1)
	body = strings.Replace(body, `"name":"bridge_poll","arguments":{"wait_seconds":100}`, `"notifications":{"toolsListChanged":true}`, 1)
	s := r.open(t, http.MethodPost, body, header)
	if ack := s.event(t); !strings.Contains(ack, "acknowledged") {
		t.Fatalf("the listen stream began with %s", ack)
	}
	r.stop()
}

// Fails if liveness or readiness do not say what is so.
func TestHealth(t *testing.T) {
	health := &fakeHealth{reasons: []string{"the broker is away"}}
	r := start(t, func(s *Server) { s.Health = health })
	if status, _, _ := r.do(t, request{method: "GET", path: "/healthz"}); status != 200 {
		t.Errorf("healthz: %d", status)
	}
	if status, body, _ := r.do(t, request{method: "GET", path: "/readyz"}); status != 503 || !strings.Contains(body, "the broker is away") {
		t.Errorf("not ready: %d %s", status, body)
	}
	health.ok, health.reasons = true, nil
	if status, body, _ := r.do(t, request{method: "GET", path: "/readyz"}); status != 200 || body != `{"ready":true,"reasons":[]}`+"\n" {
		t.Errorf("ready: %d %s", status, body)
	}
	if status, _, _ := r.do(t, request{method: "GET", path: "/metrics"}); status != 404 {
		t.Errorf("metrics that nobody gave: %d", status)
	}
}

type fakeHealth struct {
	ok      bool
	reasons []string
}

func (h *fakeHealth) Ready(context.Context) (bool, []string) { return h.ok, h.reasons }

// Fails if a taken port is no clear error, or leaves the unix socket behind.
func TestTakenPortIsAClearError(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := &Server{Listen: l.Addr().String()}
	withSocket(t)(s)
	err = s.Bind()
	if err == nil || !strings.Contains(err.Error(), "cannot listen on "+s.Listen) {
		t.Errorf("%v", err)
	}
	if _, err := os.Lstat(s.Socket); !os.IsNotExist(err) {
		t.Errorf("the socket stayed: %v", err)
	}
}
