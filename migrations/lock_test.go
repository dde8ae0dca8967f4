package migrations_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric"
	"fleetd/fault"
	"fleetd/migrations"
	"fleetd/test/rabbit"
)

// loses is a broker on which the lock that was got first is gone at once.
type loses struct {
	migrations.Broker
	locks int
}

func (l *loses) Lock(ctx context.Context, queue string) (bool, error) {
	if l.locks++; l.locks == 1 {
		return true, nil
	}
	return l.Broker.Lock(ctx, queue)
}

// A lock can be deleted, or let go by a policy. Fails when a run goes on without
// it beside another one, or does not get it back where nobody has it.
func TestTheLockIsLost(t *testing.T) {
	t.Run("and another run has it", func(t *testing.T) {
		w := newWorld(t, rabbit.URI(t), roomy)
		sent := numbered(3)
		w.old(sent...)
		conn, err := amqp.DialConfig(w.uri, amqp.Config{Heartbeat: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		ch, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ch.QueueDeclare(w.queue()+".migrating", false, false, true, false, nil); err != nil {
			t.Fatal(err)
		}
		c, err := w.move(again{remove: true, around: func(b *fabric.OldQueues) migrations.Broker { return &loses{Broker: b} }})
		if !fault.Is(err, fault.Conflict) || c.Moved != 0 || c.Left != 3 {
			t.Errorf("beside the other run it came to %+v, %v; want CONFLICT", c, err)
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
		w.must(migrations.Count{Found: 3, Moved: 3})
		w.inOrder(sent)
	})
	t.Run("and nobody has it", func(t *testing.T) {
		w := newWorld(t, rabbit.URI(t), roomy)
		sent := numbered(3)
		w.old(sent...)
		elsewhere := filepath.Join(t.TempDir(), migrations.JournalFile)
		other := func(step string, n int) {
			if step != "deliver" || n != 2 {
				return
			}
			if c, err := w.move(again{journal: elsewhere, hurried: true}); !fault.Is(err, fault.Conflict) {
				t.Errorf("beside it another run came to %+v, %v; want CONFLICT", c, err)
			}
		}
		w.done(again{around: func(b *fabric.OldQueues) migrations.Broker { return &loses{Broker: disturb(other, nil)(b)} }}, 3, 0)
		w.inOrder(sent)
	})
}

// Fails when a queue that has the name of the lock for good is taken for another
// run, which would be over some time.
func TestAQueueWithTheNameOfTheLock(t *testing.T) {
	w := newWorld(t, rabbit.URI(t), roomy)
	sent := numbered(2)
	w.old(sent...)
	lock := w.queue() + ".migrating"
	t.Cleanup(func() {
		if err := rabbit.Sweep(w.uri, []string{lock}, nil); err != nil {
			t.Error(err)
		}
	})
	for _, durable := range []bool{true, false} {
		if _, err := w.ch.QueueDeclare(lock, durable, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
		c, err := w.move(again{hurried: true})
		if !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "in the way") || c.Left != 2 {
			t.Errorf("durable=%t: it came to %+v, %v", durable, c, err)
		}
		if _, err := w.ch.QueueDelete(lock, false, false, false); err != nil {
			t.Fatal(err)
		}
	}
	w.must(migrations.Count{Found: 2, Moved: 2})
	w.inOrder(sent)
}

// Fails when a lock that the broker does not make reads as one that is in the
// way, or does not say what the broker says.
func TestALockThatTheBrokerDoesNotMake(t *testing.T) {
	node := rabbit.Private(t)
	w := newWorld(t, node.URI, roomy)
	sent := numbered(2)
	w.old(sent...)
	limits := func(text string) {
		t.Helper()
		if _, err := node.Ctl(t.Context(), "set_vhost_limits", text); err != nil {
			t.Fatal(err)
		}
	}
	limits(`{"max-queues": 2}`)
	c, err := w.move(again{hurried: true})
	if !fault.Is(err, fault.BrokerRefused) || !strings.Contains(err.Error(), "queue limit") || c.Left != 2 {
		t.Errorf("it came to %+v, %v", c, err)
	}
	limits(`{"max-queues": -1}`)
	w.must(migrations.Count{Found: 2, Moved: 2})
	w.inOrder(sent)
}

// Fails when two migrations run at the same time.
func TestOneMigrationAtATime(t *testing.T) {
	file := t.TempDir() + "/j"
	j, err := migrations.OpenJournal(file)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the journal: %v, %v", info.Mode(), err)
	}
	if _, err := migrations.OpenJournal(file); !fault.Is(err, fault.Conflict) {
		t.Errorf("a second one reads %v", err)
	}
}

// Two hosts can have panes of one name, and each its own journal. Fails when
// migrations that run at once lose a reply, double one, or break their order.
func TestTwoHostsMoveOneQueue(t *testing.T) {
	w := newWorld(t, rabbit.URI(t), roomy)
	sent := numbered(400)
	w.old(sent...)
	var wg sync.WaitGroup
	var moved atomic.Int64
	for i := range 2 {
		journal := filepath.Join(t.TempDir(), fmt.Sprint(i))
		wg.Go(func() {
			c, err := w.move(again{journal: journal})
			if err != nil {
				t.Error(err)
			}
			moved.Add(int64(c.Moved))
		})
	}
	wg.Wait()
	if n := moved.Load(); n != int64(len(sent)) {
		t.Errorf("they say that they moved %d, want %d", n, len(sent))
	}
	w.inOrder(sent)
}
