// Package faultproxy is a TCP proxy that breaks connections on demand, for
// tests of what a client makes of a bad network. It knows nothing of the
// protocol that it carries.
package faultproxy

import (
	"fmt"
	"net"
	"sync"
	"time"
)

// Mode is what the proxy does with bytes and with new connections.
type Mode int

// The modes. A stall keeps connections open and moves nothing: what a silent
// network, or a frozen peer, looks like from the other end.
const (
	Pass      Mode = iota // all bytes, both ways
	Stall                 // nothing either way
	StallUp               // nothing from client to server
	StallDown             // nothing from server to client
	Down                  // new connections are closed at once
)

// Proxy forwards connections to one target.
type Proxy struct {
	target string
	l      net.Listener
	wg     sync.WaitGroup

	mu     sync.Mutex
	cond   *sync.Cond
	mode   Mode
	closed bool
	conns  map[net.Conn]bool // true: orphaned
}

// Start listens on a free loopback port and forwards to target (host:port).
func Start(target string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("fault proxy: %w", err)
	}
	p := &Proxy{target: target, l: l, conns: map[net.Conn]bool{}}
	p.cond = sync.NewCond(&p.mu)
	p.wg.Go(p.accept)
	return p, nil
}

// Addr is where clients connect to.
func (p *Proxy) Addr() string { return p.l.Addr().String() }

// Set changes the mode, for open connections too.
func (p *Proxy) Set(m Mode) {
	p.mu.Lock()
	p.mode = m
	p.mu.Unlock()
	p.cond.Broadcast()
}

// Orphan stalls every open connection for good, without telling either end:
// what a router that forgot them does. New ones pass, and each end finds out by
// itself. Whoever sends into one has his bytes held until Cut, Reset or Close.
func (p *Proxy) Orphan() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		p.conns[c] = true
	}
}

// Cut closes every open connection in the ordinary way (FIN).
func (p *Proxy) Cut() { p.drop(false) }

// Reset closes every open connection with RST.
func (p *Proxy) Reset() { p.drop(true) }

func (p *Proxy) drop(rst bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// All before any is closed: whoever copies closes the other end at once.
	for c := range p.conns {
		if t, ok := c.(*net.TCPConn); ok && rst {
			_ = t.SetLinger(0) // a closed socket needs no reset
		}
	}
	for c := range p.conns {
		_ = c.Close()
	}
	p.conns = map[net.Conn]bool{}
	p.cond.Broadcast()
}

// Close ends the proxy and everything on it.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	err := p.l.Close()
	p.drop(false)
	p.wg.Wait()
	return err
}

func (p *Proxy) accept() {
	for {
		c, err := p.l.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.serve(c) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	p.mu.Lock()
	refuse := p.closed || p.mode == Down
	p.mu.Unlock()
	if refuse {
		_ = client.Close()
		return
	}
	server, err := net.DialTimeout("tcp", p.target, 5*time.Second)
	if err != nil {
		_ = client.Close()
		return
	}
	if !p.keep(client, server) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { p.copy(server, client, StallUp) })
	both.Go(func() { p.copy(client, server, StallDown) })
	both.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, client)
	delete(p.conns, server)
}

func (p *Proxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		if p.closed {
			_ = c.Close()
			continue
		}
		p.conns[c] = false
	}
	return !p.closed
}

// copy moves bytes until either end is closed. While stalled it holds what it
// read, be it the end, and reads no more, so that the sender's socket buffer
// fills up.
func (p *Proxy) copy(dst, src net.Conn, stalledBy Mode) {
	defer dst.Close()
	defer src.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		if !p.pass(src, stalledBy) {
			return
		}
		if _, werr := dst.Write(buf[:n]); err != nil || werr != nil {
			return
		}
	}
}

// pass waits while the direction is stalled; false: the connection is gone.
func (p *Proxy) pass(c net.Conn, stalledBy Mode) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		orphaned, open := p.conns[c]
		if !open {
			return false
		}
		if !orphaned && p.mode != Stall && p.mode != stalledBy {
			return true
		}
		p.cond.Wait()
	}
}
