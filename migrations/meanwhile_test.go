package migrations_test

import (
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fault"
	"fleetd/migrations"
	"fleetd/test/rabbit"
)

// Fails when the run goes on beside an old daemon that was started in the
// middle, or when that costs a reply.
func TestTheOldDaemonStartedInTheMiddle(t *testing.T) {
	w := newWorld(t, rabbit.URI(t), roomy)
	sent := numbered(300)
	w.old(sent...)
	conn, err := amqp.DialConfig(w.uri, amqp.Config{Heartbeat: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	start := func(step string, n int) {
		if step != "deliver" || n != 10 {
			return
		}
		ch, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ch.Consume(w.queue(), "", false, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
	}
	c, err := w.run(disturb(start, nil))
	if !fault.Is(err, fault.Conflict) || c.Moved == 0 || c.Moved >= 300 {
		t.Errorf("it came to %+v, %v; want CONFLICT after some", c, err)
	}
	if c, err := w.run(nil); !fault.Is(err, fault.Conflict) || c.Moved != 0 {
		t.Errorf("beside the old daemon it came to %+v, %v; want CONFLICT and nothing moved", c, err)
	}
	if err := conn.Close(); err != nil { // it acked nothing: all it had goes back
		t.Fatal(err)
	}
	w.ready(w.queue(), 300-c.Moved)
	w.must(migrations.Count{Found: 300 - c.Moved, Moved: 300 - c.Moved})
	w.inOrder(sent)
}

// Fails when a queue that is deleted under way stops the run, is made again, or is
// said to be deleted by the run, or when what was taken from it to be moved is
// dropped.
func TestAQueueDeletedMeanwhile(t *testing.T) {
	for _, x := range []struct {
		at   string
		n    int
		want migrations.Count
	}{
		{"take", 3, migrations.Count{Found: 5, Vanished: 5}},            // while it is looked through
		{"take", 11, migrations.Count{Found: 5, Moved: 2, Vanished: 3}}, // 5, none, the mark, none
		{"deliver", 3, migrations.Count{Found: 5, Moved: 5}},
		{"ack", 3, migrations.Count{Found: 5, Moved: 5}},
	} {
		at, want := x.at, x.want
		t.Run(fmt.Sprintf("%s %d", at, x.n), func(t *testing.T) {
			w := newWorld(t, rabbit.URI(t), roomy)
			sent := numbered(5)
			w.old(sent...)
			remove := func(step string, n int) {
				if step == at && n == x.n {
					if _, err := w.ch.QueueDelete(w.queue(), false, false, false); err != nil {
						t.Error(err)
					}
				}
			}
			b := w.dial(w.uri)
			defer b.Close()
			c, err := w.moveOver(disturb(remove, nil)(b), true)
			want.Queue = w.queue()
			if err != nil || c != want {
				t.Errorf("it came to %+v, %v; want %+v", c, err, want)
			}
			if odd, err := b.Replicated(t.Context(), w.queue()); odd || err != migrations.ErrNoQueue {
				t.Errorf("its type is asked for: %t, %v", odd, err)
			}
			if q, err := b.Look(t.Context(), w.queue()); err != migrations.ErrNoQueue {
				t.Errorf("it is there again: %+v, %v", q, err)
			}
			w.inOrder(sent[:want.Moved])
		})
	}
}

// Fails when replies that somebody else takes meanwhile stop the run, are not
// counted, or break the order of the others.
func TestRepliesThatAConsumerTakesMeanwhile(t *testing.T) {
	w := newWorld(t, rabbit.URI(t), roomy)
	sent := append(numbered(4), same(4)...)
	w.old(sent...)
	steal := func(step string, n int) {
		if step != "giveback" || n != 1 {
			return
		}
		for range 3 {
			if _, ok, err := w.ch.Get(w.queue(), true); !ok || err != nil {
				t.Errorf("it got %t, %v", ok, err)
			}
		}
	}
	c, err := w.move(again{around: disturb(nil, steal)})
	if want := (migrations.Count{Queue: w.queue(), Found: 8, Moved: 5, Vanished: 3}); err != nil || c != want {
		t.Errorf("it came to %+v, %v; want %+v", c, err, want)
	}
	w.inOrder(sent[3:])
}

// Fails when replies that come in while others are moved are not moved, or not
// counted as such.
func TestRepliesThatComeMeanwhile(t *testing.T) {
	w := newWorld(t, rabbit.URI(t), roomy)
	sent := append(numbered(3), same(2)...)
	w.old(sent[:3]...)
	come := func(step string, n int) {
		if step == "deliver" && n == 2 {
			w.old(sent[3:]...)
		}
	}
	c, err := w.move(again{around: disturb(come, nil)})
	if want := (migrations.Count{Queue: w.queue(), Found: 3, Arrived: 2, Moved: 5}); err != nil || c != want {
		t.Errorf("it came to %+v, %v; want %+v", c, err, want)
	}
	w.inOrder(sent)
}
