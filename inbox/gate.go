package inbox

import (
	"context"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/store"
	"fleetd/test/failpoint"
)

// Reasons why a message waits, beside those of the gate.
const (
	ReasonNoPane    = "NO_PANE"    // the worker is registered and has no pane yet
	ReasonAgentGone = "AGENT_GONE" // its pane shows no agent now
	ReasonQueued    = "QUEUED"     // others are before it
	ReasonUnseen    = "UNSEEN"     // a QUERY's answer: it has not arrived here
)

// reasonSettling is over in seconds: the sender is told only if it is not.
const reasonSettling = "SETTLING"

// deferAfter is when the sender of a brief that still waits is told so,
// whatever the reason: 5 s at the latest (design §6), a sweep included.
const deferAfter = 5*time.Second - sweepEvery

// gate notes whether a worker's gate is open, and tells the sender of the item
// that waits for it.
func (in *Inbox) gate(b *box, it *item, reason string) {
	now := in.cfg.Now()
	b.mu.Lock()
	changed := b.reason != reason
	if changed {
		b.reason, b.since = reason, now
	}
	tell := reason != "" && reason != reasonSettling && it.waits() && it.told != reason
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

func (in *Inbox) deferred(e *envelope.Envelope, gid, reason string) {
	if e.Kind.Brief() {
		failpoint.Hit("inbox.deferred.before")
		in.progress(e, gid, envelope.Deferred, reason)
		in.trace("deferred", e, gid, store.Waiting, reason)
	}
}

// deferOverdue tells the senders of briefs that have waited for long why.
func (in *Inbox) deferOverdue(_ context.Context, b *box) {
	type due struct {
		env    *envelope.Envelope
		reason string
	}
	var told []due
	now := in.cfg.Now()
	b.mu.Lock()
	if b.untold > 0 {
		head := b.next()
		for _, it := range b.those(func(it *item) bool { return it.told == "" && b.tells(it) && now.Sub(it.arrived) >= deferAfter }) {
			reason := ReasonQueued
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
