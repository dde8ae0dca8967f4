//go:build failpoints

package failpoint

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
)

// Enabled reports whether the failpoints are compiled in.
const Enabled = true

// What the environment says is taken out of it: the daemon refuses variables
// that it does not know.
var (
	ordered    = take("BRIDGED_FAILPOINT")
	controlled = take("BRIDGED_FAILPOINT_CONTROL")
)

func take(name string) string {
	text := os.Getenv(name)
	return must(text, os.Unsetenv(name))
}

// state is the one order of this process.
var state struct {
	once   sync.Once
	listen *listener // nil: nobody listens

	mu    sync.Mutex
	order Order
	hits  int // of order.Name since it was armed

	stalled bool // no commit begins any more
}

// commit is where the writer of the store stands when it is stalled.
const commit = "store.commit.before"

// Hit does what was ordered for the point of this name.
func Hit(name string) {
	if _, known := Find(name); !known {
		panic("failpoint: " + name + " is not in the table")
	}
	state.once.Do(open)
	state.mu.Lock()
	o := state.order
	if o.Name == name {
		state.hits++
	}
	strikes := o.Name == name && state.hits == o.Nth
	if strikes {
		state.order = Order{}
		state.stalled = state.stalled || o.Action == Stall
	}
	stands := state.stalled && name == commit
	state.mu.Unlock()
	if strikes {
		strike(o)
	}
	if stands {
		select {}
	}
}

func strike(o Order) {
	var proceed <-chan struct{}
	if state.listen != nil {
		proceed = state.listen.tell(o.Name)
	}
	switch o.Action {
	case Kill:
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // nothing runs on to hear of an error
		select {}
	case Hang:
		select {}
	case Panic:
		panic("failpoint: " + o.Name)
	case Pause:
		if proceed != nil {
			<-proceed
		}
	}
}

// open reads what is ordered at the start. A test that was misspelt must not
// pass, so what is wrong ends the process.
func open() {
	if ordered != "" {
		state.order = must(ParseOrder(ordered))
	}
	if controlled == "" {
		return
	}
	l := &listener{conn: must(net.Dial("unix", controlled))}
	l.lines = bufio.NewScanner(l.conn)
	l.obey() // the first order counts for this very hit
	state.listen = l
	go func() {
		for l.obey() {
		}
	}()
}

func must[T any](v T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, "failpoint:", err)
		os.Exit(3)
	}
	return v
}

// listener is the other end of the control socket.
type listener struct {
	conn  net.Conn
	lines *bufio.Scanner

	mu     sync.Mutex
	paused chan struct{} // of the goroutine that waits; nil if none does
}

// proceed lets the paused goroutine go on.
func (l *listener) proceed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.paused != nil {
		close(l.paused)
		l.paused = nil
	}
}

// obey takes one line; false: nobody listens any more.
func (l *listener) obey() bool {
	listens := l.lines.Scan()
	if !listens || l.lines.Text() == "go" {
		l.proceed()
		return listens
	}
	order := must(ParseOrder(l.lines.Text()))
	state.mu.Lock()
	state.order, state.hits = order, 0
	state.mu.Unlock()
	l.say("armed")
	return true
}

// tell says that a point was hit, and returns when its goroutine may go on.
func (l *listener) tell(name string) <-chan struct{} {
	paused := make(chan struct{})
	l.mu.Lock()
	l.paused = paused
	l.mu.Unlock()
	l.say("hit " + name)
	return paused
}

func (l *listener) say(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = l.conn.Write([]byte(line + "\n")) // a listener that is gone orders nothing more
}
