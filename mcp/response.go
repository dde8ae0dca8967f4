package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// writeTimeout bounds one write to a client that does not read. It is renewed
// for every write: a stream may live for as long as it likes.
const writeTimeout = 30 * time.Second

// response stands before the client's http.ResponseWriter. It knows whether
// everything was written, and it can begin the event stream of a call before
// the library has anything to say: clients give up after 60 s without a
// response header (agent facts §1.3). What the library then writes as plain
// JSON becomes the last event of that stream.
//
// An answer that is no event stream is kept until finish: it goes out with its
// length, so that the client has all of it before its mail counts as handed
// over. Chunked, its last chunk would follow only when the handler is done.
type response struct {
	w       http.ResponseWriter
	ctx     context.Context // of the request: ends when its client goes
	rc      *http.ResponseController
	accepts bool // the client takes an event stream
	header  http.Header
	// onHeader sees the header before it goes out.
	onHeader func(http.Header)

	mu        sync.Mutex
	committed bool // the handler has set its header
	out       bool // the header is sent
	status    int  // to send, while it is not
	begun     bool // as an event stream, by us
	wrap      bool // the handler writes JSON into our stream
	pending   bytes.Buffer
	bytes     int // written by the handler itself
	err       error
	ended     bool // no event of ours goes into it any more
}

func newResponse(w http.ResponseWriter, r *http.Request) *response {
	res := &response{
		w: w, ctx: r.Context(), rc: http.NewResponseController(w),
		header:  http.Header{},
		accepts: r.Method == http.MethodPost && strings.Contains(r.Header.Get("Accept"), "text/event-stream"),
	}
	res.extend()
	return res
}

// Header is the handler's view: a map of its own, since begin may be sending
// ours at the same time.
func (r *response) Header() http.Header { return r.header }

// WriteHeader takes the handler's header, unless the stream has begun, and
// sends that of an event stream.
func (r *response) WriteHeader(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.commit(status)
}

func (r *response) commit(status int) {
	if r.committed {
		if r.begun {
			r.wrap = strings.HasPrefix(r.header.Get("Content-Type"), "application/json")
		}
		return
	}
	r.committed = true
	if r.onHeader != nil {
		r.onHeader(r.header)
	}
	for k, v := range r.header {
		r.w.Header()[k] = v
	}
	if r.status = status; strings.HasPrefix(r.header.Get("Content-Type"), "text/event-stream") {
		r.sendHeader()
	}
}

func (r *response) sendHeader() {
	r.out = true
	r.extend()
	r.w.WriteHeader(r.status)
}

// Write passes p on, or keeps it for the last event or the whole answer.
func (r *response) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.committed {
		r.commit(http.StatusOK)
	}
	if r.wrap || !r.out {
		return r.pending.Write(p)
	}
	return r.write(p)
}

// write hands p to the kernel. The client must be there now; one that goes as
// soon as it has the answer, as streaming clients do, has got it.
func (r *response) write(p []byte) (int, error) {
	r.fail(r.ctx.Err())
	r.extend()
	n, err := r.w.Write(p)
	r.bytes += n
	r.fail(err)
	return n, err
}

// Flush makes the library stream: it asserts http.Flusher. An answer that is
// kept has nothing to flush.
func (r *response) Flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.out {
		r.flush()
	}
}

func (r *response) flush() {
	r.extend()
	r.fail(r.rc.Flush())
}

func (r *response) fail(err error) {
	if err != nil && r.err == nil && !errors.Is(err, http.ErrNotSupported) {
		r.err = err
	}
}

func (r *response) extend() {
	// Not supported by the recorders of tests only.
	_ = r.rc.SetWriteDeadline(time.Now().Add(writeTimeout))
}

// Unwrap lets a http.ResponseController reach the connection's deadlines.
func (r *response) Unwrap() http.ResponseWriter { return r.w }

// sent reports whether the header is out.
func (r *response) sent() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.out
}

// discard forgets what is not sent yet, for another answer.
func (r *response) discard() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.header)
	clear(r.w.Header())
	r.committed = false
	r.pending.Reset()
}

// begin starts the response as an event stream, if the client takes one.
func (r *response) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.committed || !r.accepts {
		return
	}
	r.committed, r.begun, r.status = true, true, http.StatusOK
	h := r.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache")
	r.sendHeader()
	r.flush()
}

// streams reports whether event may be used.
func (r *response) streams() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.begun
}

var errNoStream = errors.New("the response is no event stream, or not any more")

// end keeps further events out; the handler is about to return.
func (r *response) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
}

// event writes one message into the stream that the response is by now.
func (r *response) event(msg any) error {
	b, err := json.Marshal(msg)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return r.err
	}
	if !r.out || r.ended {
		return errNoStream
	}
	r.extend()
	if _, err := fmt.Fprintf(r.w, "event: message\ndata: %s\n\n", b); err != nil {
		r.fail(err)
		return err
	}
	r.flush()
	return r.err
}

// finish writes what is left and reports whether the handler's answer went out
// without an error. It may be called again.
func (r *response) finish() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.committed && !r.out {
		b := bytes.Clone(r.pending.Bytes())
		r.pending.Reset()
		if len(b) > 0 {
			r.w.Header().Set("Content-Length", strconv.Itoa(len(b)))
		}
		r.sendHeader()
		if len(b) > 0 {
			_, _ = r.write(b) // the error is kept in r.err
		}
	}
	if b := bytes.TrimSpace(r.pending.Bytes()); len(b) > 0 {
		r.pending = bytes.Buffer{}
		_, _ = r.write(fmt.Appendf(nil, "event: message\ndata: %s\n\n", b)) // the error is kept in r.err
	}
	if r.bytes > 0 {
		r.flush()
	}
	return r.err == nil && r.bytes > 0
}

type responseKey struct{}

func withResponse(ctx context.Context, r *response) context.Context {
	return context.WithValue(ctx, responseKey{}, r)
}

func responseFrom(ctx context.Context) *response {
	r, _ := ctx.Value(responseKey{}).(*response)
	return r
}
