package mcp

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"fleetd/fault"
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
	t.Attr("threat", "U4")
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
	t.Attr("threat", "U4")
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
	t.Attr("threat", "W1 W2")
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
	t.Attr("threat", "U6")
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

// Fails if somebody who knows another identity's session id can use it, or if
// the refusal is a 404, which would make a client start anew.
func TestSessionBelongsToItsIdentity(t *testing.T) {
	t.Attr("threat", "U5")
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
	if !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "cannot listen on "+s.Listen) {
		t.Errorf("%v", err)
	}
	if _, err := os.Lstat(s.Socket); !os.IsNotExist(err) {
		t.Errorf("the socket stayed: %v", err)
	}
	s = &Server{Listen: "192.0.2.1:8765"} // of the documentation's network: of no machine
	if err := s.Bind(); !fault.Is(err, fault.BadRequest) || !strings.Contains(err.Error(), "set another `listen`") {
		t.Errorf("an address of another machine: %v", err)
	}
}
