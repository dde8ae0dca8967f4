package mcp

import (
	"bytes"
	"context"
	"io"
	"net/http"

	"fleetd/fault"

	mcpgo "github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
)

// serveMCP stands before the library: who asks, whose session it is, and the
// receipt of what is answered.
func (s *Server) serveMCP(w http.ResponseWriter, r *http.Request) {
	id, f := s.identifyMCP(r)
	if f != nil {
		writeRPCFault(w, f)
		return
	}
	s.admitted(r)
	// Of every method: until a body is read to its end nobody notices that its
	// client has gone.
	body, f := s.body(w, r)
	if f != nil {
		writeRPCFault(w, f)
		return
	}
	r = r.WithContext(WithCaller(r.Context(), id.caller))
	r.Body = io.NopCloser(bytes.NewReader(body))
	switch r.Method {
	case http.MethodPost:
		s.postMCP(w, r, id.caller, body)
	case http.MethodGet, http.MethodDelete:
		// Without a body there is only the header to say which era it is; the
		// newer one has neither method, and the library says so.
		leave, f := s.admit(r, id.caller, mcpgo.IsModernProtocol(r.Header.Get(mcpgo.HeaderProtocolVersion)))
		if f != nil {
			writeRPCFault(w, f)
			return
		}
		defer leave()
		if r.Method == http.MethodGet {
			defer s.hints.open(&hintStream{caller: id.caller, session: r.Header.Get(server.HeaderKeySessionID), res: w.(*response)})()
		}
		s.tools.ServeHTTP(w, r)
	default:
		w.Header().Set("Allow", "GET, POST, DELETE")
		writeProblemStatus(w, fault.New(fault.BadRequest, "the MCP endpoint takes GET, POST and DELETE."), http.StatusMethodNotAllowed)
	}
}

func (s *Server) postMCP(w http.ResponseWriter, r *http.Request, caller Caller, body []byte) {
	m := peek(body)
	leave, f := s.admit(r, caller, m.modern(r.Header))
	if f != nil {
		writeRPCFault(w, f)
		return
	}
	defer leave()
	if m.swallow(r.Header, r.Header.Get(server.HeaderKeySessionID)) {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	if m.Method == string(mcpgo.MethodToolsCall) { // a listen stream is not waited for
		s.calls.enter()
		defer s.calls.leave()
	}
	select {
	case <-s.draining:
		writeRPCFault(w, Stopping())
		return
	default:
	}
	res := w.(*response)
	made := ""
	res.onHeader = func(h http.Header) {
		// A new session is its maker's before its id is known to anybody.
		if id := h.Get(server.HeaderKeySessionID); id != "" && s.sessions.enter(id, caller.GID) {
			made = id
		}
	}
	defer func() { s.leave(made) }()
	ctx, receipt := WithReceipt(withResponse(r.Context(), res))
	written := false
	defer func() { receipt.Settle(written) }() // a panic counts as lost
	r = r.WithContext(ctx)
	if m.listenAsksForHints() {
		defer s.hints.open(&hintStream{caller: caller, listen: m.ID, res: res})()
	}
	s.tools.ServeHTTP(res, r)
	written = res.finish()
}

// admit refuses a session id that is another identity's. Never with 404: that
// tells a client that its session is over. leave must be called when the
// request is answered.
func (s *Server) admit(r *http.Request, caller Caller, modern bool) (leave func(), f *fault.Error) {
	id := r.Header.Get(server.HeaderKeySessionID)
	if id == "" || modern {
		return func() {}, nil
	}
	if !s.sessions.enter(id, caller.GID) {
		return nil, fault.New(fault.NotAllowed, "this MCP session belongs to another identity; start the client again with its own token.")
	}
	return func() { s.leave(id) }, nil
}

// leave notes that a request of a session is answered, and ends the sessions
// that are too many. A client whose session was ended goes on with its id, as
// after a restart.
func (s *Server) leave(id string) {
	for _, over := range s.sessions.leave(id) {
		s.Log.Debug("ended the MCP session that was idle longest: there are too many", "session", over)
		s.tools.Handle(nowhere{}, &server.HTTPRequest{
			Method: http.MethodDelete, Context: context.Background(), Header: http.Header{server.HeaderKeySessionID: {over}},
		})
	}
}

// nowhere takes the library's answer to a request of the daemon's own.
type nowhere struct{}

func (nowhere) Header() http.Header         { return http.Header{} }
func (nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (nowhere) WriteHeader(int)             {}
func (nowhere) Flush()                      {}
func (nowhere) CanStream() bool             { return false }
