package mcp

import (
	"net"
	"net/http"
	"sync"
)

// connsMost bounds the connections to the loopback port, which every account on
// the host can open (design §13). Each costs memory and a file descriptor.
const connsMost = 1024

// conns ends a connection when there are too many: of those on which nobody who
// is known is served the one that did nothing for longest. So many that only stand
// there keep nobody out, nor do many refused requests whose bodies do not come.
type conns struct {
	most int

	mu   sync.Mutex
	turn uint64
	open map[net.Conn]held
}

type held struct {
	busy  bool   // somebody known is being answered
	since uint64 // its last change of state, in turns
}

// admit keeps conn until its request is answered: its sender is known.
func (c *conns) admit(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h, ok := c.open[conn]; ok { // not one of the unix socket
		h.busy = true
		c.open[conn] = h
	}
}

// changed is an http.Server's ConnState.
func (c *conns) changed(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if state == http.StateClosed || state == http.StateHijacked {
		delete(c.open, conn)
		return
	}
	if _, ok := c.open[conn]; !ok && state != http.StateNew {
		return // it was ended, and does not know yet
	}
	c.turn++
	c.open[conn] = held{since: c.turn}
	if state == http.StateNew && len(c.open) > c.most {
		oldest := conn // all others are busy
		for other, h := range c.open {
			if !h.busy && h.since < c.open[oldest].since {
				oldest = other
			}
		}
		delete(c.open, oldest)
		_ = oldest.Close() // nobody can be told
	}
}
