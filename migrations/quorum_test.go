package migrations_test

import (
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fault"
	"fleetd/migrations"
	"fleetd/test/rabbit"
)

// A vhost can make every queue that names no type a quorum queue, which gives
// back in another order what was taken from it, counts who holds a message as a
// consumer, and ends the connection of who would delete it if it is empty. Fails
// when such a queue with mail is not named in the plan, when a classic one is
// taken for it, or when an empty one keeps others from being moved.
func TestOldQueuesThatAreQuorumQueues(t *testing.T) {
	w := newWorld(t, rabbit.URI(t), roomy)
	sent := numbered(2)
	w.old(sent...)
	quorum := migrations.QueueOf("a" + w.prefix + ":p1") // it has its turn before the other
	t.Cleanup(func() {
		if err := rabbit.Sweep(w.uri, []string{quorum}, nil); err != nil {
			t.Error(err)
		}
	})
	if _, err := w.ch.QueueDeclare(quorum, true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
		t.Fatal(err)
	}
	if err := w.ch.PublishWithContext(t.Context(), "", quorum, false, false, amqp.Publishing{Body: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	w.ready(quorum, 1)
	b := w.dial(w.uri)
	defer b.Close()
	s := w.sources(quorum)
	pane, _ := migrations.PaneOf(quorum)
	s.Panes, s.Workers[pane] = append(s.Panes, pane), s.Workers[w.pane]
	rows, err := migrations.Plan(t.Context(), b, s)
	if err != nil || len(rows) != 2 || rows[0].Queue != quorum || !strings.Contains(rows[0].Problem, "quorum queue") || rows[1].Problem != "" {
		t.Fatalf("the plan is %+v, %v", rows, err)
	}
	if err := migrations.Ready(rows); !fault.Is(err, fault.BadRequest) {
		t.Errorf("it could be moved: %v", err)
	}
	if _, err := w.ch.QueuePurge(quorum, false); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error { // it counts with a delay
		rows, err = migrations.Plan(t.Context(), b, s)
		if err == nil {
			err = migrations.Ready(rows)
		}
		return err
	})
	j, err := migrations.OpenJournal(w.journal)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	m := migrations.Mover{Broker: b, Journal: j, Limit: limit, Delete: true, Now: time.Now}
	counts, err := m.Move(t.Context(), rows)
	if err != nil || len(counts) != 2 || counts[0].Deleted || counts[1].Moved != 2 || !counts[1].Deleted {
		t.Fatalf("it came to %+v, %v", counts, err)
	}
	w.inOrder(sent)
}
