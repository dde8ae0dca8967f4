package inbox

import (
	"context"
	"slices"
	"sync"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
	"fleetd/test/failpoint"
	"fleetd/wait"
)

// Filter says which mail a waiter wants; an empty one wants all.
type Filter struct {
	From      string // gid of the sender
	InReplyTo string // the answer to this message, or what became of it
	Reports   bool   // only what became of a message, no answers
}

func (f Filter) admits(e *envelope.Envelope) bool {
	return (f.From == "" || f.From == e.From) && (f.InReplyTo == "" || f.InReplyTo == e.InReplyTo) &&
		(!f.Reports || e.Kind == envelope.Injected || e.Kind == envelope.Failed || e.Kind == envelope.Abandoned)
}

// Limit bounds a batch. The first message is always given, however long.
type Limit struct {
	Max   int // at least 1
	Bytes int // of JSON, all messages together; 0: no bound
}

// Waiter is one client that wants mail of one entity. Of two that want the
// same, the one that waits longer gets it (design §7).
type Waiter struct {
	in     *Inbox
	box    *box
	filter Filter
	limit  Limit
	c      chan *Batch // capacity 1: offering never blocks
}

// Batch is mail in a response that is being written. Settle must be called,
// whatever became of the response; only the first call counts.
type Batch struct {
	in    *Inbox
	box   *box
	items []*item
	given []Mail    // by Messages
	at    time.Time // when it did
	shown sync.Once
	ended sync.Once
}

// Mail is one message of a batch.
type Mail struct {
	*envelope.Envelope
	FromName    string // name@host
	Redelivered bool
}

// Wait registers a waiter; what is held already comes at once. Close it.
func (in *Inbox) Wait(gid string, f Filter, l Limit) (*Waiter, error) {
	b := in.box(gid)
	if b == nil {
		return nil, noInbox()
	}
	in.topUp(b)
	w := &Waiter{in: in, box: b, filter: f, limit: l, c: make(chan *Batch, 1)}
	w.limit.Max = max(w.limit.Max, 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.entity.Ended() {
		return nil, noInbox()
	}
	b.waiters = append(b.waiters, w)
	b.offerTo(func(o *Waiter) bool { return o == w })
	return w, nil
}

func noInbox() error {
	return fault.New(fault.NotAuthenticated, "this identity has no inbox here any more; register again")
}

// C yields one batch at most.
func (w *Waiter) C() <-chan *Batch { return w.c }

// Close withdraws the waiter. A batch that came and was not taken goes back as
// if it had never been offered.
func (w *Waiter) Close() {
	w.box.mu.Lock()
	w.box.waiters = slices.DeleteFunc(w.box.waiters, func(o *Waiter) bool { return o == w })
	w.box.mu.Unlock()
	select {
	case batch := <-w.c:
		batch.back(false)
	default:
	}
}

// Messages lists the batch in order of arrival. From here on a client may have
// seen it: what comes back, also after a crash, is marked redelivered.
func (b *Batch) Messages() ([]Mail, error) {
	mails, err := b.mails()
	if err == nil {
		b.given, b.at = mails, b.in.cfg.Now()
		b.shown.Do(b.mark)
	}
	failpoint.Hit("inbox.pull.offered")
	return mails, err
}

func (b *Batch) mails() ([]Mail, error) {
	mails := make([]Mail, len(b.items))
	for i, it := range b.items {
		env, err := b.in.whole(b.box, it)
		if err != nil {
			return nil, err
		}
		mails[i].Envelope = env
		if i > 0 && env.From == mails[i-1].From { // mostly
			mails[i].FromName = mails[i-1].FromName
		} else {
			mails[i].FromName = b.in.cfg.Names.Name(env.From)
		}
	}
	b.box.mu.Lock()
	defer b.box.mu.Unlock()
	for i, it := range b.items {
		mails[i].Redelivered = it.redelivered
	}
	return mails, nil
}

func (b *Batch) mark() { b.box.noteOffered(b.items...) }

// Settle ends the batch. Written: it is drained, durably, and only then acked.
// Not written: it is held again at its old place, marked redelivered, since
// the client may have got it after all.
func (b *Batch) Settle(written bool) {
	b.ended.Do(func() { b.settle(written) })
}

func (b *Batch) settle(written bool) {
	if len(b.items) == 0 {
		return
	}
	if written {
		failpoint.Hit("inbox.pull.written")
		err := b.drain()
		if err == nil {
			return
		}
		b.in.log.Error("drained mail could not be recorded; it will be shown again", "error", err)
	}
	b.shown.Do(b.mark)
	b.back(true)
}

// drainBound is how long the record of what was drained is waited for.
const drainBound = 10 * time.Second

func (b *Batch) drain() error {
	ctx, cancel := context.WithTimeout(context.Background(), drainBound)
	defer cancel()
	in, gid, mails := b.in, b.box.gid, b.given
	if mails == nil { // taken unseen; the store forgets local bodies now
		var err error
		if mails, err = b.mails(); err != nil {
			return err
		}
	}
	b.box.leave(b.items)
	err := in.cfg.Store.Write(ctx, func(tx *store.Tx) error {
		for i, it := range b.items {
			if err := tx.PutSeen(it.env.TS, it.env.MsgID, gid, in.seen(it, store.Drained, "")); err != nil {
				return err
			}
			if err := tx.DeleteHeld(gid, it.seq); err != nil {
				return err
			}
			if it.env.Kind.Brief() { // a main may answer what it was sent
				brief := in.briefBy(mails[i].FromName, gid, it.env, briefOpen)
				brief.At = b.at.UnixMilli()
				if err := putBrief(tx, brief, b.onRecord(it)); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		b.box.stay(b.items)
		return err
	}
	failpoint.Hit("inbox.pull.drained")
	given := make([]*envelope.Envelope, len(mails))
	for i, m := range mails {
		in.trace("drained", m.Envelope, gid, store.Drained, "")
		given[i] = m.Envelope
	}
	b.box.keep(b.at, given...)
	for _, hold := range b.box.finish(b.items...) {
		in.settled("ack", mails[0].Envelope, hold.Ack())
	}
	failpoint.Hit("inbox.pull.acked")
	return nil
}

// onRecord reports whether there may be a record of the brief: its client may
// have been faster with an answer.
func (b *Batch) onRecord(it *item) bool {
	b.box.mu.Lock()
	defer b.box.mu.Unlock()
	return it.onRecord
}

// back returns the batch to its places, where others may take it.
func (b *Batch) back(mark bool) {
	b.box.mu.Lock()
	for _, it := range b.items {
		b.box.set(it, waiting)
		it.redelivered = it.redelivered || mark
	}
	b.box.offer()
	b.box.mu.Unlock()
	wait.Poke(b.box.wake)
}
