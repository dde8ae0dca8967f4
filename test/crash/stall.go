package main

import (
	"context"
	"errors"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric"
	"fleetd/test/failpoint"
)

// records are the points at which something is about to be recorded that the
// next step waits for (docs/architecture.md, what is committed when). A kill
// there cannot tell whether it does: beside other traffic the record is on disk
// in no time. With a store that stands still, what does not wait is done without.
var records = []string{
	"outbox.intent.before", "outbox.cast.intent.before", "inbox.deliver.before",
	"inbox.injecting.before", "inbox.pull.written",
	"inbox.fail.before", "inbox.retire.before", "outbox.dead.before",
	"control.asked.before", "control.spawn.before", "control.conclude.before",
}

// stallFor is how long a gateway is left alone with a store that commits
// nothing. What waits for its record waits however long it is; what does not
// takes a fraction of it, as a paste is one call of herdr.
const stallFor = 2 * time.Second

// starve leaves s alone with a store that stands still, kills it, and starts it
// again.
func (w *world) starve(ctx context.Context, k kase, s *site) error {
	pause(ctx, stallFor)
	if err := w.bury(s); err != nil {
		return err
	}
	if k.point.Name == "inbox.injecting.before" && k.path == failpoint.Forward {
		held, err := w.holds(ctx, s)
		if err != nil {
			return err
		}
		if !held {
			w.rec.strayed(k.n, s.host.Name)
		}
	}
	return s.host.Start(ctx)
}

// holds waits until the broker has a brief for a worker of s, whose gateway has
// been killed. A queue that cannot tell says that it has none, and a broker may
// take its time to notice that who held a message has gone.
func (w *world) holds(ctx context.Context, s *site) (held bool, err error) {
	conn, err := amqp.Dial(w.node.URI)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	gids := w.rec.launched(s.host.Name)
	for _, one := range s.workers {
		gids = append(gids, one.GID)
	}
	for end := time.Now().Add(upBound); ctx.Err() == nil && time.Now().Before(end); pause(ctx, look) {
		for _, gid := range gids {
			ch, err := conn.Channel()
			if err != nil {
				return false, err
			}
			q, err := ch.QueueDeclarePassive((fabric.Names{}).Inbox(gid), true, false, false, false, nil)
			if err != nil { // that closes the channel: of a worker that has ended
				continue
			}
			if err := ch.Close(); err != nil {
				return false, err
			}
			if q.Messages > 0 {
				return true, nil
			}
		}
	}
	return false, nil
}

// stalled has a client notice that its message is not on record: it repeats a
// call that was answered, which sends what left before its intent once more, or
// believes the answer, which then is all there is of mail that stays here.
func stalled(k kase, first *wish) {
	if k.path == failpoint.Local {
		first.wait, first.retries = 0, false
		return
	}
	first.retries = true
	if k.point.Side == failpoint.Sender && first.again == nil {
		first.again = func() {}
	}
}
