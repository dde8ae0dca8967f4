package herdrsim_test

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"fleetd/test/herdrsim"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of these tests.
const patience = time.Minute

// start serves with shortened times and a plain shell.
func start(t *testing.T, adjust ...func(*herdrsim.Options)) *herdrsim.Server {
	t.Helper()
	opts := herdrsim.Options{Shell: []string{"/bin/sh"}, Timing: herdrsim.Fast()}
	for _, f := range adjust {
		f(&opts)
	}
	srv, err := herdrsim.Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = srv.Close() })
	return srv
}

func version(v herdrsim.Version) func(*herdrsim.Options) {
	return func(o *herdrsim.Options) { o.Version = v }
}

func dial(t *testing.T, srv *herdrsim.Server) *net.UnixConn {
	t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: srv.SocketPath(), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	return conn
}

// raw writes bytes and returns everything up to EOF.
func raw(t *testing.T, srv *herdrsim.Server, send string) string {
	t.Helper()
	conn := dial(t, srv)
	if _, err := io.WriteString(conn, send); err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(conn)
	if err != nil {
		t.Fatalf("%q is not answered or closed: %v", shorten(send), err)
	}
	return string(out)
}

func shorten(s string) string { return s[:min(len(s), 120)] }

type object = map[string]any

type reply struct {
	ID     string `json:"id"`
	Result object `json:"result"`
	Error  *struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

func line(method string, params object) string {
	b, _ := json.Marshal(object{"id": "t1", "method": method, "params": params})
	return string(b) + "\n"
}

// ask makes one request.
func ask(t *testing.T, srv *herdrsim.Server, method string, params object) reply {
	t.Helper()
	out := raw(t, srv, line(method, params))
	if strings.Count(out, "\n") != 1 || !strings.HasSuffix(out, "\n") {
		t.Fatalf("%s: answer is not one line: %q", method, out)
	}
	var r reply
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%s: %v in %q", method, err, out)
	}
	return r
}

// must is ask that fails on an error.
func must(t *testing.T, srv *herdrsim.Server, method string, params object) object {
	t.Helper()
	r := ask(t, srv, method, params)
	if r.Error != nil {
		t.Fatalf("%s: %s: %s", method, r.Error.Code, r.Error.Message)
	}
	return r.Result
}

// refused is ask that expects an error code.
func refused(t *testing.T, srv *herdrsim.Server, code, method string, params object) {
	t.Helper()
	r := ask(t, srv, method, params)
	if r.Error == nil {
		t.Fatalf("%s: answered %v, want %s", method, r.Result, code)
	}
	if r.Error.Code != code {
		t.Fatalf("%s: %s (%s), want %s", method, r.Error.Code, r.Error.Message, code)
	}
}

// at digs a value out of nested objects: at(r, "pane", "pane_id").
func at(o any, path ...string) any {
	for _, key := range path {
		m, ok := o.(object)
		if !ok {
			return nil
		}
		o = m[key]
	}
	return o
}

// eventually polls until ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(3 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("never came: %s", what)
}

// run makes a pane that runs a shell script directly.
func run(t *testing.T, srv *herdrsim.Server, script string, env map[string]string) herdrsim.Place {
	t.Helper()
	place, err := srv.Run("test", []string{"/bin/sh", "-c", script}, env, "")
	if err != nil {
		t.Fatal(err)
	}
	return place
}

func seesScreen(t *testing.T, srv *herdrsim.Server, pane, text string) {
	t.Helper()
	last := ""
	defer func() {
		if t.Failed() {
			t.Logf("screen:\n%s", last)
		}
	}()
	eventually(t, "screen with "+text, func() bool {
		var err error
		last, err = srv.Screen(pane)
		return err == nil && strings.Contains(last, text)
	})
}

// subscribe opens a subscription and returns a reader of its events.
func subscribe(t *testing.T, srv *herdrsim.Server, entries ...object) *bufio.Reader {
	t.Helper()
	conn := dial(t, srv)
	if _, err := io.WriteString(conn, line("events.subscribe", object{"subscriptions": entries})); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(conn)
	if ack, err := r.ReadString('\n'); err != nil || !strings.Contains(ack, "subscription_started") {
		t.Fatalf("acknowledgement: %q, %v", ack, err)
	}
	return r
}

func next(t *testing.T, r *bufio.Reader) object {
	t.Helper()
	l, err := r.ReadBytes('\n')
	if err != nil {
		t.Fatalf("no event: %v", err)
	}
	var o object
	if err := json.Unmarshal(l, &o); err != nil {
		t.Fatal(err)
	}
	return o
}
