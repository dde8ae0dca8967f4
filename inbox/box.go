package inbox

import (
	"container/list"
	"context"
	"slices"
	"sync"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/store"
	"fleetd/wait"
)

// box is the inbox of one entity. Its mutex guards everything below it and is
// never held across a commit, a pane or the broker.
type box struct {
	gid     string
	worker  bool
	later   func(func(*store.Tx) error) // Store.Later, which never blocks
	wake    chan struct{}               // capacity 1: there is something new for the worker's loop
	changed chan struct{}               // capacity 1: the entity is another now
	over    chan struct{}               // closed when the entity is gone
	filling sync.Mutex                  // one refill at a time; taken before mu
	started bool                        // guarded by Inbox.mu
	telling sync.Mutex                  // one word to Config.Changed at a time; taken before Inbox.registry

	life   context.Context // until the entity's end begins
	retire context.CancelFunc

	mu     sync.Mutex
	entity store.Entity
	tokens context.Context // until its tokens are replaced, or life ends
	revoke context.CancelFunc
	items  list.List // of *item, in order of arrival
	byID   map[string]*item
	index  map[string]store.Held // broker mail held by an earlier run
	seq    uint64                // the last number given to a held record

	locals  int    // items that only the store holds
	backlog int    // of local mail, not in memory
	partial bool   // there may be a backlog
	taken   uint64 // Seq up to which local mail is in memory, or left
	shelved int    // how often something joined the backlog
	ready   int    // items that wait and that a client may get
	untold  int    // briefs whose sender was not told that they wait
	expiry  int64  // no item ends before, Unix ms; 0: nothing to end

	reminders  map[string]*reminder // of a main: by sender whose mail waits
	announcing context.CancelFunc   // of a main: its line waits for the pane's gate
	listens    bool                 // of a main: a client takes hints
	greets     bool                 // that client is to be told of what is held
	greeting   reminder             // when, and how often a client was

	waiters []*Waiter // the one that waits longest first
	hunting bool      // another window is being asked for

	swept time.Time // when the backlog was; the sweeper's own

	attempt *attempt        // at injecting
	reason  envelope.Reason // why the gate is closed; "" open
	since   time.Time
	missing absence
	said    map[string]string // what cannot be done yet, by what it is about: the error that was logged

	recent     []recent
	recentSize int
	ended      map[string][32]byte // hashes of what left lately: the store may not know yet
	endedOrder []string
}

// fails reports whether an error about something that is tried again and again
// is new, and so to be logged; nil ends it.
func (b *box) fails(about string, err error) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		delete(b.said, about)
		return false
	}
	if b.said[about] == err.Error() {
		return false
	}
	if b.said == nil {
		b.said = map[string]string{}
	}
	b.said[about] = err.Error()
	return true
}

// attempt is a wait for the gate of one pane.
type attempt struct {
	item   *item
	cancel context.CancelFunc
}

// endedMost is how many ids are remembered beyond what the store knows.
const endedMost = 1024

func newBox(e store.Entity, later func(func(*store.Tx) error)) *box {
	b := &box{
		gid: e.GID, worker: e.Kind == store.Worker, later: later, entity: e,
		wake: make(chan struct{}, 1), changed: make(chan struct{}, 1), over: make(chan struct{}),
		byID: map[string]*item{}, index: map[string]store.Held{}, ended: map[string][32]byte{},
	}
	b.life, b.retire = context.WithCancel(context.Background())
	b.tokens, b.revoke = context.WithCancel(b.life)
	if e.Ended() {
		b.retire()
	}
	if e.State == store.EntityGone {
		close(b.over)
	}
	return b
}

// renew ends whatever an earlier token of the entity opened.
func (b *box) renew() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.revoke()
	b.tokens, b.revoke = context.WithCancel(b.life)
}

func (b *box) lease() context.Context {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tokens
}

func (b *box) snapshot() store.Entity {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.entity
}

// told waits for a word about the entity that is under way.
func (b *box) told() {
	b.telling.Lock()
	defer b.telling.Unlock()
}

// isOver reports whether the entity is gone.
func (b *box) isOver() bool {
	select {
	case <-b.over:
		return true
	default:
		return false
	}
}

// become replaces the entity; whoever waits for its old pane looks again.
func (b *box) become(e store.Entity) {
	b.mu.Lock()
	b.entity = e
	b.missing = absence{}
	b.interrupt()
	if b.announcing != nil {
		b.announcing()
	}
	b.mu.Unlock()
	if e.Ended() {
		b.retire()
	}
	wait.Poke(b.changed)
	wait.Poke(b.wake)
}

// interrupt ends the present wait for the gate; mu is held.
func (b *box) interrupt() {
	if b.attempt != nil {
		b.attempt.cancel()
		b.attempt = nil
	}
}

// insert appends an item as storing; mu is held.
func (b *box) insert(it *item) {
	b.byID[it.env.MsgID] = it
	it.place = b.items.PushBack(it)
	if it.local {
		b.locals++
	}
	if b.tells(it) {
		b.untold++
	}
	if at := it.env.ExpiresAt; at != 0 && (b.expiry == 0 || at < b.expiry) {
		b.expiry = at
	}
}

// tells reports whether the sender is told that the item waits.
func (b *box) tells(it *item) bool { return b.worker && it.env.Kind.Brief() }

// tell notes that the sender is told why the item waits; mu is held.
func (b *box) tell(it *item, reason envelope.Reason) {
	if it.told == "" && b.tells(it) {
		b.untold--
	}
	it.told = reason
}

// set is the one place where an item's state changes; mu is held.
func (b *box) set(it *item, s state) {
	if it.state == waiting && b.pullable(it) {
		b.ready--
	}
	it.state = s
	if s == waiting && b.pullable(it) {
		b.ready++
	}
	if s != waiting && b.attempt != nil && b.attempt.item == it {
		b.interrupt() // somebody else has it
	}
}

// move changes an item's state if it is in the state that the caller believes.
func (b *box) move(it *item, from, to state) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if it.state != from || it.place == nil {
		return false
	}
	b.set(it, to)
	return true
}

// release lets an item wait again, for whoever comes first.
func (b *box) release(it *item) {
	b.mu.Lock()
	b.set(it, waiting)
	b.offer()
	b.mu.Unlock()
	wait.Poke(b.wake)
}

// arrive lets a new item wait; mu is held. Nobody who waits already wants
// anything older, so it alone is offered.
func (b *box) arrive(it *item) {
	it.unstored = nil
	b.set(it, waiting)
	b.offerTo(func(w *Waiter) bool { return w.filter.admits(it.env) && b.pullable(it) })
	wait.Poke(b.wake)
}

// finish takes items out for good, and returns the broker's holds on them: who
// takes the item takes its hold, so that no copy is left that nobody settles.
func (b *box) finish(gone ...*item) []envelope.Settler {
	b.mu.Lock()
	defer b.mu.Unlock()
	var holds []envelope.Settler
	for _, it := range gone {
		if it.place == nil {
			continue
		}
		b.set(it, injecting)
		b.items.Remove(it.place)
		it.place = nil
		delete(b.byID, it.env.MsgID)
		b.remember(it)
		b.tell(it, "gone")
		if it.local {
			b.locals--
		}
		if h := b.letGo(it); h != nil {
			holds = append(holds, h)
		}
	}
	return holds
}

// drop takes out an item as if it had never come; mu is held.
func (b *box) drop(it *item) {
	if b.attempt != nil && b.attempt.item == it {
		b.interrupt()
	}
	b.items.Remove(it.place)
	it.place = nil
	delete(b.byID, it.env.MsgID)
	b.tell(it, "gone")
	if it.local {
		b.locals--
	}
}

// letGo takes the broker's hold from an item; mu is held. Every further copy
// of it is acked at once.
func (b *box) letGo(it *item) envelope.Settler {
	h := it.hold
	it.hold, it.letGo = nil, true
	return h
}

// remember keeps the id of an item that left: what the store was told of it
// may ride with a later commit. mu is held.
func (b *box) remember(it *item) {
	id := it.env.MsgID
	if _, known := b.ended[id]; known {
		return
	}
	b.ended[id] = it.hash
	b.endedOrder = append(b.endedOrder, id)
	if len(b.endedOrder) > endedMost {
		delete(b.ended, b.endedOrder[0])
		b.endedOrder = b.endedOrder[1:]
	}
}

// head is the next item a pane should get, nil if there is none.
func (b *box) head() (it *item, gone bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.next(), b.entity.Ended()
}

// next is head; mu is held. An item that is being stored is one already: the
// gate is waited for meanwhile.
func (b *box) next() *item {
	for e := b.items.Front(); e != nil; e = e.Next() {
		if it := e.Value.(*item); it.waits() && !it.pollOnly {
			return it
		}
	}
	return nil
}

// those lists the waiting items that match, in order; mu is held.
func (b *box) those(match func(*item) bool) []*item {
	var all []*item
	for e := b.items.Front(); e != nil; e = e.Next() {
		if it := e.Value.(*item); it.state == waiting && match(it) {
			all = append(all, it)
		}
	}
	return all
}

// pullable reports whether a client may get the item: all of a main's mail,
// and of a worker's what is no brief (design §6).
func (b *box) pullable(it *item) bool { return !b.worker || !it.env.Kind.Brief() }

// offer hands waiting items to all waiters; mu is held.
func (b *box) offer() { b.offerTo(func(*Waiter) bool { return true }) }

// offerTo hands waiting items to some waiters; mu is held. The waiter for one
// message's answer comes before polls, and of those the longest waiting first.
func (b *box) offerTo(may func(*Waiter) bool) {
	for _, exact := range []bool{true, false} {
		for _, w := range slices.Clone(b.waiters) {
			if (w.filter.InReplyTo != "") != exact || !may(w) {
				continue
			}
			if batch := b.collect(w); len(batch) > 0 {
				b.waiters = slices.DeleteFunc(b.waiters, func(o *Waiter) bool { return o == w })
				w.c <- &Batch{in: w.in, box: b, items: batch}
			}
		}
	}
}

// collect marks what w gets as offered; mu is held.
func (b *box) collect(w *Waiter) []*item {
	var got []*item
	room := w.limit.Bytes
	for e := b.items.Front(); e != nil && len(got) < w.limit.Max; e = e.Next() {
		it := e.Value.(*item)
		if it.state != waiting || !b.pullable(it) || !w.filter.admits(it.env) {
			continue
		}
		if len(got) > 0 && w.limit.Bytes > 0 && it.cost > room {
			break // order is kept: a later, smaller one does not overtake
		}
		room -= it.cost
		b.set(it, offered)
		got = append(got, it)
	}
	return got
}

// noteOffered has the held index say what was handed to a client that may not
// have got it.
func (b *box) noteOffered(items ...*item) {
	b.mu.Lock()
	for _, it := range items {
		it.shown = true
	}
	b.mu.Unlock()
	b.note(items...)
}

// note has the held index follow items with the next commit. What is true then
// is written, and nothing of an item that is on its way out: mail that is
// drained at once costs no record. mu is not held.
func (b *box) note(items ...*item) {
	b.later(func(tx *store.Tx) error {
		for _, it := range items {
			if err := b.keepRecord(tx, it); err != nil {
				return err
			}
		}
		return nil
	})
}

func (b *box) keepRecord(tx *store.Tx, it *item) error {
	b.mu.Lock()
	h, here := heldOf(b.gid, it), it.place != nil && !it.leaving
	b.mu.Unlock()
	if !here {
		return nil
	}
	if h.Local { // a record without its body is none
		if found, err := tx.HasLocal(b.gid, h.Seq); err != nil || !found {
			return err
		}
	}
	return tx.PutHeld(h)
}

// leave notes that the end of items is being committed.
func (b *box) leave(items []*item) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, it := range items {
		it.leaving = true
	}
}

// stay notes that the commit failed, or only seemed to.
func (b *box) stay(items []*item) {
	b.mu.Lock()
	for _, it := range items {
		it.leaving, it.onRecord = false, true
	}
	b.mu.Unlock()
	b.note(items...)
}
