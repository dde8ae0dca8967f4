package migrations_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric"
	"fleetd/fault"
	"fleetd/migrations"
	"fleetd/test/rabbit"
)

const roomy = 100_000

// Fails when a message of some shape stops the run, is lost, comes twice, gets
// another id than its own, or is not counted.
func TestMessagesOfEveryShapeArrive(t *testing.T) {
	w := newWorld(t, rabbit.URI(t), roomy)
	id, twice, brief := uuid.NewString(), uuid.NewString(), uuid.NewString()
	long := strings.Repeat("äöü", limit)
	w.old(
		amqp.Publishing{Body: []byte("plain")},
		amqp.Publishing{Body: []byte("plain")}, // said twice is two messages
		amqp.Publishing{MessageId: strings.ToUpper(id), CorrelationId: brief, Body: []byte("with an id")},
		amqp.Publishing{MessageId: "reply-17", CorrelationId: "x", Body: []byte("with an id of another sort")},
		amqp.Publishing{
			Headers:     amqp.Table{"from": "someone", "x-odd": amqp.Table{"a": int32(1)}, "n": []any{"b", nil}, "msgId": "rubbish"},
			ContentType: "application/octet-stream", ReplyTo: "nobody", Expiration: "86400000", Priority: 9, Type: "ASK", Body: []byte("with headers"),
		},
		amqp.Publishing{},
		amqp.Publishing{Body: []byte(long)},
		amqp.Publishing{Body: []byte("caf\xe9 \x00\xff\xfe")},
		amqp.Publishing{MessageId: twice, Body: []byte("one id")},
		amqp.Publishing{MessageId: twice, Body: []byte("one id")},
		amqp.Publishing{MessageId: twice, Body: []byte("and another content")},
		amqp.Publishing{Body: []byte("the last")},
	)
	w.must(migrations.Count{Found: 12, Moved: 11, Copies: 1, Parts: 6, Escaped: 1})
	got := w.mail()
	var texts []string
	joined := ""
	for _, e := range got {
		text := string(e.Body)
		if head, part, ok := strings.Cut(text, "\n"); ok && strings.HasPrefix(head, "[part ") {
			joined += part
			if !strings.HasPrefix(text, "[part 7 of 7") {
				continue
			}
			text = "long"
		}
		texts = append(texts, text)
	}
	want := []string{"plain", "plain", "with an id", "with an id of another sort", "with headers", "", "long", `caf\xe9 ` + "\x00" + `\xff\xfe`, "one id", "and another content", "the last"}
	if strings.Join(texts, "|") != strings.Join(want, "|") || joined != long {
		t.Errorf("the main gets %q, want %q; the long one is whole: %t", texts, want, joined == long)
	}
	if got[2].MsgID != id || got[2].InReplyTo != brief || got[3].InReplyTo != "" {
		t.Errorf("the message with an id has %s, in reply to %s", got[2].MsgID, got[2].InReplyTo)
	}
	w.must(migrations.Count{})
}

// Fails when a lost connection loses a reply, gives it twice, or breaks their
// order, wherever it strikes.
func TestALostConnectionCostsNothing(t *testing.T) {
	for _, at := range []string{"take", "deliver", "ack", "settled"} {
		for _, before := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s before=%t", at, before), func(t *testing.T) {
				w := newWorld(t, rabbit.URI(t), roomy)
				sent := numbered(9)
				w.old(sent...)
				uri, proxy := w.proxied()
				cut := func(step string, n int) {
					if step == at && n == map[string]int{"take": 4, "settled": 1}[at]+map[bool]int{true: 4}[at == "deliver" || at == "ack"] {
						proxy.Reset()
					}
				}
				around := disturb(cut, nil)
				if !before {
					around = disturb(nil, cut)
				}
				c, err := w.runAt(uri, around)
				if !fault.Is(err, fault.BrokerDown) || c.Problem == "" {
					t.Errorf("it came to %+v, %v; want BROKER_DOWN", c, err)
				}
				if c, err = w.run(nil); err != nil || c.Left != 0 {
					t.Errorf("run again it came to %+v, %v", c, err)
				}
				w.inOrder(sent)
			})
		}
	}
}

// Fails when a reply that no inbox takes is taken out of its queue.
func TestNoInboxLosesNothing(t *testing.T) {
	w := newWorld(t, rabbit.URI(t), roomy)
	sent := numbered(3)
	w.old(sent...)
	if _, err := w.ch.QueueDelete(w.names().Inbox(w.main), false, false, false); err != nil {
		t.Fatal(err)
	}
	c, err := w.run(nil)
	if !fault.Is(err, fault.Unroutable) || c.Found != 3 || c.Left != 3 {
		t.Errorf("it came to %+v, %v; want UNROUTABLE and 3 left", c, err)
	}
	w.ready(w.queue(), 3)
	w.declareInbox(roomy)
	w.must(migrations.Count{Found: 3, Moved: 3})
	w.inOrder(sent)
}

// Fails when what a full inbox refuses is lost or moved out of order.
func TestAFullInboxKeepsTheRestInItsQueue(t *testing.T) {
	w := newWorld(t, rabbit.URI(t), 3)
	sent := numbered(5)
	w.old(sent...)
	c, err := w.run(nil)
	if !fault.Is(err, fault.InboxFull) || c.Found != 5 || c.Moved != 3 || c.Left != 2 {
		t.Errorf("it came to %+v, %v; want INBOX_FULL, 3 moved and 2 left", c, err)
	}
	w.inOrder(sent[:3])
	w.ready(w.queue(), 2)
	w.must(migrations.Count{Found: 2, Moved: 2})
	w.inOrder(sent[3:])
}

// Fails when the run goes on beside an old daemon that was started in the
// middle, or when that costs a reply.
func TestTheOldDaemonStartedInTheMiddle(t *testing.T) {
	w := newWorld(t, rabbit.URI(t), roomy)
	sent := numbered(300)
	w.old(sent...)
	conn, err := amqp.DialConfig(w.uri, amqp.Config{Heartbeat: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	start := func(step string, n int) {
		if step != "deliver" || n != 10 {
			return
		}
		ch, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ch.Consume(w.queue(), "", false, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
	}
	c, err := w.run(disturb(start, nil))
	if !fault.Is(err, fault.Conflict) || c.Moved == 0 || c.Moved >= 300 {
		t.Errorf("it came to %+v, %v; want CONFLICT after some", c, err)
	}
	if c, err := w.run(nil); !fault.Is(err, fault.Conflict) || c.Moved != 0 {
		t.Errorf("beside the old daemon it came to %+v, %v; want CONFLICT and nothing moved", c, err)
	}
	if err := conn.Close(); err != nil { // it acked nothing: all it had goes back
		t.Fatal(err)
	}
	w.ready(w.queue(), 300-c.Moved)
	w.must(migrations.Count{Found: 300 - c.Moved, Moved: 300 - c.Moved})
	w.inOrder(sent)
}

// Fails when a queue that is deleted under way stops the run, is made again, or is
// said to be deleted by the run, or when what was taken from it to be moved is
// dropped.
func TestAQueueDeletedMeanwhile(t *testing.T) {
	for _, x := range []struct {
		at   string
		n    int
		want migrations.Count
	}{
		{"take", 3, migrations.Count{Found: 5, Vanished: 5}},            // while it is looked through
		{"take", 11, migrations.Count{Found: 5, Moved: 2, Vanished: 3}}, // 5, none, the mark, none
		{"deliver", 3, migrations.Count{Found: 5, Moved: 5}},
		{"ack", 3, migrations.Count{Found: 5, Moved: 5}},
	} {
		at, want := x.at, x.want
		t.Run(fmt.Sprintf("%s %d", at, x.n), func(t *testing.T) {
			w := newWorld(t, rabbit.URI(t), roomy)
			sent := numbered(5)
			w.old(sent...)
			remove := func(step string, n int) {
				if step == at && n == x.n {
					if _, err := w.ch.QueueDelete(w.queue(), false, false, false); err != nil {
						t.Error(err)
					}
				}
			}
			b := w.dial(w.uri)
			defer b.Close()
			c, err := w.moveOver(disturb(remove, nil)(b), true)
			want.Queue = w.queue()
			if err != nil || c != want {
				t.Errorf("it came to %+v, %v; want %+v", c, err, want)
			}
			if odd, err := b.Replicated(t.Context(), w.queue()); odd || err != migrations.ErrNoQueue {
				t.Errorf("its type is asked for: %t, %v", odd, err)
			}
			if q, err := b.Look(t.Context(), w.queue()); err != migrations.ErrNoQueue {
				t.Errorf("it is there again: %+v, %v", q, err)
			}
			w.inOrder(sent[:want.Moved])
		})
	}
}

// Fails when a long queue is moved out of order or in part, or the time that it
// takes grows with what was moved before.
func TestTwentyThousandMessages(t *testing.T) {
	w := newWorld(t, rabbit.URI(t), roomy)
	sent := numbered(20_000)
	w.old(sent...)
	began := time.Now()
	w.must(migrations.Count{Found: 20_000, Moved: 20_000})
	t.Logf("20000 messages in %s", time.Since(began).Round(time.Millisecond))
	w.inOrder(sent)
}

// Fails when a wrong password or a right that is missing reads as anything
// else, shows the password, or keeps other queues from being moved.
func TestLoginsAndRights(t *testing.T) {
	node := rabbit.Private(t, rabbit.Plugins("rabbitmq_management"))
	w := newWorld(t, node.URI, roomy)
	sent := numbered(2)
	w.old(sent...)
	ctx := t.Context()
	ctl := func(args ...string) {
		t.Helper()
		if _, err := node.Ctl(ctx, args...); err != nil {
			t.Fatal(err)
		}
	}
	ctl("add_user", "gwa", "sesame")
	ctl("set_permissions", "gwa", ".*", ".*", "^nothing$")
	as := func(password string) string { return strings.Replace(node.URI, "guest:guest", "gwa:"+password, 1) }

	_, err := fabric.DialOldQueues(ctx, fabric.Config{Host: "hosta", URI: as("open-sesame"), Prefix: w.prefix}, w.key)
	if !fault.Is(err, fault.BrokerRefused) || strings.Contains(err.Error(), "sesame") {
		t.Errorf("a wrong password reads %v", err)
	}
	_, err = fabric.DialOldQueues(ctx, fabric.Config{Host: "hosta", URI: as("sesame") + "elsewhere", Prefix: w.prefix}, w.key)
	if !fault.Is(err, fault.BrokerRefused) {
		t.Errorf("a wrong vhost reads %v", err)
	}
	if c, err := w.runAt(as("sesame"), nil); !fault.Is(err, fault.NotAllowed) || !strings.Contains(err.Error(), w.queue()) || c.Left != 2 {
		t.Errorf("without the right to read it came to %+v, %v", c, err)
	}
	two := w.theirs("two") // beside it a queue for which there is no right
	sent2 := numbered(1)
	if err := w.ch.PublishWithContext(ctx, "", two, false, false, sent2[0]); err != nil {
		t.Fatal(err)
	}
	w.ready(two, 1)
	ctl("set_permissions", "gwa", ".*", ".*", strings.ReplaceAll("^"+two+"$", ".", `\.`))
	row := w.row()
	row.Queue = two
	b := w.dial(as("sesame"))
	j, err := migrations.OpenJournal(w.journal)
	if err != nil {
		t.Fatal(err)
	}
	m := migrations.Mover{Broker: b, Journal: j, Limit: limit, Now: time.Now, Patience: patience, Return: time.Second}
	counts, err := m.Move(ctx, []migrations.Row{w.row(), row})
	if !fault.Is(err, fault.NotAllowed) || len(counts) != 2 || counts[0].Left != 2 || counts[0].Problem == "" || counts[1].Moved != 1 {
		t.Errorf("with the right to read one of two it came to %+v, %v", counts, err)
	}
	b.Close()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	w.inOrder(sent2)
	ctl("set_permissions", "gwa", ".*", "^$", ".*")
	if c, err := w.runAt(as("sesame"), nil); !fault.Is(err, fault.BrokerRefused) || c.Left != 2 {
		t.Errorf("without the right to publish it came to %+v, %v", c, err)
	}
	w.ready(w.queue(), 2)
	ctl("set_permissions", "gwa", ".*", ".*", ".*")

	user := func(password string) ([]string, error) {
		return migrations.Management{Base: node.Management, VHost: "/", User: "gwa", Password: password}.Queues(ctx)
	}
	if _, err := user("wrong"); !fault.Is(err, fault.BrokerRefused) {
		t.Errorf("a wrong password for the management API reads %v", err)
	}
	if _, err := user("sesame"); !fault.Is(err, fault.BrokerRefused) || !strings.Contains(err.Error(), "tag management") {
		t.Errorf("a login without the tag reads %v", err)
	}
	ctl("set_user_tags", "gwa", "management")
	found, err := user("sesame")
	if err != nil || len(found) != 2 || !slices.Contains(found, w.queue()) { // and not the inbox of the main
		t.Errorf("the management API finds %q, %v", found, err)
	}
	if c, err := w.runAt(as("sesame"), nil); err != nil || c.Moved != 2 {
		t.Errorf("with all rights it came to %+v, %v", c, err)
	}
	w.inOrder(sent)
}

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

// Fails when two migrations run at the same time.
func TestOneMigrationAtATime(t *testing.T) {
	file := t.TempDir() + "/j"
	j, err := migrations.OpenJournal(file)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the journal: %v, %v", info.Mode(), err)
	}
	if _, err := migrations.OpenJournal(file); !fault.Is(err, fault.Conflict) {
		t.Errorf("a second one reads %v", err)
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

// Fails when an interruption is not told from a failure, or loses something.
func TestInterrupted(t *testing.T) {
	w := newWorld(t, rabbit.URI(t), roomy)
	sent := numbered(6)
	w.old(sent...)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b := w.dial(w.uri)
	defer b.Close()
	j, err := migrations.OpenJournal(w.journal)
	if err != nil {
		t.Fatal(err)
	}
	stop := func(step string, n int) {
		if step == "deliver" && n == 3 {
			cancel()
		}
	}
	m := migrations.Mover{Broker: disturb(nil, stop)(b), Journal: j, Limit: limit, Now: time.Now, Patience: patience, Return: time.Second}
	counts, err := m.Move(ctx, []migrations.Row{w.row()})
	if !fault.Is(err, fault.Unconfirmed) || counts[0].Moved != 3 || counts[0].Left != 3 {
		t.Errorf("it came to %+v, %v", counts, err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	w.ready(w.queue(), 3)
	w.must(migrations.Count{Found: 3, Moved: 3})
	w.inOrder(sent)
}

// forgetful is a broker that loses the acks from the nth on, as one that is
// killed may: what they were for is handed out again.
type forgetful struct {
	*fabric.OldQueues
	from, n int
}

func (f *forgetful) Ack(tag uint64) error {
	if f.n++; f.n > f.from {
		return nil
	}
	return f.OldQueues.Ack(tag)
}

// Fails when replies whose acks the broker lost come to the main once more, or
// others that say the same are taken for them.
func TestAcksThatTheBrokerLost(t *testing.T) {
	for name, sent := range map[string][]amqp.Publishing{"all differ": numbered(300), "all say the same": same(300)} {
		for _, from := range []int{0, 100, 200, 299} {
			t.Run(fmt.Sprintf("%s, from %d on", name, from), func(t *testing.T) {
				w := newWorld(t, rabbit.URI(t), roomy)
				w.old(sent...)
				if _, err := w.run(func(b *fabric.OldQueues) migrations.Broker { return &forgetful{b, from, 0} }); err != nil {
					t.Fatal(err)
				}
				w.ready(w.queue(), 300-from)
				more := same(2) // these are new
				w.old(more...)
				c, err := w.run(nil)
				if err != nil || c.Left != 0 {
					t.Errorf("run again it came to %+v, %v", c, err)
				}
				w.inOrder(append(slices.Clone(sent), more...))
			})
		}
	}
}

// Fails when a run goes on while the broker still holds messages for one that is
// gone: it would move the others before them, and delete the queue, for
// if-empty does not count what is held.
func TestWhatTheBrokerHoldsForARunThatIsGone(t *testing.T) {
	for _, x := range []struct {
		name, step string
		n, room    int
	}{
		{"looked through", "take", 5, roomy},
		{"marked", "mark", 1, roomy},
		{"given back", "giveback", 1, roomy},
		{"taken to be moved", "take", 11, roomy}, // 5, none, the mark, none, and 3
		{"sent", "deliver", 1, roomy},
		{"acked", "ack", 5, roomy},
		{"the mark", "take", 14, roomy},
		{"refused by a full inbox", "never", 1, 3},
	} {
		t.Run(x.name, func(t *testing.T) {
			w := newWorld(t, rabbit.URI(t), x.room)
			sent := numbered(5)
			w.old(sent...)
			if struck, gone := w.left(w.uri, x.step, x.n, false); struck == (x.step == "never") {
				t.Errorf("it was stopped there: %t", struck)
			} else {
				defer gone()
				early := w.mail()
				elsewhere := filepath.Join(t.TempDir(), migrations.JournalFile) // another host's, or ours is lost
				for _, journal := range []string{"", elsewhere} {
					c, err := w.move(again{remove: true, hurried: true, journal: journal})
					if !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "in a minute") || c.Moved != 0 || c.Deleted {
						t.Errorf("beside it it came to %+v, %v; want CONFLICT", c, err)
					}
				}
				gone()
				c, err := w.move(again{remove: true})
				if err != nil || !c.Deleted {
					t.Errorf("after it it came to %+v, %v", c, err)
				}
				all := append(early, w.mail()...)
				for i, e := range all {
					if i >= len(sent) || string(e.Body) != string(sent[i].Body) {
						t.Errorf("message %d is %q", i, e.Body)
					}
				}
				if len(all) != len(sent) {
					t.Errorf("the main gets %d messages, want %d", len(all), len(sent))
				}
			}
		})
	}
}

// Fails when a run that is made right after one whose connection was lost without
// a word does not wait for what the broker holds for that one, or does so for
// ever.
func TestASilentCut(t *testing.T) {
	for _, x := range []struct {
		step string
		n    int
	}{{"take", 20}, {"deliver", 3}, {"ack", 9}} {
		t.Run(fmt.Sprint(x), func(t *testing.T) {
			w := newWorld(t, rabbit.URI(t), roomy)
			sent := numbered(9)
			w.old(sent...)
			uri, proxy := w.proxied()
			w.beat = 2 * time.Second
			struck, gone := w.left(uri, x.step, x.n, false)
			w.beat = 0
			defer gone()
			defer proxy.Reset()
			if !struck {
				t.Fatal("it was not stopped")
			}
			proxy.Orphan()
			if c, err := w.move(again{remove: true}); err != nil || !c.Deleted {
				t.Errorf("after it it came to %+v, %v", c, err)
			}
			w.inOrder(sent)
		})
	}
}

// hold takes the first n messages of the queue, as a broker holds them for a
// peer of which it has not noticed that it is gone, until release.
func (w *world) hold(n int) (release func()) {
	w.t.Helper()
	w.ready(w.queue(), n)
	var last uint64
	for range n {
		d, ok, err := w.ch.Get(w.queue(), false)
		if !ok || err != nil {
			w.t.Fatalf("held %t, %v", ok, err)
		}
		last = d.DeliveryTag
	}
	return func() {
		q, err := w.ch.QueueDeclarePassive(w.queue(), true, false, false, false, nil)
		if err != nil {
			w.t.Error(err)
		}
		if err := w.ch.Nack(last, true, true); err != nil {
			w.t.Error(err)
		}
		w.ready(w.queue(), q.Messages+n)
	}
}

// A run was cut while it took a batch, and the broker has let go of its lock and
// not yet of what it took: that comes when the next one has looked once. Fails when the next one goes on with
// the rest before that comes back: it is then moved behind its successors, or
// not at all where it says the same as them.
func TestABatchThatWasTakenIsWaitedFor(t *testing.T) {
	for name, sent := range map[string][]amqp.Publishing{"all differ": numbered(300), "all say the same": same(300)} {
		for _, batch := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s, batch %d", name, batch), func(t *testing.T) {
				w := newWorld(t, rabbit.URI(t), roomy)
				w.old(sent...)
				uri, proxy := w.proxied()
				first, err := w.runAt(uri, disturb(nil, func(step string, n int) {
					if step == "take" && n == len(sent)+3+128*batch-8 { // none, the mark, none
						proxy.Reset()
					}
				}))
				if !fault.Is(err, fault.BrokerDown) || first.Moved != 128*(batch-1) {
					t.Fatalf("the first run came to %+v, %v", first, err)
				}
				w.ready(w.queue(), len(sent)+1-first.Moved)
				release := w.hold(120)
				c, err := w.run(w.backLater(release))
				if err != nil || c.Moved != len(sent)-first.Moved {
					t.Errorf("it came to %+v, %v", c, err)
				}
				w.inOrder(sent)
			})
		}
	}
}

// backLater has a run get what is held when it has looked through the queue once,
// given all back, and looked three times how much lies there.
func (w *world) backLater(release func()) func(*fabric.OldQueues) migrations.Broker {
	looks, gaveBack := 0, false
	w.t.Cleanup(func() {
		if looks < 3 {
			w.t.Errorf("it did not wait for what is held: it looked %d times", looks)
		}
	})
	return disturb(nil, func(step string, _ int) {
		gaveBack = gaveBack || step == "giveback"
		if step != "look" || !gaveBack {
			return
		}
		if looks++; looks == 3 {
			release()
		}
	})
}

// Fails when a mark, or a reply that came in behind it, is taken for the mail
// that stands before it and that the broker has not given back yet.
func TestMailBeforeANewMarkIsWaitedFor(t *testing.T) {
	w := newWorld(t, rabbit.URI(t), roomy)
	sent := numbered(3)
	w.old(sent[0])
	if !w.killed("mark", 1, false) {
		t.Fatal("it was not killed")
	}
	w.ready(w.queue(), 2)
	release := w.hold(1)
	w.old(sent[1:]...)
	if c, err := w.run(w.backLater(release)); err != nil || c.Moved != 3 {
		t.Errorf("it came to %+v, %v", c, err)
	}
	w.inOrder(sent)
}

// A reader that is no consumer, or no longer one, held replies when the queue was
// looked through: an old daemon that finds its port taken comes and goes. Fails
// when what it gives back, in front of others that say the same, is taken for
// them: they were acked as sent and never were.
func TestEqualRepliesThatComeBackInFront(t *testing.T) {
	type at struct {
		step string
		n    int
	}
	for _, x := range []struct {
		name string
		back at // they come back after that
		cut  at // the run is cut after that, and a second one goes on
	}{
		{"before the first batch", at{"giveback", 1}, at{}},
		{"before the first batch, and a cut when it is out", at{"giveback", 1}, at{"settled", 1}},
		{"right before the first batch, and a cut when it is out", at{"look", 3}, at{"settled", 1}}, // its turn, and before each step
		{"in the first batch", at{"deliver", 1}, at{}},
		{"in the first batch, and a cut when it is out", at{"deliver", 1}, at{"settled", 1}},
		{"behind the first batch", at{"settled", 1}, at{}},
		{"behind the first batch, and a cut in the second", at{"settled", 1}, at{"deliver", 3}},
	} {
		t.Run(x.name, func(t *testing.T) {
			w := newWorld(t, rabbit.URI(t), roomy)
			sent := same(4)
			w.old(sent...)
			release := w.hold(2)
			uri, proxy := w.proxied()
			c, err := w.runAt(uri, disturb(nil, func(step string, n int) {
				switch (at{step, n}) {
				case x.back:
					release()
				case x.cut:
					proxy.Reset()
				}
			}))
			if x.cut.n > 0 && fault.Is(err, fault.BrokerDown) {
				c, err = w.run(nil)
			}
			if err != nil || c.Left != 0 {
				t.Errorf("it came to %+v, %v", c, err)
			}
			w.inOrder(sent)
		})
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
	conn, err := amqp.DialConfig(w.uri, amqp.Config{Heartbeat: 5 * time.Second})
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
