package migrations

import (
	"context"
	"errors"
	"time"
	"unicode/utf8"

	"fleetd/fault"
	"fleetd/test/failpoint"
)

// Row is a v1 queue in a plan, and where its mail goes.
type Row struct {
	Queue     string `json:"queue"`
	Pane      string `json:"pane"`
	Messages  int    `json:"messages"`
	Consumers int    `json:"consumers"`
	From      string `json:"from,omitempty"` // address of the worker that sent what lies there
	FromID    string `json:"from_id,omitempty"`
	To        string `json:"to,omitempty"` // address of the main that will get it
	ToID      string `json:"to_id,omitempty"`
	Inbox     string `json:"inbox,omitempty"`   // the queue of that main
	Problem   string `json:"problem,omitempty"` // why nothing can be moved
	// Foreign: nobody on this host knows the pane, so the queue may be another
	// host's. It is never deleted.
	Foreign bool `json:"foreign,omitempty"`
}

// Count says what became of the messages of one queue in one run:
// found + arrived = moved + copies + left + vanished.
type Count struct {
	Queue    string `json:"queue"`
	Found    int    `json:"found"`    // ready when its turn came
	Arrived  int    `json:"arrived"`  // published into it meanwhile
	Moved    int    `json:"moved"`    // in the main's inbox and out of the queue
	Copies   int    `json:"copies"`   // same id and content as one before: the main gets that one
	Left     int    `json:"left"`     // still in the queue
	Vanished int    `json:"vanished"` // taken by somebody else, or gone with the queue
	Parts    int    `json:"parts"`    // further letters, of messages too large for one
	Escaped  int    `json:"escaped"`  // of those moved: bytes that are no UTF-8 were written as \xNN
	Deleted  bool   `json:"deleted"`
	Problem  string `json:"problem,omitempty"`
}

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
	// Patience is how long mail is waited for that a run that was cut off may
	// still hold; 0 is 15 s.
	Patience time.Duration
}

// Move moves the mail of rows that have no problem, one queue after the other,
// each in its order. It returns a count for each queue it came to. With an error
// it was cut short or a queue could not be moved; to run it again goes on.
func (m *Mover) Move(ctx context.Context, rows []Row) ([]Count, error) {
	counts := []Count{}
	var first error
	for _, row := range rows {
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
	held  int // taken, and not known to be out of the queue
	// What an earlier run held did not come back: it is out of the queue, or the
	// broker holds it still for a peer that is gone, and if-empty does not count
	// that. The queue is left for the next run to delete.
	unsure bool
	acked  []tally
}

// tally is what an ack adds to the count once it is settled.
type tally struct {
	copy, escaped bool
	parts         int
}

func (m *Mover) queue(ctx context.Context, row Row) (Count, error) {
	r := &run{Mover: m, row: row, count: Count{Queue: row.Queue}}
	defer m.Broker.Release()
	err := r.all(ctx)
	if errors.Is(err, ErrNoQueue) {
		err = nil // somebody deleted it: what it held is counted as vanished
	}
	if err != nil && r.settle(ctx) == nil && r.held == 0 { // what was acked before the trouble is out
		err = errors.Join(err, m.Journal.done(row.Queue))
	}
	r.reckon(ctx)
	if err == nil && m.Delete && !row.Foreign && r.count.Left == 0 && !r.unsure {
		failpoint.Hit("migrate.delete.before")
		r.count.Deleted, err = m.Broker.Delete(ctx, row.Queue)
		failpoint.Hit("migrate.delete.after")
		if r.count.Deleted {
			err = errors.Join(err, m.Journal.forget(row.Queue))
		}
	}
	return r.count, err
}

// all moves batch after batch until the queue is empty.
func (r *run) all(ctx context.Context) error {
	q, err := r.Broker.Look(ctx, r.row.Queue)
	if err != nil {
		return err
	}
	r.count.Found = q.Ready
	was, err := r.Journal.past(r.row.Queue)
	if err != nil {
		return err
	}
	for {
		ready, err := r.alone(ctx)
		if err != nil {
			return err
		}
		batch, known, err := r.next(ctx, &was, ready)
		if err != nil {
			return err
		}
		if len(batch) == 0 {
			return r.Journal.done(r.row.Queue)
		}
		if err := r.move(ctx, batch, known, max(0, ready-len(batch)-len(was.all))); err != nil {
			return err
		}
		if r.Progress != nil {
			r.Progress(r.row.Queue, r.count.Moved+r.count.Copies, r.count.Found)
		}
	}
}

// alone refuses to go on beside the old daemon, and says how many messages the
// queue has.
func (r *run) alone(ctx context.Context) (ready int, err error) {
	q, err := r.Broker.Look(ctx, r.row.Queue)
	if err != nil {
		return 0, err
	}
	if q.Consumers > 0 {
		return 0, consumed(r.row.Queue)
	}
	return q.Ready, nil
}

func consumed(queue string) error {
	return fault.New(fault.Conflict, "the old daemon still consumes %s; stop it, then run this again", queue)
}

// next takes the next batch, and says what of it earlier runs numbered. What the
// last one held when it was cut off comes back once the broker has noticed, and
// all else in the queue stands behind it: it is waited for.
func (r *run) next(ctx context.Context, was *past, ready int) (batch []Old, known []entry, err error) {
	for until := time.Now().Add(r.patience()); ; {
		if batch, err = r.take(ctx); err != nil {
			return nil, nil, err
		}
		known = was.recall(batch, ready, r.Now())
		if len(known) > 0 {
			return batch, known, nil
		}
		if len(was.open) == 0 || len(was.all) == 0 || time.Now().After(until) {
			r.unsure = r.unsure || len(was.all) > 0 && len(was.open) > 0
			was.all = nil
			return batch, nil, nil
		}
		r.Broker.Release()
		r.held = 0
		select {
		case <-ctx.Done():
			return nil, nil, interrupted(ctx.Err())
		case <-time.After(lookAgain):
		}
		if ready, err = r.alone(ctx); err != nil {
			return nil, nil, err
		}
	}
}

// comeBack is how long a broker may take to notice that a peer is gone (broker
// facts §3), at our heartbeat.
const (
	comeBack  = 15 * time.Second
	lookAgain = 200 * time.Millisecond
)

func (m *Mover) patience() time.Duration {
	if m.Patience > 0 {
		return m.Patience
	}
	return comeBack
}

func interrupted(err error) error {
	return fault.Wrap(err, fault.Unconfirmed, "the migration was interrupted; run it again, it goes on where it was")
}

// take takes the next messages, as many as a batch has.
func (r *run) take(ctx context.Context) ([]Old, error) {
	var batch []Old
	size := 0
	for len(batch) < batchMessages && size < batchBytes {
		o, ok, err := r.Broker.Take(ctx, r.row.Queue)
		if errors.Is(err, ErrNoQueue) && len(batch) > 0 {
			break // what is in hand is all that is left of it
		}
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		batch = append(batch, o)
		size += len(o.Body)
		r.held++
	}
	failpoint.Hit("migrate.taken")
	return batch, nil
}

// move moves one batch: numbers first, then each message: publish, ack.
func (r *run) move(ctx context.Context, batch []Old, known []entry, behind int) error {
	if r.row.FromID == "" || r.row.ToID == "" { // it was empty when the plan was made
		return fault.New(fault.Conflict, "mail came into %s after the plan was made, and nobody knows whose it is or for whom; run this again, the plan says what to do", r.row.Queue)
	}
	entries, err := r.Journal.number(r.row.Queue, known, batch[len(known):], behind, r.row.FromID, r.row.ToID, r.Now().UnixMilli())
	if err != nil {
		return err
	}
	failpoint.Hit("migrate.numbered")
	for i, o := range batch {
		if err := ctx.Err(); err != nil {
			return interrupted(err)
		}
		all := letters(entries[i], o, r.Limit)
		for _, l := range all {
			if err := r.Broker.Deliver(ctx, l); err != nil {
				return err
			}
			failpoint.Hit("migrate.delivered")
		}
		if err := r.Broker.Ack(o.Tag); err != nil {
			return err
		}
		failpoint.Hit("migrate.acked")
		r.acked = append(r.acked, tally{copy: entries[i].Copy, escaped: !utf8.Valid(o.Body), parts: len(all) - 1})
	}
	if err := r.settle(ctx); err != nil {
		return err
	}
	failpoint.Hit("migrate.settled")
	return nil
}

// settle counts what was acked, once that is sure.
func (r *run) settle(ctx context.Context) error {
	if err := r.Broker.Settled(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	for _, t := range r.acked {
		if t.copy {
			r.count.Copies++
			continue
		}
		r.count.Moved++
		r.count.Parts += t.parts
		if t.escaped {
			r.count.Escaped++
		}
	}
	r.held -= len(r.acked)
	r.acked = nil
	return nil
}

// reckon makes the count add up.
func (r *run) reckon(ctx context.Context) {
	c := &r.count
	q, err := r.Broker.Look(context.WithoutCancel(ctx), r.row.Queue)
	switch {
	case errors.Is(err, ErrNoQueue):
		c.Left = 0
	case err != nil: // nobody can say: what was not moved is taken to be there
		c.Left = max(0, c.Found-c.Moved-c.Copies)
	default:
		c.Left = q.Ready + r.held
	}
	if lost := c.Found - c.Moved - c.Copies - c.Left; lost >= 0 {
		c.Vanished = lost
	} else {
		c.Arrived = -lost
	}
}
