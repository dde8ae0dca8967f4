package inbox

import (
	"context"
	"time"

	"fleetd/store"
)

// Mail held for a main whose client is not asking is announced by one line in
// its pane, where it has one (design §7): soon after it came, then with growing
// pauses, for each sender, until it is drained. What was announced before a
// restart is announced anew.
const (
	// nudgeFirst is the chance of a client to ask by itself.
	nudgeFirst = 3 * time.Second
	// nudgeAgain is the pause after a line that could not be written.
	nudgeAgain = 30 * time.Second
	// nudgeLooks is how many waiting messages are looked through for senders.
	nudgeLooks = 512
)

// nudgePauses are those after the first line, the second and so on; the last
// one is kept.
var nudgePauses = []time.Duration{30 * time.Second, 2 * time.Minute, 8 * time.Minute, time.Hour}

// reminder is how often a sender's mail was announced, and when it will be next,
// on the monotonic clock.
type reminder struct {
	lines int
	next  time.Duration
}

// line is the one that waits for the gate of a main's pane.
type line struct{ cancel context.CancelFunc }

// nudge has the held mail of a main announced where that is due.
func (in *Inbox) nudge(ctx context.Context, b *box) {
	if in.cfg.Nudge == nil || b.worker {
		return
	}
	now := in.cfg.Uptime()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.entity.Pane == "" || Ended(b.entity) || b.ready == 0 || len(b.waiters) > 0 {
		if b.line != nil {
			b.line.cancel()
		}
		if b.ready == 0 {
			b.reminders = nil // with the drain
		}
		return
	}
	due, newest := b.due(now)
	if len(due) == 0 || b.line != nil {
		return
	}
	wait, cancel := context.WithCancel(ctx)
	b.line = &line{cancel: cancel}
	e := b.entity
	in.loops.Go(func() {
		defer cancel()
		in.announce(wait, b, e, due, newest)
	})
}

// due lists the senders whose mail waits and is to be announced now, and who
// sent the newest of all; mu is held.
func (b *box) due(now time.Duration) (due []string, newest string) {
	waits := map[string]bool{}
	looks := 0
	for e := b.items.Back(); e != nil && looks < nudgeLooks; e = e.Prev() {
		it := e.Value.(*item)
		if it.state != waiting {
			continue
		}
		looks++
		waits[it.env.From] = true
		if newest == "" {
			newest = it.env.From
		}
	}
	for from := range b.reminders {
		if !waits[from] {
			delete(b.reminders, from)
		}
	}
	if b.reminders == nil {
		b.reminders = map[string]*reminder{}
	}
	for from := range waits {
		r := b.reminders[from]
		if r == nil {
			r = &reminder{next: now + nudgeFirst}
			b.reminders[from] = r
		}
		if now >= r.next {
			due = append(due, from)
		}
	}
	return due, newest
}

// announce writes one line into a main's pane once its gate is open, unless the
// mail is gone by then or its client asks.
func (in *Inbox) announce(ctx context.Context, b *box, e store.Entity, due []string, newest string) {
	text := in.cfg.Nudge(in.Held(b.gid), in.cfg.Names.Name(newest))
	got := in.cfg.Injector.Inject(ctx, Pane{ID: e.Pane, Terminal: e.Terminal, Kind: e.AgentKind}, text, Hooks{
		Commit: func() error {
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.ready == 0 || len(b.waiters) > 0 {
				return errTaken
			}
			return nil
		},
	})
	written := got.Result == Injected || got.Result == InDoubt
	if written {
		in.log.Debug("held mail was announced", "name", e.Name, "pane", e.Pane)
	} else if ctx.Err() == nil {
		in.log.Debug("held mail could not be announced", "name", e.Name, "pane", e.Pane, "reason", got.Reason, "error", got.Err)
	}
	now := in.cfg.Uptime()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.line = nil
	for _, from := range due {
		r := b.reminders[from]
		switch {
		case r == nil: // drained meanwhile
		case written:
			r.next = now + nudgePauses[min(r.lines, len(nudgePauses)-1)]
			r.lines++
		case ctx.Err() == nil:
			r.next = now + nudgeAgain
		}
	}
}
