package mcp

import (
	"context"
	"errors"
	"sync"
	"time"

	"fleetd/fault"
)

type drainKey struct{}

// drain is the stop of the daemon as a call sees it.
type drain struct {
	begun <-chan struct{}
	grace time.Duration // what a waiter gets to answer by itself
}

// Draining is closed when the daemon begins to stop. Whoever blocks on behalf
// of a client selects on it and answers Stopping(). It is nil, and so never
// ready, where nothing stops the daemon.
func Draining(ctx context.Context) <-chan struct{} {
	d, _ := ctx.Value(drainKey{}).(drain)
	return d.begun
}

func withDraining(ctx context.Context, begun <-chan struct{}, grace time.Duration) context.Context {
	return context.WithValue(ctx, drainKey{}, drain{begun: begun, grace: grace})
}

// Stopping is what a wait ends with when the daemon stops first (design §7).
func Stopping() *fault.Error {
	return fault.Wrap(errStopping, fault.Internal,
		"bridged is stopping, your message is safe: do not send it again. Ask again in some seconds, with bridge_poll for a reply or with bridge_whoami for what is open.")
}

var errStopping = errors.New("the daemon is stopping")

// untilStopped returns a context that ends some grace after the daemon began
// to stop, while the response can still be written: a call that does not
// select on Draining ends by it. done must be called.
func untilStopped(ctx context.Context) (_ context.Context, done func()) {
	d, ok := ctx.Value(drainKey{}).(drain)
	if !ok {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-ctx.Done():
			return
		case <-d.begun:
		}
		t := time.NewTimer(d.grace)
		defer t.Stop()
		select {
		case <-ctx.Done():
		case <-t.C:
			cancel(errStopping)
		}
	})
	return ctx, func() {
		cancel(nil)
		wg.Wait()
	}
}

// answer turns what a verb returned into the fault a client is told. ctx is
// the one the verb ran with.
func answer(ctx context.Context, err error) *fault.Error {
	if errors.Is(err, context.Canceled) && errors.Is(context.Cause(ctx), errStopping) {
		return Stopping()
	}
	return fault.From(err)
}

func cancelled(err error) *fault.Error {
	return fault.Wrap(err, fault.Internal,
		"the call was cancelled by the client; a message that was accepted stays accepted, and mail is kept for the next bridge_poll.")
}

// inflight counts the calls that a stop has to wait for.
type inflight struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // closed when n is 0; nil: nobody waits
}

func (f *inflight) enter() {
	f.mu.Lock()
	f.n++
	f.mu.Unlock()
}

func (f *inflight) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.n--; f.n == 0 && f.idle != nil {
		close(f.idle)
		f.idle = nil
	}
}

// wait returns when no call is in flight, or with ctx.
func (f *inflight) wait(ctx context.Context) {
	f.mu.Lock()
	if f.n == 0 {
		f.mu.Unlock()
		return
	}
	if f.idle == nil {
		f.idle = make(chan struct{})
	}
	idle := f.idle
	f.mu.Unlock()
	select {
	case <-idle:
	case <-ctx.Done():
	}
}
