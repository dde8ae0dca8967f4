package freeport_test

import (
	"fmt"
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

// Another test binary chooses from the same ports. Fails when one that was given
// here and nobody listens on yet could be given there too.
func TestAPortIsHeldUntilItIsUsed(t *testing.T) {
	first, err := freeport.Block(5)
	if err != nil {
		t.Fatal(err)
	}
	for port := first; port < first+5; port++ {
		addr := fmt.Sprintf("127.0.0.1:%d", port)
		if c, err := net.ListenPacket("udp", addr); err == nil { // what another one would hold
			_ = c.Close()
			t.Errorf("%s is not held", addr)
		}
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err) // it is held from its user too
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
