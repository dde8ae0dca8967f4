package herdrsim

import (
	"errors"
	"net"
	"sync"
)

// serverFaults are the faults of the transport; they stay over restarts.
type serverFaults struct {
	mu          sync.Mutex
	unavailable bool
	drop        map[string]int // method → answers still to swallow
	crash       map[string]bool
}

func (f *serverFaults) isUnavailable() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.unavailable
}

// beforeAnswer applies the faults between execution and answer; false: no
// answer is to be written.
func (c *core) beforeAnswer(req *request) bool {
	f := c.srv.faults
	f.mu.Lock()
	crash, drop := f.crash[req.name], f.drop[req.name] > 0
	if crash {
		delete(f.crash, req.name)
	}
	if drop {
		f.drop[req.name]--
	}
	f.mu.Unlock()
	if crash {
		// Not on this thread: it is one of those that stop waits for.
		c.srv.tasks.Go(func() { c.srv.crashIf(c) })
		<-c.quit
		return false
	}
	return !drop
}

// crashIf crashes the server if c still is it.
func (s *Server) crashIf(c *core) {
	if s.running() == c {
		s.Crash()
	}
}

// AnswerUnavailable makes everything but ping answer server_unavailable, with
// nothing executed.
func (s *Server) AnswerUnavailable(on bool) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.unavailable = on
}

// DropAnswer executes the next n requests of method and closes their
// connections without an answer.
func (s *Server) DropAnswer(method string, n int) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	if s.faults.drop == nil {
		s.faults.drop = map[string]int{}
	}
	s.faults.drop[method] = n
}

// CrashAfter executes the next request of method and then crashes the server
// in place of an answer.
func (s *Server) CrashAfter(method string) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	if s.faults.crash == nil {
		s.faults.crash = map[string]bool{}
	}
	s.faults.crash[method] = true
}

// HangLoop stops the application loop: ping answers, everything else waits.
// The returned function lets it go on; what was asked meanwhile is executed
// then.
func (s *Server) HangLoop() (release func(), err error) {
	c := s.running()
	if c == nil {
		return nil, errors.New("no server runs")
	}
	free := make(chan struct{})
	select {
	case c.loop <- func() {
		select {
		case <-free:
		case <-c.quit:
		}
	}:
	case <-c.quit:
		return nil, errors.New("the server stops")
	}
	return sync.OnceFunc(func() { close(free) }), nil
}

// RefuseConnections closes the listener and leaves the socket file: connects
// get ECONNREFUSED while panes and their programs live on. Connections that
// are open stay.
func (s *Server) RefuseConnections() error {
	c := s.running()
	if c == nil {
		return errors.New("no server runs")
	}
	c.lnMu.Lock()
	defer c.lnMu.Unlock()
	if c.ln == nil {
		return nil
	}
	err := c.ln.Close()
	c.ln = nil
	return err
}

// TakeConnections ends RefuseConnections.
func (s *Server) TakeConnections() error {
	c := s.running()
	if c == nil {
		return errors.New("no server runs")
	}
	c.lnMu.Lock()
	defer c.lnMu.Unlock()
	if c.ln != nil {
		return nil
	}
	ln, err := listen(c.opts.SocketPath)
	if err != nil {
		return err
	}
	return c.relisten(ln)
}

// relisten goes on with a new listener; lnMu is held.
func (c *core) relisten(ln *net.UnixListener) error {
	select {
	case <-c.quit:
		_ = ln.Close()
		return errors.New("the server stops")
	default:
	}
	c.ln = ln
	c.file = socketFile(c.opts.SocketPath)
	c.wg.Add(1)
	go c.accept(ln)
	return nil
}
