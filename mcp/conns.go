package mcp

import (
	"net"
	"net/http"
	"sync"
)

// connsMost bounds the connections to the loopback port, which every account on
// the host can open (design §13). Each costs memory and a file descriptor.
const connsMost = 1024

// conns ends the connection that has been without a request for longest when
// there are too many, so that many that only stand there keep nobody out.
type conns struct {
	most int

	mu   sync.Mutex
	turn uint64
	open map[net.Conn]held
}

type held struct {
	busy  bool   // a request is being read or answered
	since uint64 // when it became so, in turns
}

// changed is an http.Server's ConnState.
func (c *conns) changed(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if state == http.StateClosed || state == http.StateHijacked {
		delete(c.open, conn)
		return
	}
	c.turn++
	c.open[conn] = held{busy: state == http.StateActive, since: c.turn}
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
