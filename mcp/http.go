package mcp

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"fleetd/fault"

	"github.com/hashicorp/go-hclog"
	mcpgo "github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
	"golang.org/x/sync/errgroup"
)

const (
	// defaultBodyLimit leaves room for the largest content (256 KiB) with
	// every byte escaped.
	defaultBodyLimit = 2 << 20
	defaultStopGrace = 2 * time.Second
	answerTimeout    = 2 * time.Second
	shutdownTimeout  = 5 * time.Second

	// A session lives for sessionIdleTTL after its last request; the heartbeat
	// keeps one alive whose stream is open but quiet (library facts §1).
	sessionIdleTTL = 2 * time.Hour
	heartbeat      = 30 * time.Second
)

// Health says whether the daemon does its work; reasons are sentences.
type Health interface {
	Ready(ctx context.Context) (ok bool, reasons []string)
}

// Server is the actor that listens: on loopback TCP for MCP, REST, health and
// metrics, and on a unix socket for the host's own user. Set the fields, then
// Run once.
type Server struct {
	Listen     string // host:port of the TCP listener
	Socket     string // path of the unix socket; "": none
	Gateway    Gateway
	Admin      Admin // nil: no admin verbs
	Identities Identities
	Health     Health       // nil: always ready
	Metrics    http.Handler // nil: no /metrics
	Log        hclog.Logger
	Version    string

	// DeadLetters are further admin verbs; nil: none of them.
	DeadLetters DeadLetters
	// Doctor is one more; nil: not.
	Doctor Doctor

	BodyLimit int64         // bytes of one request; 0: 2 MiB
	StopGrace time.Duration // what waiting calls get to end by themselves at a stop; 0: 2 s
	// LegacyOnly refuses the protocol without sessions; clients then fall back.
	LegacyOnly bool
	// PeerUID returns the user at the other end of a unix connection; nil: ask
	// the kernel.
	PeerUID func(net.Conn) (uint32, error)
	Now     func() time.Time // nil: time.Now

	progress   time.Duration // between two signs of progress; 0: progressEvery
	bodyWait   time.Duration // for one request's body; 0: bodyTimeout
	headerWait time.Duration // for its header; 0: headerTimeout
	answerWait time.Duration // for the answers of calls whose grace is over; 0: answerTimeout
	connsMost  int           // connections to the port at once; 0: connsMost

	once     sync.Once
	bindErr  error
	tcp      net.Listener
	unix     *socketListener
	tools    *server.StreamableHTTPServer
	draining chan struct{}
	calls    inflight
	receipts receipts
	sessions sessions
	hints    hints
	conns    conns
}

// Bind opens the listeners, so that a taken port or socket is a clear error
// before anything else starts, and Addr is known. Run does it otherwise.
func (s *Server) Bind() error {
	s.once.Do(func() { s.bindErr = s.bind() })
	return s.bindErr
}

func (s *Server) bind() error {
	s.BodyLimit = cmp.Or(s.BodyLimit, defaultBodyLimit)
	s.StopGrace = cmp.Or(s.StopGrace, defaultStopGrace)
	s.progress = cmp.Or(s.progress, progressEvery)
	s.bodyWait = cmp.Or(s.bodyWait, bodyTimeout)
	s.headerWait = cmp.Or(s.headerWait, headerTimeout)
	s.answerWait = cmp.Or(s.answerWait, answerTimeout)
	s.connsMost = cmp.Or(s.connsMost, connsMost)
	if s.Now == nil {
		s.Now = time.Now
	}
	if s.PeerUID == nil {
		s.PeerUID = peerUID
	}
	s.conns = conns{most: s.connsMost, open: map[net.Conn]held{}}
	s.draining = make(chan struct{})
	s.sessions = sessions{now: s.Now, bound: map[string]*boundSession{}, of: map[string]int{}, pruned: s.Now()}
	if s.Socket != "" {
		l, err := listenSocket(s.Socket)
		if err != nil {
			return err
		}
		s.unix = l
	}
	tcp, err := net.Listen("tcp", s.Listen)
	if err != nil {
		if s.unix != nil {
			err = errors.Join(err, s.unix.Close())
		}
		if errors.Is(err, syscall.EADDRINUSE) {
			return fault.Wrap(err, fault.Conflict, "cannot listen on %s; another program, or the old daemon, holds it. Stop that one or set another `listen`.", s.Listen)
		}
		return fault.Wrap(err, fault.BadRequest, "cannot listen on %s; set another `listen`.", s.Listen)
	}
	s.tcp = tcp
	return nil
}

// Addr is the address of the TCP listener, after Bind.
func (s *Server) Addr() net.Addr { return s.tcp.Addr() }

// Run serves until ctx ends and then stops in an order in which every waiting
// call still gets its answer. It returns nil after an orderly stop.
func (s *Server) Run(ctx context.Context) error {
	if err := s.Bind(); err != nil {
		return err
	}
	s.tools = s.newStreamable()
	base, cancelBase := context.WithCancel(withDraining(context.WithoutCancel(ctx), s.draining, s.StopGrace))
	base = context.WithValue(base, seatsKey{}, &seats{now: s.Now, of: map[string]*seat{}})
	defer cancelBase()

	servers := []*http.Server{s.newHTTP(base, s.tcpHandler())}
	listeners := []net.Listener{s.tcp}
	servers[0].ConnState = s.conns.changed
	if s.unix != nil {
		servers = append(servers, s.newHTTP(base, s.socketHandler()))
		listeners = append(listeners, s.unix)
	}
	g, failed := errgroup.WithContext(ctx)
	for i, srv := range servers {
		g.Go(func() error {
			if err := srv.Serve(listeners[i]); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		})
	}
	<-failed.Done()
	err := s.stop(cancelBase, servers)
	return errors.Join(g.Wait(), err)
}

// stop ends in the order of library facts §1: waiters answer, sessions close,
// what still runs is cancelled, the servers shut down.
func (s *Server) stop(cancelBase context.CancelFunc, servers []*http.Server) error {
	close(s.draining)
	ctx, cancel := context.WithTimeout(context.Background(), s.StopGrace+s.answerWait)
	s.calls.wait(ctx)
	cancel()
	ctx, cancel = context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	// Closes the sessions, and ends the library's sweeper.
	err := s.tools.Shutdown(ctx)
	cancelBase()
	for _, srv := range servers {
		if e := srv.Shutdown(ctx); e != nil {
			s.Log.Warn("connections did not end in time and are cut", "error", e)
			err = errors.Join(err, srv.Close())
		}
	}
	s.receipts.close()
	return err
}

func (s *Server) newStreamable() *server.StreamableHTTPServer {
	opts := []server.StreamableHTTPOption{
		server.WithSessionIdleTTL(sessionIdleTTL),
		server.WithHeartbeatInterval(heartbeat),
		server.WithStreamableHTTPLogger(slogger(s.Log.Named("mcp"))),
	}
	if s.LegacyOnly {
		opts = append(opts, server.WithStreamableHTTPProtocolVersions(mcpgo.LegacyProtocolVersions()...))
	}
	hooks := &server.Hooks{}
	hooks.AddAfterSetLevel(func(ctx context.Context, _ any, req *mcpgo.SetLevelRequest, _ *mcpgo.EmptyResult) {
		s.sessions.want(server.ClientSessionFromContext(ctx).SessionID(), req.Params.Level)
	})
	// Hints go out as log messages, which have to be announced.
	tools := newTools(&adapter{log: s.Log, every: s.progress}, s.Gateway, s.Version, server.WithLogging(), server.WithHooks(hooks))
	return server.NewStreamableHTTPServer(tools, opts...)
}

func (s *Server) newHTTP(base context.Context, h http.Handler) *http.Server {
	return &http.Server{
		Handler:           s.outermost(h),
		ReadHeaderTimeout: s.headerWait,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          s.Log.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnContext:       s.connContext,
	}
}

func (s *Server) tcpHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/mcp", s.serveMCP)
	s.mountREST(mux, s.identifyTCP, nil)
	s.mountHealth(mux)
	return s.guard(mux)
}

func (s *Server) socketHandler() http.Handler {
	mux := http.NewServeMux()
	s.mountREST(mux, s.identifySocket, s.Admin)
	s.mountHealth(mux)
	return mux
}
