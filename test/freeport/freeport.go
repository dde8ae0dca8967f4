// Package freeport finds loopback ports for what a test starts as a process of
// its own and has to know the port of.
package freeport

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"sync"
)

// The range lies below that of ephemeral ports, so that no outgoing connection
// of anyone takes one between its choice and its use, or while its user is
// down.
const (
	first = 12000
	last  = 32000
)

// given are the ports that were given: each once, whoever has it now. A test
// binary beside this one chooses from the same range, and what is started on a
// port takes seconds to listen there; so the UDP port of that number, which
// nobody uses, is held for as long as this process lives.
var (
	mu    sync.Mutex
	given = map[int]net.PacketConn{}
)

// Block returns the first of n ports in a row that are free on 127.0.0.1.
func Block(n int) (int, error) {
	mu.Lock()
	defer mu.Unlock()
	for range 200 {
		base := first + rand.IntN(last-first-n)
		if take(base, n) {
			return base, nil
		}
	}
	return 0, errors.New("found no free ports on loopback; end what holds them")
}

// Addr returns a free host:port on 127.0.0.1.
func Addr() (string, error) {
	port, err := Block(1)
	return fmt.Sprintf("127.0.0.1:%d", port), err
}

// take takes n ports from base on if all of them are free.
func take(base, n int) bool {
	held := map[int]net.PacketConn{}
	for p := base; p < base+n; p++ {
		lock, ok := hold(p)
		if !ok {
			for _, lock := range held {
				_ = lock.Close() // it held nothing
			}
			return false
		}
		held[p] = lock
	}
	maps.Copy(given, held)
	return true
}

// hold holds a port, and then looks whether anybody listens there.
func hold(port int) (lock net.PacketConn, ok bool) {
	if given[port] != nil {
		return nil, false
	}
	addr := fmt.Sprintf("127.0.0.1:%d", port)
	lock, err := net.ListenPacket("udp", addr)
	if err != nil {
		return nil, false
	}
	l, err := net.Listen("tcp", addr)
	if err == nil {
		err = l.Close()
	}
	if err != nil {
		_ = lock.Close() // it held nothing
	}
	return lock, err == nil
}
