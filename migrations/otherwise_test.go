package migrations_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric"
	"fleetd/fault"
	"fleetd/migrations"
	"fleetd/test/rabbit"
)

// Fails when what a broken run has not sent goes to the main, or is from the
// worker, that the command no longer names; when a main that is gone stops all
// later runs; or when the user is not told of what may be with both.
func TestAnotherMainAndWorker(t *testing.T) {
	for _, gone := range []bool{true, false} {
		t.Run(fmt.Sprintf("refused, gone=%t", gone), func(t *testing.T) {
			w := newWorld(t, rabbit.URI(t), 1)
			sent := numbered(4)
			w.old(sent...)
			if c, err := w.move(again{}); !fault.Is(err, fault.InboxFull) || c.Moved != 1 {
				t.Fatalf("it came to %+v, %v", c, err)
			}
			w.inOrder(sent[:1])
			w.another(t, gone)
			w.done(again{}, 3, 0)
			w.inOrder(sent[1:]) // with their own ids
		})
		t.Run(fmt.Sprintf("killed, gone=%t", gone), func(t *testing.T) {
			w := newWorld(t, rabbit.URI(t), roomy)
			sent := same(4)
			w.old(sent...)
			if !w.killed("ack", 2, true) {
				t.Fatal("it was not killed")
			}
			w.inOrder(sent)
			w.another(t, gone)
			w.done(again{}, 3, 3)
			w.inOrder(sent[1:])
		})
	}
	t.Run("sent, and only the ack is missing", func(t *testing.T) {
		w := newWorld(t, rabbit.URI(t), roomy)
		sent := same(4)
		w.old(sent...)
		w.done(again{around: func(b *fabric.OldQueues) migrations.Broker { return &forgetful{b, 2, 0} }}, 4, 0)
		w.ready(w.queue(), 2)
		w.inOrder(sent)
		w.another(t, true)
		w.done(again{}, 2, 0)
		w.inOrder(nil)
	})
}

// Fails when of two messages with one id and content each goes for itself because
// a run between them had another main.
func TestACopyAndAnotherMain(t *testing.T) {
	id := uuid.NewString()
	both := slices.Repeat([]amqp.Publishing{{MessageId: id, Body: []byte("twice")}}, 2)
	demand := func(w *world, a again, moved, copies, doubtful, comes int) {
		w.t.Helper()
		c, err := w.move(a)
		if err != nil || c.Moved != moved || c.Copies != copies || c.Doubtful != doubtful || c.Left != 0 {
			w.t.Errorf("it came to %+v, %v; want %d moved, %d copies, %d doubtful", c, err, moved, copies, doubtful)
		}
		if got := w.bodies(); len(got) != comes {
			w.t.Errorf("the main gets %q, want %d", got, comes)
		}
	}
	t.Run("killed before the first was noted as sent", func(t *testing.T) {
		w := newWorld(t, rabbit.URI(t), roomy)
		w.old(both...)
		if !w.killed("deliver", 1, false) {
			t.Fatal("it was not killed")
		}
		w.another(t, true)
		demand(w, again{}, 1, 1, 1, 1)
	})
	t.Run("the first was sent", func(t *testing.T) {
		w := newWorld(t, rabbit.URI(t), 1)
		w.old(both...)
		if c, err := w.move(again{}); !fault.Is(err, fault.InboxFull) || c.Moved != 1 {
			t.Fatalf("it came to %+v, %v", c, err)
		}
		w.another(t, true)
		demand(w, again{}, 0, 1, 0, 0)
	})
	t.Run("and back", func(t *testing.T) {
		w := newWorld(t, rabbit.URI(t), roomy)
		w.old(both...)
		cut := errors.New("cut")
		if _, err := w.move(again{around: func(b *fabric.OldQueues) migrations.Broker {
			return &failing{OldQueues: b, at: 1, err: cut}
		}}); !errors.Is(err, cut) {
			t.Fatal(err)
		}
		main, worker := w.main, w.worker
		w.another(t, false)
		if _, err := w.ch.QueueDelete(w.names().Inbox(w.main), false, false, false); err != nil {
			t.Fatal(err)
		}
		if c, err := w.move(again{}); !fault.Is(err, fault.Unroutable) || c.Left != 2 {
			t.Fatalf("it came to %+v, %v", c, err)
		}
		w.main, w.worker = main, worker
		demand(w, again{}, 1, 1, 0, 1)
	})
}

// another has the world's mail be for another main and from another worker.
func (w *world) another(t *testing.T, gone bool) {
	t.Helper()
	was := w.names().Inbox(w.main)
	if gone {
		if _, err := w.ch.QueueDelete(was, false, false, false); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := rabbit.Sweep(w.uri, []string{was}, nil); err != nil {
			t.Error(err)
		}
		if err := rabbit.Sweep(w.uri, []string{w.names().Inbox(w.main)}, nil); err != nil {
			t.Error(err)
		}
	})
	w.main, w.worker = uuid.NewString(), uuid.NewString()
	w.declareInbox(roomy)
}

// Fails when a message that was sent in part, and then under another limit,
// comes with a hole or with two contents under one id.
func TestAnotherLimit(t *testing.T) {
	const size = 5000
	for _, x := range []struct{ first, second, doubtful int }{{1024, 2048, 0}, {2048, 1024, 1}} {
		for _, own := range []string{"", uuid.NewString()} {
			w := newWorld(t, rabbit.URI(t), roomy)
			body := strings.Repeat("0123456789", size/10)
			w.old(amqp.Publishing{MessageId: own, Body: []byte(body)})
			cut := errors.New("cut")
			if _, err := w.move(again{limit: x.first, around: func(b *fabric.OldQueues) migrations.Broker {
				return &failing{OldQueues: b, at: 2, err: cut}
			}}); !errors.Is(err, cut) {
				t.Fatal(err)
			}
			w.done(again{limit: x.second}, 1, x.doubtful)
			if got := w.bodies(); len(got) != 1 || got[0] != body {
				t.Errorf("under %+v the main gets %d messages", x, len(got))
			}
		}
	}
}

// failing is a broker whose nth publish fails, and nobody knows how.
type failing struct {
	*fabric.OldQueues
	at, n int
	err   error
}

func (f *failing) Deliver(ctx context.Context, l migrations.Letter) error {
	if f.n++; f.n == f.at {
		return f.err
	}
	return f.OldQueues.Deliver(ctx, l)
}
