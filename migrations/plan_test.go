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

// theirs is a further old queue, of a pane with name in its id.
func (w *world) theirs(name string) string {
	w.t.Helper()
	q := migrations.QueueOf("w" + w.prefix + name + ":p1")
	if _, err := w.ch.QueueDeclare(q, true, false, false, false, nil); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := rabbit.Sweep(w.uri, []string{q}, nil); err != nil {
			w.t.Error(err)
		}
	})
	return q
}

// sources are what the command gathers for the world's queue and others that
// the management API lists.
func (w *world) sources(found ...string) migrations.Sources {
	return migrations.Sources{
		Panes: []string{w.pane}, Found: append(found, w.queue()), Inbox: w.names().Inbox(w.main),
		Workers: map[string]migrations.Person{w.pane: {GID: w.worker, Address: "rev@hosta"}},
		Main:    migrations.Person{GID: w.main, Address: "main@hosta"},
	}
}

// Fails when --management with --delete deletes a queue of another host, whose
// old daemon then loses what is said to it, when what is said there keeps our
// mail from being moved, or when our own queue is spared.
func TestQueuesOfOtherHostsAreLeftAlone(t *testing.T) {
	w := newWorld(t, rabbit.URI(t), roomy)
	w.old(numbered(2)...)
	foreign := w.theirs("elsewhere")
	b := w.dial(w.uri)
	defer b.Close()
	rows, err := migrations.Plan(t.Context(), b, w.sources(foreign))
	if err != nil || migrations.Ready(rows) != nil || len(rows) != 2 {
		t.Fatalf("the plan is %+v, %v", rows, err)
	}
	if err := w.ch.PublishWithContext(t.Context(), "", foreign, false, false, amqp.Publishing{Body: []byte("theirs")}); err != nil {
		t.Fatal(err)
	}
	w.ready(foreign, 1)
	j, err := migrations.OpenJournal(w.journal)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	m := migrations.Mover{Broker: b, Journal: j, Limit: limit, Delete: true, Now: time.Now, Patience: patience, Return: time.Second}
	counts, err := m.Move(t.Context(), rows)
	if err != nil || len(counts) != 1 || counts[0].Queue != w.queue() || counts[0].Moved != 2 || !counts[0].Deleted {
		t.Fatalf("it came to %+v, %v", counts, err)
	}
	if q, err := b.Look(t.Context(), foreign); err != nil || q.Ready != 1 {
		t.Errorf("the queue of another host: %+v, %v", q, err)
	}
}

// In mixed times the old daemons of other hosts go on with their queues, which
// the management API lists as well. Fails when our mail cannot be moved beside
// them.
func TestQueuesAreLeftOutOfAPlan(t *testing.T) {
	w := newWorld(t, rabbit.URI(t), roomy)
	w.old(numbered(2)...)
	foreign := w.theirs("elsewhere")
	if _, err := w.ch.Consume(foreign, "", false, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	b := w.dial(w.uri)
	defer b.Close()
	s := w.sources(foreign)
	rows, err := migrations.Plan(t.Context(), b, s)
	if err != nil || !fault.Is(migrations.Ready(rows), fault.Conflict) || !strings.Contains(migrations.Ready(rows).Error(), "--skip "+foreign) {
		t.Fatalf("beside another host's old daemon: %+v, %v", rows, err)
	}
	for _, pattern := range []string{foreign, "agent.w" + w.prefix + "else*"} {
		s.Skip = []string{"agent.nobody:p1.inbox", pattern}
		rows, err = migrations.Plan(t.Context(), b, s)
		if err != nil || len(rows) != 1 || rows[0].Queue != w.queue() || migrations.Ready(rows) != nil {
			t.Errorf("without %s: %+v, %v", pattern, rows, err)
		}
	}
	s.Skip = []string{"agent.[.inbox"}
	if _, err = migrations.Plan(t.Context(), b, s); !fault.Is(err, fault.BadRequest) {
		t.Errorf("a pattern that is none: %v", err)
	}
	s.Skip, s.Queues = []string{"*"}, []string{w.queue()}
	if _, err = migrations.Plan(t.Context(), b, s); !fault.Is(err, fault.BadRequest) {
		t.Errorf("a queue that is named and left out: %v", err)
	}
}

// Fails when one queue that this login cannot look at keeps all others from
// being planned, or it is passed over in silence.
func TestAQueueThatCannotBeLookedAt(t *testing.T) {
	w := newWorld(t, rabbit.URI(t), roomy)
	w.old(numbered(2)...)
	conn, err := amqp.DialConfig(w.uri, amqp.Config{Heartbeat: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	locked := migrations.QueueOf("w" + w.prefix + "locked:p1")
	if _, err := ch.QueueDeclare(locked, true, false, true, false, nil); err != nil {
		t.Fatal(err)
	}
	b := w.dial(w.uri)
	defer b.Close()
	s := w.sources(locked)
	rows, err := migrations.Plan(t.Context(), b, s)
	if err != nil || len(rows) != 2 {
		t.Fatalf("the plan is %+v, %v", rows, err)
	}
	if err := migrations.Ready(rows); err == nil || !strings.Contains(err.Error(), locked) || strings.Contains(err.Error(), w.queue()) {
		t.Errorf("it can be moved: %v", err)
	}
	s.Skip = []string{locked}
	if rows, err = migrations.Plan(t.Context(), b, s); err != nil || len(rows) != 1 || migrations.Ready(rows) != nil {
		t.Errorf("without it: %+v, %v", rows, err)
	}
}

// Fails when an unknown pane or a missing main is guessed, a consumer is passed
// over, a named queue that is not there is left out in silence, or a plan
// changes anything.
func TestPlan(t *testing.T) {
	w := newWorld(t, rabbit.URI(t), roomy)
	w.old(numbered(2)...)
	b := w.dial(w.uri)
	defer b.Close()
	known := migrations.Sources{
		Panes: []string{w.pane, "w-none:p9"}, Queues: []string{w.queue()},
		Workers: map[string]migrations.Person{w.pane: {GID: w.worker, Address: "rev@hosta"}},
		Main:    migrations.Person{GID: w.main, Address: "main@hosta"}, Inbox: "the inbox",
	}
	plan := func(s migrations.Sources) migrations.Row {
		t.Helper()
		rows, err := migrations.Plan(t.Context(), b, s)
		if err != nil || len(rows) != 1 {
			t.Fatalf("the plan is %+v, %v", rows, err)
		}
		return rows[0]
	}
	want := migrations.Row{
		Queue: w.queue(), Pane: w.pane, Messages: 2, From: "rev@hosta", FromID: w.worker, To: "main@hosta", ToID: w.main, Inbox: "the inbox",
	}
	if got := plan(known); got != want || migrations.Ready([]migrations.Row{got}) != nil {
		t.Errorf("the plan is %+v", got)
	}
	stranger := known
	stranger.Workers = nil
	if got := plan(stranger); !strings.Contains(got.Problem, "--map "+w.pane+"=NAME") || !fault.Is(migrations.Ready([]migrations.Row{got}), fault.BadRequest) {
		t.Errorf("an unknown pane: %+v", got)
	}
	nobody := known
	nobody.Main, nobody.NoMain = migrations.Person{}, "no main"
	if got := plan(nobody); got.Problem != "no main" {
		t.Errorf("no main: %+v", got)
	}
	missing := known
	missing.Queues = []string{"agent.w-none:p9.inbox"}
	if _, err := migrations.Plan(t.Context(), b, missing); !fault.Is(err, fault.BadRequest) {
		t.Errorf("a named queue that is not there: %v", err)
	}
	missing.Queues = []string{w.queue() + ".v2"}
	if _, err := migrations.Plan(t.Context(), b, missing); !fault.Is(err, fault.BadRequest) {
		t.Errorf("a queue of this daemon: %v", err)
	}
	if _, err := w.ch.Consume(w.queue(), "old", false, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if got := plan(known); !strings.Contains(got.Problem, "stop it") || !fault.Is(migrations.Ready([]migrations.Row{got}), fault.Conflict) {
		t.Errorf("a consumer: %+v", got)
	}
	if err := w.ch.Close(); err != nil {
		t.Fatal(err)
	}
}

// Fails when mail that came into a queue after the plan is moved for nobody.
func TestMailThatCameAfterThePlan(t *testing.T) {
	w := newWorld(t, rabbit.URI(t), roomy)
	sent := numbered(2)
	w.old(sent...)
	worker := w.worker
	w.worker = "" // as in the plan of an empty queue
	if c, err := w.run(nil); !fault.Is(err, fault.Conflict) || c.Left != 2 {
		t.Errorf("it came to %+v, %v", c, err)
	}
	w.worker = worker
	w.ready(w.queue(), 2)
	w.must(migrations.Count{Found: 2, Moved: 2})
	w.inOrder(sent)
}
