package inbox

import (
	"context"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/store"
	"fleetd/test/failpoint"
)

// deferAfter is when the sender of a brief that still waits is told so,
// whatever the reason: 5 s at the latest (design §6), a sweep included.
const deferAfter = 5*time.Second - sweepEvery

// gate notes whether a worker's gate is open, and tells the sender of the item
// that waits for it.
func (in *Inbox) gate(b *box, it *item, reason envelope.Reason) {
	now := in.cfg.Now()
	b.mu.Lock()
	changed := b.reason != reason
	if changed {
		b.reason, b.since = reason, now
	}
	// Who settles takes it in seconds: the sender is told only if not.
	tell := reason != "" && reason != envelope.Settling && it.waits() && it.told != reason
	if tell {
		b.tell(it, reason)
	}
	b.mu.Unlock()
	if changed {
		in.cfg.Gate(b.gid, reason, now)
	}
	if tell {
		in.deferred(it.env, b.gid, reason)
	}
}

// idle forgets why a gate was closed at which nobody waits any more.
func (in *Inbox) idle(b *box) {
	now := in.cfg.Now()
	b.mu.Lock()
	closed := b.reason != ""
	b.reason = ""
	b.mu.Unlock()
	if closed {
		in.cfg.Gate(b.gid, "", now)
	}
}

func (in *Inbox) deferred(e *envelope.Envelope, gid string, reason envelope.Reason) {
	if e.Kind.Brief() {
		failpoint.Hit("inbox.deferred.before")
		in.progress(e, gid, envelope.Deferred, string(reason))
		in.trace("deferred", e, gid, store.Waiting, string(reason))
	}
}

// deferOverdue tells the senders of briefs that have waited for long why.
func (in *Inbox) deferOverdue(_ context.Context, b *box) {
	type due struct {
		env    *envelope.Envelope
		reason envelope.Reason
	}
	var told []due
	now := in.cfg.Now()
	b.mu.Lock()
	if b.untold > 0 {
		head := b.next()
		for _, it := range b.those(func(it *item) bool { return it.told == "" && b.tells(it) && now.Sub(it.arrived) >= deferAfter }) {
			reason := envelope.Queued
			if it == head && b.reason != "" {
				reason = b.reason
			}
			b.tell(it, reason)
			told = append(told, due{it.env, reason})
		}
	}
	b.mu.Unlock()
	for _, d := range told {
		in.deferred(d.env, b.gid, d.reason)
	}
}
