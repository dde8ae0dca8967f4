package mcp

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/server"
)

// knows is a server whose poll says whether the library keeps the session: in a
// call it then knows the client's name.
type knows struct {
	*running
	name chan string
}

func startKnowing(t *testing.T) knows {
	k := knows{name: make(chan string, 1)}
	k.running = start(t, with(&fakeGateway{poll: func(ctx context.Context, _ PollArgs) (PollResult, error) {
		c, _ := server.ClientSessionFromContext(ctx).(server.SessionWithClientInfo)
		k.name <- c.GetClientInfo().Name
		return PollResult{}, nil
	}}))
	return k
}

func (k knows) session(t *testing.T, id, token string) (kept bool) {
	t.Helper()
	status, body, _ := k.do(t, request{method: "POST", path: "/mcp",
		header: map[string]string{"Authorization": "Bearer " + token, "Mcp-Session-Id": id},
		body:   `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"bridge_poll","arguments":{}}}`})
	if status != http.StatusOK {
		t.Fatalf("a call of a session: %d %s", status, body)
	}
	return receive(t, "the client's name", k.name) == "t"
}

func (k knows) initialize(t *testing.T, token string) (id string) {
	t.Helper()
	status, body, header := k.do(t, request{method: "POST", path: "/mcp", header: map[string]string{"Authorization": "Bearer " + token},
		body: `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`})
	if id = header.Get("Mcp-Session-Id"); id == "" {
		t.Fatalf("no session: %d %s", status, body)
	}
	return id
}

// Fails if a client that initializes again and again makes the daemon keep all
// of its sessions, ends those of another identity, one that is used or one with
// an open stream, or if a client whose session was ended cannot go on.
func TestSessionsOfAnIdentityAreBounded(t *testing.T) {
	t.Attr("threat", "U6")
	k := startKnowing(t)
	bobs := k.initialize(t, "tok-bob")
	streaming := k.initialize(t, "tok-ann")
	stream := k.open(t, http.MethodGet, "", map[string]string{"Authorization": "Bearer tok-ann", "Mcp-Session-Id": streaming})
	idle, used := k.initialize(t, "tok-ann"), k.initialize(t, "tok-ann")
	if !k.session(t, idle, "tok-ann") {
		t.Fatal("a fresh session is not known")
	}
	for range sessionsMostOf {
		k.initialize(t, "tok-ann")
		if !k.session(t, used, "tok-ann") {
			t.Fatal("a session in use was ended")
		}
	}
	for what, id := range map[string]string{"with an open stream": streaming, "in use": used} {
		if !k.session(t, id, "tok-ann") {
			t.Errorf("a session %s was ended", what)
		}
	}
	if !k.session(t, bobs, "tok-bob") {
		t.Error("a session of another identity was ended")
	}
	if k.session(t, idle, "tok-ann") {
		t.Error("the library keeps an idle session beyond the bound")
	}
	stream.close()
	k.stop() // what is answered is settled
	k.sessions.mu.Lock()
	defer k.sessions.mu.Unlock()
	if n := k.sessions.of[ann.GID]; n != sessionsMostOf {
		t.Errorf("%d sessions are remembered, want %d", n, sessionsMostOf)
	}
}

// Fails if the sessions of many identities together are more than the bound, or
// what is kept to count them does not go with them.
func TestSessionsOfAllAreBounded(t *testing.T) {
	t.Attr("threat", "U6")
	now := time.Unix(0, 0)
	s := sessions{now: func() time.Time { return now }, bound: map[string]*boundSession{}, of: map[string]int{}}
	visit := func(i int) (over []string) {
		now = now.Add(time.Millisecond)
		id := string(rune('a' + i))
		if !s.enter(id, "gid-"+id) {
			t.Fatal("refused")
		}
		return s.leave(id)
	}
	for i := range sessionsMost {
		if over := visit(i); over != nil {
			t.Fatalf("number %d ended %q", i, over)
		}
	}
	visit(0)
	if over := visit(sessionsMost); len(over) != 1 || over[0] != string(rune('a'+1)) {
		t.Errorf("one too many ended %q, want the one that is idle longest", over)
	}
	if len(s.bound) != sessionsMost || len(s.of) != sessionsMost {
		t.Errorf("%d sessions of %d identities are remembered", len(s.bound), len(s.of))
	}
	now = now.Add(sessionMemory + time.Hour)
	visit(7)
	if len(s.bound) != 1 || len(s.of) != 1 {
		t.Errorf("a day later %d sessions of %d identities are remembered", len(s.bound), len(s.of))
	}
}
