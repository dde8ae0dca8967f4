package inbox

import (
	"encoding/json"
	"slices"
	"sync"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/store"
)

// state of an item in its box.
type state int

const (
	waiting   state = iota // for the gate, or held for a client
	injecting              // past the point of no return
	offered                // in a response that is not known to be written
)

// item is one message that is not yet injected, drained or failed.
type item struct {
	env         *envelope.Envelope
	hash        [32]byte
	settle      envelope.Settler // nil for local mail
	seq         uint64           // of its record among the held; 0: none yet
	state       state
	redelivered bool
	told        string // the last DEFERRED reason its sender got
	arrived     time.Time
}

func (it *item) local() bool { return it.settle == nil }

// cost is about what the item takes of a result, in bytes of JSON.
func (it *item) cost() int {
	quoted, err := json.Marshal(string(it.env.Body))
	if err != nil {
		return len(it.env.Body)
	}
	return len(quoted) + 400
}

// box is the inbox of one entity. Its mutex guards everything below it and is
// never held across the store, a pane or the broker.
type box struct {
	gid    string
	worker bool
	wake   chan struct{} // capacity 1: the worker's loop has something to look at

	mu         sync.Mutex
	entity     store.Entity
	started    bool
	items      []*item // in order of arrival
	byID       map[string]*item
	waiters    []*Waiter             // the one that waits longest first
	index      map[string]store.Held // broker mail held by an earlier run
	seq        uint64                // the last number given to a held record
	locals     int                   // items that only the store holds
	reason     string                // why the gate is closed; "" open
	since      time.Time
	noAgent    time.Time // since when the pane shows no agent
	recent     []recent
	recentSize int
}

func newBox(e store.Entity) *box {
	return &box{
		gid: e.GID, worker: e.Kind == Worker, wake: make(chan struct{}, 1), entity: e,
		byID: map[string]*item{}, index: map[string]store.Held{},
	}
}

func (b *box) snapshot() store.Entity {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.entity
}

func (b *box) poke() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// load puts a held record back: local mail becomes an item again, the index of
// broker mail waits for its redelivery. Only Open calls it.
func (b *box) load(h store.Held, now time.Time) {
	b.seq = max(b.seq, h.Seq)
	if !h.Local {
		b.index[h.MsgID] = h
		return
	}
	b.locals++
	env := envelopeOf(h)
	it := &item{env: env, hash: envelope.Hash(env.Body), seq: h.Seq, redelivered: h.Offered, arrived: now}
	b.items = append(b.items, it)
	b.byID[h.MsgID] = it
}

// add appends an item and offers it; the caller does not hold mu.
func (b *box) add(it *item) {
	b.mu.Lock()
	b.items = append(b.items, it)
	b.byID[it.env.MsgID] = it
	b.offer()
	b.mu.Unlock()
	b.poke()
}

// remove takes items out for good.
func (b *box) remove(gone ...*item) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, it := range gone {
		if b.byID[it.env.MsgID] != it {
			continue
		}
		delete(b.byID, it.env.MsgID)
		if it.local() {
			b.locals--
		}
	}
	b.items = slices.DeleteFunc(b.items, func(it *item) bool { return slices.Contains(gone, it) })
}

// head is the next item a pane should get, nil if there is none.
func (b *box) head() *item {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, it := range b.items {
		if it.state == waiting {
			return it
		}
	}
	return nil
}

// move changes an item's state if it is in the state that the caller believes.
func (b *box) move(it *item, from, to state) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if it.state != from {
		return false
	}
	it.state = to
	return true
}

// pullable reports whether a client may get the item: all of a main's mail,
// and of a worker's what is no brief (design §6).
func (b *box) pullable(it *item) bool {
	return !b.worker || !it.env.Kind.Brief()
}

// offer hands waiting items to waiters; mu is held. The waiter for one
// message's answer comes before polls, and of those the longest waiting first.
func (b *box) offer() {
	for _, exact := range []bool{true, false} {
		for _, w := range slices.Clone(b.waiters) {
			if (w.filter.InReplyTo != "") != exact {
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
	for _, it := range b.items {
		if len(got) == w.limit.Max {
			break
		}
		if it.state != waiting || !b.pullable(it) || !w.filter.admits(it.env) {
			continue
		}
		cost := it.cost()
		if len(got) > 0 && w.limit.Bytes > 0 && cost > room {
			break // order is kept: a later, smaller one does not overtake
		}
		room -= cost
		it.state = offered
		got = append(got, it)
	}
	return got
}

// count is how many items wait for a client.
func (b *box) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for _, it := range b.items {
		if it.state == waiting && b.pullable(it) {
			n++
		}
	}
	return n
}

func envelopeOf(h store.Held) *envelope.Envelope {
	return &envelope.Envelope{
		V: envelope.Version, Kind: envelope.Kind(h.Kind), MsgID: h.MsgID, TraceID: h.TraceID,
		From: h.From, To: h.GID, Signer: h.FromHost, InReplyTo: h.InReplyTo, TurnID: h.TurnID,
		TS: h.TS, ExpiresAt: h.ExpiresAt, Reason: h.Reason, Hops: h.Hops, Body: h.Body,
	}
}

func heldOf(gid string, it *item) store.Held {
	e := it.env
	h := store.Held{
		GID: gid, Seq: it.seq, MsgID: e.MsgID, TraceID: e.TraceID, Kind: string(e.Kind),
		From: e.From, FromHost: e.Signer, InReplyTo: e.InReplyTo, TurnID: e.TurnID, Reason: e.Reason,
		Hops: e.Hops, TS: e.TS, ExpiresAt: e.ExpiresAt, At: it.arrived.UnixMilli(),
		Local: it.local(), Size: len(e.Body), Offered: it.redelivered || it.state == offered,
	}
	if h.Local {
		h.Body = e.Body
	}
	return h
}
