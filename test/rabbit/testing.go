package rabbit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// EnvBroker names the variable that makes the tests use a broker that runs
// already. Tests that kill or configure their broker call Private and so never
// touch it.
const EnvBroker = "BRIDGED_TEST_BROKER"

var shared struct {
	sync.Mutex
	node *Node
	err  error
	done bool
}

// Suite runs a test binary and ends its shared node afterwards.
type Suite struct{ m interface{ Run() int } }

// Shared wraps m for TestMain, with or without goleak:
//
//	func TestMain(m *testing.M) { goleak.VerifyTestMain(rabbit.Shared(m)) }
//
// The node starts with Boot or the first call of URI.
func Shared(m interface{ Run() int }) *Suite { return &Suite{m: m} }

// Run runs the tests.
func (s *Suite) Run() int {
	code := s.m.Run()
	shared.Lock()
	defer shared.Unlock()
	if shared.node != nil {
		left, err := leftovers(shared.node)
		for range 10 { // queues that go with their connection take a moment
			if err != nil || left == "" {
				break
			}
			time.Sleep(time.Second)
			left, err = leftovers(shared.node)
		}
		if err != nil || left != "" {
			fmt.Fprintf(os.Stderr, "the tests left on the shared broker: %s %v\n", left, err)
			code = max(code, 1)
		}
		if err := shared.node.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stop the shared broker:", err)
			return max(code, 1)
		}
		shared.node = nil
	}
	return code
}

// leftovers names the queues and exchanges that tests did not remove: on
// somebody else's broker they would stay for ever.
func leftovers(n *Node) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute) // two commands, on a busy machine
	defer cancel()
	var left []string
	for _, what := range []string{"list_queues", "list_exchanges"} {
		out, err := n.Ctl(ctx, what, "name")
		if err != nil {
			return "", err
		}
		for name := range strings.Lines(out) {
			name = strings.TrimSpace(name)
			if name != "" && name != "name" && !strings.HasPrefix(name, "amq.") {
				left = append(left, name)
			}
		}
	}
	return strings.Join(left, " "), nil
}

// URI is the address of the broker that all tests of this binary share.
func URI(t testing.TB) string {
	t.Helper()
	uri, err := sharedURI()
	if err != nil {
		t.Fatal(err)
	}
	return uri
}

// Boot starts the broker that all tests of this binary share, which the first
// call of URI does otherwise: before the time of a test begins to run.
func Boot() error {
	_, err := sharedURI()
	return err
}

func sharedURI() (string, error) {
	if uri := os.Getenv(EnvBroker); uri != "" {
		return uri, nil
	}
	shared.Lock()
	defer shared.Unlock()
	if !shared.done {
		shared.done = true
		shared.node, shared.err = Start(context.Background())
	}
	if shared.err != nil {
		return "", shared.err
	}
	return shared.node.URI, nil
}

// Private starts a node for this test alone and stops it at its end.
func Private(t testing.TB, opts ...Option) *Node {
	t.Helper()
	n, err := Start(t.Context(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Stop(); err != nil {
			t.Error("stop the private broker:", err)
		}
	})
	return n
}

// Prefix is a name prefix that no other test uses, for the exchanges and
// queues of t.
func Prefix(t testing.TB) string {
	return fmt.Sprintf("t%d-%x.", time.Now().Unix()%1_000_000, rand.Uint32())
}

// Sweep deletes queues and exchanges; names that do not exist are fine.
func Sweep(uri string, queues, exchanges []string) error {
	conn, err := amqp.DialConfig(uri, amqp.Config{Heartbeat: 5 * time.Second})
	if err != nil {
		return fmt.Errorf("sweep: %w", err)
	}
	var errs []error
	for _, q := range queues {
		errs = append(errs, once(conn, func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(q, false, false, false)
			return err
		}))
	}
	for _, x := range exchanges {
		errs = append(errs, once(conn, func(ch *amqp.Channel) error { return ch.ExchangeDelete(x, false, false) }))
	}
	return errors.Join(append(errs, conn.Close())...)
}

// once uses a channel of its own: a refusal closes it, and it alone.
func once(conn *amqp.Connection, do func(*amqp.Channel) error) error {
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	defer ch.Close()
	err = do(ch)
	var refused *amqp.Error
	if errors.As(err, &refused) && refused.Code == amqp.NotFound {
		return nil
	}
	return err
}
