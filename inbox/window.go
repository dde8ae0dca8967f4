package inbox

import (
	"context"

	"fleetd/fabric/envelope"
)

// Window is the broker's side of an inbox.
type Window interface {
	More(gid string) bool // take another window of held mail; false: at its bound
	Full(gid string) bool // mail may lie on the broker that it does not give yet
	Ready(gid string) int // messages that still lie on the broker
	// Unbind has later mail to gid come back to who sends it.
	Unbind(ctx context.Context, gid string) error
	// Remove deletes the inbox of gid if nothing is left in it, held or ready.
	Remove(ctx context.Context, gid string) (bool, error)
}

// Held is how much mail waits for a client of gid, here and on the broker; not
// what is in an answer on its way, so that no answer counts what it brings.
func (in *Inbox) Held(gid string) int {
	b := in.box(gid)
	if b == nil {
		return 0
	}
	b.mu.Lock()
	n := b.ready + b.backlog
	b.mu.Unlock()
	if !b.worker && in.full(b) { // a worker's are briefs, nearly all of them
		n += in.cfg.Window.Ready(gid)
	}
	return n
}

// full reports whether the broker may keep more for a client than it gave.
func (in *Inbox) full(b *box) bool {
	return in.cfg.Window != nil && in.cfg.Window.Full(b.gid)
}

// InHand reports whether a message is being given to its reader, or ended, in
// this moment: the broker's hold on it is about to be needed.
func (in *Inbox) InHand(gid, msgID string) bool {
	b := in.box(gid)
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	it := b.byID[msgID]
	return it != nil && (it.state == offered || it.state == injecting)
}

// Forget drops what waits and lies on the broker alone, which may have pushed it
// out. What it did not comes again, as after a restart.
func (in *Inbox) Forget(gid string) {
	b := in.box(gid)
	if b == nil {
		return
	}
	b.mu.Lock()
	gone := b.those(func(it *item) bool { return it.hold != nil && !it.pollOnly && !it.attempted })
	holds := make([]envelope.Settler, len(gone))
	for i, it := range gone {
		b.index[it.env.MsgID] = heldOf(gid, it)
		b.set(it, injecting)
		holds[i] = b.letGo(it)
		b.drop(it)
	}
	b.mu.Unlock()
	for i, h := range holds {
		in.settled("requeue", gone[i].env, h.Requeue())
	}
}

// More takes another window if mail lies behind a full one, where a filter
// found nothing (design §6). taken: more is on its way. bound: no more is taken.
func (in *Inbox) More(gid string) (taken, bound bool) {
	b := in.box(gid)
	if b == nil {
		return false, false
	}
	if backlog, locals := b.hidden(); backlog {
		if locals >= localMost {
			return false, true
		}
		if in.refill(b, min(localMost, locals+in.cfg.LocalWindow)) {
			return true, false
		}
	}
	if !in.full(b) || in.cfg.Window.Ready(gid) == 0 {
		return false, false
	}
	taken = in.cfg.Window.More(gid)
	return taken, !taken
}

// hunt takes another window for whoever waits for mail that may lie behind a
// full one. The broker may be slow to answer, and the others need not wait.
func (in *Inbox) hunt(_ context.Context, b *box) {
	in.topUp(b)
	if backlog, _ := b.hidden(); !backlog && !in.full(b) {
		return
	}
	b.mu.Lock()
	begin := len(b.waiters) > 0 && !b.hunting
	b.hunting = b.hunting || begin
	b.mu.Unlock()
	if !begin {
		return
	}
	in.loops.Go(func() {
		in.More(b.gid)
		b.mu.Lock()
		b.hunting = false
		b.mu.Unlock()
	})
}
