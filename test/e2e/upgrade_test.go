package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/mcp"
	"fleetd/migrations"
	"fleetd/test/fleet"
	"fleetd/test/rabbit"
)

// oldDaemon plays the single-host daemon on the broker: durable queues without
// arguments, one per worker, and a consumer on each while it runs.
type oldDaemon struct {
	t    *testing.T
	conn *amqp.Connection
	ch   *amqp.Channel

	queues []string
}

func startOld(t *testing.T, uri string, panes ...string) *oldDaemon {
	t.Helper()
	conn, err := amqp.DialConfig(uri, amqp.Config{Heartbeat: time.Minute}) // a busy machine misses shorter ones
	if err != nil {
		t.Fatal(err)
	}
	closes := conn.NotifyClose(make(chan *amqp.Error, 1))
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	o := &oldDaemon{t: t, conn: conn, ch: ch}
	for _, pane := range panes {
		o.declare(pane)
	}
	t.Cleanup(func() {
		o.stop()
		if why := <-closes; why != nil {
			t.Errorf("the broker ended an old daemon's connection: %v", why)
		}
		if err := rabbit.Sweep(uri, o.queues, nil); err != nil {
			t.Error(err)
		}
	})
	return o
}

// declare makes the queue of the worker in pane.
func (o *oldDaemon) declare(pane string) {
	o.t.Helper()
	q := migrations.QueueOf(pane)
	o.queues = append(o.queues, q)
	if _, err := o.ch.QueueDeclare(q, true, false, false, false, nil); err != nil {
		o.t.Fatal(err)
	}
}

// replied has the worker of pane answer the primary.
func (o *oldDaemon) replied(pane string, m amqp.Publishing) {
	o.t.Helper()
	m.DeliveryMode = 2
	if err := o.ch.PublishWithContext(o.t.Context(), "", migrations.QueueOf(pane), false, false, m); err != nil {
		o.t.Fatal(err)
	}
}

// consume takes mail, one at a time, as the old daemon does, and acks none.
func (o *oldDaemon) consume(pane string) <-chan amqp.Delivery {
	o.t.Helper()
	if err := o.ch.Qos(1, 0, false); err != nil {
		o.t.Fatal(err)
	}
	mail, err := o.ch.Consume(migrations.QueueOf(pane), "", false, false, false, false, nil)
	if err != nil {
		o.t.Fatal(err)
	}
	return mail
}

func (o *oldDaemon) stop() {
	if !o.conn.IsClosed() {
		if err := o.conn.Close(); err != nil {
			o.t.Error(err)
		}
	}
}

// guide is docs/upgrade.md.
func guide(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "upgrade.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// tells returns the commands that docs/upgrade.md tells, for panes of this test.
func tells(t *testing.T, panes map[string]string) [][]string {
	t.Helper()
	var all [][]string
	for line := range strings.Lines(guide(t)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "bridged" {
			continue
		}
		for i, word := range fields {
			for from, to := range panes {
				fields[i] = strings.ReplaceAll(word, from, to)
				word = fields[i]
			}
		}
		all = append(all, fields[1:])
	}
	if len(all) != 5 {
		t.Fatalf("docs/upgrade.md tells %d commands: %q", len(all), all)
	}
	return all
}

// bridged runs a command and returns what it printed.
func bridged(ctx context.Context, h *fleet.Host, args ...string) (out, errs string, err error) {
	cmd := h.Command(ctx, args...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	return stdout.String(), stderr.String(), err
}

// People stop the old daemon, start this one as docs/upgrade.md tells, and go on.
// Fails when an old reply is lost, comes twice, out of order or from somebody
// else, when mail is moved while the old daemon runs, when the daemon does not
// say that mail is left, when the primary needs a token or other words, or when
// an old daemon on another host of the same broker is disturbed.
func TestUpgradeFromTheOldDaemon(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 4*bound)
	defer cancel()
	uri := rabbit.URI(t)
	f := newFleet(t, uri)
	a, err := f.AddHost(ctx, "hosta", "BRIDGED_MCP_DEFAULT_MAIN=main")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of hosta:\n%s", tail(a.Log(), 12000))
		}
	})
	pane, err := a.OpenPane("reviewer", "--reply-with", "done")
	if err != nil {
		t.Fatal(err)
	}
	gone := "w" + strings.TrimSuffix(f.Prefix, ".") + ":p7"
	old := startOld(t, uri, pane, gone)
	var want []string // of the reviewer
	for i := range 40 {
		m := amqp.Publishing{Body: fmt.Appendf(nil, "reply %d", i)}
		if i%3 == 0 {
			m.MessageId = uuid.NewString()
		}
		want = append(want, string(m.Body))
		old.replied(pane, m)
	}
	old.replied(pane, amqp.Publishing{Headers: amqp.Table{"primary": true}, ContentType: "text/plain"})
	want = append(want, "")
	old.replied(gone, amqp.Publishing{Body: []byte("built")})
	old.consume(pane)
	other := "w" + strings.TrimSuffix(f.Prefix, ".") + "x:p2" // of another host, which stays as it is
	elsewhere := startOld(t, uri, other)
	theirs := elsewhere.consume(other)
	worksOn := func(text string) {
		t.Helper()
		elsewhere.replied(other, amqp.Publishing{Body: []byte(text)})
		select {
		case d, ok := <-theirs:
			if !ok || string(d.Body) != text {
				t.Fatalf("the old daemon elsewhere got %q, %t; want %q", d.Body, ok, text)
			}
			if err := d.Ack(false); err != nil {
				t.Fatal(err)
			}
		case <-ctx.Done():
			t.Fatalf("the old daemon elsewhere never got %q", text)
		}
	}

	if err := a.Start(ctx); err != nil { // 3, before 1: mail is not moved beside it
		t.Fatal(err)
	}
	if err := a.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	commands := tells(t, map[string]string{"wQ:p2": pane, "wQ:p7": gone})
	for _, c := range commands[:3] { // 4
		eventually(t, ctx, func() error { // once herdr sees the agent
			if _, errs, err := bridged(ctx, a, c...); err != nil {
				return fmt.Errorf("bridged %q: %v: %s", c, err, errs)
			}
			return nil
		})
	}
	entities, err := a.API("").Roster(ctx, mcp.RosterArgs{Host: "hosta"})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entities.Entities {
		f.Remember(e.GID)
	}
	if _, errs, err := bridged(ctx, a, commands[4]...); err == nil || !strings.Contains(errs, "CONFLICT") {
		t.Fatalf("beside the old daemon: %v, %s", err, errs)
	}
	worksOn("beside a new one")
	began := time.Now()
	old.stop() // 1
	if err := a.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := a.Start(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, ctx, func() error {
		if !strings.Contains(a.Log(), "still holds mail") {
			return fmt.Errorf("the daemon does not say that %s holds mail", pane)
		}
		return nil
	})
	eventually(t, ctx, func() error { return a.Ready(ctx) })

	out, errs, err := bridged(ctx, a, commands[3]...) // 5
	if err != nil || !strings.Contains(out, migrations.QueueOf(pane)+"\t41\t0\treviewer@hosta\tmain@hosta\t") || !strings.Contains(errs, "42 messages would be moved; nothing was changed") {
		t.Fatalf("the plan: %v\n%s%s", err, out, errs)
	}
	var moved struct {
		Applied bool
		Queues  []migrations.Count
	}
	out, errs, err = bridged(ctx, a, append(commands[4], "--json")...)
	if err != nil {
		t.Fatalf("the move: %v\n%s%s", err, out, errs)
	}
	if err := json.Unmarshal([]byte(out), &moved); err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, c := range moved.Queues {
		total += c.Moved
		if !c.Deleted || c.Found != c.Moved || c.Left != 0 {
			t.Errorf("the count: %+v", c)
		}
	}
	if !moved.Applied || total != 42 {
		t.Errorf("it came to %s", out)
	}

	primary := &fleet.Main{Name: "main", URL: "http://" + a.Addr + "/mcp"} // 6: without a token
	if err := primary.Connect(ctx); err != nil {
		t.Fatal(err)
	}
	if got := texts(t, ctx, primary, map[string]any{"target": pane}, "reviewer@hosta", len(want)); strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("the reviewer's replies are %q, want %q", got, want)
	}
	t.Logf("from the stop of the old daemon to the last old reply: %s", time.Since(began).Round(time.Millisecond))
	if got := texts(t, ctx, primary, map[string]any{}, "builder@hosta", 1); len(got) != 1 || got[0] != "built" {
		t.Errorf("the builder's replies are %q", got)
	}
	if r, err := primary.Poll(ctx, map[string]any{}); err != nil || len(r.Messages) != 0 || r.Remaining != 0 {
		t.Errorf("more came: %+v, %v", r, err)
	}
	sent, err := primary.Send(ctx, map[string]any{"target": pane, "content": "go on", "wait_seconds": 0})
	if err != nil || sent.State != "injected" && sent.State != "deferred" {
		t.Errorf("a brief to the pane came to %+v, %v", sent, err)
	}
	if out, errs, err = bridged(ctx, a, "migrate"); err != nil || !strings.Contains(errs, "there is nothing to move") {
		t.Errorf("afterwards: %v\n%s%s", err, out, errs)
	}
	worksOn("after the move")
	if strings.Contains(a.Log(), migrations.QueueOf(other)) {
		t.Errorf("the daemon talks of the old queue of another host")
	}
	if err := primary.Disconnect(); err != nil {
		t.Error(err)
	}
}

// texts polls until n messages came and returns what they say.
func texts(t *testing.T, ctx context.Context, m *fleet.Main, args map[string]any, from string, n int) (all []string) {
	t.Helper()
	args["wait_seconds"] = longest
	for len(all) < n {
		r, err := m.Poll(ctx, args)
		if err != nil {
			t.Fatal(err)
		}
		for _, got := range r.Messages {
			if got.Kind != "REPLY" || got.From != from || got.Redelivered {
				t.Errorf("a message is %s from %s, redelivered %t; want one from %s", got.Kind, got.From, got.Redelivered, from)
			}
			all = append(all, got.Content)
		}
		if len(r.Messages) == 0 {
			return all
		}
	}
	return all
}
