package faultproxy_test

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"fleetd/test/faultproxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair returns both ends of one connection through a new proxy.
func pair(t *testing.T) (p *faultproxy.Proxy, client, server net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p, err = faultproxy.Start(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	client, err = net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	server, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close(); _ = server.Close() })
	return p, client, server
}

func send(t *testing.T, from net.Conn) {
	t.Helper()
	if _, err := from.Write([]byte{7}); err != nil {
		t.Fatal(err)
	}
}

func arrives(t *testing.T, at net.Conn) {
	t.Helper()
	_ = at.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.ReadFull(at, make([]byte, 1)); err != nil {
		t.Fatal("a byte did not arrive:", err)
	}
}

func silent(t *testing.T, at net.Conn) {
	t.Helper()
	_ = at.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if n, err := at.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("wanted silence, got %d bytes and %v", n, err)
	}
}

// Fails if a stall lets bytes through in its direction, stops the other
// direction too, or loses what was under way when it ends.
func TestStallsOneDirectionAndLosesNothing(t *testing.T) {
	p, client, server := pair(t)
	send(t, client)
	arrives(t, server)
	p.Set(faultproxy.StallUp)
	send(t, client)
	silent(t, server)
	send(t, server)
	arrives(t, client)
	p.Set(faultproxy.Pass)
	arrives(t, server)
}

// Fails if Reset ends a connection like Cut does, or not at all.
func TestResetIsAReset(t *testing.T) {
	p, client, server := pair(t)
	send(t, client)
	arrives(t, server) // so that the proxy holds both ends
	p.Reset()
	_ = client.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("wanted a reset, got %v", err)
	}
}

// Fails if Cut leaves connections open, or Down takes new ones.
func TestDownRefusesNewConnections(t *testing.T) {
	p, client, server := pair(t)
	send(t, client)
	arrives(t, server)
	p.Set(faultproxy.Down)
	p.Cut()
	next, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	for _, c := range []net.Conn{client, next} {
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a connection is still open: %v", err)
		}
	}
}

// Fails if either end of an orphaned connection hears of the other again, even
// of its end, or if a new connection suffers.
func TestOrphansAreToldNothing(t *testing.T) {
	p, client, server := pair(t)
	send(t, client)
	arrives(t, server)
	p.Orphan()
	send(t, server)
	silent(t, client)
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	p.Set(faultproxy.Pass)
	silent(t, server)
}
