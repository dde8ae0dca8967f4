package herdrsim

import (
	"bytes"
	"context"
	"errors"
	"net"
	"time"
	"unicode/utf8"
)

const (
	maxRequest   = 1 << 20 // bytes before the newline (reference §1.3)
	writeTimeout = 5 * time.Second
)

// accept takes connections until the listener closes, each on a thread of its
// own.
func (c *core) accept(ln *net.UnixListener) {
	defer c.wg.Done()
	for {
		conn, err := ln.Accept()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				c.opts.Logger.Error("accept failed; the socket takes no more connections", "error", err)
			}
			return
		}
		c.connMu.Lock()
		select {
		case <-c.quit:
			_ = conn.Close()
		default:
			c.conns[conn] = struct{}{}
			c.wg.Add(1)
			go c.serve(conn)
		}
		c.connMu.Unlock()
	}
}

// serve reads one line, writes one line, closes.
func (c *core) serve(conn net.Conn) {
	defer c.wg.Done()
	defer func() {
		_ = conn.Close()
		c.connMu.Lock()
		delete(c.conns, conn)
		c.connMu.Unlock()
	}()
	line, rest, ok := c.readLine(conn)
	if !ok {
		return
	}
	req, err := decodeRequest(line)
	if err != nil {
		write(conn, answer("", nil, refuse("invalid_request", "invalid request: %v", err)))
		return
	}
	c.srv.noteAsked(req.name)
	if req.method.held != nil {
		c.serveHeld(conn, rest, req)
		return
	}
	out := c.execute(req)
	if c.beforeAnswer(req) {
		write(conn, out)
	}
}

// execute runs an ordinary request, whether its client still listens or not.
func (c *core) execute(req *request) []byte {
	if req.method.direct != nil { // answered by the connection's own thread
		return answer(req.id, req.method.direct(c), nil)
	}
	if c.srv.faults.isUnavailable() {
		return answer(req.id, nil, errStopped)
	}
	res, err := onLoop(c, func() (any, error) { return req.method.app(c, req.params) })
	return answer(req.id, res, err)
}

// serveHeld runs a waiting or streaming request. Any further byte and any
// half-close ends it without a word (reference §1.3).
func (c *core) serveHeld(conn net.Conn, rest []byte, req *request) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	watched := make(chan struct{})
	if len(rest) > 0 {
		cancel()
	}
	go func() {
		defer close(watched)
		var b [1]byte
		_, err := conn.Read(b[:])
		if err == nil || !isTimeout(err) {
			cancel()
		}
	}()
	out := c.hold(ctx, conn, req)
	if out != nil && ctx.Err() == nil && c.beforeAnswer(req) {
		write(conn, out)
	}
	_ = conn.SetReadDeadline(time.Now())
	<-watched
}

// hold returns the answer of a held request, nil when it ends silently.
func (c *core) hold(ctx context.Context, conn net.Conn, req *request) []byte {
	if c.srv.faults.isUnavailable() {
		return answer(req.id, nil, errStopped)
	}
	h := &held{c: c, ctx: ctx, id: req.id, emit: func(line []byte) bool { return write(conn, line) == nil }}
	res, err := req.method.held(h, req.params)
	if errors.Is(err, errSilent) {
		return nil
	}
	return answer(req.id, res, err)
}

// errSilent ends a held connection without an answer.
var errSilent = errors.New("connection ends without an answer")

// readLine reads the request line; rest is what came behind it. Not ok: the
// connection is to be closed without an answer (reference §1.3).
func (c *core) readLine(conn net.Conn) (line, rest []byte, ok bool) {
	began := time.Now()
	_ = conn.SetReadDeadline(began.Add(c.opts.Timing.RequestLine))
	var buf []byte
	chunk := make([]byte, 64<<10)
	for {
		n, err := conn.Read(chunk)
		from := len(buf)
		buf = append(buf, chunk[:n]...)
		if i := bytes.IndexByte(buf[from:], '\n'); i >= 0 {
			line, rest = buf[:from+i], buf[from+i+1:]
			break
		}
		if err != nil || len(buf) > maxRequest {
			return nil, nil, false
		}
	}
	_ = conn.SetReadDeadline(time.Time{})
	// The server sleeps between looks: what was not there at the first look is
	// seen at the next one.
	if late := time.Since(began); late > 2*time.Millisecond {
		if !c.pause(c.opts.Timing.Poll - late%c.opts.Timing.Poll) {
			return nil, nil, false
		}
	}
	line = bytes.TrimSpace(line)
	return line, rest, len(line) > 0 && len(line) <= maxRequest && utf8.Valid(line)
}

func write(conn net.Conn, line []byte) error {
	_ = conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	_, err := conn.Write(line)
	return err
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// held is a request that keeps its connection.
type held struct {
	c    *core
	ctx  context.Context // ends when the client writes, half-closes or goes
	id   string
	emit func(line []byte) bool // writes a line before the last one; false: the client is gone
}

// sleep waits for one poll; false: the client or the server is gone.
func (h *held) sleep() bool {
	timer := time.NewTimer(h.c.opts.Timing.Poll)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-h.ctx.Done():
		return false
	case <-h.c.quit:
		return false
	}
}
