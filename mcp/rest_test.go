package mcp

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"strings"
	"testing"

	"fleetd/fault"
)

// Fails if a verb has no REST path, or answers something else than the tool.
func TestEveryVerbHasAPath(t *testing.T) {
	r := start(t)
	for verb, body := range map[string]string{
		"send": `{"to":"a","content":"b"}`, "poll": "", "read": `{"msg_id":"m"}`, "reply": `{"content":"c"}`,
		"roster": `{"host":"hosta"}`, "trace": `{"trace_id":"t"}`, "whoami": `{}`,
	} {
		status, answer, header := r.do(t, request{method: "POST", path: "/api/v1/" + verb, body: body, header: bearerAnn})
		if status != 200 || header.Get("Content-Type") != "application/json" || strings.Contains(answer, "null") {
			t.Errorf("%s: %d %s", verb, status, answer)
		}
	}
	if status, answer, _ := r.do(t, request{method: "POST", path: "/api/v1/send", body: `{"target":"a","content":"b"}`, header: bearerAnn}); !strings.Contains(answer, `"to":"a"`) {
		t.Errorf("the old name: %d %s", status, answer)
	}
}

// Fails if an error of a REST path is no problem document with our code, or is
// answered with a status that says something else.
func TestProblems(t *testing.T) {
	g := &fakeGateway{send: func(_ context.Context, a SendArgs) (SendResult, error) {
		return SendResult{}, fault.New(fault.Code(a.Content), "a sentence.")
	}}
	r := start(t, with(g))
	for _, tc := range []struct {
		req    request
		status int
		code   fault.Code
		detail string
	}{
		{request{method: "POST", path: "/api/v1/send", body: `{"to":"a","content":"BROKER_DOWN"}`}, 503, fault.BrokerDown, "a sentence."},
		{request{method: "POST", path: "/api/v1/send", body: `{"to":"a","content":"UNKNOWN_RECIPIENT"}`}, 404, fault.UnknownRecipient, "a sentence."},
		{request{method: "POST", path: "/api/v1/send", body: `{"to":"a","content":"INTERNAL"}`}, 500, fault.Internal, "a sentence."},
		{request{method: "POST", path: "/api/v1/send", body: `{"to":"a","contend":"x"}`}, 400, fault.BadRequest, `did you mean "content"?`},
		{request{method: "POST", path: "/api/v1/send", body: `{"to":"a","content":"x"} trailing`}, 400, fault.BadRequest, "one JSON object"},
		{request{method: "POST", path: "/api/v1/send", body: `{"to":"a","content":"caf` + "\xe9" + `"}`}, 422, fault.BadContent, "UTF-8"},
		{request{method: "POST", path: "/api/v1/sent", body: `{}`}, 404, fault.BadRequest, `did you mean "send"?`},
		{request{method: "GET", path: "/api/v1/send"}, 405, fault.BadRequest, "POST only"},
		{request{method: "POST", path: "/api/v1/send", body: "to=a", header: map[string]string{"Content-Type": "text/plain"}}, 415, fault.BadRequest, "application/json"},
		{request{method: "POST", path: "/api/v1/register", body: `{"name":"x","kind":"main"}`}, 404, fault.BadRequest, "there is no"},
	} {
		q := copyRequest(tc.req)
		q.header["Authorization"] = "Bearer tok-ann"
		status, body, header := r.do(t, q)
		var p Problem
		if err := json.Unmarshal([]byte(body), &p); err != nil {
			t.Errorf("%s %s: %v in %s", q.method, q.path, err, body)
		}
		if status != tc.status || p.Status != tc.status || p.Code != tc.code || !strings.Contains(p.Detail, tc.detail) ||
			p.Title == "" || p.Type != "urn:bridged:error:"+string(tc.code) || header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s %s %s: %d %s", q.method, q.path, q.body, status, body)
		}
	}
}

// Fails if the host's own user cannot use the admin verbs and speak for an
// entity over the unix socket, or if anybody else can do more than he should.
func TestWhoMayDoWhatOnTheSocket(t *testing.T) {
	t.Attr("threat", "U2")
	r := start(t, withSocket(t))
	as := func(name string) map[string]string { return map[string]string{AsHeader: name} }
	for name, tc := range map[string]struct {
		verb, body string
		header     map[string]string
		status     int
		want       string
	}{
		"admin":                 {"register", `{"name":"x","kind":"main"}`, nil, 200, `"token":"tok-new"`},
		"admin, other":          {"unregister", `{"name":"x"}`, nil, 200, "gone:x"},
		"admin with a token":    {"register", `{"name":"x","kind":"main"}`, bearerAnn, 403, "NOT_ALLOWED"},
		"strict there too":      {"register", `{"name":"x","kimd":"main"}`, nil, 400, `did you mean \"kind\"?`},
		"as a name":             {"whoami", `{}`, as("ann"), 200, `"gid":"gid-ann"`},
		"as a gid":              {"whoami", `{}`, as("gid-ann"), 200, `"name":"ann"`},
		"as nobody known":       {"whoami", `{}`, as("zoe"), 401, "no entity"},
		"a token":               {"whoami", `{}`, map[string]string{"Authorization": "Bearer tok-bob"}, 200, `"name":"bob"`},
		"a token before a name": {"whoami", `{}`, map[string]string{"Authorization": "Bearer tok-bob", AsHeader: "ann"}, 200, `"name":"bob"`},
		"a wrong token":         {"whoami", `{}`, map[string]string{"Authorization": "Bearer no", AsHeader: "ann"}, 401, "NOT_AUTHENTICATED"},
		"for nobody":            {"send", `{"to":"a","content":"b"}`, nil, 401, "for whom"},
		"looking around":        {"roster", `{}`, nil, 200, `"self":"hosta"`},
	} {
		t.Run(name, func(t *testing.T) {
			status, body, _ := r.doSocket(t, request{method: "POST", path: "/api/v1/" + tc.verb, body: tc.body, header: tc.header})
			if status != tc.status || !strings.Contains(body, tc.want) {
				t.Errorf("%d %s, want %d …%s…", status, body, tc.status, tc.want)
			}
		})
	}
	if status, body, _ := r.do(t, request{method: "POST", path: "/api/v1/whoami", body: `{}`, header: as("ann")}); status != 401 {
		t.Errorf("over TCP a name is enough: %d %s", status, body)
	}
}

// Fails if another local user gets in, with a token or without, or root does not.
func TestOtherUsersAreRefused(t *testing.T) {
	t.Attr("threat", "U2")
	own := uint32(os.Getuid())
	for uid, want := range map[uint32]int{own: 200, 0: 200, own + 1: 401} {
		r := start(t, withSocket(t), func(s *Server) {
			s.PeerUID = func(net.Conn) (uint32, error) { return uid, nil }
		})
		for _, header := range []map[string]string{{AsHeader: "ann"}, bearerAnn} {
			if status, body, _ := r.doSocket(t, request{method: "POST", path: "/api/v1/whoami", body: "{}", header: header}); status != want {
				t.Errorf("user %d with %v: %d %s, want %d", uid, header, status, body, want)
			}
		}
	}
}
