package migrations_test

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fault"
	"fleetd/migrations"
	"fleetd/test/rabbit"
)

// Fails when an old queue is deleted that is in use or not empty, or stays
// although it should go.
func TestDelete(t *testing.T) {
	w := newWorld(t, rabbit.URI(t), 1)
	w.old(numbered(2)...)
	b := w.dial(w.uri)
	defer b.Close()
	if c, err := w.moveOver(b, true); !fault.Is(err, fault.InboxFull) || c.Deleted {
		t.Errorf("with mail left it came to %+v, %v", c, err)
	}
	w.ready(w.queue(), 1)
	if deleted, err := b.Delete(t.Context(), w.queue()); deleted || err != nil {
		t.Errorf("a queue with mail is deleted: %t, %v", deleted, err)
	}
	w.mail()
	if c, err := w.moveOver(b, true); err != nil || !c.Deleted {
		t.Errorf("once empty it came to %+v, %v", c, err)
	}
	if _, err := b.Look(t.Context(), w.queue()); err != migrations.ErrNoQueue {
		t.Errorf("it is there still: %v", err)
	}
}

// Fails when a queue that looks empty because its mail is in somebody's hands is
// deleted with it.
func TestAQueueThatLooksEmptyIsNotDeletedAtOnce(t *testing.T) {
	w := newWorld(t, rabbit.URI(t), roomy)
	sent := numbered(3)
	w.old(sent...)
	release := w.hold(3)
	b := w.dial(w.uri)
	defer b.Close()
	c, err := w.moveOver(disturb(func(step string, n int) {
		if step == "look" && n == 4 { // its turn, before and after it was looked through, and once more
			release()
		}
	}, nil)(b), true)
	if want := (migrations.Count{Queue: w.queue(), Arrived: 3, Moved: 3, Deleted: true}); err != nil || c != want {
		t.Errorf("it came to %+v, %v; want %+v", c, err, want)
	}
	w.inOrder(sent)
}

// Fails when an old daemon that takes all mail while it is looked for makes the
// run end as if there was none.
func TestTheOldDaemonStartedAtTheFirstLook(t *testing.T) {
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
	c, err := w.move(again{remove: true, around: disturb(func(step string, n int) {
		if step != "take" || n != 1 {
			return
		}
		got, err := ch.Consume(w.queue(), "", false, false, false, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		for range sent {
			<-got
		}
	}, nil)})
	if !fault.Is(err, fault.Conflict) || c.Deleted {
		t.Errorf("it came to %+v, %v; want CONFLICT", c, err)
	}
	if err := conn.Close(); err != nil { // it acked nothing: all it had goes back
		t.Fatal(err)
	}
	w.ready(w.queue(), 3)
	w.must(migrations.Count{Found: 3, Moved: 3})
	w.inOrder(sent)
}
