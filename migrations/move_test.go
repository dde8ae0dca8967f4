package migrations_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"fleetd/fault"
	"fleetd/migrations"
	"fleetd/test/rabbit"
)

const roomy = 100_000

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
