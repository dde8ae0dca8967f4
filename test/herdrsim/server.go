package herdrsim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// Server is the handle a test holds. It outlives the herdr server processes it
// plays: Crash, Restart and Handoff end one and begin the next on the same
// socket path.
type Server struct {
	opts      Options
	faults    *serverFaults
	epoch     int64
	terminals atomic.Int64
	ownDir    string

	life  sync.Mutex     // held while a server process ends
	tasks sync.WaitGroup // what faults and hooks began

	mu    sync.Mutex
	core  *core    // nil while no server runs
	saved *session // what session.json would hold
	asked map[string]int
}

// Start starts a server and serves until Close or until ctx ends. It fails
// when a live server answers on the socket (reference §1.2).
func Start(ctx context.Context, opts Options) (*Server, error) {
	s := &Server{opts: opts.withDefaults(), faults: &serverFaults{}, epoch: time.Now().UnixNano() & 0xffffff, asked: map[string]int{}}
	if s.opts.SocketPath == "" {
		if s.opts.Dir == "" {
			dir, err := os.MkdirTemp("", "herdrsim")
			if err != nil {
				return nil, fmt.Errorf("make a directory for the socket: %w", err)
			}
			s.opts.Dir, s.ownDir = dir, dir
		}
		s.opts.SocketPath = filepath.Join(s.opts.Dir, "herdr.sock")
	}
	if err := s.begin(nil, nil); err != nil {
		_ = os.RemoveAll(s.ownDir)
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = s.Close() })
	return s, nil
}

// Asked returns how often each method was asked for since Start.
func (s *Server) Asked() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.asked)
}

func (s *Server) noteAsked(method string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[method]++
}

// SocketPath is the path of the JSON socket.
func (s *Server) SocketPath() string { return s.opts.SocketPath }

// Close stops the server in good order: no request is taken any more, every
// child process is ended (HUP, TERM, KILL), the socket file removed. Calling
// it again, or after Crash, is fine.
func (s *Server) Close() error {
	s.end(stopClean)
	s.tasks.Wait()
	if s.ownDir != "" {
		return os.RemoveAll(s.ownDir)
	}
	return nil
}

// Crash ends the server the hard way: connections break without a word, the
// children lose their terminals, the socket file stays and refuses.
func (s *Server) Crash() { s.end(stopCrash) }

// Restart ends the server, if one runs, and starts it again with the saved
// session: same ids, labels and directories; new shells, new terminal ids; no
// names, tokens or environment (reference §2).
func (s *Server) Restart() error {
	s.end(stopClean)
	s.mu.Lock()
	saved := s.saved
	s.mu.Unlock()
	return s.begin(saved, nil)
}

// RestartForgetful restarts with the session file lost: no workspace is there,
// and ids that were in use before are given out again.
func (s *Server) RestartForgetful() error {
	s.end(stopClean)
	return s.begin(nil, nil)
}

// Handoff is a live upgrade: processes, pane ids and agent names stay,
// terminal ids change, connections break (reference §2).
func (s *Server) Handoff() error {
	old := s.end(stopHandoff)
	if old == nil {
		return errors.New("no server runs: nothing to hand over")
	}
	return s.begin(nil, old)
}

// begin starts one server process: with a saved session, with the panes of a
// predecessor, or empty.
func (s *Server) begin(saved *session, predecessor *core) error {
	ln, err := listen(s.opts.SocketPath)
	if err != nil {
		return err
	}
	c := newCore(s, ln)
	if predecessor != nil {
		c.adopt(predecessor)
	}
	s.mu.Lock()
	s.core = c
	s.mu.Unlock()
	c.start()
	if predecessor != nil {
		c.do(c.reapMissed)
	}
	if saved != nil {
		c.do(func() { err = c.restore(saved) })
		if err != nil {
			s.end(stopClean)
			return err
		}
	}
	return nil
}

// end stops the running server process and returns it, or nil. A second call
// waits for the first.
func (s *Server) end(how stopKind) *core {
	s.life.Lock()
	defer s.life.Unlock()
	s.mu.Lock()
	c := s.core
	s.core = nil
	s.mu.Unlock()
	if c == nil {
		return nil
	}
	saved := c.stop(how)
	s.mu.Lock()
	s.saved = saved
	s.mu.Unlock()
	return c
}

// running returns the server process, or nil.
func (s *Server) running() *core {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.core
}

// listen makes the socket of reference §1.2.
func listen(path string) (*net.UnixListener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make the directory of the socket: %w", err)
	}
	if conn, err := net.Dial("unix", path); err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("a herdr server is already running on %s", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the stale socket: %w", err)
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	ln.SetUnlinkOnClose(false)
	if err := os.Chmod(path, 0o600); err != nil {
		_ = ln.Close()
		return nil, fmt.Errorf("protect the socket: %w", err)
	}
	return ln, nil
}

// socketFile describes the socket file, nil if there is none.
func socketFile(path string) os.FileInfo {
	info, err := os.Lstat(path)
	if err != nil {
		return nil
	}
	return info
}
