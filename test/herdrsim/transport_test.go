package herdrsim_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"fleetd/test/herdrsim"
)

// Fails if ping is not the answer that a client tells versions by.
func TestPingSaysVersionAndProtocol(t *testing.T) {
	for v, want := range map[herdrsim.Version][2]any{
		herdrsim.V080: {"0.8.0", 19.0}, herdrsim.Base: {"0.8.0", 20.0}, herdrsim.V082: {"0.8.2", 20.0},
	} {
		r := must(t, start(t, version(v)), "ping", object{})
		if r["version"] != want[0] || r["protocol"] != want[1] || r["type"] != "pong" {
			t.Errorf("%s: %v", v, r)
		}
	}
}

// Fails if the socket can be opened by others, or a second server takes it
// from a live one, or a clean stop leaves the file.
func TestSocketFile(t *testing.T) {
	srv := start(t)
	info, err := os.Stat(srv.SocketPath())
	if err != nil || info.Mode().Perm() != 0o600 || info.Mode()&os.ModeSocket == 0 {
		t.Fatalf("socket file: %v, %v", info, err)
	}
	if second, err := herdrsim.Start(t.Context(), herdrsim.Options{SocketPath: srv.SocketPath()}); err == nil {
		_ = second.Close()
		t.Fatal("a second server started on a live socket")
	}
	if err := srv.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(srv.SocketPath()); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the socket file is still there: %v", err)
	}
}

// Fails if one of the cases of reference §1.3 gets an answer instead of a
// silent close.
func TestClosedWithoutAnswer(t *testing.T) {
	srv := start(t, func(o *herdrsim.Options) { o.Timing.RequestLine = time.Hour })
	quick := start(t, func(o *herdrsim.Options) { o.Timing.RequestLine = 100 * time.Millisecond })
	ok := `{"id":"a","method":"ping","params":{}}`
	for name, c := range map[string]struct {
		srv  *herdrsim.Server
		send string
	}{
		"blank line":  {srv, "   \n"},
		"empty line":  {srv, "\n"},
		"not UTF-8":   {srv, "{\"id\":\"\xff\",\"method\":\"ping\",\"params\":{}}\n"},
		"too long":    {srv, `{"id":"` + strings.Repeat("x", 1<<20) + `","method":"ping","params":{}}` + "\n"},
		"no newline":  {quick, ok}, // until the time for the line is over
		"half a line": {quick, `{"id":`},
	} {
		if got := raw(t, c.srv, c.send); got != "" {
			t.Errorf("%s: answered %q", name, got)
		}
	}
	conn := dial(t, srv)
	_, _ = io.WriteString(conn, ok)
	_ = conn.CloseWrite()
	if out, err := io.ReadAll(conn); err != nil || len(out) > 0 {
		t.Errorf("EOF before the newline: %q, %v", out, err)
	}
	if got := raw(t, srv, strings.Repeat("x", 1<<20+1)); got != "" {
		t.Errorf("a line that grows too long: answered %q", got)
	}
	long := `{"id":"` + strings.Repeat("x", 1<<20-60) + `","method":"ping","params":{}}` + "\n"
	if got := raw(t, srv, long); !strings.Contains(got, "pong") {
		t.Errorf("a line just below the limit is not answered: %q", shorten(got))
	}
}

// Fails if what cannot be decoded is not answered with an empty id, or a
// request that must work is refused.
func TestEnvelope(t *testing.T) {
	srv := start(t)
	for name, send := range map[string]string{
		"not JSON":            `nonsense`,
		"number as id":        `{"id":1,"method":"ping","params":{}}`,
		"no id":               `{"method":"ping","params":{}}`,
		"no params":           `{"id":"a","method":"ping"}`,
		"null params":         `{"id":"a","method":"ping","params":null}`,
		"unknown method":      `{"id":"a","method":"agent.teleport","params":{}}`,
		"removed method":      `{"id":"a","method":"agent.send","params":{}}`,
		"method twice":        `{"id":"a","method":"ping","method":"ping","params":{}}`,
		"method in capitals":  `{"id":"a","method":"PING","params":{}}`,
		"missing parameter":   `{"id":"a","method":"pane.get","params":{}}`,
		"wrong type":          `{"id":"a","method":"pane.get","params":{"pane_id":7}}`,
		"null for a default":  `{"id":"a","method":"pane.send_input","params":{"pane_id":"w1:p1","keys":null}}`,
		"unknown enum value":  `{"id":"a","method":"pane.read","params":{"pane_id":"w1:p1","source":"bottom"}}`,
		"unknown event type":  `{"id":"a","method":"events.subscribe","params":{"subscriptions":[{"type":"pane.output_changed"}]}}`,
		"trailing characters": `{"id":"a","method":"ping","params":{}} x`,
	} {
		var r reply
		if err := json.Unmarshal([]byte(raw(t, srv, send+"\n")), &r); err != nil || r.Error == nil || r.Error.Code != "invalid_request" || r.ID != "" {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
	if m := raw(t, srv, `{"id":"a","method":"agent.teleport","params":{}}`+"\n"); !strings.Contains(m, "unknown variant `agent.teleport`, expected one of `") {
		t.Errorf("a probe for a method cannot tell it is unknown: %s", m)
	}
	for name, send := range map[string]string{
		"unknown keys":      `{"id":"a","extra":1,"method":"ping","params":{"more":true}}`,
		"CRLF":              `{"id":"a","method":"ping","params":{}}` + "\r",
		"null for optional": `{"id":"a","method":"pane.list","params":{"workspace_id":null}}`,
		"second line":       `{"id":"a","method":"ping","params":{}}` + "\n" + `{"id":"b","method":"ping","params":{}}`,
	} {
		if got := raw(t, srv, send+"\n"); !strings.HasPrefix(got, `{"id":"a","result"`) || strings.Count(got, "\n") != 1 {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// Fails if a held connection survives a stray byte or a half-close, which on
// the real server end it without a word.
func TestHeldConnectionsEndSilently(t *testing.T) {
	srv := start(t)
	place := run(t, srv, "cat", nil)
	wait := line("pane.wait_for_output", object{"pane_id": place.PaneID, "source": "visible", "match": object{"type": "substring", "value": "never"}})
	if got := raw(t, srv, wait+"\n"); got != "" {
		t.Errorf("a second newline: answered %q", got)
	}
	conn := dial(t, srv)
	_, _ = io.WriteString(conn, wait)
	_ = conn.CloseWrite()
	if out, err := io.ReadAll(conn); err != nil || len(out) > 0 {
		t.Errorf("half-close: %q, %v", out, err)
	}
}

// Fails if a request is lost because its client hung up.
func TestExecutedThoughClientHungUp(t *testing.T) {
	srv := start(t)
	conn := dial(t, srv)
	_, _ = io.WriteString(conn, line("workspace.create", object{"label": "orphan"}))
	_ = conn.Close()
	eventually(t, "the workspace", func() bool {
		list, _ := must(t, srv, "workspace.list", object{})["workspaces"].([]any)
		return len(list) == 1 && at(list[0], "label") == "orphan"
	})
}

// Fails if a hung application loop also stops ping, or if what was asked
// meanwhile is not executed afterwards.
func TestHungLoop(t *testing.T) {
	srv := start(t)
	release, err := srv.HangLoop()
	if err != nil {
		t.Fatal(err)
	}
	must(t, srv, "ping", object{})
	conn := dial(t, srv)
	_, _ = io.WriteString(conn, line("pane.list", object{}))
	_ = conn.SetReadDeadline(time.Now().Add(60 * time.Millisecond))
	if _, err := bufio.NewReader(conn).ReadString('\n'); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the hung loop answered: %v", err)
	}
	release()
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	if out, err := io.ReadAll(conn); err != nil || !strings.Contains(string(out), "pane_list") {
		t.Fatalf("after the release: %q, %v", out, err)
	}
}

// Fails if the faults between execution and answer do not look to a client
// like those of the real server.
func TestFaultsOfTheTransport(t *testing.T) {
	srv := start(t)
	srv.AnswerUnavailable(true)
	refused(t, srv, "server_unavailable", "agent.list", object{})
	must(t, srv, "ping", object{})
	srv.AnswerUnavailable(false)

	srv.DropAnswer("workspace.create", 1)
	if got := raw(t, srv, line("workspace.create", object{})); got != "" {
		t.Fatalf("a dropped answer came: %q", got)
	}
	if list, _ := must(t, srv, "workspace.list", object{})["workspaces"].([]any); len(list) != 1 {
		t.Fatalf("the dropped request was not executed: %v", list)
	}

	if err := srv.RefuseConnections(); err != nil {
		t.Fatal(err)
	}
	if _, err := net.Dial("unix", srv.SocketPath()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("refusing socket: %v", err)
	}
	if err := srv.TakeConnections(); err != nil {
		t.Fatal(err)
	}
	must(t, srv, "ping", object{})

	srv.CrashAfter("pane.list")
	if got := raw(t, srv, line("pane.list", object{})); got != "" {
		t.Fatalf("a crashing server answered: %q", got)
	}
	eventually(t, "a refusing socket whose file is still there", func() bool {
		_, err := net.Dial("unix", srv.SocketPath())
		return errors.Is(err, syscall.ECONNREFUSED)
	})
}
