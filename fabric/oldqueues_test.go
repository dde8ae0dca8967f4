package fabric

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fault"
	"fleetd/migrations"
	"fleetd/test/rabbit"
)

// oldQueues connects as a migration of hosta does.
func (fl *fleet) oldQueues() *OldQueues {
	fl.t.Helper()
	o, err := DialOldQueues(fl.t.Context(), Config{Host: "hosta", URI: fl.uri, Prefix: fl.prefix}, fl.key("hosta"))
	if err != nil {
		fl.t.Fatal(err)
	}
	fl.t.Cleanup(o.Close)
	return o
}

// LavinMQ closes a channel with 406 when its disk is short (broker fact §7);
// RabbitMQ when a message says another login. Fails when the remedy is for the
// other one.
func TestA406OnAMoveNamesItsCause(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	for _, is := range []struct {
		lavin bool
		code  fault.Code
		says  string
	}{{true, fault.BrokerDown, "disk"}, {false, fault.BrokerRefused, "rights"}} {
		o := fl.oldQueues()
		o.f.lavin = func(*amqp.Connection) bool { return is.lavin }
		_, err := o.publish(t.Context(), "", "nowhere", amqp.Publishing{UserId: "somebody"})
		if !fault.Is(err, is.code) || !strings.Contains(fault.From(err).Sentence, is.says) {
			t.Errorf("LavinMQ %t: %v", is.lavin, err)
		}
	}
}

// Fails when an inbox that went away while it was full is taken for the old
// queue, whose end is a success.
func TestAFullInboxThatIsGoneIsNotTheOldQueue(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	if err := fl.oldQueues().full(t.Context(), uuid.NewString()); !fault.Is(err, fault.Unroutable) || errors.Is(err, migrations.ErrNoQueue) {
		t.Errorf("it reads %v", err)
	}
}

// Fails when mail is moved into an inbox that the daemon cannot read, or when
// the plan makes an inbox by looking for it.
func TestTheInboxOfTheMainIsLookedAt(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	o := fl.oldQueues()
	_, ch := stranger(t, fl.uri)
	n := fl.names()
	if err := ch.ExchangeDeclare(n.DLX(), amqp.ExchangeFanout, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	none, other, good := fl.entity("hosta"), fl.entity("hosta"), fl.entity("hosta")
	for range 2 {
		if err := o.CheckInbox(t.Context(), none); !fault.Is(err, fault.Unroutable) {
			t.Errorf("one that is not there: %v", err)
		}
	}
	if _, err := ch.QueueDeclare(n.Inbox(other), true, false, false, false, amqp.Table{"x-max-length": int64(5)}); err != nil {
		t.Fatal(err)
	}
	if err := o.CheckInbox(t.Context(), other); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "delete it when it is empty") {
		t.Errorf("one with other arguments: %v", err)
	}
	if err := n.inboxQueue(good, InboxCap).declare(ch); err != nil {
		t.Fatal(err)
	}
	if err := o.CheckInbox(t.Context(), good); err != nil {
		t.Errorf("the daemon's: %v", err)
	}
}

// Fails when Ctrl-C reads as a broker that is down, or breaks the connection
// over which what was moved is counted.
func TestAnInterruptedMoveSaysSo(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	o := fl.oldQueues()
	_, ch := stranger(t, fl.uri)
	queue := migrations.QueueOf("w" + fl.prefix + ":p1")
	if _, err := ch.QueueDeclare(queue, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rabbit.Sweep(fl.uri, []string{queue}, nil); err != nil {
			t.Error(err)
		}
	})
	for range 2 {
		if err := ch.PublishWithContext(t.Context(), "", queue, false, false, amqp.Publishing{Body: []byte("x")}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "both lie there", func() bool {
		q, err := o.Look(t.Context(), queue)
		return err == nil && q.Ready == 2
	})
	ctx, cancel := context.WithCancel(t.Context())
	one, ok, err := o.Take(ctx, queue)
	if !ok || err != nil {
		t.Fatalf("took %t, %v", ok, err)
	}
	cancel()
	if _, _, err := o.Take(ctx, queue); !fault.Is(err, fault.Unconfirmed) {
		t.Errorf("taking reads %v", err)
	}
	if _, err := o.Look(ctx, queue); !fault.Is(err, fault.Unconfirmed) {
		t.Errorf("looking reads %v", err)
	}
	if err := errors.Join(o.Ack(one.Tag), o.Settled(context.WithoutCancel(ctx))); err != nil {
		t.Errorf("what was taken before cannot be settled: %v", err)
	}
	o.Release()
}

// Fails when a publish channel that ends right after its confirm, which closes
// the channel of returns, reads as a queue that is not there; or when one that is
// not there does not.
func TestAClosedChannelIsNoReturnedLetter(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	o := fl.oldQueues()
	_, ch := stranger(t, fl.uri)
	queue := migrations.QueueOf("w" + fl.prefix + ":p1")
	if err := o.Mark(t.Context(), queue, "mark", "text"); err != migrations.ErrNoQueue {
		t.Errorf("without the queue it reads %v", err)
	}
	if _, err := ch.QueueDeclare(queue, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rabbit.Sweep(fl.uri, []string{queue}, nil); err != nil {
			t.Error(err)
		}
	})
	closed := make(chan amqp.Return)
	close(closed)
	o.returns = closed
	if err := o.Mark(t.Context(), queue, "mark", "text"); err != nil {
		t.Errorf("a mark that was stored reads %v", err)
	}
}

// RabbitMQ ends a channel that holds messages for longer than consumer_timeout.
// Fails when a migration that took so long to look through a queue says that the
// connection broke.
func TestAQueueThatTookTooLong(t *testing.T) {
	node := rabbit.Private(t)
	for _, name := range []string{"consumer_timeout", "channel_tick_interval"} {
		if _, err := node.Ctl(t.Context(), "eval", "application:set_env(rabbit, "+name+", 1000)."); err != nil {
			t.Fatal(err)
		}
	}
	fl := newFleet(t, node.URI)
	o := fl.oldQueues()
	queue := fl.prefix + "old"
	err := aside(o.con, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(queue, true, false, false, false, nil)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Mark(t.Context(), queue, "1", "text"); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := o.Take(t.Context(), queue); !ok || err != nil {
		t.Fatalf("it took %t, %v", ok, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for {
		_, _, err := o.Take(ctx, queue)
		if err == nil {
			continue
		}
		if !fault.Is(err, fault.BrokerRefused) || !strings.Contains(err.Error(), "consumer_timeout") {
			t.Errorf("it reads %v", err)
		}
		return
	}
}

// Fails when the word of the broker is not waited for: the library lets calls
// fail before it tells why the channel is closed.
func TestTheReasonOfAClosedChannelComesLate(t *testing.T) {
	late := func() chan *amqp.Error {
		word := make(chan *amqp.Error)
		said := make(chan struct{})
		go func() {
			defer close(said)
			select {
			case word <- &amqp.Error{Code: amqp.PreconditionFailed, Reason: "it timed out"}:
			case <-t.Context().Done():
			}
		}()
		t.Cleanup(func() { <-said })
		return word
	}
	never := make(chan *amqp.Error)
	close(never)
	o := &OldQueues{f: &Fabric{lavin: func(*amqp.Connection) bool { return false }}, out: &connection{}}
	for name, call := range map[string]func(closes chan *amqp.Error) error{
		"take": func(closes chan *amqp.Error) error {
			o.takeEnd = closes
			return o.takeFault(t.Context(), amqp.ErrClosed)
		},
		"publish": func(closes chan *amqp.Error) error { o.closes = closes; return o.publishFault(amqp.ErrClosed) },
	} {
		if err := call(late()); !fault.Is(err, fault.BrokerRefused) {
			t.Errorf("%s: with a word that comes late it reads %v", name, err)
		}
		if err := call(never); !fault.Is(err, fault.BrokerDown) {
			t.Errorf("%s: without a word it reads %v", name, err)
		}
	}
}

// RabbitMQ has one code for a queue that is not there and one that cannot be
// reached. Fails when mail on a node that is down is taken for gone.
func TestAQueueOnANodeThatIsDown(t *testing.T) {
	for text, gone := range map[string]bool{
		"NOT_FOUND - no queue 'q' in vhost '/'": true,
		"NOT_FOUND - Queue 'q' not found":       true,
		"NOT_FOUND - home node 'rabbit@b' of durable queue 'q' in vhost '/' is down or inaccessible": false,
		"NOT_FOUND - failed to perform operation on queue 'q' in vhost '/' due to timeout":           false,
	} {
		err := notThere(&amqp.Error{Code: amqp.NotFound, Reason: text})
		if errors.Is(err, migrations.ErrNoQueue) != gone || fault.Is(err, fault.BrokerDown) == gone {
			t.Errorf("%q reads %v", text, err)
		}
	}
}
