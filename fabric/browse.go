package fabric

import (
	"context"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fault"
)

// Fate is what a visitor wants done with a dead letter.
type Fate int

// The fates.
const (
	Keep   Fate = iota // it goes back to its place
	Remove             // it is taken out of the queue for good
	Last               // as Keep, and no further letter is looked at
)

// Browsed says how far a look at the dead letters came.
type Browsed struct {
	Total    int  // letters that were there when it began
	Seen     int  // of these, looked at: the oldest
	Complete bool // all were looked at; false after Last and when time ran out
}

const (
	// browseBound is how long one look at the queue may take; a full one needs
	// a few seconds. It is far below what a broker lets a delivery stay unacked
	// (broker fact §6).
	browseBound = 60 * time.Second
	// handBackBound is how long giving everything back may take before the
	// connection is cut, which gives it back too.
	handBackBound = 5 * time.Second
	// backBound is how long letters are waited for that may never come back.
	backBound = time.Second
	backPoll  = 2 * time.Millisecond
)

// Browse shows each letter that lies in bridge.dlq to visit, the oldest first,
// and has those removed that it says; all others are back in their places when
// Browse returns, or when this process or the connection dies in between: they
// are taken one by one and unacked, on a connection of their own (broker fact
// §6). What arrives meanwhile stays behind them and is not shown. Letters that
// somebody else looks at in this moment are not there to be seen.
//
// The letter's Envelope and Body are gone after visit. An error means that the
// look was cut short: what visit removed may be there still, never the other
// way round.
func (f *Fabric) Browse(ctx context.Context, visit func(*DeadLetter) Fate) (Browsed, error) {
	if _, err := f.session(); err != nil {
		return Browsed{}, err
	}
	select { // one at a time, else each would see a part
	case f.browsing <- struct{}{}:
		defer func() { <-f.browsing }()
	case <-ctx.Done():
		return Browsed{}, ctx.Err()
	}
	conn, err := f.dialer.dial(ctx, "bridged "+f.cfg.Host+" dead letters")
	if err != nil && ctx.Err() != nil {
		return Browsed{}, ctx.Err()
	}
	if err != nil {
		return Browsed{}, fault.Wrap(err, fault.BrokerDown, "the broker cannot be reached for its dead letters; nothing was changed. Try again in a moment")
	}
	defer conn.end()
	b := &browse{f: f, conn: conn, queue: f.names.DLQ()}
	done, err := b.run(ctx, visit)
	if err != nil {
		return done, b.explain(ctx, err)
	}
	return done, nil
}

// browse is one look at the queue.
type browse struct {
	f     *Fabric
	conn  *connection
	ch    *amqp.Channel
	queue string
	kept  int  // letters that go back
	acked bool // letters were removed
}

func (b *browse) run(ctx context.Context, visit func(*DeadLetter) Fate) (done Browsed, err error) {
	if b.ch, err = b.conn.Channel(); err != nil {
		return done, err
	}
	began := time.Now()
	for last := false; !last; {
		d, ok, err := b.take(ctx)
		if err != nil {
			return done, err
		}
		if !ok { // there was none, or the rest expired, or somebody else took it
			done.Total = done.Seen
			break
		}
		if done.Seen == 0 {
			// Not from a declare: what was handed back before can still be on
			// its way into the queue, and RabbitMQ answers those out of turn.
			done.Total = int(d.MessageCount) + 1
		}
		done.Seen++
		if last, err = b.settle(&d, visit); err != nil {
			return done, err
		}
		last = last || done.Seen == done.Total || time.Since(began) >= b.f.browseBound || ctx.Err() != nil
	}
	done.Complete = done.Seen == done.Total
	if err := b.handBack(); err != nil {
		return done, err
	}
	return done, ctx.Err()
}

// take takes the next letter; the end of ctx cuts the connection of a broker
// that does not answer.
func (b *browse) take(ctx context.Context) (amqp.Delivery, bool, error) {
	stop := context.AfterFunc(ctx, func() { _ = b.conn.raw.Close() })
	defer stop()
	return b.ch.Get(b.queue, false)
}

func (b *browse) settle(d *amqp.Delivery, visit func(*DeadLetter) Fate) (last bool, err error) {
	l := b.f.letter(d)
	fate := visit(l)
	l.Envelope, l.Body, l.headers = nil, nil, nil
	if fate != Remove {
		b.kept++
		return fate == Last, nil
	}
	b.acked = true
	return false, b.ch.Ack(d.DeliveryTag, false)
}

// handBack closes the channel, which puts what was kept back into its places,
// and waits until it is there, so that whoever looks next finds every letter:
// the answer to the close does not say so. (A nack of all at once would, but
// RabbitMQ takes a quarter of a minute for 8000, and serves nobody meanwhile.)
func (b *browse) handBack() error {
	cut := time.AfterFunc(handBackBound, func() { _ = b.conn.raw.Close() })
	defer cut.Stop()
	before, err := b.ready()
	if err != nil {
		return err
	}
	if err := b.ch.Close(); err != nil {
		return err
	}
	if b.ch, err = b.conn.Channel(); err != nil {
		return err
	}
	// Fewer come back where some expired, or somebody else took them at once.
	for limit := time.Now().Add(backBound); b.kept > 0 && time.Now().Before(limit); {
		now, err := b.ready()
		if err != nil || now >= before+b.kept {
			return err
		}
		time.Sleep(backPoll)
	}
	return nil
}

// ready is how many letters nobody holds.
func (b *browse) ready() (int, error) {
	q, err := b.ch.QueueDeclarePassive(b.queue, true, false, false, false, nil)
	return q.Messages, err
}

// explain says what a failure means for the letters.
func (b *browse) explain(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case isCode(err, amqp.NotFound):
		return fault.Wrap(err, fault.BrokerRefused, "there is no queue %s on the broker; it is made with the next connection of a gateway that may make it", b.queue)
	case isCode(err, amqp.AccessRefused):
		return fault.Wrap(err, fault.BrokerRefused, "the broker does not let this gateway's login read %s; give it the right to, or ask where it has it", b.queue)
	case b.acked:
		return fault.Wrap(err, fault.BrokerDown, "the connection broke among the dead letters; some that were removed may be there still, nothing else was lost. List them, and repeat what is left to do")
	}
	return fault.Wrap(err, fault.BrokerDown, "the connection broke among the dead letters; they are all back in their places. Try again in a moment")
}

// Purge removes the letters that q picks and returns how many these were.
// After an error it is how many were asked to be removed.
func (f *Fabric) Purge(ctx context.Context, q Filter) (purged int, done Browsed, err error) {
	done, err = f.Browse(ctx, func(l *DeadLetter) Fate {
		if !q.match(f.names, l) {
			return Keep
		}
		purged++
		return Remove
	})
	if purged > 0 {
		f.log.Info("dead letters purged", "letters", purged, "reason", q.Reason, "queue", q.Queue, "msg", q.MsgID, "error", err)
	}
	return purged, done, err
}

// Find shows the letters that q picks to visit, as Browse does.
func (f *Fabric) Find(ctx context.Context, q Filter, visit func(*DeadLetter) Fate) (Browsed, error) {
	return f.Browse(ctx, func(l *DeadLetter) Fate {
		if !q.match(f.names, l) {
			return Keep
		}
		return visit(l)
	})
}
