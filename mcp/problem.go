package mcp

import (
	"encoding/json"
	"net/http"

	"fleetd/fault"
)

// Problem is an error of the REST paths, as problem+json (RFC 9457) with our
// code.
type Problem struct {
	Type   string     `json:"type"`
	Title  string     `json:"title"`
	Status int        `json:"status"`
	Detail string     `json:"detail"`
	Code   fault.Code `json:"code"`
}

// statusOf maps the codes to HTTP; what is not named is the gateway's own
// fault: 500.
var statusOf = map[fault.Code]int{
	fault.NotAuthenticated:   http.StatusUnauthorized,
	fault.NotAllowed:         http.StatusForbidden,
	fault.BadRequest:         http.StatusBadRequest,
	fault.BadContent:         http.StatusUnprocessableEntity,
	fault.Conflict:           http.StatusConflict,
	fault.AmbiguousRecipient: http.StatusConflict,
	fault.Loop:               http.StatusLoopDetected,
	fault.RateLimited:        http.StatusTooManyRequests,
	fault.TooLarge:           http.StatusRequestEntityTooLarge,
	fault.UnknownRecipient:   http.StatusNotFound,
	fault.ProfileUnknown:     http.StatusNotFound,
	fault.HostOffline:        http.StatusServiceUnavailable,
	fault.BrokerDown:         http.StatusServiceUnavailable,
	fault.HerdrDown:          http.StatusServiceUnavailable,
	fault.StoreUnavailable:   http.StatusServiceUnavailable,
	fault.InboxFull:          http.StatusServiceUnavailable,
	fault.BrokerRefused:      http.StatusBadGateway,
	fault.Unroutable:         http.StatusBadGateway,
	fault.Refused:            http.StatusBadGateway,
	fault.NotInjected:        http.StatusBadGateway,
	fault.SpawnFailed:        http.StatusBadGateway,
	fault.Unconfirmed:        http.StatusGatewayTimeout,
	fault.InDoubt:            http.StatusGatewayTimeout,
	fault.SpawnTimeout:       http.StatusGatewayTimeout,
	fault.Expired:            http.StatusGone,
	fault.PaneGone:           http.StatusGone,
	fault.Abandoned:          http.StatusGone,
	fault.NoWaiter:           http.StatusConflict,
	fault.TooLate:            http.StatusConflict,
}

func statusFor(f *fault.Error) int {
	if f.Cause == errStopping {
		return http.StatusServiceUnavailable
	}
	if s, ok := statusOf[f.Code]; ok {
		return s
	}
	return http.StatusInternalServerError
}

func writeProblem(w http.ResponseWriter, f *fault.Error) { writeProblemStatus(w, f, statusFor(f)) }

func writeProblemStatus(w http.ResponseWriter, f *fault.Error, status int) {
	writeChallenge(w, status)
	writeJSON(w, status, "application/problem+json", Problem{
		Type: "urn:bridged:error:" + string(f.Code), Title: http.StatusText(status),
		Status: status, Detail: f.Sentence, Code: f.Code,
	})
}

// writeRPCFault refuses an MCP request before the library sees it. The body is
// a JSON-RPC error, which clients show; -32001 is in the range left to servers.
func writeRPCFault(w http.ResponseWriter, f *fault.Error) {
	status := statusFor(f)
	writeChallenge(w, status)
	writeJSON(w, status, "application/json", map[string]any{
		"jsonrpc": "2.0", "id": nil,
		"error": map[string]any{
			"code": -32001, "message": string(f.Code) + ": " + f.Sentence,
			"data": faultDetail{Code: f.Code, Message: f.Sentence},
		},
	})
}

func writeChallenge(w http.ResponseWriter, status int) {
	switch status {
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", `Bearer realm="bridged"`)
	case http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", "2")
	}
}

func writeJSON(w http.ResponseWriter, status int, contentType string, v any) {
	b, err := compact(v)
	if err != nil { // our own types always encode
		status, b = http.StatusInternalServerError, json.RawMessage(`{}`)
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n')) // a client that is gone needs no answer; receipts look at response.err
}
