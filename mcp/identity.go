package mcp

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"

	"fleetd/fault"
)

// Identities says who is behind a request. Tokens are compared by their hash
// there; none is ever logged.
type Identities interface {
	ByToken(token string) (Caller, bool)
	// ByName finds a local entity by name or gid.
	ByName(name string) (Caller, bool)
	// DefaultMain is who an unidentified loopback client is, where the
	// configuration says so (design §11).
	DefaultMain() (Caller, bool)
}

// AsHeader names the entity that the host's own user speaks for, on the unix
// socket only.
const AsHeader = "Bridged-As"

// identity is who asks: an entity, the host's own user, or both.
type identity struct {
	caller   Caller
	entity   bool // caller is set
	hostUser bool // may use the admin verbs
}

// bearer returns the token of a request. given is true for any Authorization
// header, however malformed: who shows something is never taken for somebody
// who shows nothing.
func bearer(r *http.Request) (token string, given bool) {
	values := r.Header.Values("Authorization")
	if len(values) != 1 {
		return "", len(values) > 0
	}
	scheme, token, _ := strings.Cut(strings.TrimSpace(values[0]), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", true
	}
	return strings.TrimSpace(token), true
}

func (s *Server) byToken(token string) (identity, *fault.Error) {
	if token != "" {
		if c, ok := s.Identities.ByToken(token); ok {
			return identity{caller: c, entity: true}, nil
		}
	}
	return identity{}, fault.New(fault.NotAuthenticated,
		"this token is not known here. It may belong to an entity that was unregistered, or BRIDGED_TOKEN is not set where the client started; `bridged register NAME --kind KIND --new-token` gives a new one.")
}

// identifyMCP is the rule of the MCP endpoint: a token decides; without one a
// loopback client is the default main, where there is one.
func (s *Server) identifyMCP(r *http.Request) (identity, *fault.Error) {
	if token, given := bearer(r); given {
		return s.byToken(token)
	}
	if loopbackClient(r) {
		if c, ok := s.Identities.DefaultMain(); ok {
			return identity{caller: c, entity: true}, nil
		}
	}
	return identity{}, noToken(", or set mcp.default_main to a main that is registered")
}

// identifyTCP is the rule of the REST paths on TCP: a token, nothing else.
func (s *Server) identifyTCP(r *http.Request) (identity, *fault.Error) {
	if token, given := bearer(r); given {
		return s.byToken(token)
	}
	return identity{}, noToken("")
}

// identifySocket is the rule of the unix socket. The peer has to be the
// daemon's own user or root in any case; then a token decides, and without one
// it is the host's own user, who may speak for a local entity.
func (s *Server) identifySocket(r *http.Request) (identity, *fault.Error) {
	if f := s.checkPeer(r); f != nil {
		return identity{}, f
	}
	if token, given := bearer(r); given {
		return s.byToken(token)
	}
	id := identity{hostUser: true}
	name := r.Header.Get(AsHeader)
	if name == "" {
		return id, nil
	}
	c, ok := s.Identities.ByName(name)
	if !ok {
		return identity{}, fault.New(fault.NotAuthenticated, "there is no entity %.80q on this host to speak for; `bridged roster` lists them, `bridged register` makes one.", name)
	}
	id.caller, id.entity = c, true
	return id, nil
}

var errRevoked = errors.New("the identity was revoked")

// untilRevoked returns a context that ends when the caller's identity stops
// being good, so that whoever waits under it does no longer. done must be called.
func untilRevoked(ctx context.Context) (_ context.Context, done func()) {
	c, _ := CallerFrom(ctx)
	if c.Lease == nil {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.Lease, func() { cancel(errRevoked) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// revoked reports whether the caller's identity is no longer good.
func revoked(ctx context.Context) bool {
	c, _ := CallerFrom(ctx)
	return c.Lease != nil && c.Lease.Err() != nil
}

func noLonger() *fault.Error {
	return fault.Wrap(errRevoked, fault.NotAuthenticated,
		"this identity was revoked during the call: its token was replaced, or it was unregistered. What was accepted stays accepted; connect with the new token, or register again.")
}

func noToken(otherwise string) *fault.Error {
	return fault.New(fault.NotAuthenticated,
		"the request does not say who asks. Send the entity's token as \"Authorization: Bearer …\" (agents: set BRIDGED_TOKEN in the client's configuration)%s.", otherwise)
}

func loopbackClient(r *http.Request) bool {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
