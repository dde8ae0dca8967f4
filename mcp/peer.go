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

// CheckServer says why the far end of a unix connection must not be told a token:
// another user serves it, who made the socket where there was none. Root goes to
// any user's daemon.
func CheckServer(c net.Conn) error {
	uid, err := peerUID(c)
	if err != nil {
		return nil // not every system tells; the socket's directory is private all the same
	}
	return checkServer(uid, uint32(os.Geteuid()), c.RemoteAddr())
}

func checkServer(uid, own uint32, socket net.Addr) error {
	if uid == own || uid == 0 || own == 0 {
		return nil
	}
	return fault.New(fault.NotAuthenticated, "the socket %s is served by user %d, who is told nothing; see whose directory it lies in, and set data_dir to one of your own.", socket, uid)
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
