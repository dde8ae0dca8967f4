package mcp

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/client"
	mcpgo "github.com/mark3labs/mcp-go/mcp"
)

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
	t.Attr("threat", "U5")
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

// leased are identities that can be revoked.
type leased struct {
	fakeIdentities
	lease context.Context
}

func (l leased) ByToken(t string) (Caller, bool) {
	c, ok := l.fakeIdentities.ByToken(t)
	c.Lease = l.lease
	return c, ok
}

// Fails if a call waits on under an identity that was revoked, or if one that
// was faster than its end hands mail over.
func TestARevokedCallerWaitsNoLonger(t *testing.T) {
	begun, release, settled := make(chan struct{}, 1), make(chan struct{}), make(chan bool, 1)
	for name, poll := range map[string]func(context.Context, PollArgs) (PollResult, error){
		"waiting": blocked(begun),
		"with mail": func(ctx context.Context, _ PollArgs) (PollResult, error) {
			begun <- struct{}{}
			<-release
			OnWritten(ctx, func(written bool) { settled <- written })
			return PollResult{Messages: []Message{{Content: "secret content"}}}, nil
		},
	} {
		for _, path := range []string{"tool", "rest"} {
			t.Run(name+" "+path, func(t *testing.T) {
				lease, revoke := context.WithCancel(t.Context())
				defer revoke()
				r := start(t, with(&fakeGateway{poll: poll}), func(s *Server) { s.Identities = leased{lease: lease} })
				var done <-chan string
				if path == "tool" {
					done, _ = blockingPoll(t, dial(t, r.url, "tok-ann", eras["modern"]), map[string]any{"wait_seconds": 200})
				} else {
					answer := make(chan string, 1)
					done = answer
					go func() {
						_, body, _ := r.do(t, request{method: "POST", path: "/api/v1/poll", body: `{"wait_seconds": 200}`,
							header: map[string]string{"Authorization": "Bearer tok-ann"}})
						answer <- body
					}()
				}
				receive(t, "the call", begun)
				revoke()
				if name == "with mail" {
					release <- struct{}{}
				}
				if text := receive(t, "the end of the call", done); !strings.Contains(text, "NOT_AUTHENTICATED") || strings.Contains(text, "secret") {
					t.Errorf("it ended with %s", text)
				}
				if name == "with mail" && receive(t, "the receipt", settled) {
					t.Error("the mail counts as handed over")
				}
			})
		}
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
