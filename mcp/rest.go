package mcp

import (
	"encoding/json"
	"mime"
	"net/http"
	"slices"
	"strings"

	"fleetd/fault"
)

const restPrefix = "/api/v1/"

// identifier says who is behind a request, by the rule of one listener.
type identifier func(*http.Request) (identity, *fault.Error)

// mountREST serves POST /api/v1/<verb> (design §11): the tools' verbs, the
// receipts and, where admin is not nil, the admin verbs.
func (s *Server) mountREST(mux *http.ServeMux, who identifier, admin Admin) {
	routes := map[string]func(http.ResponseWriter, *http.Request, identity){}
	for _, v := range verbs(s.Gateway) {
		routes[v.name] = func(w http.ResponseWriter, r *http.Request, id identity) {
			if !id.entity && (!id.hostUser || !v.hostUser) {
				writeProblem(w, fault.New(fault.NotAuthenticated, "%s needs to know for whom: name the entity (--as NAME) or give its token.", v.name))
				return
			}
			s.serveVerb(w, r, v, id)
		}
	}
	routes["receipt"] = s.serveReceipt
	if admin != nil {
		all := adminVerbs(admin)
		if s.DeadLetters != nil {
			all = append(all, deadLetterVerbs(s.DeadLetters)...)
		}
		if s.Doctor != nil {
			all = append(all, doctorVerb(s.Doctor))
		}
		for _, v := range all {
			routes[v.name] = func(w http.ResponseWriter, r *http.Request, id identity) {
				if !id.hostUser {
					writeProblem(w, fault.New(fault.NotAllowed, "%s is for this host's own user, not for an entity with a token.", v.name))
					return
				}
				s.serveVerb(w, r, v, id)
			}
		}
	}
	mux.HandleFunc(restPrefix, func(w http.ResponseWriter, r *http.Request) {
		id, f := who(r)
		if f != nil {
			writeProblem(w, f)
			return
		}
		s.admitted(r)
		route, ok := s.route(w, r, routes)
		if ok {
			route(w, r, id)
		}
	})
}

// route finds the handler, or answers why there is none.
func (s *Server) route(w http.ResponseWriter, r *http.Request, routes map[string]func(http.ResponseWriter, *http.Request, identity)) (func(http.ResponseWriter, *http.Request, identity), bool) {
	name := strings.TrimPrefix(r.URL.Path, restPrefix)
	route, ok := routes[name]
	switch mediaType, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); {
	case !ok:
		known := make([]string, 0, len(routes))
		for k := range routes {
			known = append(known, k)
		}
		slices.Sort(known)
		writeProblemStatus(w, fault.New(fault.BadRequest, "there is no %s%.40s here; did you mean %q? There are: %s.",
			restPrefix, name, nearest(name, known), strings.Join(known, ", ")), http.StatusNotFound)
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		writeProblemStatus(w, fault.New(fault.BadRequest, "%s%s takes POST only.", restPrefix, name), http.StatusMethodNotAllowed)
	case r.ContentLength != 0 && mediaType != "application/json":
		writeProblemStatus(w, fault.New(fault.BadRequest, "send the arguments as JSON, with Content-Type: application/json."), http.StatusUnsupportedMediaType)
	default:
		return route, true
	}
	return nil, false
}

func (s *Server) serveVerb(w http.ResponseWriter, r *http.Request, v verb, id identity) {
	s.calls.enter()
	defer s.calls.leave()
	raw, f := s.body(w, r)
	if f != nil {
		writeProblem(w, f)
		return
	}
	select {
	case <-s.draining:
		writeProblem(w, Stopping())
		return
	default:
	}
	c, err := v.prepare(raw)
	if err != nil {
		writeProblem(w, fault.From(err))
		return
	}
	ctx, receipt := WithReceipt(r.Context())
	if id.entity {
		ctx = withAgentSession(WithCaller(ctx, id.caller), r.Header.Get(AgentSessionHeader))
	}
	result, f := run(ctx, s.Log, v, c)
	explicit, held := r.Header.Get(ReceiptHeader) == ReceiptExplicit && receipt.Pending(), ""
	if explicit {
		held = s.receipts.hold(id.caller.GID, receipt)
		w.Header().Set(ReceiptHeader, held)
	}
	res := w.(*response)
	if f != nil {
		s.Log.Debug("a request failed", "verb", v.name, "code", f.Code, "cause", f.Cause)
		writeProblem(res, f)
	} else {
		writeJSON(res, http.StatusOK, "application/json", withLists(result))
	}
	written := res.finish()
	switch {
	case held == "":
		receipt.Settle(written && !explicit)
	case !written:
		_ = s.receipts.confirm(id.caller.GID, held, false) // over already: then it is settled
	case r.Header.Get(ReceiptTieHeader) == ReceiptTied:
		s.receipts.tie(id.caller.GID, held, r.Context().Done(), s.draining)
	}
}

func (s *Server) serveReceipt(w http.ResponseWriter, r *http.Request, id identity) {
	raw, f := s.body(w, r)
	if f != nil {
		writeProblem(w, f)
		return
	}
	a, err := decode[ReceiptArgs](verb{name: "receipt"}, json.RawMessage(raw))
	if err == nil {
		err = s.receipts.confirm(id.caller.GID, a.ID, a.Written)
	}
	if err != nil {
		writeProblem(w, fault.From(err))
		return
	}
	writeJSON(w, http.StatusOK, "application/json", struct{}{})
}
