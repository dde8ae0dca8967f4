package fabric

import (
	"fmt"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	amqp "github.com/rabbitmq/amqp091-go"
)

// stranger is a bare broker client, as an attacker or an operator has.
func stranger(t testing.TB, uri string) (*amqp.Connection, *amqp.Channel) {
	t.Helper()
	conn, err := amqp.DialConfig(uri, amqp.Config{Heartbeat: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) })
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return conn, ch
}

// through returns the fleet's URI with another host and port.
func through(t testing.TB, uri, addr string) string {
	t.Helper()
	u, err := url.Parse(uri)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = addr
	return u.String()
}

func hostOf(t testing.TB, uri string) string {
	t.Helper()
	u, err := url.Parse(uri)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

// logged is a logger that remembers its lines.
type logged struct {
	hclog.Logger
	w *lines
}

type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, string(p))
	if os.Getenv("FABRIC_TEST_LOG") != "" {
		fmt.Fprint(os.Stderr, string(p))
	}
	return len(p), nil
}

func newLogged() *logged {
	w := &lines{}
	return &logged{Logger: hclog.New(&hclog.LoggerOptions{Output: w, Level: hclog.Debug}), w: w}
}

func (l *logged) lines() []string {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	return append([]string(nil), l.w.all...)
}
