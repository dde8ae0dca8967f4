package migrations

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"fleetd/fault"
	"fleetd/test/failpoint"
	"fleetd/wait"
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
	// host's. It is left alone.
	Foreign bool `json:"foreign,omitempty"`
}

// Count says what became of the messages of one queue in one run, each counted
// where it happened: found + arrived = moved + copies + unsettled + left + vanished.
type Count struct {
	Queue     string `json:"queue"`
	Found     int    `json:"found"`     // lay there when its turn came
	Arrived   int    `json:"arrived"`   // came meanwhile
	Moved     int    `json:"moved"`     // in the main's inbox and out of the queue
	Copies    int    `json:"copies"`    // same id and content as one before: the main gets that one
	Unsettled int    `json:"unsettled"` // in the main's inbox; whether out of the queue, the next run sees
	Left      int    `json:"left"`      // still in the queue
	Vanished  int    `json:"vanished"`  // expired, taken by somebody else, or gone with the queue
	Parts     int    `json:"parts"`     // further letters, of messages too large for one
	Escaped   int    `json:"escaped"`   // of those moved: bytes that are no UTF-8 were written as \xNN
	// Doubtful are those of moved that an earlier run, told otherwise or long
	// ago, may have sent too: they may be there twice, or with another main.
	Doubtful int    `json:"doubtful"`
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
	// Patience is how long the end of another run is waited for: how long a
	// broker may take to notice that a peer is gone (broker facts §3).
	Patience time.Duration
	// Return is how long, after that, mail is waited for that an earlier run
	// held: the broker lets the lock go and puts mail back side by side.
	Return time.Duration
	// Held asks, where there is somebody to ask, how many messages of a queue are
	// in somebody's hands, as Management's does. A queue of which that is not 0
	// within Counted, in which the broker counts anew, is not deleted.
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

// over reports whether a queue in which the last survey saw nothing is empty. One
// in which no survey saw any is only deleted when it stays so for a while: a
// reader that is no consumer, or another host's run that was cut off right now,
// may have had in hand all that it holds, and if-empty does not count that.
func (r *run) over(ctx context.Context) (bool, error) {
	for until := time.Now().Add(r.Return); ; {
		ready, err := r.alone(ctx)
		if err != nil || ready > 0 {
			return false, err
		}
		if !r.Delete || r.count.Found+r.count.Arrived > 0 || time.Now().After(until) {
			return true, nil
		}
		if err := again(ctx); err != nil {
			return false, err
		}
	}
}

// inHands says why the queue, which is empty, is not deleted: somebody who is no
// consumer took mail from it, which would go with it. "": nobody did. What this
// run took may be counted for a while.
func (r *run) inHands(ctx context.Context) (problem string, err error) {
	for until := time.Now().Add(r.Counted); ; {
		held, known, err := r.Held(ctx, r.row.Queue)
		switch late := time.Now().After(until); {
		case ctx.Err() != nil:
			return "", interrupted(ctx.Err())
		case err != nil:
			return "the queue stays, because nobody can say whether mail of it is in somebody's hands: " + fault.From(err).Sentence, nil
		case known && held == 0:
			return "", nil
		case late && known:
			return fmt.Sprintf("the queue stays: somebody took %d messages of it and neither acked them nor gave them back; find who that is (rabbitmqctl list_channels connection messages_unacknowledged), stop it, then run this again", held), nil
		case late:
			return "the queue stays: the management API does not say whether mail of it is in somebody's hands; run this again in a minute", nil
		}
		if err := again(ctx); err != nil {
			return "", err
		}
	}
}

// lock waits until no other run holds mail of the queue. A queue whose mail is
// in the hands of another one looks shorter than it is, or empty.
func (r *run) lock(ctx context.Context) error {
	for until := time.Now().Add(r.Patience); ; {
		locked, err := r.Broker.Lock(ctx, r.row.Queue)
		if locked || err != nil {
			return err
		}
		r.waited = true
		if time.Now().After(until) {
			return fault.New(fault.Conflict, "another migration is at %s, from this host or another one (its connection to the broker is called bridged HOST migrate take), or was cut off and the broker has not noticed yet; run this again in a minute", r.row.Queue)
		}
		if err := again(ctx); err != nil {
			return err
		}
	}
}

// again waits until the broker can be asked again.
func again(ctx context.Context) error {
	if err := wait.Pause(ctx, lookAgain); err != nil {
		return interrupted(err)
	}
	return nil
}

// alone refuses to go on beside the old daemon or another run, and says how many
// messages lie in the queue. The lock is asked for again: somebody may have
// deleted it, and a policy lets go of queues that nobody asks for.
func (r *run) alone(ctx context.Context) (ready int, err error) {
	locked, err := r.Broker.Lock(ctx, r.row.Queue)
	if err != nil {
		return 0, err
	}
	if !locked {
		return 0, fault.New(fault.Conflict, "the lock of %s was taken away from this run, and another migration has it now; run this again when that one is over", r.row.Queue)
	}
	q, err := r.Broker.Look(ctx, r.row.Queue)
	if err != nil {
		return 0, err
	}
	if q.Consumers > 0 {
		return 0, fault.New(fault.Conflict, "the old daemon still consumes %s; stop it, then run this again", r.row.Queue)
	}
	return q.Ready, nil
}

// survey looks through the queue and puts it back as it was, but for a mark at
// its end, if there is mail that has none behind it. What a run that was cut off
// held belongs before all else: it is waited for until all of it is back, or is
// out of the queue, as what was acked may be.
func (r *run) survey(ctx context.Context) error {
	ready, err := r.alone(ctx)
	if err != nil {
		return err
	}
	held, err := r.Journal.hand(r.row.Queue)
	if err != nil {
		return err
	}
	now := hand{held.Keys, max(1, ready, held.All)} // something may come in before it is looked through
	if err := r.Journal.holding(r.row.Queue, now); err != nil {
		return err
	}
	var places []place
	var last uint64
	for until := time.Now().Add(r.Return); ; {
		if places, last, err = r.lookThrough(ctx, nil); err != nil {
			return err
		}
		if places, err = r.number(places); err != nil {
			return err
		}
		back := len(held.Keys) == 0 && !r.waited || slices.ContainsFunc(places, func(p place) bool { return slices.Contains(held.Keys, p.key) })
		if back && len(places) >= held.All || r.looks > 0 || time.Now().After(until) {
			break
		}
		if err := r.giveBack(ctx, last); err != nil {
			return err
		}
		if err := r.comesBack(ctx, max(len(places)+1, held.All), until); err != nil {
			return err
		}
	}
	if mail := slices.ContainsFunc(places, func(p place) bool { return p.mark == nil }); mail && (r.row.FromID == "" || r.row.ToID == "") {
		// It was empty when the plan was made.
		return fault.New(fault.Conflict, "mail came into %s after the plan was made, and nobody knows whose it is or for whom; run this again, the plan says what to do", r.row.Queue)
	}
	if r.looks++; r.looks == 1 {
		marks := map[string]bool{}
		for _, p := range places {
			marks[p.under] = true
		}
		if err := r.Journal.keep(r.row.Queue, marks); err != nil {
			return err
		}
	}
	if n := len(places); n > 0 && places[n-1].mark == nil {
		if places, last, err = r.mark(ctx, places, now.All); err != nil {
			return err
		}
	}
	if places, err = r.number(places); err != nil {
		return err
	}
	if err := r.giveBack(ctx, last); err != nil {
		return err
	}
	r.reckon(places)
	if err := r.Journal.holding(r.row.Queue, ahead(r.line)); err != nil {
		return err
	}
	failpoint.Hit("migrate.marked")
	return r.settleTimes()
}

// comesBack waits until as many lie in the queue, but not after until. It takes
// none to see that: where a policy limits how often a message is handed out, the
// broker would drop what lies there.
func (r *run) comesBack(ctx context.Context, many int, until time.Time) error {
	for {
		if err := again(ctx); err != nil {
			return err
		}
		if ready, err := r.alone(ctx); err != nil || ready >= many || time.Now().After(until) {
			return err
		}
	}
}

// number gives places their keys. Where a message that lies there has the key of
// one that is out, its equals are numbered anew, for later runs too: those have
// no other way to tell that it is another.
func (r *run) number(places []place) ([]place, error) {
	places = line(places, r.order)
	lie, anew := map[equals]int{}, map[equals]order{}
	for _, p := range places {
		if p.mark == nil && p.under != "" {
			lie[p.equals()]++
			if r.out[p.key] {
				anew[p.equals()] = order{}
			}
		}
	}
	if len(anew) == 0 {
		return places, nil
	}
	for e := range anew {
		anew[e] = r.order[e].anew(lie[e], func(number int) bool { return r.out[e.key(number)] })
	}
	if err := r.Journal.reorder(r.row.Queue, anew); err != nil {
		return nil, err
	}
	maps.Copy(r.order, anew)
	return line(places, r.order), nil
}

// ahead is what the next take gets first. Of a take that was cut off only that
// proves that all of it is back: the broker holds a head of the line or nothing.
func ahead(rest []place) hand {
	if len(rest) == 0 {
		return hand{}
	}
	return hand{Keys: []string{rest[0].key}}
}

// lookThrough takes all that lies in the queue, behind places that are in hand.
// last is the tag of the last, 0 if there was none. It keeps no content: that may be a lot.
func (r *run) lookThrough(ctx context.Context, places []place) (all []place, last uint64, err error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, 0, interrupted(err)
		}
		o, ok, err := r.Broker.Take(ctx, r.row.Queue)
		if err != nil {
			return nil, 0, err
		}
		if !ok {
			return places, last, nil
		}
		p := place{hash: o.hash()}
		if m, ok := o.mark(); ok {
			p.mark = &m
		}
		places, last = append(places, p), o.Tag
	}
}

// mark puts a mark behind places, which are in hand, and takes it and what came
// in between.
func (r *run) mark(ctx context.Context, places []place, all int) ([]place, uint64, error) {
	m := mark{uuid.NewString(), r.Now().UnixMilli()}
	marked := line(append(slices.Clone(places), place{mark: &m}), r.order)
	if err := r.Journal.marking(r.row.Queue, m.name, hand{ahead(marked).Keys, all}); err != nil {
		return nil, 0, err
	}
	if err := r.Broker.Mark(ctx, r.row.Queue, m.messageID(), markText); err != nil {
		if fault.Is(err, fault.BrokerRefused) { // it is not there
			err = errors.Join(err, r.Journal.holding(r.row.Queue, hand{All: all}))
		}
		return nil, 0, err
	}
	r.ts[m.name] = m.ts
	places, last, err := r.lookThrough(ctx, places)
	if err != nil {
		return nil, 0, err
	}
	for i, p := range places {
		if p.mark != nil && p.mark.name == m.name {
			return places[:i+1], last, nil // what is behind it has its turn later
		}
	}
	return nil, 0, fault.Wrap(errOtherwise, fault.Conflict, "somebody else takes mail from %s; stop that, then run this again", r.row.Queue)
}

// settleTimes says from when letters are that stand before each mark and were
// never sent. Where the journal does not know them but an earlier run put the
// mark, it may have been lost: they are then as that run had them.
func (r *run) settleTimes() error {
	now := r.Now().UnixMilli()
	for _, p := range r.line {
		if p.mark == nil || r.ts[p.key] != 0 {
			continue
		}
		known, err := r.Journal.knows(r.row.Queue, p.key)
		if err != nil {
			return err
		}
		r.ts[p.key] = now
		if !known && fresh(p.mark.ts, now) {
			r.ts[p.key] = p.mark.ts
		}
	}
	return nil
}

// reckon counts what a survey found beside what was known.
func (r *run) reckon(found []place) {
	gone := map[string]bool{}
	for _, p := range r.line {
		gone[p.key] = p.mark == nil
	}
	left, arrived := 0, 0
	for _, p := range found {
		if p.mark != nil {
			continue
		}
		left++
		if !gone[p.key] {
			arrived++
		}
		gone[p.key] = false
	}
	for _, mail := range gone {
		if mail {
			r.count.Vanished++
		}
	}
	if r.looks == 1 {
		r.count.Found = arrived
	} else {
		r.count.Arrived += arrived
	}
	r.count.Left, r.line = left, found
}

func (r *run) giveBack(ctx context.Context, last uint64) error {
	if last == 0 {
		return nil
	}
	return r.Broker.GiveBack(ctx, last)
}

// lookAgain is the pause between two looks for what comes back, or for the lock.
const lookAgain = 200 * time.Millisecond

func interrupted(err error) error {
	return fault.Wrap(err, fault.Unconfirmed, "the migration was interrupted; run it again, it goes on where it was")
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
			return nil, errors.Join(errOtherwise, r.giveBack(ctx, o.Tag))
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
			return nil, errors.Join(errOtherwise, r.giveBack(ctx, batch[len(batch)-1].Tag))
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
	if err := r.Broker.Settled(context.WithoutCancel(ctx)); err != nil {
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
	if sent > 0 {
		more, looked := r.moreThan(context.WithoutCancel(ctx), len(r.line)-len(batch))
		if err = cmpErr(err, looked); more {
			err = cmpErr(err, errors.Join(errOtherwise, r.giveBack(context.WithoutCancel(ctx), batch[len(batch)-1].Tag)))
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
	settled := r.Broker.Settled(context.WithoutCancel(ctx))
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
	if ended := r.Journal.end(r.row.Queue, places, all, fates, held); ended != nil {
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

// tally counts what is in the inbox and out of the queue.
func (r *run) tally(all []sending, batch []Old) {
	for i, s := range all {
		r.count.Left--
		if s.Copy {
			r.count.Copies++
			continue
		}
		r.count.Moved++
		r.count.Parts += len(letters(s.head, batch[i])) - 1
		if !utf8.Valid(batch[i].Body) {
			r.count.Escaped++
		}
		if s.doubtful {
			r.count.Doubtful++
		}
	}
}
