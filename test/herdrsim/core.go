package herdrsim

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// core is one herdr server process. Its application state belongs to the loop:
// only functions run by do touch it, one after the other.
type core struct {
	srv  *Server
	opts Options

	loop     chan func()
	quit     chan struct{} // closed first: nothing new is taken
	loopDone chan struct{}
	wg       sync.WaitGroup // connections, timers, watchers

	lnMu sync.Mutex
	ln   *net.UnixListener // nil while refusing
	file os.FileInfo       // the socket file this process made

	connMu sync.Mutex
	conns  map[net.Conn]struct{}

	// below: the loop's
	workspaces    []*workspace
	lastWorkspace int // highest number given out
	active        *workspace
	aliases       map[string]*pane // old ids of moved panes
	ring          ring
	seq           uint64 // the server-wide state_change_seq
	endings       sync.WaitGroup
	closed        map[string]*terminal // what panes had that are gone, for Input
	opened        []Opened
}

type stopKind int

const (
	stopClean stopKind = iota
	stopCrash
	stopHandoff
)

func newCore(s *Server, ln *net.UnixListener) *core {
	return &core{
		srv: s, opts: s.opts, ln: ln, file: socketFile(s.opts.SocketPath),
		loop: make(chan func()), quit: make(chan struct{}), loopDone: make(chan struct{}),
		conns: map[net.Conn]struct{}{}, aliases: map[string]*pane{},
	}
}

func (c *core) start() {
	go c.turn()
	c.wg.Add(2)
	go c.accept(c.ln)
	go c.watchAgents()
}

// turn is the single-threaded application loop.
func (c *core) turn() {
	defer close(c.loopDone)
	for {
		select {
		case f := <-c.loop:
			f()
		case <-c.quit:
			return
		}
	}
}

// do runs f in the loop and waits for it; false: the server stopped before f
// ran.
func (c *core) do(f func()) bool {
	done := make(chan struct{})
	select {
	case c.loop <- func() { defer close(done); f() }:
	case <-c.quit:
		return false
	}
	<-done
	return true
}

// stop ends the process and returns the session it leaves. Children die unless
// they are handed over.
func (c *core) stop(how stopKind) *session {
	close(c.quit)
	<-c.loopDone // from here on the state is ours
	c.lnMu.Lock()
	if c.ln != nil {
		_ = c.ln.Close()
		c.ln = nil
	}
	c.lnMu.Unlock()
	c.connMu.Lock()
	for conn := range c.conns {
		_ = conn.Close()
	}
	c.connMu.Unlock()
	if how != stopCrash {
		c.unlink()
	}
	saved := c.save()
	if how != stopHandoff {
		for _, p := range c.allPanes() {
			c.endTerminal(p)
		}
	}
	c.wg.Wait()
	c.endings.Wait()
	return saved
}

// unlink removes the socket file if it is still the one this process made.
func (c *core) unlink() {
	now, err := os.Lstat(c.opts.SocketPath)
	if err == nil && c.file != nil && os.SameFile(now, c.file) {
		_ = os.Remove(c.opts.SocketPath)
	}
}

// later runs f in the loop after d, unless the server stops before.
func (c *core) later(d time.Duration, f func()) {
	c.wg.Add(1)
	go func() {
		defer c.wg.Done()
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			c.do(f)
		case <-c.quit:
		}
	}()
}

// pause waits for d; false: the server stops.
func (c *core) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-c.quit:
		return false
	}
}

var errStopped = refuse("server_unavailable", "the server is shutting down")

// onLoop runs f in the loop and returns what it returns.
func onLoop[T any](c *core, f func() (T, error)) (T, error) {
	var out T
	var err error
	if !c.do(func() { out, err = f() }) {
		return out, errStopped
	}
	return out, err
}

// inspect runs f in the loop of the running server process; it is how tests'
// helpers look and reach in. It fails when no server runs.
func (s *Server) inspect(f func(c *core) error) error {
	c := s.running()
	if c == nil {
		return errors.New("no server runs")
	}
	var err error
	if !c.do(func() { err = f(c) }) {
		return errors.New("the server stops")
	}
	return err
}
