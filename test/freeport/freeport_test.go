package freeport_test

import (
	"net"
	"testing"

	"fleetd/test/freeport"
)

// Fails when two get one port, or one that somebody listens on.
func TestEachPortIsGivenOnce(t *testing.T) {
	seen := map[string]bool{}
	for range 500 {
		addr, err := freeport.Addr()
		if err != nil {
			t.Fatal(err)
		}
		if seen[addr] {
			t.Fatalf("%s was given twice", addr)
		}
		seen[addr] = true
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
