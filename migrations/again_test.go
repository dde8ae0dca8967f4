package migrations_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	bolt "go.etcd.io/bbolt"

	"fleetd/fabric"
	"fleetd/migrations"
	"fleetd/test/rabbit"
)

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
	conn, err := amqp.DialConfig(w.uri, amqp.Config{Heartbeat: time.Minute})
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
