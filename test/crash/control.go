package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"fleetd/test/failpoint"
)

// control orders what one daemon's failpoints do, over all its runs.
type control struct {
	path string
	ln   net.Listener
	wg   sync.WaitGroup

	mu    sync.Mutex
	conn  net.Conn // to the process that runs; nil before its first hit
	order failpoint.Order
	armed chan struct{}
	hits  chan string
}

// armBound is how long a running process may take to obey.
const armBound = time.Minute

func listen(path string) (*control, error) {
	ln, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	c := &control{path: path, ln: ln, armed: make(chan struct{}, 1), hits: make(chan string, 1)}
	c.wg.Go(c.accept)
	return c, nil
}

func (c *control) close() error {
	err := c.ln.Close()
	c.mu.Lock()
	if c.conn != nil {
		_ = c.conn.Close() // its process has ended, or will not be ordered about any more
	}
	c.mu.Unlock()
	c.wg.Wait()
	return err
}

func (c *control) environ() string { return "BRIDGED_FAILPOINT_CONTROL=" + c.path }

func (c *control) accept() {
	for {
		conn, err := c.ln.Accept()
		if err != nil {
			return // closed
		}
		c.mu.Lock()
		c.conn = conn
		_, err = fmt.Fprintln(conn, c.order)
		c.mu.Unlock()
		if err == nil {
			c.wg.Go(func() { c.read(conn) })
		}
	}
}

func (c *control) read(conn net.Conn) {
	defer conn.Close()
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		name, hit := strings.CutPrefix(lines.Text(), "hit ")
		c.mu.Lock()
		switch {
		case !hit:
			poke(c.armed)
		case name == c.order.Name:
			c.order = failpoint.Order{}
			c.hits <- name
		}
		c.mu.Unlock()
	}
	c.mu.Lock()
	if c.conn == conn {
		c.conn = nil
	}
	c.mu.Unlock()
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// arm gives an order to the process that runs, or to the next one.
func (c *control) arm(ctx context.Context, o failpoint.Order) error {
	c.mu.Lock()
	for len(c.hits)+len(c.armed) > 0 {
		select {
		case <-c.hits:
		case <-c.armed:
		}
	}
	c.order = o
	running := c.conn != nil
	if running {
		if _, err := fmt.Fprintln(c.conn, o); err != nil {
			running = false // it has just ended
		}
	}
	c.mu.Unlock()
	if !running {
		return nil
	}
	select {
	case <-c.armed:
		return nil
	case <-time.After(armBound):
		return fmt.Errorf("the daemon did not take the order %s", o)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// hit waits until the armed point is hit.
func (c *control) hit(ctx context.Context, bound time.Duration) bool {
	select {
	case <-c.hits:
		return true
	case <-time.After(bound):
	case <-ctx.Done():
	}
	return false
}

// release lets the goroutine that was paused go on.
func (c *control) release() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		return fmt.Errorf("the daemon that was paused has ended")
	}
	_, err := fmt.Fprintln(c.conn, "go")
	return err
}
