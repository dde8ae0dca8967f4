package migrations_test

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"fleetd/fabric"
	"fleetd/fault"
	"fleetd/migrations"
	"fleetd/test/rabbit"
)

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

// What LavinMQ's management API answers has the form of RabbitMQ's where it
// matters; here as its API description has it. Fails when old queues are not
// found in it, others are taken for old ones, or what is held is not read.
func TestQueuesThatLavinMQLists(t *testing.T) {
	const list = `[
	{"name":"agent.wQ:p2.inbox","durable":true,"exclusive":false,"auto_delete":false,"arguments":{},"consumers":0,"vhost":"fleet/1",
	 "messages":41,"messages_persistent":41,"total_bytes":900,"ready":41,"ready_bytes":900,"unacked":0,"state":"running","policy":null,
	 "operator_policy":null,"exclusive_consumer_tag":null,"single_active_consumer_tag":null,"effective_policy_definition":{},"effective_arguments":[]},
	{"name":"agent.wQ:p7.inbox","durable":true,"exclusive":false,"auto_delete":false,"arguments":{"x-queue-type":"classic"},"messages":0},
	{"name":"agent.wQ:p8.inbox","durable":true,"arguments":{"x-max-length":10},"messages":0},
	{"name":"agent.wQ:p9.inbox","durable":false,"arguments":{},"messages":0},
	{"name":"agent.0199c0de-0000-7000-8000-000000000001.inbox.v2","durable":true,"arguments":{},"messages":3},
	{"name":"bridge.dlq","durable":true,"arguments":{},"messages":0}]`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		const all = "/api/queues/fleet%2F1"
		answer, known := map[string]string{all: list, all + "/agent.wQ:p2.inbox": `{"name":"agent.wQ:p2.inbox","unacked":3}`, all + "/agent.wQ:p7.inbox": `{"messages":0}`}[r.URL.EscapedPath()]
		if user != "ops" || password != "sesame" {
			t.Errorf("%s asks for %s with %q", user, r.URL.EscapedPath(), password)
		}
		w.Header().Set("Content-Type", "application/json")
		if !known {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = io.WriteString(w, answer) // a client that is gone needs none
	}))
	defer server.Close()
	api := migrations.Management{Base: server.URL + "/", VHost: "fleet/1", User: "ops", Password: "sesame"}
	found, err := api.Queues(t.Context())
	if want := []string{"agent.wQ:p2.inbox", "agent.wQ:p7.inbox"}; err != nil || !slices.Equal(found, want) {
		t.Errorf("it finds %q, %v, want %q", found, err, want)
	}
	for queue, want := range map[string]struct {
		held  int
		known bool
	}{"agent.wQ:p2.inbox": {3, true}, "agent.wQ:p7.inbox": {0, false}, "agent.wQ:p9.inbox": {0, false}} { // the last is not there, for this API
		if held, known, err := api.Held(t.Context(), queue); err != nil || held != want.held || known != want.known {
			t.Errorf("of %s %d are held, %t, %v", queue, held, known, err)
		}
	}
	api.VHost = "other"
	if _, err := api.Queues(t.Context()); !fault.Is(err, fault.BrokerRefused) {
		t.Errorf("another vhost reads %v", err)
	}
}

// A reader that is no consumer has the last reply of a queue in hand. Fails when the
// queue is deleted with it although the management API tells of it, when that is not
// said, or when the queue stays once nobody has anything.
func TestAQueueWithMailInSomebodysHandsStays(t *testing.T) {
	node := rabbit.Private(t, rabbit.Plugins("rabbitmq_management"))
	w := newWorld(t, node.URI, roomy)
	sent := numbered(3)
	w.old(sent...)
	api := migrations.Management{Base: node.Management, VHost: "/", User: "guest", Password: "guest"}
	release := w.hold(1)
	eventually(t, func() error { // it counts with a delay
		if held, known, err := api.Held(t.Context(), w.queue()); err != nil || held != 1 {
			return fmt.Errorf("held are %d, %t, %v", held, known, err)
		}
		return nil
	})
	b := w.dial(w.uri)
	defer b.Close()
	remove := func(counted time.Duration) migrations.Count {
		t.Helper()
		j, err := migrations.OpenJournal(w.journal)
		if err != nil {
			t.Fatal(err)
		}
		defer j.Close()
		m := migrations.Mover{
			Broker: b, Journal: j, Limit: limit, Delete: true, Now: time.Now, Patience: patience, Return: time.Millisecond,
			Held: api.Held, Counted: counted,
		}
		counts, err := m.Move(t.Context(), []migrations.Row{w.row()})
		if err != nil || len(counts) != 1 {
			t.Fatalf("it came to %+v, %v", counts, err)
		}
		return counts[0]
	}
	if c := remove(0); c.Moved != 2 || c.Deleted || !strings.Contains(c.Problem, "the queue stays: somebody took ") {
		t.Errorf("it came to %+v", c)
	}
	release()
	if c := remove(15 * time.Second); c.Moved != 1 || !c.Deleted || c.Problem != "" {
		t.Errorf("once it is back it came to %+v", c)
	}
	w.inOrder(append(slices.Clone(sent[1:]), sent[0]))
}

// Fails when a queue is deleted of which nobody can say whether mail is held, when
// one stays because of what the run itself took and the broker still counts, or when
// an answer that does not come keeps other queues from being moved.
func TestWhatTheManagementAPISaysOfAnEmptyQueue(t *testing.T) {
	type answer struct {
		held  int
		known bool
		err   error
	}
	for _, x := range []struct {
		name    string
		answers []answer // the last again and again
		says    string   // "": it is deleted
		old     bool     // in the first 5 s the API says that nothing is held
	}{
		{"counted a while ago", []answer{{3, true, nil}, {0, false, nil}, {2, true, nil}, {0, true, nil}}, "", false},
		{"held", []answer{{2, true, nil}}, "somebody took 2 messages", false},
		{"taken just now", []answer{{2, true, nil}}, "somebody took 2 messages", true},
		{"not known", []answer{{0, false, nil}}, "does not say", false},
		{"no answer", []answer{{0, false, fault.New(fault.BrokerDown, "it is down")}}, "it is down", false},
		{"an error", []answer{{0, false, errors.New("x")}}, "the queue stays", false},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, n := newModel("AB"), 0
				m.at = func(int) {}
				j, err := migrations.OpenJournal(filepath.Join(t.TempDir(), "j"))
				if err != nil {
					t.Fatal(err)
				}
				defer j.Close()
				mover := migrations.Mover{Broker: m, Journal: j, Limit: limit, Delete: true, Now: time.Now, Counted: 7 * time.Second}
				began := time.Now()
				mover.Held = func(context.Context, string) (int, bool, error) {
					if x.old && time.Since(began) < 5*time.Second {
						return 0, true, nil
					}
					a := x.answers[min(n, len(x.answers)-1)]
					n++
					return a.held, a.known, a.err
				}
				row := migrations.Row{Queue: "agent.w:p1.inbox", FromID: "worker", ToID: "main"}
				next := row
				next.Queue = "agent.w:p2.inbox"
				counts, err := mover.Move(t.Context(), []migrations.Row{row, next})
				if err != nil || len(counts) != 2 {
					t.Fatalf("it came to %+v, %v", counts, err)
				}
				if c := counts[0]; c.Moved != 2 || c.Deleted != (x.says == "") || (c.Problem == "") != c.Deleted || !strings.Contains(c.Problem, x.says) {
					t.Errorf("it came to %+v", c)
				}
			})
		})
	}
}
