package migrations_test

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/migrations"
	"fleetd/test/faultproxy"
	"fleetd/test/rabbit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(rabbit.Shared(m)) }

// limit is how much content a letter may have here.
const limit = 2048

// patience is how long the tests let a broker take to notice that a peer is gone.
const patience = 2 * time.Minute

// world is a broker with the old daemon's queues and a main's inbox on it.
type world struct {
	t       *testing.T
	uri     string
	prefix  string
	ch      *amqp.Channel // of the test
	key     ed25519.PrivateKey
	main    string
	worker  string
	pane    string
	journal string                        // the file, kept from run to run
	had     map[string]*envelope.Envelope // by main and id: what mains got
	beat    time.Duration                 // heartbeat of runs; 0: as ever
}

// newWorld makes the exchange of mail, an inbox of at most room messages, and
// an old queue for one pane.
func newWorld(t *testing.T, uri string, room int) *world {
	t.Helper()
	conn, err := amqp.DialConfig(uri, amqp.Config{Heartbeat: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		t: t, uri: uri, prefix: rabbit.Prefix(t), ch: ch, key: key, main: uuid.NewString(), worker: uuid.NewString(),
		journal: filepath.Join(t.TempDir(), migrations.JournalFile),
	}
	w.pane = "w" + w.prefix + ":p1"
	names := w.names()
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		if err := rabbit.Sweep(uri, []string{names.Inbox(w.main), w.queue()}, []string{names.Msg()}); err != nil {
			t.Error(err)
		}
	})
	if err := ch.ExchangeDeclare(names.Msg(), "topic", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	w.declareInbox(room)
	if _, err := ch.QueueDeclare(w.queue(), true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) declareInbox(room int) {
	w.t.Helper()
	names := w.names()
	args := amqp.Table{"x-max-length": int64(room), "x-overflow": "reject-publish"}
	if _, err := w.ch.QueueDeclare(names.Inbox(w.main), true, false, false, false, args); err != nil {
		w.t.Fatal(err)
	}
	if err := w.ch.QueueBind(names.Inbox(w.main), w.main, names.Msg(), false, nil); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) names() fabric.Names { return fabric.Names{Prefix: w.prefix} }

func (w *world) queue() string { return migrations.QueueOf(w.pane) }

// old publishes as the old daemon did.
func (w *world) old(messages ...amqp.Publishing) {
	w.t.Helper()
	for _, m := range messages {
		m.DeliveryMode = 2
		if err := w.ch.PublishWithContext(w.t.Context(), "", w.queue(), false, false, m); err != nil {
			w.t.Fatal(err)
		}
	}
	w.ready(w.queue(), len(messages))
}

// ready waits until at least n messages lie in queue.
func (w *world) ready(queue string, n int) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	for {
		q, err := w.ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		if err != nil {
			w.t.Fatal(err)
		}
		if q.Messages >= n {
			return
		}
		select {
		case <-ctx.Done():
			w.t.Fatalf("%s has %d messages, want %d", queue, q.Messages, n)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// eventually waits until look finds nothing amiss.
func eventually(t *testing.T, look func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		err := look()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal(err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// numbered are n old messages that say their number; every other one has an id.
func numbered(n int) []amqp.Publishing {
	all := make([]amqp.Publishing, n)
	for i := range all {
		all[i].Body = fmt.Appendf(nil, "reply %d", i)
		if i%2 == 0 {
			all[i].MessageId = uuid.NewString()
		}
	}
	return all
}

// row is the plan's word on the world's queue.
func (w *world) row() migrations.Row {
	return migrations.Row{Queue: w.queue(), Pane: w.pane, FromID: w.worker, ToID: w.main}
}

// dial connects as a migration does.
func (w *world) dial(uri string) *fabric.OldQueues {
	w.t.Helper()
	b, err := fabric.DialOldQueues(w.t.Context(), fabric.Config{Host: "hosta", URI: uri, Prefix: w.prefix, Heartbeat: w.beat}, w.key)
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

// run moves the world's queue, over a broker that around may disturb.
func (w *world) run(around func(*fabric.OldQueues) migrations.Broker) (migrations.Count, error) {
	w.t.Helper()
	return w.runAt(w.uri, around)
}

func (w *world) runAt(uri string, around func(*fabric.OldQueues) migrations.Broker) (migrations.Count, error) {
	w.t.Helper()
	b := w.dial(uri)
	defer b.Close()
	var broker migrations.Broker = b
	if around != nil {
		broker = around(b)
	}
	return w.moveOver(broker, false)
}

func (w *world) moveOver(b migrations.Broker, remove bool) (migrations.Count, error) {
	w.t.Helper()
	j, err := migrations.OpenJournal(w.journal)
	if err != nil {
		w.t.Fatal(err)
	}
	defer j.Close()
	m := migrations.Mover{Broker: b, Journal: j, Limit: limit, Delete: remove, Now: time.Now, Patience: patience, Return: 15 * time.Second}
	counts, err := m.Move(w.t.Context(), []migrations.Row{w.row()})
	if len(counts) != 1 {
		w.t.Fatalf("there are %d counts", len(counts))
	}
	w.sums(counts[0])
	return counts[0], err
}

// sums demands that a count adds up.
func (w *world) sums(c migrations.Count) {
	w.t.Helper()
	if c.Found+c.Arrived != c.Moved+c.Copies+c.Unsettled+c.Left+c.Vanished {
		w.t.Errorf("the count does not add up: %+v", c)
	}
}

// must runs without trouble and demands the count.
func (w *world) must(want migrations.Count) {
	w.t.Helper()
	want.Queue = w.queue()
	got, err := w.run(nil)
	if err != nil || got != want {
		w.t.Fatalf("it came to %+v, %v; want %+v", got, err, want)
	}
}

// keys trusts the world's host.
type keys struct{ key ed25519.PublicKey }

func (k keys) Keys(string) []ed25519.PublicKey { return []ed25519.PublicKey{k.key} }

// mail empties the inbox as a main's gateway does: what it got before, by id,
// content and headers, is not given again. What is not well signed is an error, as
// is one id over two contents or headers: a gateway rejects the second.
func (w *world) mail() []*envelope.Envelope {
	w.t.Helper()
	var all []*envelope.Envelope
	if w.had == nil {
		w.had = map[string]*envelope.Envelope{}
	}
	for {
		d, ok, err := w.ch.Get(w.names().Inbox(w.main), true)
		if err != nil {
			w.t.Fatal(err)
		}
		if !ok {
			return all
		}
		env, err := envelope.Decode(d.Headers, d.Body, envelope.Limits{BodyBytes: limit})
		if err == nil {
			err = env.Verify(keys{w.key.Public().(ed25519.PublicKey)})
		}
		if err != nil {
			w.t.Fatalf("a letter that a gateway refuses: %v", err)
		}
		if env.Kind != envelope.Reply || env.From != w.worker || env.To != w.main || d.RoutingKey != w.main || env.Signer != "hosta" {
			w.t.Errorf("a letter is %s from %s to %s, signed by %s", env.Kind, env.From, env.To, env.Signer)
		}
		if was := w.had[w.main+env.MsgID]; was != nil {
			if string(was.Body) != string(env.Body) || was.Headers["sig"] != env.Headers["sig"] {
				w.t.Errorf("id %s stands over two letters: %.40q and %.40q", env.MsgID, was.Body, env.Body)
			}
			continue
		}
		w.had[w.main+env.MsgID] = env
		all = append(all, env)
	}
}

// inOrder demands the replies of numbered, each once, with its own id.
func (w *world) inOrder(sent []amqp.Publishing) {
	w.t.Helper()
	got := w.mail()
	if len(got) != len(sent) {
		w.t.Errorf("the main gets %d messages, want %d", len(got), len(sent))
	}
	for i, e := range got[:min(len(got), len(sent))] {
		if string(e.Body) != string(sent[i].Body) {
			w.t.Fatalf("message %d is %q, want %q", i, e.Body, sent[i].Body)
		}
		if id := strings.ToLower(sent[i].MessageId); id != "" && e.MsgID != id {
			w.t.Errorf("message %d has id %s, want its own, %s", i, e.MsgID, id)
		}
	}
}

// disturbed is a broker that does something at the nth of a step.
type disturbed struct {
	*fabric.OldQueues
	before, after func(step string, n int)
	n             map[string]int
}

func disturb(before, after func(step string, n int)) func(*fabric.OldQueues) migrations.Broker {
	return func(b *fabric.OldQueues) migrations.Broker {
		nothing := func(string, int) {}
		d := &disturbed{b, before, after, map[string]int{}}
		if before == nil {
			d.before = nothing
		}
		if after == nil {
			d.after = nothing
		}
		return d
	}
}

func (d *disturbed) step(name string) func() {
	d.n[name]++
	n := d.n[name]
	d.before(name, n)
	return func() { d.after(name, n) }
}

func (d *disturbed) Look(ctx context.Context, queue string) (migrations.Queue, error) {
	defer d.step("look")()
	return d.OldQueues.Look(ctx, queue)
}

func (d *disturbed) Take(ctx context.Context, queue string) (migrations.Old, bool, error) {
	defer d.step("take")()
	return d.OldQueues.Take(ctx, queue)
}

func (d *disturbed) Mark(ctx context.Context, queue, id, text string) error {
	defer d.step("mark")()
	return d.OldQueues.Mark(ctx, queue, id, text)
}

func (d *disturbed) GiveBack(ctx context.Context, last uint64) error {
	defer d.step("giveback")()
	return d.OldQueues.GiveBack(ctx, last)
}

func (d *disturbed) Deliver(ctx context.Context, l migrations.Letter) error {
	defer d.step("deliver")()
	return d.OldQueues.Deliver(ctx, l)
}

func (d *disturbed) Ack(tag uint64) error {
	defer d.step("ack")()
	return d.OldQueues.Ack(tag)
}

func (d *disturbed) Settled(ctx context.Context) error {
	defer d.step("settled")()
	return d.OldQueues.Settled(ctx)
}

// proxied is the broker behind a proxy that can cut.
func (w *world) proxied() (string, *faultproxy.Proxy) {
	w.t.Helper()
	at, err := amqp.ParseURI(w.uri)
	if err != nil {
		w.t.Fatal(err)
	}
	p, err := faultproxy.Start(fmt.Sprintf("%s:%d", at.Host, at.Port))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := p.Close(); err != nil {
			w.t.Error(err)
		}
	})
	return fmt.Sprintf("amqp://%s:%s@%s/", at.Username, at.Password, p.Addr()), p
}
