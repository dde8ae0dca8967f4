package mcp

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Fails when clients that begin a request and do not end it, or send no end of
// a header, hold others up, or are waited for without end.
func TestSlowClientsHoldNobodyUp(t *testing.T) {
	t.Attr("threat", "U6")
	// A header has to be whole in time on a busy machine, too; its body comes with it.
	r := start(t, func(s *Server) { s.bodyWait, s.headerWait = time.Second, 5*time.Second })
	dial := func(text string) net.Conn {
		t.Helper()
		conn, err := net.Dial("tcp", r.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if _, err := io.WriteString(conn, text); err != nil {
			t.Fatal(err)
		}
		if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	post := func(path, token string) string {
		return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{\"to\":", path, token)
	}
	var bodies, refused, headers []net.Conn
	for range 20 {
		bodies = append(bodies, dial(post("/api/v1/send", "tok-ann")), dial(post("/mcp", "tok-ann")))
		refused = append(refused, dial(post("/api/v1/send", "x")), dial(post("/mcp", "x")), dial(post("/nowhere", "x")))
		headers = append(headers, dial("POST /api/v1/send HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "))
	}
	if status, body, _ := r.do(t, request{method: "POST", path: "/api/v1/whoami", body: "{}", header: bearerAnn}); status != 200 {
		t.Errorf("beside slow clients: %d %s", status, body)
	}
	for _, conn := range bodies {
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("a body that does not end: %v", err)
		}
		text, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if res.StatusCode != 400 || !strings.Contains(string(text), "BAD_REQUEST") {
			t.Errorf("a body that does not end: %d %s", res.StatusCode, text)
		}
	}
	for _, conn := range refused { // whose body nobody reads
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("a body that nobody wants: %v", err)
		}
		_ = res.Body.Close()
		if res.StatusCode != 401 && res.StatusCode != 404 {
			t.Errorf("a body that nobody wants: %d", res.StatusCode)
		}
	}
	for _, conn := range headers {
		if text, err := io.ReadAll(conn); err != nil {
			t.Errorf("a header that does not end: %q, %v", text, err)
		}
	}
	// One more than a server of Go takes beyond what it was told.
	huge := dial("GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n")
	go func() { _, _ = fmt.Fprintf(huge, "X-Huge: %s\r\n\r\n", strings.Repeat("x", 1<<20)) }() // it is cut off
	if res, err := http.ReadResponse(bufio.NewReader(huge), nil); err == nil && res.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a header of a MiB: %d", res.StatusCode)
	}
}

// Any account on the host can open connections to the port and leave them, or
// send a request on each that is refused and whose body does not come. Fails when
// they pile up in the daemon or keep others out.
func TestConnectionsThatOnlyStandThereAreEnded(t *testing.T) {
	t.Attr("threat", "U6")
	const most = 20
	r := start(t, func(s *Server) { s.connsMost, s.headerWait, s.bodyWait = most, time.Hour, time.Hour })
	for name, text := range map[string]string{
		"idle":                 "",
		"a header without end": "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ",
		"no body":              "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\n\r\n",
		"no body, of REST":     "POST /api/v1/send HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\n\r\n",
		"no body, of nothing":  "POST /nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\n\r\n",
	} {
		ended := make(chan struct{}, 5*most)
		for range 5 * most {
			conn, err := net.Dial("tcp", r.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
			_, _ = io.WriteString(conn, text) // it may be ended already
			go func() {
				_, _ = io.Copy(io.Discard, conn) // however it ends
				ended <- struct{}{}
			}()
		}
		if status, body, _ := r.do(t, request{method: "POST", path: "/api/v1/whoami", body: "{}", header: bearerAnn}); status != 200 {
			t.Errorf("beside connections with %s: %d %s", name, status, body)
		}
		for i := range 4 * most {
			select {
			case <-ended:
			case <-time.After(patience):
				t.Fatalf("of %d connections with %s only %d were ended", 5*most, name, i)
			}
		}
	}
}

// Fails when a call that is being answered loses its connection because of too
// many others, or when there is no bound where all are busy.
func TestABusyConnectionIsNotEnded(t *testing.T) {
	t.Attr("threat", "U6")
	c := &conns{most: 2, open: map[net.Conn]held{}}
	open := func() net.Conn {
		conn, other := net.Pipe()
		t.Cleanup(func() { _ = other.Close() })
		c.changed(conn, http.StateNew)
		return conn
	}
	ended := func(conn net.Conn) bool { return conn.SetDeadline(time.Time{}) != nil }
	busy := open()
	c.changed(busy, http.StateActive)
	c.admit(busy)
	idle := open()
	next := open()
	if ended(busy) || !ended(idle) || ended(next) {
		t.Errorf("ended are the busy one %v, the idle one %v, the new one %v", ended(busy), ended(idle), ended(next))
	}
	if c.changed(idle, http.StateActive); len(c.open) != 2 { // its request had come already
		t.Errorf("with one that was ended %d are open", len(c.open))
	}
	c.changed(next, http.StateActive)
	c.admit(next)
	if last := open(); !ended(last) || ended(busy) || ended(next) {
		t.Error("where all are busy it is not the new one that goes")
	}
	c.changed(busy, http.StateClosed)
	if fresh := open(); ended(fresh) {
		t.Error("there was room, and it was ended")
	}
}
