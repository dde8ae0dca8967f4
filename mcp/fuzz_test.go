package mcp

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
)

// handler is the TCP listener's without the listener.
func handler(f *testing.F) http.Handler {
	s := &Server{
		Listen: "127.0.0.1:0", Gateway: &fakeGateway{}, Identities: fakeIdentities{}, Log: hclog.NewNullLogger(), Version: "test",
		BodyLimit: 1 << 16,
	}
	if err := s.Bind(); err != nil {
		f.Fatal(err)
	}
	s.tools = s.newStreamable()
	f.Cleanup(func() {
		if err := s.tools.Shutdown(context.Background()); err != nil {
			f.Error(err)
		}
		if err := s.tcp.Close(); err != nil {
			f.Error(err)
		}
	})
	return s.outermost(s.tcpHandler())
}

func fuzzed(t *testing.T, h http.Handler, path, body string, header map[string]string) *httptest.ResponseRecorder {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond) // ends a stream that was asked for
	defer cancel()
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "http://127.0.0.1/", strings.NewReader(body))
	r.URL = &url.URL{Path: path}
	r.RemoteAddr = "127.0.0.1:1"
	r.Header.Set("Content-Type", "application/json")
	for k, v := range header {
		r.Header.Set(k, v)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code >= 500 || strings.Contains(w.Body.String(), `"INTERNAL"`) {
		t.Errorf("POST %q with %v and %q: %d %s", path, header, body, w.Code, w.Body)
	}
	return w
}

// Fails when a REST request makes the daemon fail instead of its sender, or is
// answered with something else than a result or a problem with a sentence.
func FuzzREST(f *testing.F) {
	f.Attr("threat", "U6")
	for verb, body := range map[string]string{
		"send": `{"to":"a","content":"b","wait_seconds":1}`, "poll": `{"from":"x","max":20}`, "reply": `{"content":"c","in_reply_to":null}`,
		"spawn": `{"profile":"p","groups":["a"]}`, "receipt": `{"id":"x","written":true}`, "roster": "", "nowhere/else": `[]`,
		"broadcast": `{"content":"\ud800","wait_seconds":1e400}`, "trace": `{"trace_id":"t","trace_id":5}`,
	} {
		f.Add(verb, "application/json", body)
	}
	f.Add("send", "application/json; charset=\"", `{"target":"a","to":"b","content":"c"}`)
	h := handler(f)
	f.Fuzz(func(t *testing.T, verb, contentType, body string) {
		w := fuzzed(t, h, restPrefix+verb, body, map[string]string{"Authorization": "Bearer tok-ann", "Content-Type": contentType})
		if w.Code == http.StatusOK && strings.HasPrefix(w.Header().Get("Content-Type"), "application/json") && json.Valid(w.Body.Bytes()) {
			return
		}
		var p Problem
		if err := json.Unmarshal(w.Body.Bytes(), &p); w.Code >= 300 && w.Code < 400 {
			return // a path that is not clean is led to the one that is
		} else if err != nil || p.Code == "" || p.Detail == "" || p.Status != w.Code {
			t.Errorf("%q with %q: %d %s", verb, body, w.Code, w.Body)
		}
	})
}

// Fails when an MCP request, of either era, makes the daemon fail instead of
// its sender.
func FuzzMCP(f *testing.F) {
	f.Attr("threat", "U6")
	modernMeta := `"_meta":{` + modernFields + `}`
	for _, body := range []string{
		whoamiCall, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`,
		`{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"bridge_send","arguments":{"to":5},` + modernMeta + `}}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":{}}}`, `{"jsonrpc":"2.0","id":null,"method":"tools/list","params":[]}`,
		`[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, `{"jsonrpc":"2.0","id":1,"result":{}}`, `{"METHOD":"tools/call"}`, "null", "",
	} {
		f.Add("", "", body)
		f.Add("2025-11-25", oldSession, body)
		f.Add("2026-07-28", "x", body)
	}
	h := handler(f)
	f.Fuzz(func(t *testing.T, version, session, body string) {
		header := map[string]string{"Authorization": "Bearer tok-ann", "Accept": "application/json, text/event-stream"}
		if version != "" {
			header["Mcp-Protocol-Version"] = version
		}
		if session != "" {
			header["Mcp-Session-Id"] = session
		}
		fuzzed(t, h, "/mcp", body, header)
	})
}
