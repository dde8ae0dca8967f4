package migrations_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	bolt "go.etcd.io/bbolt"

	"fleetd/fabric"
	"fleetd/fault"
	"fleetd/migrations"
	"fleetd/test/rabbit"
)

// again is how one run differs from the others of a test.
type again struct {
	limit   int           // 0: as all
	later   time.Duration // the clock is so far ahead
	around  func(*fabric.OldQueues) migrations.Broker
	journal string // "": the world's
	remove  bool
	hurried bool // it does not wait for the end of another run
}

// move makes a run that does not wait long for what comes back of another one.
func (w *world) move(a again) (migrations.Count, error) {
	w.t.Helper()
	if a.limit == 0 {
		a.limit = limit
	}
	if a.journal == "" {
		a.journal = w.journal
	}
	j, err := migrations.OpenJournal(a.journal)
	if err != nil {
		w.t.Fatal(err)
	}
	defer j.Close()
	b := w.dial(w.uri)
	defer b.Close()
	m := migrations.Mover{
		Broker: b, Journal: j, Limit: a.limit, Delete: a.remove, Patience: patience, Return: 50 * time.Millisecond,
		Now: func() time.Time { return time.Now().Add(a.later) },
	}
	if a.hurried {
		m.Patience = 0
	}
	if a.around != nil {
		m.Broker = a.around(b)
	}
	counts, err := m.Move(w.t.Context(), []migrations.Row{w.row()})
	if len(counts) != 1 {
		w.t.Fatalf("there are %d counts", len(counts))
	}
	w.sums(counts[0])
	return counts[0], err
}

// done runs without trouble, leaves nothing, and demands how many were moved
// and doubtful.
func (w *world) done(a again, moved, doubtful int) {
	w.t.Helper()
	if c, err := w.move(a); err != nil || c.Moved != moved || c.Left != 0 || c.Doubtful != doubtful {
		w.t.Fatalf("it came to %+v, %v; want %d moved, %d doubtful", c, err, moved, doubtful)
	}
}

// killed makes a run that ends without another step, as a killed one does. It
// reports whether it came that far.
func (w *world) killed(step string, n int, before bool) bool {
	w.t.Helper()
	struck, gone := w.left(w.uri, step, n, before)
	gone()
	return struck
}

// left makes a run that ends without another step, and whose connection the
// broker takes for alive until gone is called.
func (w *world) left(uri, step string, n int, before bool) (struck bool, gone func()) {
	w.t.Helper()
	die := func(at string, nth int) {
		if at == step && nth == n {
			struck = true
			runtime.Goexit()
		}
	}
	around := disturb(nil, die)
	if before {
		around = disturb(die, nil)
	}
	j, err := migrations.OpenJournal(w.journal)
	if err != nil {
		w.t.Fatal(err)
	}
	b := w.dial(uri)
	m := migrations.Mover{Broker: silent{around(b)}, Journal: j, Limit: limit, Now: time.Now, Patience: patience, Return: 50 * time.Millisecond}
	row, ctx := w.row(), w.t.Context()
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = m.Move(ctx, []migrations.Row{row}) }) // where it does not die, it is told by struck
	wg.Wait()
	if err := j.Close(); err != nil {
		w.t.Fatal(err)
	}
	return struck, sync.OnceFunc(b.Close)
}

// silent is a broker to which the end of a run is not told.
type silent struct{ migrations.Broker }

func (silent) Release() {}

// bodies are what the main gets, in order; parts of one message are put
// together, and what is not whole is an error.
func (w *world) bodies() (all []string) {
	w.t.Helper()
	open := ""
	var next, of int
	for _, e := range w.mail() {
		head, text, _ := strings.Cut(string(e.Body), "\n")
		var part, parts int
		if n, _ := fmt.Sscanf(head, "[part %d of %d of one message]", &part, &parts); n != 2 {
			all = append(all, string(e.Body))
			continue
		}
		if part == 1 {
			open, next, of = "", 1, parts
		}
		if part != next || parts != of {
			w.t.Errorf("part %d of %d comes where %d of %d is due", part, parts, next, of)
		}
		open, next = open+text, next+1
		if part == parts {
			all = append(all, open)
		}
	}
	return all
}

func same(n int) []amqp.Publishing {
	return slices.Repeat([]amqp.Publishing{{Body: []byte("done")}}, n)
}

// handedOut has a consumer take n messages and go: the broker marks them.
func (w *world) handedOut(n int) {
	w.t.Helper()
	conn, err := amqp.DialConfig(w.uri, amqp.Config{Heartbeat: 5 * time.Second})
	if err != nil {
		w.t.Fatal(err)
	}
	ch, err := conn.Channel()
	if err != nil {
		w.t.Fatal(err)
	}
	for range n {
		if _, ok, err := ch.Get(w.queue(), false); !ok || err != nil {
			w.t.Fatalf("it got %t, %v", ok, err)
		}
	}
	if err := conn.Close(); err != nil {
		w.t.Fatal(err)
	}
	w.ready(w.queue(), n)
}

// Fails when a run that was killed anywhere, in the first messages, between
// parts or with bytes that are no text, costs a reply, doubles one, or sends one
// otherwise than before.
func TestKilledAnywhere(t *testing.T) {
	id := uuid.NewString()
	long := strings.Repeat("0123456789", limit/4)
	sent := []amqp.Publishing{
		{Body: []byte("done")}, {Body: []byte("done")}, {MessageId: uuid.NewString(), Body: []byte(long)}, {Body: []byte("caf\xe9")},
		{MessageId: id, Body: []byte("one id")}, {MessageId: id, Body: []byte("one id")}, {MessageId: id, Body: []byte("one more")}, {Body: []byte("done")},
	}
	want := []string{"done", "done", long, `caf\xe9`, "one id", "one more", "done"}
	w := newWorld(t, rabbit.URI(t), roomy)
	for _, step := range []string{"take", "mark", "giveback", "deliver", "ack", "settled"} {
		for _, before := range []bool{true, false} {
			for n, struck := 1, true; struck; n++ {
				w.old(sent...)
				struck = w.killed(step, n, before)
				c, err := w.move(again{})
				if got := w.bodies(); err != nil || c.Left != 0 || !slices.Equal(got, want) {
					t.Fatalf("killed at %s %d, before=%t: the next run came to %+v, %v; the main gets %.60q", step, n, before, c, err, got)
				}
				// The next round has the same ids: it is another migration.
				w.had, w.journal = nil, filepath.Join(t.TempDir(), migrations.JournalFile)
			}
		}
	}
}

// Fails when the journal's loss has a later reply taken for one that was moved,
// or one that was moved taken for new.
func TestTheJournalIsRemoved(t *testing.T) {
	remove := func(w *world) {
		w.t.Helper()
		if err := os.Remove(w.journal); err != nil {
			w.t.Fatal(err)
		}
	}
	t.Run("after the end", func(t *testing.T) {
		w := newWorld(t, rabbit.URI(t), roomy)
		for range 3 {
			w.old(same(2)...)
			w.done(again{}, 2, 0)
			remove(w)
		}
		if got := w.bodies(); len(got) != 6 {
			t.Errorf("the main gets %q", got)
		}
	})
	t.Run("half way", func(t *testing.T) {
		w := newWorld(t, rabbit.URI(t), roomy)
		sent := append(numbered(3), same(3)...)
		w.old(sent...)
		if !w.killed("ack", 5, true) {
			t.Fatal("it was not killed")
		}
		remove(w)
		w.done(again{later: time.Hour}, 2, 0)
		w.inOrder(sent)
	})
}

// Fails when a reply that came after a run is taken for one that it moved: the
// same content, and a broker that says that it was handed out before.
func TestBackToTheOldDaemonAndAgain(t *testing.T) {
	w := newWorld(t, rabbit.URI(t), roomy)
	first := append(same(1), amqp.Publishing{Body: []byte("ok")})
	w.old(first...)
	w.done(again{}, 2, 0)
	second := []amqp.Publishing{{Body: []byte("ok")}, {Body: []byte("x")}, {Body: []byte("done")}}
	w.old(second...)
	w.handedOut(1)
	if !w.killed("deliver", 1, true) {
		t.Fatal("it was not killed")
	}
	w.done(again{}, 3, 0)
	third := same(2)
	w.old(third...)
	w.handedOut(2)
	w.done(again{}, 2, 0)
	w.inOrder(slices.Concat(first, second, third))
}

// Fails when replies that a broker hands out again are taken for new because it
// does not say so, or because time has gone by.
func TestLostAcksShowWheneverTheRunIsMadeAgain(t *testing.T) {
	for _, later := range []time.Duration{0, 11 * time.Minute, 4 * 24 * time.Hour, 6 * 24 * time.Hour} {
		w := newWorld(t, rabbit.URI(t), roomy)
		sent := append(numbered(2), same(3)...)
		w.old(sent...)
		w.done(again{around: func(b *fabric.OldQueues) migrations.Broker { return &forgetful{b, 1, 0} }}, 5, 0)
		w.ready(w.queue(), 4)
		w.done(again{later: later}, 4, 0)
		w.inOrder(sent)
	}
}

// Fails when a reply that may have been sent comes with the same id and another
// time, which its recipient takes for a forgery; or so late that its life is
// over; or when the user is not told that it may be there twice.
func TestARunMadeAgainDaysLater(t *testing.T) {
	for _, x := range []struct {
		days              time.Duration
		comes, isDoubtful int
	}{{4, 1, 0}, {6, 2, 1}} {
		w := newWorld(t, rabbit.URI(t), roomy)
		w.old(numbered(2)...)
		if !w.killed("deliver", 1, false) {
			t.Fatal("it was not killed")
		}
		later := x.days * 24 * time.Hour
		w.done(again{later: later}, 2, x.isDoubtful+x.isDoubtful) // both stood in the batch
		got := w.mail()
		n := 0
		for _, e := range got {
			if string(e.Body) == "reply 0" {
				n++
			}
		}
		last := got[len(got)-1]
		if n != x.comes || time.UnixMilli(last.ExpiresAt).Before(time.Now().Add(later+24*time.Hour)) {
			t.Errorf("%d days later: the first reply comes %d times, the last lives until %s", x.days, n, time.UnixMilli(last.ExpiresAt))
		}
	}
}

// Fails when a run made with a clock that was far ahead has what it may have sent
// go out again as of then: it would live until then, whatever is wrong with it.
func TestARunMadeWithAClockFarAhead(t *testing.T) {
	w := newWorld(t, rabbit.URI(t), roomy)
	sent := numbered(2)
	w.old(sent...)
	cut := errors.New("cut")
	if _, err := w.move(again{later: 30 * 24 * time.Hour, around: func(b *fabric.OldQueues) migrations.Broker {
		return &failing{OldQueues: b, at: 1, err: cut}
	}}); !errors.Is(err, cut) {
		t.Fatal(err)
	}
	w.done(again{}, 2, 1) // the second was not tried
	got := w.mail()
	if len(got) != 2 {
		t.Errorf("the main gets %d messages", len(got))
	}
	for _, e := range got {
		if until := time.UnixMilli(e.ExpiresAt); until.After(time.Now().Add(8 * 24 * time.Hour)) {
			t.Errorf("%q lives until %s", e.Body, until)
		}
	}
}

// Fails when mail that was marked and not sent begins its life with the mark: it
// would have little left when the run is made again days later.
func TestMailThatWasOnlyMarkedLivesAsLong(t *testing.T) {
	w := newWorld(t, rabbit.URI(t), roomy)
	w.old(numbered(2)...)
	if !w.killed("giveback", 1, false) {
		t.Fatal("it was not killed")
	}
	const later = 4 * 24 * time.Hour
	w.done(again{later: later}, 2, 0)
	for _, e := range w.mail() {
		if life := time.UnixMilli(e.ExpiresAt).Sub(time.Now().Add(later)); life < 6*24*time.Hour {
			t.Errorf("%q has %s left", e.Body, life)
		}
	}
}

// Fails when mail that expires, in the batch or behind it, has moved replies
// taken for new ones, or stops the run.
func TestMailThatExpires(t *testing.T) {
	w := newWorld(t, rabbit.URI(t), roomy)
	short := func(text string) amqp.Publishing {
		return amqp.Publishing{Body: []byte(text), Expiration: "1000"}
	}
	sent := slices.Concat(same(2), []amqp.Publishing{short("done"), short("brief")}, same(126), []amqp.Publishing{short("behind")}, same(2))
	w.old(sent...)
	c, err := w.move(again{around: func(b *fabric.OldQueues) migrations.Broker { return &forgetful{b, 0, 0} }})
	if err != nil || c.Moved < 130 {
		t.Fatalf("it came to %+v, %v", c, err)
	}
	w.mail()
	eventually(t, func() error { // what is handed back and past its life goes
		w.handedOut(5)
		q, err := w.ch.QueueDeclarePassive(w.queue(), true, false, false, false, nil)
		if err != nil || q.Messages > len(sent)+1-2 {
			return fmt.Errorf("%d messages lie there, %v", q.Messages, err)
		}
		return nil
	})
	c, err = w.move(again{})
	if err != nil || c.Left != 0 {
		t.Fatalf("run again it came to %+v, %v", c, err)
	}
	if got := w.bodies(); len(got) != 0 {
		t.Errorf("%d replies come once more", len(got))
	}
}

// Fails when the journal of the first version stops a run.
func TestAJournalOfTheFirstVersion(t *testing.T) {
	w := newWorld(t, rabbit.URI(t), roomy)
	w.old(numbered(2)...)
	if !w.killed("deliver", 2, true) {
		t.Fatal("it was not killed")
	}
	db, err := bolt.Open(w.journal, 0o600, &bolt.Options{Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte("hands"))
		var hand struct{ Keys []string }
		if err := json.Unmarshal(b.Get([]byte(w.queue())), &hand); err != nil {
			return err
		}
		if len(hand.Keys) != 2 {
			return fmt.Errorf("in hand are %q", hand.Keys)
		}
		keys, err := json.Marshal(hand.Keys)
		if err != nil {
			return err
		}
		return b.Put([]byte(w.queue()), keys)
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	w.done(again{}, 2, 0)
}

// Fails when what a broken run has not sent goes to the main, or is from the
// worker, that the command no longer names; when a main that is gone stops all
// later runs; or when the user is not told of what may be with both.
func TestAnotherMainAndWorker(t *testing.T) {
	for _, gone := range []bool{true, false} {
		t.Run(fmt.Sprintf("refused, gone=%t", gone), func(t *testing.T) {
			w := newWorld(t, rabbit.URI(t), 1)
			sent := numbered(4)
			w.old(sent...)
			if c, err := w.move(again{}); !fault.Is(err, fault.InboxFull) || c.Moved != 1 {
				t.Fatalf("it came to %+v, %v", c, err)
			}
			w.inOrder(sent[:1])
			w.another(t, gone)
			w.done(again{}, 3, 0)
			w.inOrder(sent[1:]) // with their own ids
		})
		t.Run(fmt.Sprintf("killed, gone=%t", gone), func(t *testing.T) {
			w := newWorld(t, rabbit.URI(t), roomy)
			sent := same(4)
			w.old(sent...)
			if !w.killed("ack", 2, true) {
				t.Fatal("it was not killed")
			}
			w.inOrder(sent)
			w.another(t, gone)
			w.done(again{}, 3, 3)
			w.inOrder(sent[1:])
		})
	}
	t.Run("sent, and only the ack is missing", func(t *testing.T) {
		w := newWorld(t, rabbit.URI(t), roomy)
		sent := same(4)
		w.old(sent...)
		w.done(again{around: func(b *fabric.OldQueues) migrations.Broker { return &forgetful{b, 2, 0} }}, 4, 0)
		w.ready(w.queue(), 2)
		w.inOrder(sent)
		w.another(t, true)
		w.done(again{}, 2, 0)
		w.inOrder(nil)
	})
}

// Fails when of two messages with one id and content each goes for itself because
// a run between them had another main.
func TestACopyAndAnotherMain(t *testing.T) {
	id := uuid.NewString()
	both := slices.Repeat([]amqp.Publishing{{MessageId: id, Body: []byte("twice")}}, 2)
	demand := func(w *world, a again, moved, copies, doubtful, comes int) {
		w.t.Helper()
		c, err := w.move(a)
		if err != nil || c.Moved != moved || c.Copies != copies || c.Doubtful != doubtful || c.Left != 0 {
			w.t.Errorf("it came to %+v, %v; want %d moved, %d copies, %d doubtful", c, err, moved, copies, doubtful)
		}
		if got := w.bodies(); len(got) != comes {
			w.t.Errorf("the main gets %q, want %d", got, comes)
		}
	}
	t.Run("killed before the first was noted as sent", func(t *testing.T) {
		w := newWorld(t, rabbit.URI(t), roomy)
		w.old(both...)
		if !w.killed("deliver", 1, false) {
			t.Fatal("it was not killed")
		}
		w.another(t, true)
		demand(w, again{}, 1, 1, 1, 1)
	})
	t.Run("the first was sent", func(t *testing.T) {
		w := newWorld(t, rabbit.URI(t), 1)
		w.old(both...)
		if c, err := w.move(again{}); !fault.Is(err, fault.InboxFull) || c.Moved != 1 {
			t.Fatalf("it came to %+v, %v", c, err)
		}
		w.another(t, true)
		demand(w, again{}, 0, 1, 0, 0)
	})
	t.Run("and back", func(t *testing.T) {
		w := newWorld(t, rabbit.URI(t), roomy)
		w.old(both...)
		cut := errors.New("cut")
		if _, err := w.move(again{around: func(b *fabric.OldQueues) migrations.Broker {
			return &failing{OldQueues: b, at: 1, err: cut}
		}}); !errors.Is(err, cut) {
			t.Fatal(err)
		}
		main, worker := w.main, w.worker
		w.another(t, false)
		if _, err := w.ch.QueueDelete(w.names().Inbox(w.main), false, false, false); err != nil {
			t.Fatal(err)
		}
		if c, err := w.move(again{}); !fault.Is(err, fault.Unroutable) || c.Left != 2 {
			t.Fatalf("it came to %+v, %v", c, err)
		}
		w.main, w.worker = main, worker
		demand(w, again{}, 1, 1, 0, 1)
	})
}

// another has the world's mail be for another main and from another worker.
func (w *world) another(t *testing.T, gone bool) {
	t.Helper()
	was := w.names().Inbox(w.main)
	if gone {
		if _, err := w.ch.QueueDelete(was, false, false, false); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := rabbit.Sweep(w.uri, []string{was}, nil); err != nil {
			t.Error(err)
		}
		if err := rabbit.Sweep(w.uri, []string{w.names().Inbox(w.main)}, nil); err != nil {
			t.Error(err)
		}
	})
	w.main, w.worker = uuid.NewString(), uuid.NewString()
	w.declareInbox(roomy)
}

// Fails when a message that was sent in part, and then under another limit,
// comes with a hole or with two contents under one id.
func TestAnotherLimit(t *testing.T) {
	const size = 5000
	for _, x := range []struct{ first, second, doubtful int }{{1024, 2048, 0}, {2048, 1024, 1}} {
		for _, own := range []string{"", uuid.NewString()} {
			w := newWorld(t, rabbit.URI(t), roomy)
			body := strings.Repeat("0123456789", size/10)
			w.old(amqp.Publishing{MessageId: own, Body: []byte(body)})
			cut := errors.New("cut")
			if _, err := w.move(again{limit: x.first, around: func(b *fabric.OldQueues) migrations.Broker {
				return &failing{OldQueues: b, at: 2, err: cut}
			}}); !errors.Is(err, cut) {
				t.Fatal(err)
			}
			w.done(again{limit: x.second}, 1, x.doubtful)
			if got := w.bodies(); len(got) != 1 || got[0] != body {
				t.Errorf("under %+v the main gets %d messages", x, len(got))
			}
		}
	}
}

// failing is a broker whose nth publish fails, and nobody knows how.
type failing struct {
	*fabric.OldQueues
	at, n int
	err   error
}

func (f *failing) Deliver(ctx context.Context, l migrations.Letter) error {
	if f.n++; f.n == f.at {
		return f.err
	}
	return f.OldQueues.Deliver(ctx, l)
}

// Fails when a run whose connection broke says more or less than it can know.
func TestTheCountAfterACut(t *testing.T) {
	w := newWorld(t, rabbit.URI(t), roomy)
	sent := numbered(9)
	w.old(sent...)
	uri, proxy := w.proxied()
	c, err := w.runAt(uri, disturb(func(step string, n int) {
		if step == "ack" && n == 6 {
			proxy.Reset()
		}
	}, nil))
	if want := (migrations.Count{Queue: w.queue(), Found: 9, Unsettled: 9, Problem: c.Problem}); err == nil || c != want {
		t.Errorf("it says %+v, %v; want %+v", c, err, want)
	}
	w.done(again{}, 9-w.out(9), 0)
	w.inOrder(sent)
}

// out is how many of n messages the broker knows to be out of the queue, once
// it has noticed that its peer is gone.
func (w *world) out(n int) (out int) {
	w.t.Helper()
	eventually(w.t, func() error {
		q, err := w.ch.QueueDeclarePassive(w.queue(), true, false, false, false, nil)
		if err != nil {
			return err
		}
		if out = n + 1 - q.Messages; out > 6 { // and a mark
			return fmt.Errorf("%d messages lie there", q.Messages)
		}
		return nil
	})
	return out
}

// Fails when replies that somebody else takes meanwhile stop the run, are not
// counted, or break the order of the others.
func TestRepliesThatAConsumerTakesMeanwhile(t *testing.T) {
	w := newWorld(t, rabbit.URI(t), roomy)
	sent := append(numbered(4), same(4)...)
	w.old(sent...)
	steal := func(step string, n int) {
		if step != "giveback" || n != 1 {
			return
		}
		for range 3 {
			if _, ok, err := w.ch.Get(w.queue(), true); !ok || err != nil {
				t.Errorf("it got %t, %v", ok, err)
			}
		}
	}
	c, err := w.move(again{around: disturb(nil, steal)})
	if want := (migrations.Count{Queue: w.queue(), Found: 8, Moved: 5, Vanished: 3}); err != nil || c != want {
		t.Errorf("it came to %+v, %v; want %+v", c, err, want)
	}
	w.inOrder(sent[3:])
}

// Fails when replies that come in while others are moved are not moved, or not
// counted as such.
func TestRepliesThatComeMeanwhile(t *testing.T) {
	w := newWorld(t, rabbit.URI(t), roomy)
	sent := append(numbered(3), same(2)...)
	w.old(sent[:3]...)
	come := func(step string, n int) {
		if step == "deliver" && n == 2 {
			w.old(sent[3:]...)
		}
	}
	c, err := w.move(again{around: disturb(come, nil)})
	if want := (migrations.Count{Queue: w.queue(), Found: 3, Arrived: 2, Moved: 5}); err != nil || c != want {
		t.Errorf("it came to %+v, %v; want %+v", c, err, want)
	}
	w.inOrder(sent)
}

// Two hosts can have panes of one name, and each its own journal. Fails when
// migrations that run at once lose a reply, double one, or break their order.
func TestTwoHostsMoveOneQueue(t *testing.T) {
	w := newWorld(t, rabbit.URI(t), roomy)
	sent := numbered(400)
	w.old(sent...)
	var wg sync.WaitGroup
	var moved atomic.Int64
	for i := range 2 {
		journal := filepath.Join(t.TempDir(), fmt.Sprint(i))
		wg.Go(func() {
			c, err := w.move(again{journal: journal})
			if err != nil {
				t.Error(err)
			}
			moved.Add(int64(c.Moved))
		})
	}
	wg.Wait()
	if n := moved.Load(); n != int64(len(sent)) {
		t.Errorf("they say that they moved %d, want %d", n, len(sent))
	}
	w.inOrder(sent)
}
