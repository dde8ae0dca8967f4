package migrations_test

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric"
	"fleetd/fault"
	"fleetd/migrations"
	"fleetd/test/rabbit"
)

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

// A policy can limit how often a message is handed out. Fails when one that waits
// for mail that a run that is gone held is taken more often than to see that this is
// not there, to see it again, and to be moved; or when that mail is not waited for.
func TestMailThatWaitsIsNotTakenAgainAndAgain(t *testing.T) {
	for _, back := range []time.Duration{time.Second, time.Hour} {
		t.Run(back.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, mover, queue := newModel("ABCD"), migrations.Mover{Limit: limit, Now: time.Now, Return: 5 * time.Second}, "agent.w:p1.inbox"
				mover.SetBatch(2)
				var err error
				if mover.Journal, err = migrations.OpenJournal(filepath.Join(t.TempDir(), "j")); err != nil {
					t.Fatal(err)
				}
				defer mover.Journal.Close()
				m.run(t, mover, queue, func(step int) {
					if m.steps[step] == "deliver" {
						m.turn(inHand, hidden)
						runtime.Goexit()
					}
				})
				began := time.Now()
				for _, l := range m.queue {
					l.takes = 0
				}
				m.run(t, mover, queue, func(int) {
					if time.Since(began) >= back {
						m.turn(hidden, ready)
					}
				})
				if got := m.got(); back < mover.Return && got != "ABCD" {
					t.Errorf("the main gets %s", got)
				}
				for _, l := range m.queue {
					if l.takes > 3 {
						t.Errorf("%.20s was taken %d times", l.Body, l.takes)
					}
				}
			})
		})
	}
}

// The broker lets the lock of a run go, and puts back what it held, side by side,
// and of another host's run no journal here says what that was. Fails when a run
// that saw such a one go on without what comes back a little later: it would be
// moved behind its successors. A run that did not see it sees more come in, as any.
func TestWhatAnotherHostsRunHeldIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, queue, began := newModel("abCD"), "agent.w:p1.inbox", time.Now()
		m.lock = func() bool { return time.Since(began) > time.Minute }
		j, err := migrations.OpenJournal(filepath.Join(t.TempDir(), "j"))
		if err != nil {
			t.Fatal(err)
		}
		defer j.Close()
		mover := migrations.Mover{Journal: j, Limit: limit, Now: time.Now, Patience: time.Hour, Return: 5 * time.Second}
		m.run(t, mover, queue, func(int) {
			if time.Since(began) > time.Minute+4*time.Second {
				m.turn(hidden, ready)
			}
		})
		if got := m.got(); got != "ABCD" {
			t.Errorf("the main gets %s", got)
		}
	})
}
