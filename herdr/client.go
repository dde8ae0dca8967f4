package herdr

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"

	"fleetd/fault"
)

const (
	// maxRequest is herdr's limit of one request line, in bytes before the
	// newline (herdr socket reference §1.3).
	maxRequest = 1 << 20

	defaultRequestTimeout = 5 * time.Second
)

// Client speaks herdr's JSON socket: one connection per request, one line out,
// one line back (herdr socket reference §1.3). The zero value with a Socket is
// ready; a Client may be used by many goroutines.
//
// Every call ends in one of four ways: nil; a fault.HerdrDown when nothing was
// executed because no server took the request; an *APIError when herdr answered
// with a code; an *UnknownError when the request went out and no whole answer
// came back, so that it may or may not have been executed.
type Client struct {
	Socket  string        // path of the JSON socket
	Timeout time.Duration // of one request, connect included; 0 means 5 s

	// dial replaces the unix dial in tests.
	dial func(ctx context.Context) (net.Conn, error)
}

// APIError is herdr's answer that it did not do what was asked.
type APIError struct {
	Method  string
	Code    string // what programs decide on (herdr socket reference §1.6)
	Message string // for people
}

// Error returns "method: code: message".
func (e *APIError) Error() string { return e.Method + ": " + e.Code + ": " + e.Message }

// UnknownError says that a request was sent and its outcome is not known: no
// whole answer came back in time.
type UnknownError struct {
	Method string
	Cause  error
}

// Error says which request is open and why.
func (e *UnknownError) Error() string {
	return "herdr gave no whole answer to " + e.Method + ": " + e.Cause.Error()
}

// Unwrap returns the cause.
func (e *UnknownError) Unwrap() error { return e.Cause }

// hasCode reports whether err is herdr's answer with one of codes.
func hasCode(err error, codes ...string) bool {
	e, ok := errors.AsType[*APIError](err)
	if !ok {
		return false
	}
	for _, c := range codes {
		if e.Code == c {
			return true
		}
	}
	return false
}

// AsFault turns what a call of a Client returned into an error that a user can
// read.
func AsFault(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*fault.Error](err); ok {
		return err
	}
	if _, ok := errors.AsType[*UnknownError](err); ok {
		return fault.Wrap(err, fault.HerdrDown, "herdr did not answer; see whether its server hangs, then try again")
	}
	return fault.Wrap(err, fault.Internal, "herdr refused the request; see the gateway's log")
}

type request struct {
	ID     string `json:"id"`
	Method string `json:"method"`
	Params any    `json:"params"`
}

type response struct {
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// call runs one request and decodes its result into out, if out is not nil.
func (c *Client) call(ctx context.Context, method string, params, out any) error {
	line, err := encode(method, params)
	if err != nil {
		return err
	}
	timeout := c.Timeout
	if timeout <= 0 {
		timeout = defaultRequestTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	answer, err := c.exchange(ctx, method, line)
	if err != nil {
		return err
	}
	return decode(method, answer, out)
}

func encode(method string, params any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(request{ID: "bridged", Method: method, Params: params}); err != nil {
		return nil, fault.Wrap(err, fault.Internal, "a request to herdr could not be written as JSON")
	}
	if buf.Len()-1 > maxRequest {
		return nil, fault.New(fault.TooLarge, "a request to herdr has %d bytes, %d are allowed; send a shorter text", buf.Len()-1, maxRequest)
	}
	return buf.Bytes(), nil
}

// exchange writes line and returns the first line that comes back. It never
// half-closes: herdr takes that for a hang-up (herdr socket reference §1.3).
func (c *Client) exchange(ctx context.Context, method string, line []byte) ([]byte, error) {
	conn, err := c.connect(ctx)
	if err != nil {
		// A dialer goes by the clock and gives up a moment before the context
		// ends: wait for that, or it would hide whose end it was.
		if at, ok := ctx.Deadline(); ok && !time.Now().Before(at) {
			<-ctx.Done()
		}
		return nil, c.down(err)
	}
	defer conn.Close()
	// The context's end breaks off reads and writes. A deadline of the
	// connection's own could strike a moment before and hide whose end it was.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	// The newline is the last byte and herdr runs whole lines only, so a write
	// that broke off has caused nothing.
	if n, err := conn.Write(line); err != nil && n < len(line) {
		return nil, c.down(err)
	}
	answer, err := bufio.NewReader(conn).ReadBytes('\n')
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, &UnknownError{Method: method, Cause: err}
	}
	return answer, nil
}

func (c *Client) connect(ctx context.Context) (net.Conn, error) {
	if c.dial != nil {
		return c.dial(ctx)
	}
	var d net.Dialer
	return d.DialContext(ctx, "unix", c.Socket)
}

// down says in the words of a user why no herdr server took a request.
func (c *Client) down(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fault.Wrap(err, fault.HerdrDown, "herdr is not running: there is no socket %s; start herdr, or set herdr.socket", c.Socket)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fault.Wrap(err, fault.HerdrDown, "herdr is not running: nobody listens on %s; start herdr", c.Socket)
	case errors.Is(err, os.ErrPermission):
		return fault.Wrap(err, fault.HerdrDown, "herdr's socket %s belongs to another user; run the gateway as that user", c.Socket)
	default:
		return fault.Wrap(err, fault.HerdrDown, "herdr did not take a request on %s; see whether its server hangs", c.Socket)
	}
}

func decode(method string, line []byte, out any) error {
	var r response
	if err := json.Unmarshal(line, &r); err != nil {
		return &UnknownError{Method: method, Cause: err}
	}
	if r.Error != nil {
		return &APIError{Method: method, Code: r.Error.Code, Message: r.Error.Message}
	}
	if r.Result == nil {
		return &UnknownError{Method: method, Cause: errors.New("the answer holds neither result nor error; is this herdr's JSON socket?")}
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(r.Result, out); err != nil {
		return &UnknownError{Method: method, Cause: err}
	}
	return nil
}
