package inbox

import (
	"context"
	"fmt"
	"testing"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/store"
)

// swift is an injector whose panes take everything at once.
type swift struct{ done chan string }

func (swift) Frame(_ string, p Piece) (string, bool) { return p.MsgID, false }

func (s swift) Inject(_ context.Context, _ Pane, text string, h Hooks) Injection {
	if err := h.Commit(); err != nil {
		return Injection{Result: NotSent, Err: err}
	}
	s.done <- text
	return Injection{Result: Injected}
}

func benchWorld(b *testing.B) (*world, swift) {
	w := newWorldOn(b, openStore(b))
	s := swift{done: make(chan string, 1)}
	b.Cleanup(w.stop)
	w.begin(func(c *Config) { c.Injector, c.Store = s, w.store })
	return w, s
}

// BenchmarkInject is one brief from its arrival to its first byte: to be
// compared with BenchmarkCommit, of which one stands in its way.
func BenchmarkInject(b *testing.B) {
	for _, local := range []bool{false, true} {
		b.Run(fmt.Sprintf("local=%t", local), func(b *testing.B) {
			w, s := benchWorld(b)
			e := w.worker("a")
			for b.Loop() {
				env := w.brief(e.GID, "x")
				if local {
					w.deliver(env)
				} else {
					w.in.Accept(context.Background(), e.GID, envelope.Delivery{Envelope: env, Settler: &hold{b: w.broker, m: &message{env: env}}})
				}
				<-s.done
			}
		})
	}
}

// BenchmarkCommit is the store's own price of one record.
func BenchmarkCommit(b *testing.B) {
	w, _ := benchWorld(b)
	gid := newID()
	for b.Loop() {
		env := w.brief(gid, "x")
		err := w.store.Write(context.Background(), func(tx *store.Tx) error {
			return tx.PutSeen(env.TS, env.MsgID, gid, store.Seen{Outcome: store.Injecting, Host: there})
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkFullInbox drains an inbox as full as it gets, 20 at a time, with a
// client waiting for something else all the while.
func BenchmarkFullInbox(b *testing.B) {
	const most = 100_000
	for b.Loop() {
		box := newBox(store.Entity{Kind: store.Main}, func(func(*store.Tx) error) {})
		w := &Waiter{box: box, filter: Filter{From: "nobody"}, limit: Limit{Max: 1}, c: make(chan *Batch, 1)}
		box.waiters = append(box.waiters, w)
		box.mu.Lock()
		for i := range most {
			it := newLocal(&envelope.Envelope{MsgID: fmt.Sprint(i), Kind: envelope.Send}, time.Time{})
			box.insert(it)
			box.arrive(it)
		}
		box.mu.Unlock()
		for range most / 20 {
			box.mu.Lock()
			got := box.collect(&Waiter{limit: Limit{Max: 20}})
			box.mu.Unlock()
			box.finish(got...)
		}
		if box.items.Len() != 0 || box.ready != 0 || box.locals != 0 {
			b.Fatalf("%d left", box.items.Len())
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/most, "ns/message")
}
