package mcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	mcpgo "github.com/mark3labs/mcp-go/mcp"
)

// hintLevel is the level of a hint. Clients of the older protocol that asked
// for less, and those of the newer that asked for none, get no hint.
const hintLevel = mcpgo.LoggingLevelNotice

// hints are the streams on which clients take notifications: the GET of a
// session, and a listen request that asked for log messages. What is said there
// starts no turn of any agent (agent facts §8), so nothing rests on it. It goes
// straight into the stream: handed to the library it may come out in the
// response of a call, or not at all (library facts §1).
type hints struct {
	mu      sync.Mutex
	streams map[*hintStream]struct{}
}

type hintStream struct {
	caller  Caller
	session string          // "" in the newer protocol
	listen  json.RawMessage // id of the listen request; nil in the older one
	res     *response
}

// open has a stream take hints until leave is called, which must be before its
// handler returns.
func (h *hints) open(st *hintStream) (leave func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.streams == nil {
		h.streams = map[*hintStream]struct{}{}
	}
	h.streams[st] = struct{}{}
	return func() {
		h.mu.Lock()
		delete(h.streams, st)
		h.mu.Unlock()
		st.res.end()
	}
}

func (h *hints) of(gid string) (all []*hintStream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for st := range h.streams {
		lease := st.caller.Lease
		if st.caller.GID == gid && (lease == nil || lease.Err() == nil) {
			all = append(all, st)
		}
	}
	return all
}

// listenAsksForHints reports whether a listen request wants log messages of
// that level: in the newer protocol nobody gets any unasked.
func (m rpcPeek) listenAsksForHints() bool {
	return m.Method == string(mcpgo.MethodSubscriptionsListen) && hintLevel.ShouldSendTo(m.Params.Meta.LogLevel())
}

// Listening reports whether a client of gid takes hints.
func (s *Server) Listening(gid string) bool { return len(s.hintable(gid)) > 0 }

func (s *Server) hintable(gid string) (all []*hintStream) {
	for _, st := range s.hints.of(gid) {
		if st.listen != nil || s.sessions.takes(st.session, hintLevel) {
			all = append(all, st)
		}
	}
	return all
}

// Hint tells the clients of gid that take hints how much mail is held, and who
// sent the newest. A client that does not read holds it up for writeTimeout.
func (s *Server) Hint(gid string, held int, from string) {
	for _, st := range s.hintable(gid) {
		if err := st.res.event(hint(held, from, st.listen)); err != nil && !errors.Is(err, errNoStream) {
			s.Log.Debug("a hint was not written", "gid", gid, "error", err)
		}
	}
}

func hint(held int, from string, listen json.RawMessage) mcpgo.JSONRPCNotification {
	what := fmt.Sprintf("%d messages are held for you, the newest from %s. Call bridge_poll to read them.", held, from)
	if held == 1 {
		what = fmt.Sprintf("1 message is held for you, from %s. Call bridge_poll to read it.", from)
	}
	n := mcpgo.NewLoggingMessageNotification(hintLevel, "bridge", map[string]any{"message": what, "held": held, "from": from})
	params := mcpgo.NotificationParams{AdditionalFields: map[string]any{
		"level": n.Params.Level, "logger": n.Params.Logger, "data": n.Params.Data,
	}}
	if listen != nil {
		params.Meta = map[string]any{mcpgo.MetaKeySubscriptionID: listen}
	}
	return mcpgo.JSONRPCNotification{
		JSONRPC:      mcpgo.JSONRPC_VERSION,
		Notification: mcpgo.Notification{Method: n.Method, Params: params},
	}
}
