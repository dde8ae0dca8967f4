package herdr

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"fleetd/fault"
)

// listen serves one scripted connection after the other on a unix socket and
// returns a client of it. The server ends with the test.
func listen(t *testing.T, serve func(conn net.Conn, line string)) *Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "herdr.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			line, _ := bufio.NewReader(conn).ReadString('\n')
			serve(conn, line)
			conn.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return &Client{Socket: path, Timeout: 10 * time.Second}
}

func say(text string) func(net.Conn, string) {
	return func(conn net.Conn, _ string) { _, _ = io.WriteString(conn, text) }
}

// late is a context past its deadline that has not been told so yet: on a busy
// machine its timer fires late.
type late struct{ context.Context }

func (late) Deadline() (time.Time, bool) { return time.Now().Add(-time.Second), true }

// Fault: the end of the caller's own patience is told as a herdr that is down.
func TestOwnDeadlineIsNotHerdrDown(t *testing.T) {
	c := listen(t, say("{\"result\":{}}\n"))
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := c.Ping(late{ctx}); err == nil || ctx.Err() == nil {
		t.Errorf("it came to %v before its context ended", err)
	}
}

// Fault: a herdr that is not there cannot be told from one that refuses, or
// from a request of unknown outcome.
func TestHerdrDown(t *testing.T) {
	path := filepath.Join(t.TempDir(), "herdr.sock")
	c := &Client{Socket: path}
	_, err := c.Ping(t.Context())
	if !fault.Is(err, fault.HerdrDown) || !errors.Is(err, syscall.ENOENT) || !strings.Contains(err.Error(), path) {
		t.Errorf("no socket: %v", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	if err := c.SendInput(t.Context(), "w1:p1", "x"); !fault.Is(err, fault.HerdrDown) || !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("left-over socket: %v", err)
	}
}

// Fault: a closed connection without a whole answer counts as success, or as
// nothing done.
func TestUnknownOutcome(t *testing.T) {
	for name, answer := range map[string]string{
		"EOF":          "",
		"half a line":  `{"id":"x","result":{"type":"ok"}}`,
		"no JSON":      "hello\n",
		"neither":      "{\"id\":\"x\"}\n",
		"other socket": `{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"x"}}` + "\n",
	} {
		err := listen(t, say(answer)).SendInput(t.Context(), "w1:p1", "x")
		if _, ok := errors.AsType[*UnknownError](err); !ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Fault: a request that herdr cannot have read to its end counts as possibly
// executed.
func TestHalfWrittenRequestIsNotSent(t *testing.T) {
	c := &Client{dial: func(context.Context) (net.Conn, error) {
		here, there := net.Pipe()
		go func() {
			_, _ = there.Read(make([]byte, 5))
			there.Close()
		}()
		return here, nil
	}}
	if err := c.SendInput(t.Context(), "w1:p1", "x"); !fault.Is(err, fault.HerdrDown) {
		t.Errorf("%v", err)
	}
}

// Fault: a server that hangs holds the caller past his deadline.
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // or a busy machine lets it pass before the request is out
		c := &Client{Timeout: time.Minute, dial: func(context.Context) (net.Conn, error) {
			here, there := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, there) }()
			return here, nil
		}}
		begun := time.Now()
		err := c.SendInput(t.Context(), "w1:p1", "x")
		if _, ok := errors.AsType[*UnknownError](err); !ok || !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != time.Minute {
			t.Errorf("own deadline: %v after %s", err, time.Since(begun))
		}
		c.Timeout = time.Hour
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun = time.Now()
		err = c.SendInput(ctx, "w1:p1", "x")
		if _, ok := errors.AsType[*UnknownError](err); !ok || !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != time.Second {
			t.Errorf("caller's deadline: %v after %s", err, time.Since(begun))
		}
	})
}

// Fault: the request is more than one line, is half-closed, or lacks a member
// that herdr demands.
func TestRequestOnTheWire(t *testing.T) {
	var line string
	var more []byte
	c := listen(t, func(conn net.Conn, l string) {
		line = l
		_ = conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		b := make([]byte, 1)
		if n, err := conn.Read(b); n > 0 || errors.Is(err, io.EOF) {
			more = append(more, '!')
		}
		_, _ = io.WriteString(conn, "{\"id\":\"\",\"result\":{\"type\":\"ok\"}}\r\n")
	})
	if err := c.SendInput(t.Context(), "w1:p1", "a\n<b> & \u2028"); err != nil {
		t.Fatal(err)
	}
	want := `{"id":"bridged","method":"pane.send_input","params":{"pane_id":"w1:p1","text":"a\n<b> & \u2028"}}` + "\n"
	if line != want || len(more) > 0 {
		t.Errorf("sent %q, more or half-closed: %q", line, more)
	}
	if _, err := c.Ping(t.Context()); err != nil || line != `{"id":"bridged","method":"ping","params":{}}`+"\n" {
		t.Errorf("sent %q, %v", line, err)
	}
}

// Fault: a request over herdr's limit is sent, to be dropped without a word.
func TestRequestOverTheLimit(t *testing.T) {
	c := listen(t, say(""))
	if err := c.SendInput(t.Context(), "w1:p1", strings.Repeat("x", maxRequest)); !fault.Is(err, fault.TooLarge) {
		t.Errorf("%v", err)
	}
}

// Fault: a code is lost when the answer carries another id, or a long answer is
// cut.
func TestAnswers(t *testing.T) {
	_, err := listen(t, say(`{"id":"","error":{"code":"invalid_request","message":"unknown variant"}}`+"\n")).Ping(t.Context())
	if !hasCode(err, "invalid_request") {
		t.Errorf("%v", err)
	}
	long := strings.Repeat("row\\n", 300_000)
	r, err := listen(t, say(`{"id":"1","result":{"type":"pane_read","read":{"text":"`+long+`"}}}`+"\n")).PaneRead(t.Context(), "w1:p1", SourceDetection, false)
	if err != nil || len(r.Text) != 4*300_000 {
		t.Errorf("%d bytes, %v", len(r.Text), err)
	}
	e, err := listen(t, say(`{"id":"1","result":{"explain":{"state":"idle","visible_idle":"odd","skip_state_update":true,"matched_rule":7}}}`+"\n")).
		AgentExplain(t.Context(), "w1:p1")
	if err != nil || e.State != "idle" || !e.SkipStateUpdate || e.VisibleIdle {
		t.Errorf("%+v, %v", e, err)
	}
	a, err := listen(t, say(`{"id":"1","result":{"type":"agent_info","agent":{"terminal_id":"t","agent":"claude","agent_status":"done","pane_id":"w1:p1","new_field":[1],"state_change_seq":412}}}`+"\n")).
		AgentGet(t.Context(), "w1:p1")
	if err != nil || a.TerminalID != "t" || a.AgentStatus != StatusDone || a.StateChangeSeq != 412 {
		t.Errorf("%+v, %v", a, err)
	}
}

// Fault: who registers a pane is not told what is wrong with it.
func TestIdentify(t *testing.T) {
	f := newFake()
	p, err := f.client().Identify(t.Context(), testPane)
	if err != nil || p != pinned {
		t.Errorf("%+v, %v", p, err)
	}
	f.shell = true
	if _, err := f.client().Identify(t.Context(), testPane); !fault.Is(err, fault.BadRequest) || !strings.Contains(err.Error(), "no agent") {
		t.Errorf("shell: %v", err)
	}
	f.shell = false
	f.fail["pane.get"] = []string{"pane_not_found"}
	if _, err := f.client().Identify(t.Context(), "w9:p9"); !fault.Is(err, fault.BadRequest) || !strings.Contains(err.Error(), testPane+" (claude)") {
		t.Errorf("no such pane: %v", err)
	}
	f.down = true
	if _, err := f.client().Identify(t.Context(), testPane); !fault.Is(err, fault.HerdrDown) {
		t.Errorf("down: %v", err)
	}
}
