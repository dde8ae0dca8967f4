package migrations_test

import (
	"context"
	"path/filepath"
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
		conn, err := amqp.DialConfig(w.uri, amqp.Config{Heartbeat: 5 * time.Second})
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
