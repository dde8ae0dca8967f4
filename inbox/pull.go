package inbox

import (
	"context"
	"slices"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
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
	Max   int
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

// Batch is mail in a response that is being written. Settle must be called
// once, whatever became of the response.
type Batch struct {
	in    *Inbox
	box   *box
	items []*item
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
		return nil, fault.New(fault.NotAuthenticated, "this identity has no inbox here any more; register again")
	}
	w := &Waiter{in: in, box: b, filter: f, limit: l, c: make(chan *Batch, 1)}
	b.mu.Lock()
	b.waiters = append(b.waiters, w)
	b.offer()
	b.mu.Unlock()
	return w, nil
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

// Messages lists the batch in order of arrival.
func (b *Batch) Messages() []Mail {
	b.box.mu.Lock()
	defer b.box.mu.Unlock()
	mails := make([]Mail, len(b.items))
	for i, it := range b.items {
		mails[i] = Mail{Envelope: it.env, FromName: b.in.cfg.Names.Name(it.env.From), Redelivered: it.redelivered}
	}
	return mails
}

// Settle ends the batch. Written: it is drained, durably, and only then acked.
// Not written: it is held again at its old place, marked redelivered, since
// the client may have got it after all.
func (b *Batch) Settle(written bool) {
	if len(b.items) == 0 {
		return
	}
	if !written {
		b.back(true)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := b.drain(ctx); err != nil {
		b.in.log.Error("drained mail could not be recorded; it will be shown again", "error", err)
		b.back(true)
	}
}

func (b *Batch) drain(ctx context.Context) error {
	in, gid := b.in, b.box.gid
	err := in.cfg.Store.Write(ctx, func(tx *store.Tx) error {
		for _, it := range b.items {
			if err := tx.PutSeen(it.env.TS, it.env.MsgID, gid, in.seen(it, outcomeDrained, "")); err != nil {
				return err
			}
			if err := dropHeld(tx, gid, it); err != nil {
				return err
			}
			if it.env.Kind.Brief() { // a main may answer what it was sent
				if err := openBrief(tx, in.brief(gid, it, briefOpen)); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	b.box.mu.Lock()
	settlers := make([]envelope.Settler, len(b.items))
	for i, it := range b.items {
		settlers[i] = it.settle
	}
	b.box.mu.Unlock()
	now := in.cfg.Now()
	for i, it := range b.items {
		in.trace("drained", it.env, gid, outcomeDrained, "")
		b.box.keep(it.env, now)
		if settlers[i] != nil {
			in.settled("ack", it.env, settlers[i].Ack())
		}
	}
	b.box.remove(b.items...)
	return nil
}

// openBrief records a brief, unless its answer was faster and did.
func openBrief(tx *store.Tx, brief store.Brief) error {
	_, found, err := tx.BriefByMsg(brief.GID, brief.MsgID)
	if err != nil || found {
		return err
	}
	return tx.PutBrief(brief)
}

// back returns the batch to its places. After a crash it is marked as well, so
// that mark is written, too.
func (b *Batch) back(mark bool) {
	var records []store.Held
	b.box.mu.Lock()
	for _, it := range b.items {
		it.state = waiting
		if mark && !it.redelivered {
			it.redelivered = true
			if it.seq != 0 {
				records = append(records, heldOf(b.box.gid, it))
			}
		}
	}
	b.box.offer()
	b.box.mu.Unlock()
	b.box.poke()
	for _, r := range records {
		b.in.cfg.Store.Later(func(tx *store.Tx) error { return tx.PutHeld(r) })
	}
}

// Held is how much mail waits for a client of gid, here and on the broker.
func (in *Inbox) Held(gid string) int {
	b := in.box(gid)
	if b == nil {
		return 0
	}
	n := b.count()
	// While the window has room nothing is left on the broker.
	if in.cfg.Window != nil && !b.worker && n >= in.cfg.WindowSize {
		n += in.cfg.Window.Ready(gid)
	}
	return n
}

// More asks the broker for another window where a filter found nothing behind
// a full one (design §6); false means that the bound is reached.
func (in *Inbox) More(gid string) bool {
	return in.cfg.Window == nil || in.cfg.Window.More(gid)
}
