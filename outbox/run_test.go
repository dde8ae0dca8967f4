package outbox

import (
	"context"
	"sync"
	"testing"
	"time"

	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/fabric/roster"
)

// running boots the gateway with its own loop and workers, until stop.
func (w *world) running() (stop func()) {
	w.out.cfg.Tick = time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.out.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("run: %v", err)
		}
	})
	w.t.Cleanup(stop)
	return stop
}

// until waits for a state.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// Fault: anything on the way of a send that lets only one sender through.
func TestManySendersPublishAtTheSameTime(t *testing.T) {
	const senders = 256
	w := newWorld(t)
	w.running()
	var together sync.WaitGroup
	together.Add(senders)
	w.broker.answer = func(p publication) reply {
		if p.lane == envelope.LaneMail {
			together.Done()
			together.Wait() // until all are publishing
		}
		return reply{out: fabric.Confirmed}
	}
	var all sync.WaitGroup
	for range senders {
		all.Go(func() {
			if _, err := w.send(Request{Key: newID()}); err != nil {
				t.Error(err)
			}
		})
	}
	arrived := make(chan struct{})
	go func() { all.Wait(); close(arrived) }()
	select {
	case <-arrived:
	case <-time.After(patience):
		t.Fatal("the senders wait for one another")
	}
}

// Fault: a data race, a lost outcome or a goroutine left behind when sends,
// signals, reports, answers and new connections meet.
func TestEverythingAtTheSameTime(t *testing.T) {
	const each = 60
	w := newWorld(t)
	stop := w.running()
	var signals sync.WaitGroup
	w.broker.answer = func(p publication) reply {
		if p.env.Kind != envelope.Send {
			return reply{out: fabric.Confirmed}
		}
		for _, kind := range []envelope.Kind{envelope.Deferred, envelope.Injected, envelope.Failed} {
			signals.Go(func() {
				if err := w.out.Signal(context.Background(), report(kind, "BUSY", p.env.MsgID)); err != nil {
					t.Error(err)
				}
			})
		}
		return reply{out: fabric.Confirmed}
	}
	var sent []string
	var mu sync.Mutex
	var all sync.WaitGroup
	for i := range each {
		all.Go(func() {
			var watch *Watch
			s, err := w.send(Request{Key: newID(), Leaving: func(id, _ string) { watch = w.out.Watch(id) }})
			if err != nil {
				t.Error(err)
			}
			watch.Close()
			mu.Lock()
			sent = append(sent, s.MsgID)
			mu.Unlock()
		})
		all.Go(func() {
			if _, err := w.reply(""); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			r := envelope.Report{Kind: envelope.Failed, Reason: "EXPIRED", MsgID: newID(), TraceID: newTrace(), Sender: chief, SenderHost: "hostb", Recipient: aide}
			for range 2 {
				if err := w.out.Final(context.Background(), r); err != nil {
					t.Error(err)
				}
			}
			w.out.Answer(r)
		})
		all.Go(func() {
			w.out.Connected()
			w.dir.host(func(h *roster.HostView) { h.Boot = uint64(i) })
			w.out.RecipientHost(newID(), coder)
		})
	}
	all.Wait()
	signals.Wait()
	until(t, "everything ends and is forgotten", func() bool {
		w.out.mu.Lock()
		defer w.out.mu.Unlock()
		return len(w.out.open)+len(w.out.lanes)+len(w.out.watches) == 0
	})
	if n := len(w.broker.sent(envelope.LaneMail, envelope.Failed)); n != each {
		t.Errorf("%d durable reports, want %d", n, each)
	}
	if n := len(w.broker.sent(envelope.LaneMail, envelope.Send)); n != each {
		t.Errorf("%d briefs, want %d", n, each)
	}
	stop()
}

// Fault: a run that does not end while work is queued, or with a link that
// never comes up.
func TestARunEndsWithWorkLeft(t *testing.T) {
	w := newWorld(t)
	id := w.doubtReply()
	w.broker.cut()
	for range 1000 {
		w.out.later(func(context.Context) {})
	}
	w.running()()
	w.crash()
	w.reconnect()
	if got := ids(w.broker.mail()); len(got) != 2 || got[1] != id {
		t.Errorf("the next run published %v", got)
	}
}
