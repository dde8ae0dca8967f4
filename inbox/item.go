package inbox

import (
	"container/list"
	"context"
	"errors"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/store"
)

// state of an item in its box.
type state int

const (
	storing   state = iota // local mail on its way into the store
	waiting                // for the gate, or held for a client
	injecting              // it is being injected, or ended
	offered                // in a response that is not known to be written
)

// item is one message that is not yet injected, drained or failed.
type item struct {
	env     *envelope.Envelope // of local mail without its body, which the store has
	hash    [32]byte           // of the body
	size    int                // of the body, in bytes
	cost    int                // about what it takes of a result, in bytes of JSON
	seq     uint64             // its place in the held index
	arrived time.Time
	lean    bool          // env has no body
	late    bool          // local mail that goes to the backlog, unless somebody waits for it
	stored  chan struct{} // closed when storing is over; nil if it never began

	// The box's mutex guards what follows.
	state       state
	unstored    *envelope.Envelope // whole, until the store has it
	local       bool               // the store has it; nobody else does
	hold        envelope.Settler   // the broker's; nil if there is none, or it was let go
	letGo       bool               // the broker was told: another copy is acked at once
	attempted   bool               // the commit of injecting failed, or so it seemed
	onRecord    bool               // there may be a record of the brief already
	redelivered bool
	copied      bool            // that a copy of it came is in the trace
	shown       bool            // a client may have seen it: the held index says offered
	leaving     bool            // its end is being committed: the held index needs it no more
	pollOnly    bool            // it may be in the pane already
	told        envelope.Reason // the last DEFERRED reason its sender got
	announced   int             // how often its main was told of its sender's mail
	announcedAt int64           // when last, Unix ms
	place       *list.Element
}

// waits reports whether the item waits for the gate; the box's mutex is held.
func (it *item) waits() bool {
	return it.place != nil && (it.state == waiting || it.state == storing && it.stored != nil)
}

// untilStored waits until the store has the item or refused it.
func (it *item) untilStored(ctx context.Context) {
	if it.stored == nil {
		return
	}
	select {
	case <-it.stored:
	case <-ctx.Done():
	}
}

func newItem(env *envelope.Envelope, now time.Time) *item {
	return &item{env: env, hash: envelope.Hash(env.Body), size: len(env.Body), cost: cost(env.Body), arrived: now}
}

// newLocal makes an item whose body stays in the store: a full inbox of long
// mail would be more than memory takes.
func newLocal(env *envelope.Envelope, now time.Time) *item {
	it := newItem(env, now)
	lean := *env
	lean.Body = nil
	it.env, it.unstored, it.lean, it.local = &lean, env, true, true
	return it
}

// restored makes an item of local mail from its record.
func restored(h store.Held) *item {
	return &item{
		env: envelopeOf(h), hash: h.BodyHash, size: h.Size, cost: h.Cost, seq: h.Seq, arrived: time.UnixMilli(h.At),
		lean: true, local: true, redelivered: h.Offered, shown: h.Offered,
		announced: h.Announced, announcedAt: h.AnnouncedAt,
	}
}

// cost reckons with what encoding/json escapes, and 400 bytes for all else.
func cost(body []byte) int {
	n := len(body) + 2 + 400
	for i, c := range body {
		n += int(escapes[c])
		if c == 0xe2 && i+2 < len(body) && body[i+1] == 0x80 && body[i+2]&^1 == 0xa8 { // U+2028, U+2029
			n += 3
		}
	}
	return n
}

// escapes is how many bytes encoding/json adds to a byte of text.
var escapes = func() (added [256]uint8) {
	for c := range ' ' {
		added[c] = 5
	}
	for _, c := range "<>&" {
		added[c] = 5
	}
	for _, c := range "\"\\\b\f\n\r\t" {
		added[c] = 1
	}
	return added
}()

func envelopeOf(h store.Held) *envelope.Envelope {
	return &envelope.Envelope{
		V: envelope.Version, Kind: envelope.Kind(h.Kind), MsgID: h.MsgID, TraceID: h.TraceID,
		From: h.From, To: h.GID, Signer: h.FromHost, InReplyTo: h.InReplyTo, TurnID: h.TurnID,
		TS: h.TS, ExpiresAt: h.ExpiresAt, Reason: h.Reason, Hops: h.Hops,
	}
}

// heldOf is the record of an item in the held index, without its body; the
// box's mutex is held.
func heldOf(gid string, it *item) store.Held {
	e := it.env
	return store.Held{
		GID: gid, Seq: it.seq, MsgID: e.MsgID, TraceID: e.TraceID, Kind: string(e.Kind),
		From: e.From, FromHost: e.Signer, InReplyTo: e.InReplyTo, TurnID: e.TurnID, Reason: e.Reason,
		Hops: e.Hops, TS: e.TS, ExpiresAt: e.ExpiresAt, At: it.arrived.UnixMilli(), Local: it.local,
		Offered: it.shown || it.redelivered, Size: it.size, Cost: it.cost, BodyHash: it.hash,
		Announced: it.announced, AnnouncedAt: it.announcedAt,
	}
}

// errGone: the item left its box in the meantime.
var errGone = errors.New("the message is not held any more")

// whole returns it's envelope with its body.
func (in *Inbox) whole(b *box, it *item) (*envelope.Envelope, error) {
	if !it.lean {
		return it.env, nil
	}
	b.mu.Lock()
	unstored := it.unstored
	b.mu.Unlock()
	if unstored != nil {
		return unstored, nil
	}
	h, found, err := store.Find(in.cfg.Store, func(tx *store.Tx) (store.Held, bool, error) { return tx.HeldEntry(b.gid, it.seq) })
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, errGone
	}
	env := *it.env
	env.Body = h.Body
	return &env, nil
}
