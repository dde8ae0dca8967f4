package mcp

import (
	"context"
	"net/http"
	"time"
)

// readyTimeout bounds one look at the daemon's state.
const readyTimeout = 2 * time.Second

// mountHealth adds what supervisors and scrapers ask, without identity.
func (s *Server) mountHealth(mux *http.ServeMux) {
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, "application/json", map[string]string{"status": "alive"})
	})
	mux.HandleFunc("GET /readyz", s.serveReady)
	if s.Metrics != nil {
		mux.Handle("GET /metrics", s.Metrics)
	}
}

type readiness struct {
	Ready   bool     `json:"ready"`
	Reasons []string `json:"reasons"`
}

func (s *Server) serveReady(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
	defer cancel()
	out := readiness{Ready: true, Reasons: []string{}}
	if s.Health != nil {
		ok, reasons := s.Health.Ready(ctx)
		out.Ready = ok
		out.Reasons = append(out.Reasons, reasons...)
	}
	select {
	case <-s.draining:
		out.Ready = false
		out.Reasons = append(out.Reasons, "the daemon is stopping")
	default:
	}
	status := http.StatusOK
	if !out.Ready {
		status = http.StatusServiceUnavailable
	}
	writeJSON(w, status, "application/json", out)
}
