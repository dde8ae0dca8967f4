// Package freeport finds loopback ports for what a test starts as a process of
// its own and has to know the port of.
package freeport

import (
	"errors"
	"fmt"
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

var (
	mu    sync.Mutex
	given = map[int]bool{} // a port is given once in a process, whoever has it now
)

// Block returns the first of n ports in a row that are free on 127.0.0.1.
func Block(n int) (int, error) {
	mu.Lock()
	defer mu.Unlock()
	for range 200 {
		base := first + rand.IntN(last-first-n)
		if !free(base, n) {
			continue
		}
		for p := base; p < base+n; p++ {
			given[p] = true
		}
		return base, nil
	}
	return 0, errors.New("found no free ports on loopback; end what holds them")
}

// Addr returns a free host:port on 127.0.0.1.
func Addr() (string, error) {
	port, err := Block(1)
	return fmt.Sprintf("127.0.0.1:%d", port), err
}

func free(base, n int) bool {
	for p := base; p < base+n; p++ {
		if given[p] {
			return false
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p))
		if err != nil {
			return false
		}
		if err := l.Close(); err != nil {
			return false
		}
	}
	return true
}
