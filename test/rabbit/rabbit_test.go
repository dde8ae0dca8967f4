package rabbit_test

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"fleetd/test/rabbit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(rabbit.Shared(m)) }

func dial(t *testing.T, uri string) *amqp.Connection {
	t.Helper()
	c, err := amqp.DialConfig(uri, amqp.Config{Heartbeat: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Fails if a crash loses the data directory, or if Restart takes other ports.
func TestNodeKeepsDurableQueuesOverACrash(t *testing.T) {
	n := rabbit.Private(t)
	conn := dial(t, n.URI)
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueueDeclare("kept", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := n.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.Kill()
	if err := conn.Close(); err == nil {
		t.Error("the connection survived the crash")
	}
	if err := n.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	again := dial(t, n.URI)
	defer again.Close()
	ch, err = again.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueueDeclarePassive("kept", true, false, false, false, nil); err != nil {
		t.Error("the durable queue is gone after the crash:", err)
	}
	out, err := n.Ctl(t.Context(), "list_queues", "name")
	if err != nil || !strings.Contains(out, "kept") {
		t.Errorf("rabbitmqctl does not reach the node: %q %v", out, err)
	}
}

// Fails if Stop leaves the directory, the broker or its port mapper behind.
func TestStopLeavesNothing(t *testing.T) {
	n, err := rabbit.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pids := n.Pids()
	if len(pids) != 2 {
		t.Fatalf("want the broker and epmd as children, have %v", pids)
	}
	if err := n.Stop(); err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("process %d still runs: %v", pid, err)
		}
	}
	if _, err := os.Stat(n.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s still exists", n.Dir)
	}
}

// Fails if Sweep stops at a name that does not exist, or leaves one that does.
func TestSweepDeletesWhatExists(t *testing.T) {
	uri, p := rabbit.URI(t), rabbit.Prefix(t)
	conn := dial(t, uri)
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueueDeclare(p+"q", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := rabbit.Sweep(uri, []string{p + "none", p + "q"}, []string{p + "x"}); err != nil {
		t.Fatal(err)
	}
	var gone *amqp.Error
	if _, err := ch.QueueDeclarePassive(p+"q", true, false, false, false, nil); !errors.As(err, &gone) || gone.Code != amqp.NotFound {
		t.Errorf("the queue survived the sweep: %v", err)
	}
}
