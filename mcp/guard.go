package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"fleetd/fault"

	mcpgo "github.com/mark3labs/mcp-go/mcp"
)

// The reading of one request is bounded, so that slow clients hold nothing up.
const (
	bodyTimeout   = 30 * time.Second
	headerTimeout = 10 * time.Second
)

// guard stands before every path of the TCP listener: a web page in the
// user's browser can reach the loopback port (design §13).
func (s *Server) guard(next http.Handler) http.Handler {
	var origins http.CrossOriginProtection
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.hostAllowed(r.Host) {
			writeProblem(w, fault.New(fault.NotAllowed, "the host name %.80q is not this daemon's: use 127.0.0.1 or localhost.", r.Host))
			return
		}
		// Asked as if it were a POST: by itself the check lets foreign GETs
		// pass, and the MCP stream and the metrics are GETs.
		asPost := *r
		asPost.Method = http.MethodPost
		if err := origins.Check(&asPost); err != nil {
			writeProblem(w, fault.Wrap(err, fault.NotAllowed, "requests from web pages are refused."))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// hostAllowed knows the loopback names and the host that is listened on. Any
// port is fine: what a rebinding attack cannot fake is the name.
func (s *Server) hostAllowed(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	if slices.Contains([]string{"localhost", "127.0.0.1", "::1"}, host) {
		return true
	}
	listen, _, err := net.SplitHostPort(s.Listen)
	if err != nil || listen == "" {
		return false
	}
	if ip := net.ParseIP(listen); ip != nil && ip.IsUnspecified() {
		return false
	}
	return host == strings.ToLower(listen)
}

// outermost puts the response every path works with in front, and keeps a
// panic away from the client and from the other requests.
func (s *Server) outermost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		res := newResponse(w, r)
		if r.ContentLength != 0 {
			// Of every body, also of one that nobody reads: before an answer
			// goes out, the rest of the body is waited for.
			_ = res.rc.SetReadDeadline(time.Now().Add(s.bodyWait)) // recorders of tests have none
		}
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if p != http.ErrAbortHandler {
				logPanic(s.Log, r.URL.Path, p)
			}
			if res.sent() {
				panic(http.ErrAbortHandler) // half an answer must not look like a whole one
			}
			res.discard()
			writeProblem(res, fault.New(fault.Internal, "the gateway met an error of its own; see its log."))
			res.finish()
		}()
		next.ServeHTTP(res, r)
		res.finish()
	})
}

// body reads a request's body within the cap and in time. The JSON
// decoder would make another text of what is no UTF-8.
func (s *Server) body(w http.ResponseWriter, r *http.Request) ([]byte, *fault.Error) {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, s.BodyLimit))
	if err == nil {
		// Must be lifted: a deadline that passes during a wait would look like a
		// client that hung up.
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // recorders of tests have none
	}
	if err == nil && !utf8.Valid(b) {
		return nil, fault.New(fault.BadContent, "the request is not valid UTF-8; send text, and binary data as a file path.")
	}
	if err == nil {
		return b, nil
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, fault.Wrap(err, fault.TooLarge, "the request is larger than %d bytes; send less at once.", s.BodyLimit)
	}
	return nil, fault.Wrap(err, fault.BadRequest, "the request could not be read to its end.")
}

// rpcPeek is what the guards need to know of an MCP message. It is read the
// way the library reads it, duplicate keys and letter case included, so that
// both see the same method.
type rpcPeek struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Meta *mcpgo.Meta `json:"_meta"`
	} `json:"params"`
}

func peek(body []byte) rpcPeek {
	var m rpcPeek
	if err := json.Unmarshal(body, &m); err != nil {
		// params may be of another shape; then only the outside counts.
		var outside struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
		}
		if json.Unmarshal(body, &outside) == nil {
			return rpcPeek{ID: outside.ID, Method: outside.Method}
		}
	}
	return m
}

// modern reports whether the library will serve the request by the protocol
// without sessions.
func (m rpcPeek) modern(h http.Header) bool {
	return mcpgo.IsModernProtocol(m.Params.Meta.ProtocolVersion()) ||
		mcpgo.IsModernProtocol(h.Get(mcpgo.HeaderProtocolVersion))
}

// swallow reports whether a POST is acknowledged and goes no further.
//
// A cancel without a session would end another client's call: the library keys
// calls by session and number, all clients without a session share "", and
// each numbers from 1 (library facts §1). They cancel by closing.
//
// A client's answer, such as an error to the heartbeat's ping, is of no use
// here, and the library would answer 404 to one for a session it has
// forgotten, whereupon a client takes its session for dead.
func (m rpcPeek) swallow(h http.Header, sessionID string) bool {
	if m.Method == string(mcpgo.MethodNotificationCancelled) {
		return sessionID == "" || m.modern(h)
	}
	id := bytes.TrimSpace(m.ID)
	return m.Method == "" && len(id) > 0 && string(id) != "null"
}
