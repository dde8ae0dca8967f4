package mcp

import (
	"bytes"
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
	r = r.WithContext(WithCaller(r.Context(), id.caller))
	switch r.Method {
	case http.MethodPost:
		s.postMCP(w, r, id.caller)
	case http.MethodGet, http.MethodDelete:
		// Without a body there is only the header to say which era it is; the
		// newer one has neither method, and the library says so.
		if f := s.admit(r, id.caller, mcpgo.IsModernProtocol(r.Header.Get(mcpgo.HeaderProtocolVersion))); f != nil {
			writeRPCFault(w, f)
			return
		}
		s.tools.ServeHTTP(w, r)
	default:
		w.Header().Set("Allow", "GET, POST, DELETE")
		writeProblemStatus(w, fault.New(fault.BadRequest, "the MCP endpoint takes GET, POST and DELETE."), http.StatusMethodNotAllowed)
	}
}

func (s *Server) postMCP(w http.ResponseWriter, r *http.Request, caller Caller) {
	body, f := s.body(w, r)
	if f != nil {
		writeRPCFault(w, f)
		return
	}
	m := peek(body)
	if f := s.admit(r, caller, m.modern(r.Header)); f != nil {
		writeRPCFault(w, f)
		return
	}
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
	res.onHeader = func(h http.Header) {
		// A new session is its maker's before its id is known to anybody.
		if id := h.Get(server.HeaderKeySessionID); id != "" {
			s.sessions.admit(id, caller.GID)
		}
	}
	ctx, receipt := WithReceipt(withResponse(r.Context(), res))
	written := false
	defer func() { receipt.Settle(written) }() // a panic counts as lost
	r = r.WithContext(ctx)
	r.Body = io.NopCloser(bytes.NewReader(body))
	s.tools.ServeHTTP(res, r)
	written = res.finish()
}

// admit refuses a session id that is another identity's. Never with 404: that
// tells a client that its session is over.
func (s *Server) admit(r *http.Request, caller Caller, modern bool) *fault.Error {
	id := r.Header.Get(server.HeaderKeySessionID)
	if id == "" || modern || s.sessions.admit(id, caller.GID) {
		return nil
	}
	return fault.New(fault.NotAllowed, "this MCP session belongs to another identity; start the client again with its own token.")
}
