package mcp

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
)

// fakeLetters answers with what it was asked.
type fakeLetters struct{}

func echo(a any) string {
	b, err := json.Marshal(a)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func (fakeLetters) ListDeadLetters(_ context.Context, a ListDeadLettersArgs) (ListDeadLettersResult, error) {
	return ListDeadLettersResult{Note: echo(a)}, nil
}

func (fakeLetters) ShowDeadLetter(_ context.Context, a ShowDeadLetterArgs) (ShowDeadLetterResult, error) {
	return ShowDeadLetterResult{Letters: []DeadLetterDetail{{Body: echo(a), BodyBase64: []byte{1}}}}, nil
}

func (fakeLetters) RedeliverDeadLetters(_ context.Context, a RedeliverDeadLettersArgs) (RedeliverDeadLettersResult, error) {
	return RedeliverDeadLettersResult{Note: echo(a)}, nil
}

func (fakeLetters) PurgeDeadLetters(_ context.Context, a PurgeDeadLettersArgs) (PurgeDeadLettersResult, error) {
	return PurgeDeadLettersResult{Note: echo(a)}, nil
}

// Fails if a verb of the dead letters is missing, takes an argument for
// another, acts on all letters unless told to, or is there for anybody but the
// host's own user.
func TestDeadLettersAreForTheHostsUser(t *testing.T) {
	t.Attr("threat", "U2")
	r := start(t, withSocket(t), func(s *Server) { s.DeadLetters = fakeLetters{} })
	for _, tc := range []struct {
		verb, body string
		status     int
		want       string
	}{
		{"dlq_list", ``, 200, `{}`},
		{"dlq_list", `{"reason":"expired","queue":"q","older_than_seconds":60,"limit":10000}`, 200, `{"reason":"expired","queue":"q","older_than_seconds":60,"limit":10000}`},
		{"dlq_list", `{"limit":10001}`, 400, "from 0 to 10000"},
		{"dlq_list", `{"older_than_seconds":-1}`, 400, "from 0 to"},
		{"dlq_show", `{"msg_id":"m","body":true}`, 200, `{"msg_id":"m","body":true}`},
		{"dlq_show", `{}`, 400, "msg_id"},
		{"dlq_redeliver", `{"msg_id":"m","anew":true,"queue_if_offline":true}`, 200, `{"msg_id":"m","anew":true,"queue_if_offline":true}`},
		{"dlq_redeliver", `{"all":true,"reason":"r"}`, 200, `{"reason":"r","all":true}`},
		{"dlq_redeliver", `{"queue":"q"}`, 200, `{"queue":"q"}`},
		{"dlq_redeliver", `{"anew":true}`, 400, "say which letters to redeliver"},
		{"dlq_redeliver", `{"msg_id":"m","all":true}`, 400, "either"},
		{"dlq_purge", `{"older_than_seconds":5}`, 200, `{"older_than_seconds":5}`},
		{"dlq_purge", `{"msg_id":"m"}`, 200, `{"msg_id":"m"}`},
		{"dlq_purge", `{"all":true}`, 200, `{"all":true}`},
		{"dlq_purge", `{}`, 400, "say which letters to purge"},
		{"dlq_purge", `{"msg_id":"m","reason":"r"}`, 400, "either"},
		{"dlq_purge", `{"reasons":"r"}`, 400, `did you mean \"reason\"?`},
	} {
		req := request{method: "POST", path: "/api/v1/" + tc.verb, body: tc.body}
		status, body, _ := r.doSocket(t, req)
		want := tc.want
		if tc.status == 200 {
			want = strings.ReplaceAll(want, `"`, `\"`)
		}
		if status != tc.status || !strings.Contains(body, want) {
			t.Errorf("%s %s: %d %s, want %d …%s…", tc.verb, tc.body, status, body, tc.status, want)
		}
		req.header = bearerAnn
		if status, body, _ := r.doSocket(t, req); status != 403 || !strings.Contains(body, "NOT_ALLOWED") {
			t.Errorf("%s with a token: %d %s", tc.verb, status, body)
		}
		if status, body, _ := r.do(t, req); status != 404 {
			t.Errorf("%s over TCP: %d %s", tc.verb, status, body)
		}
	}
	if status, _, _ := start(t, withSocket(t)).doSocket(t, request{method: "POST", path: "/api/v1/dlq_list"}); status != 404 {
		t.Errorf("without dead letters: %d", status)
	}
}
