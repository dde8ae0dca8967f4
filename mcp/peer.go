package mcp

import (
	"context"
	"net"
	"net/http"
	"os"

	"fleetd/fault"
)

type connKey struct{}

// connContext keeps the connection: for the question who is at the end of a unix
// one, and so that one of TCP is not ended while it is served.
func (s *Server) connContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// admitted notes that the sender of a request is known.
func (s *Server) admitted(r *http.Request) {
	if c, ok := r.Context().Value(connKey{}).(net.Conn); ok { // none in tests without a server
		s.conns.admit(c)
	}
}

// checkPeer lets only the daemon's own user and root use the unix socket.
func (s *Server) checkPeer(r *http.Request) *fault.Error {
	c, ok := r.Context().Value(connKey{}).(*net.UnixConn)
	if !ok {
		return fault.New(fault.NotAuthenticated, "the peer of this connection cannot be told.")
	}
	uid, err := s.PeerUID(c)
	if err != nil {
		return fault.Wrap(err, fault.NotAuthenticated, "the user at the other end of the unix socket cannot be told.")
	}
	if own := uint32(os.Getuid()); uid != own && uid != 0 {
		return fault.New(fault.NotAuthenticated, "user %d may not use this daemon, it belongs to user %d.", uid, own)
	}
	return nil
}
