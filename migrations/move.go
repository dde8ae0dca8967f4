package migrations

import (
	"cmp"
	"context"
	"errors"
	"time"

	"fleetd/fault"
	"fleetd/test/failpoint"
)

// How much is taken from a queue at once.
const (
	batchMessages = 128
	batchBytes    = 8 << 20
)

// Mover moves mail. Now must not be nil, Progress may be.
type Mover struct {
	Broker   Broker
	Journal  *Journal
	Limit    int  // bytes of content that a letter may have
	Delete   bool // remove queues that are empty
	Now      func() time.Time
	Progress func(queue string, moved, found int) // after every batch
	// Patience is how long the end of another run is waited for: how long a
	// broker may take to notice that a peer is gone (broker facts §3).
	Patience time.Duration
	// Return is how long, after that, mail is waited for that an earlier run
	// held: the broker lets the lock go and puts mail back side by side.
	Return time.Duration
	// Held asks, where there is somebody to ask, how many messages of a queue are
	// in somebody's hands, as Management's does. A queue is only deleted if that is
	// 0 at a time between one and two Counted after it was empty; in one Counted the
	// broker counts anew.
	Held    func(ctx context.Context, queue string) (held int, known bool, err error)
	Counted time.Duration

	batch int // messages that are taken at once; 0: batchMessages
}

// Move moves the mail of rows that have no problem, one queue after the other,
// each in its order. It returns a count for each queue it came to. With an error
// it was cut short or a queue could not be moved; to run it again goes on.
func (m *Mover) Move(ctx context.Context, rows []Row) ([]Count, error) {
	counts := []Count{}
	var first error
	for _, row := range rows {
		if row.Foreign {
			continue
		}
		c, err := m.queue(ctx, row)
		if err != nil {
			c.Problem = fault.From(err).Sentence
			first = cmpErr(first, err)
		}
		counts = append(counts, c)
		if err != nil && !fault.Is(err, fault.NotAllowed) {
			return counts, first // it would not go better with the next
		}
	}
	return counts, first
}

func cmpErr(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// run is one queue being moved.
type run struct {
	*Mover
	row   Row
	count Count
	line  []place          // what lies in the queue, as far as it is known
	ts    map[string]int64 // by mark: the time of letters that were never sent
	out   map[string]bool  // keys whose acks were settled: on one connection these do not come back
	order map[equals]order // of equals of which some are out, and as many lay there since
	looks int              // surveys so far
	more  int              // batches so far that were given back: more lay there than was seen
	// waited: another run held the lock, perhaps from another host, and what it
	// had in hand no journal here says. If it was gone before this one asked, the
	// broker had let its lock go and what it held comes back at the same time, or
	// is seen to come in before a batch is sent.
	waited bool
}

func (m *Mover) queue(ctx context.Context, row Row) (Count, error) {
	r := &run{Mover: m, row: row, count: Count{Queue: row.Queue}, ts: map[string]int64{}, out: map[string]bool{}}
	defer m.Broker.Release()
	var err error
	if r.order, err = m.Journal.orders(row.Queue); err != nil {
		return r.count, err
	}
	err = r.all(ctx)
	if errors.Is(err, ErrNoQueue) { // somebody deleted it, with all that it held
		r.count.Vanished += r.count.Left
		r.count.Left = 0
		return r.count, m.Journal.holding(row.Queue, hand{})
	}
	if err == nil && m.Delete && m.Held != nil {
		r.count.Problem, err = r.inHands(ctx)
	}
	if err == nil && m.Delete && r.count.Problem == "" {
		failpoint.Hit("migrate.delete.before")
		r.count.Deleted, err = m.Broker.Delete(ctx, row.Queue)
		failpoint.Hit("migrate.delete.after")
		if r.count.Deleted {
			err = errors.Join(err, m.Journal.keep(row.Queue, nil))
		}
	}
	return r.count, err
}

// fruitless is how often in a row others may get in the way.
const fruitless = 10

// errOtherwise: what was taken is not what stood there at the last look.
var errOtherwise = errors.New("somebody else takes mail from the queue, or puts it back")

// otherwise gives back what was taken under last and before, so that the queue
// can be looked through again; errOtherwise, unless that fails.
func (r *run) otherwise(ctx context.Context, last uint64) error {
	if err := r.giveBack(ctx, last); err != nil {
		return err
	}
	return errOtherwise
}

// lastly is for what is done with a batch that is sent: it is counted also when
// ctx ends, but a broker that does not answer is not waited for for ever.
func lastly(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
}

// all moves what lies in the queue, until nothing does.
func (r *run) all(ctx context.Context) error {
	q, err := r.Broker.Look(ctx, r.row.Queue)
	if err != nil {
		return err
	}
	r.count.Found, r.count.Left = q.Ready, q.Ready // until it is looked through
	if err := r.lock(ctx); err != nil {
		return err
	}
	for tries := 0; tries < fruitless; tries++ {
		if err := r.survey(ctx); err != nil {
			return err
		}
		if len(r.line) == 0 {
			switch over, err := r.over(ctx); {
			case err != nil:
				return err
			case over:
				return r.Journal.holding(r.row.Queue, hand{})
			}
			continue
		}
		before := r.count.Moved + r.count.Copies
		if err := r.pass(ctx); err != nil && !errors.Is(err, errOtherwise) {
			return err
		}
		if r.count.Moved+r.count.Copies > before {
			tries = -1
		}
	}
	return fault.Wrap(errOtherwise, fault.Conflict, "somebody else takes mail from %s, or puts it back, again and again; stop that, then run this again", r.row.Queue)
}

// looksMore is how often a batch is given back because more lies there than was
// seen; mail may come in all the time.
const looksMore = 3

// moreThan reports whether more lies in the queue than rest, the line behind the
// batch that is in hand. If it came back in front, an equal one in the line has
// another place than it was thought to have.
func (r *run) moreThan(ctx context.Context, rest int) (bool, error) {
	q, err := r.Broker.Look(ctx, r.row.Queue)
	if errors.Is(err, ErrNoQueue) { // what is in hand is all that is left of it
		return false, nil
	}
	if err != nil || q.Ready <= rest || r.more == looksMore {
		return false, err
	}
	r.more++
	return true, nil
}

// pass moves what stands in the line, batch after batch. errOtherwise: look
// through the queue again.
func (r *run) pass(ctx context.Context) error {
	for len(r.line) > 0 {
		if _, err := r.alone(ctx); err != nil {
			return err
		}
		batch, err := r.take(ctx)
		if err != nil {
			return err
		}
		if r.line[0].mark != nil {
			err = r.unmark(ctx, batch[0])
		} else {
			err = r.move(ctx, batch)
		}
		if err != nil {
			return err
		}
		if r.Progress != nil {
			r.Progress(r.row.Queue, r.count.Moved+r.count.Copies, r.count.Found+r.count.Arrived)
		}
	}
	return nil
}

// take takes the next messages of the line, as many as a batch has; or a mark.
func (r *run) take(ctx context.Context) (batch []Old, err error) {
	size := 0
	for len(batch) < min(cmp.Or(r.batch, batchMessages), len(r.line)) && size < batchBytes {
		next := r.line[len(batch)]
		if next.mark != nil && len(batch) > 0 {
			break
		}
		o, ok, err := r.Broker.Take(ctx, r.row.Queue)
		if errors.Is(err, ErrNoQueue) && len(batch) > 0 {
			break // what is in hand is all that is left of it
		}
		if err != nil {
			return nil, err
		}
		if ok && o.hash() != next.hash {
			return nil, r.otherwise(ctx, o.Tag)
		}
		if !ok {
			break
		}
		batch = append(batch, o)
		size += len(o.Body)
		if next.mark != nil {
			break
		}
	}
	if len(batch) == 0 {
		return nil, errOtherwise
	}
	if r.line[0].mark == nil {
		more, err := r.moreThan(ctx, len(r.line)-len(batch))
		if err != nil {
			return nil, err
		}
		if more {
			return nil, r.otherwise(ctx, batch[len(batch)-1].Tag)
		}
	}
	failpoint.Hit("migrate.taken")
	return batch, nil
}

// unmark takes a mark out: all before it are.
func (r *run) unmark(ctx context.Context, o Old) error {
	if err := r.Journal.holding(r.row.Queue, hand{Keys: []string{r.line[0].key}}); err != nil {
		return err
	}
	if err := r.Broker.Ack(o.Tag); err != nil {
		return err
	}
	end, cancel := lastly(ctx)
	defer cancel()
	if err := r.Broker.Settled(end); err != nil {
		return err
	}
	r.line = r.line[1:]
	return r.Journal.holding(r.row.Queue, ahead(r.line))
}

// move moves one batch, the head of the line: how each is sent is committed
// first, then all are published, then acked. In between it looks once more: when
// they are out, nobody can tell them from equal ones that came back meanwhile.
func (r *run) move(ctx context.Context, batch []Old) error {
	places := r.line[:len(batch)]
	all, err := r.Journal.begin(r.row.Queue, places, batch, terms{
		from: r.row.FromID, to: r.row.ToID, limit: r.Limit, ts: r.ts[places[0].under], now: r.Now().UnixMilli(),
	})
	if err != nil {
		return err
	}
	failpoint.Hit("migrate.numbered")
	fates := make([]fate, len(batch))
	sent, acked := 0, 0
	for i, o := range batch {
		if err = ctx.Err(); err != nil {
			err = interrupted(err)
			break
		}
		if fates[i], err = r.send(ctx, all[i], o); err != nil {
			break
		}
		sent++
	}
	end, cancel := lastly(ctx)
	defer cancel()
	if sent > 0 {
		more, looked := r.moreThan(end, len(r.line)-len(batch))
		if err = cmpErr(err, looked); more {
			err = cmpErr(err, r.otherwise(end, batch[len(batch)-1].Tag))
		}
		if more || looked != nil {
			sent = 0 // none is acked
		}
	}
	for _, o := range batch[:sent] {
		if acking := r.Broker.Ack(o.Tag); acking != nil {
			err = cmpErr(err, acking)
			break
		}
		acked++
		failpoint.Hit("migrate.acked")
	}
	settled := r.Broker.Settled(end)
	err = cmpErr(err, settled)
	held := ahead(r.line[acked:])
	if settled == nil {
		r.tally(all[:acked], batch)
		for _, p := range places[:acked] {
			r.out[p.key] = true
		}
		failpoint.Hit("migrate.settled")
	} else { // the connection broke: whatever was in hand may be in the queue, or not yet
		held = hand{}
		for i, p := range places {
			held.Keys = append(held.Keys, p.key)
			if fates[i] == wasSent {
				r.count.Unsettled++
				r.count.Left--
			}
		}
	}
	switch ended := r.Journal.end(r.row.Queue, places, all, fates, held); {
	case ended != nil && errors.Is(err, errOtherwise): // to look again would hide it
		return ended
	case ended != nil:
		return errors.Join(err, ended)
	}
	if err == nil {
		r.line = r.line[len(batch):]
	}
	return err
}

// send publishes what a message becomes.
func (r *run) send(ctx context.Context, s sending, o Old) (fate, error) {
	if s.Sent {
		return wasSent, nil
	}
	for i, l := range letters(s.head, o) {
		err := r.Broker.Deliver(ctx, l)
		refused := fault.Is(err, fault.InboxFull) || fault.Is(err, fault.Unroutable) || fault.Is(err, fault.BrokerRefused)
		switch {
		case err != nil && refused && i == 0:
			return untried, err
		case err != nil:
			return inDoubt, err
		}
		failpoint.Hit("migrate.delivered")
	}
	return wasSent, nil
}
