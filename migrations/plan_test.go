package migrations_test

import (
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric"
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
	conn, err := amqp.DialConfig(w.uri, amqp.Config{Heartbeat: 5 * time.Second})
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

// Fails when a management API whose certificate the configured authority gave
// is not believed, or one that nobody vouches for is.
func TestTheManagementAPIOverHTTPS(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `[{"name":"agent.wQ:p2.inbox","durable":true,"arguments":{}}]`) // a client that is gone needs none
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of the handshake that has to fail
	server.StartTLS()
	defer server.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for file, good := range map[string]bool{"": false, ca: true} {
		secure, err := fabric.TLS{CA: file}.Client()
		if err != nil {
			t.Fatal(err)
		}
		found, err := migrations.Management{Base: server.URL, VHost: "/", User: "ops", Password: "sesame", Secure: secure}.Queues(t.Context())
		if good && (err != nil || len(found) != 1) {
			t.Errorf("with its authority: %q, %v", found, err)
		}
		if !good && (!fault.Is(err, fault.BrokerRefused) || !strings.Contains(err.Error(), "broker.tls.ca")) {
			t.Errorf("without: %q, %v", found, err)
		}
	}
}
