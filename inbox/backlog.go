package inbox

import (
	"slices"
	"time"

	"fleetd/store"
)

// The backlog of a main is local mail that only the store has: a full inbox
// would be more than memory takes. Memory holds the oldest, as many as a window
// of the broker would give, and what somebody waits for. All of the backlog is
// on record as waiting, by which its duplicates are known.

// localMost is how much local mail of one main is taken into memory for a
// client who looks for something, as on the broker.
const localMost = 4096

// behind reports whether new local mail goes to the backlog; mu is held.
func (b *box) behind(window int) bool {
	return !b.worker && (b.partial || b.locals >= window)
}

// shelve moves a stored item from memory to the backlog; mu is held.
func (b *box) shelve(it *item) {
	b.drop(it)
	b.backlog++
	b.shelved++
	b.partial = true
	b.taken = min(b.taken, it.seq-1)
}

// wanted reports whether somebody waits for this very answer; mu is held.
// Others find it in its place.
func (b *box) wanted(it *item) bool {
	return it.env.InReplyTo != "" && slices.ContainsFunc(b.waiters, func(w *Waiter) bool {
		return w.filter.InReplyTo != "" && w.filter.admits(it.env)
	})
}

// hidden reports whether there may be a backlog, and how much local mail is in
// memory.
func (b *box) hidden() (backlog bool, locals int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.partial, b.locals
}

// search has refill look through all of the store again; mu is held.
func (b *box) search() {
	b.taken, b.partial = 0, true
	b.shelved++
}

// refill takes the next of the backlog into memory, until there is as much
// local mail as most. It reports whether it found some.
func (in *Inbox) refill(b *box, most int) bool {
	b.filling.Lock() // one at a time: what was taken and left must not come twice
	defer b.filling.Unlock()
	b.mu.Lock()
	room, after, shelved := most-b.locals, b.taken, b.shelved
	b.mu.Unlock()
	if room <= 0 {
		return false
	}
	next, ok := in.heldLocal(b, after, room)
	if !ok {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	found := false
	for _, h := range next {
		found = in.restore(b, h) || found
	}
	if b.shelved != shelved {
		return found // what came meanwhile may lie before it
	}
	if len(next) > 0 {
		b.taken = next[len(next)-1].Seq
	}
	if len(next) < room {
		b.partial, b.backlog = false, 0
	}
	if found {
		b.offer()
	}
	return found
}

// restore makes an item of the record of local mail, unless it is in memory or
// has just left; mu is held.
func (in *Inbox) restore(b *box, h store.Held) bool {
	if _, left := b.ended[h.MsgID]; left || b.byID[h.MsgID] != nil {
		return false
	}
	// Of what was offered last the note may be missing. A mark too many is
	// harmless, an answer that is shown twice without one is not.
	h.Offered = h.Offered || in.cfg.Crashed
	it := restored(h)
	b.insert(it)
	b.set(it, waiting)
	b.backlog = max(b.backlog-1, 0)
	return true
}

// topUp refills the window of a main that has a backlog.
func (in *Inbox) topUp(b *box) {
	if backlog, locals := b.hidden(); backlog && locals <= in.cfg.LocalWindow/2 {
		in.refill(b, in.cfg.LocalWindow)
	}
}

// backlogSweep is how often the backlog is looked at for what has expired in it.
const backlogSweep = time.Minute

// takeExpired takes what has expired in the backlog into memory, as much as a
// window, where the sweep ends it. Reading a long backlog brings all its pages
// into memory; so it is left alone until something may have expired.
func (in *Inbox) takeExpired(b *box, now time.Time) {
	if backlog, _ := b.hidden(); !backlog || now.Sub(b.swept) < backlogSweep {
		return
	}
	b.filling.Lock()
	defer b.filling.Unlock()
	var expiry int64
	err := in.cfg.Store.View(func(tx *store.Tx) (err error) {
		_, expiry, err = tx.CountLocal(b.gid)
		return err
	})
	if err != nil {
		in.log.Error("held mail could not be counted", "gid", b.gid, "error", err)
		return
	}
	if expiry == 0 || expiry >= now.UnixMilli() {
		b.swept = now
		return
	}
	found, after := 0, uint64(0)
	expiry = 0
	b.mu.Lock()
	shelved := b.shelved
	b.mu.Unlock()
	for {
		next, ok := in.heldLocal(b, after, in.cfg.LocalWindow)
		if !ok {
			return
		}
		b.mu.Lock()
		for _, h := range next {
			expiry = store.Sooner(expiry, h.ExpiresAt)
			if h.ExpiresAt != 0 && h.ExpiresAt < now.UnixMilli() && in.restore(b, h) {
				found++
			}
		}
		b.mu.Unlock()
		if len(next) > 0 {
			after = next[len(next)-1].Seq
		}
		if found >= in.cfg.LocalWindow {
			return // the rest at the next tick
		}
		if len(next) < in.cfg.LocalWindow {
			break
		}
	}
	b.swept = now
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shelved != shelved {
		return // what came meanwhile may lie before where it was read
	}
	for e := b.items.Front(); e != nil; e = e.Next() { // of one that is being stored the same may become true
		if it := e.Value.(*item); it.local {
			expiry = store.Sooner(expiry, it.env.ExpiresAt)
		}
	}
	b.later(func(tx *store.Tx) error { return tx.RaiseLocalExpiry(b.gid, after, expiry) })
}

func (in *Inbox) heldLocal(b *box, after uint64, most int) ([]store.Held, bool) {
	next, err := store.Read(in.cfg.Store, func(tx *store.Tx) ([]store.Held, error) { return tx.HeldLocal(b.gid, after, most) })
	if err != nil {
		in.log.Error("held mail could not be read", "gid", b.gid, "error", err)
	}
	return next, err == nil
}
