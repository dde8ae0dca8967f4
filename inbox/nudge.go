package inbox

import (
	"context"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/store"
)

// Mail held for a main whose client is not asking is announced by one line in
// its pane, where it has one, and by a hint to its clients, where they take any
// (design §7): soon after it came, then with growing pauses, for each sender,
// until it is drained. A restart lets the pauses grow on.
const (
	// nudgeFirst is the chance of a client to ask by itself.
	nudgeFirst = 3 * time.Second
	// nudgeAgain is the pause after a line that could not be written.
	nudgeAgain = 30 * time.Second
	// nudgeLooks is how many waiting messages are looked through for senders.
	nudgeLooks = 512
)

// nudgePauses are those after the first time, the second and so on; the last
// one is kept.
var nudgePauses = []time.Duration{30 * time.Second, 2 * time.Minute, 8 * time.Minute, time.Hour}

// Hints reach a client that is connected. They start no turn of any agent.
type Hints interface {
	// Listening reports whether a client of gid takes hints now.
	Listening(gid string) bool
	// Hint says how much mail is held, and who sent the newest.
	Hint(gid string, held int, from string)
}

// reminder is how often a sender's mail was announced, and when it will be next,
// on the monotonic clock.
type reminder struct {
	times  int
	hinted bool // this time, while the line still waits for the pane
	next   time.Duration
	item   *item // whose record says it after a restart
}

// nudge has the held mail of a main announced where that is due.
func (in *Inbox) nudge(ctx context.Context, b *box) {
	if b.worker || in.cfg.Nudge == nil && in.cfg.Hints == nil {
		return
	}
	now, listening := in.cfg.Uptime(), in.cfg.Hints != nil && in.cfg.Hints.Listening(b.gid)
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entity
	if in.cfg.Nudge == nil {
		e.Pane = ""
	}
	switch {
	case !listening:
		b.listens, b.greets = false, false
	case !b.listens: // it is back, and nobody may have told it for an hour
		b.listens, b.greets = true, true
		b.greeting.next = max(b.greeting.next, now+nudgeFirst)
	}
	quiet := e.Ended() || b.ready == 0 || len(b.waiters) > 0
	if b.announcing != nil && quiet {
		b.announcing()
	}
	if b.ready == 0 {
		b.reminders, b.greeting, b.greets = nil, reminder{}, false // with the drain
	}
	if quiet || e.Pane == "" && !listening {
		return
	}
	due, newest := b.due(now, in.cfg.Now())
	hints := b.greets && now >= b.greeting.next
	if len(due) == 0 && !hints || b.announcing != nil {
		return
	}
	if b.greets = b.greets && !hints; hints { // one that comes and goes is not told each time
		b.greeting.times++
		b.greeting.next = now + pauseAfter(b.greeting.times)
	}
	for _, from := range due {
		hints = hints || listening && !b.reminders[from].hinted
		b.reminders[from].hinted = b.reminders[from].hinted || listening
	}
	wait, cancel := context.WithCancel(ctx)
	b.announcing = cancel
	in.loops.Go(func() {
		defer cancel()
		in.announce(wait, b, e, due, newest, hints)
	})
}

// due lists the senders whose mail waits and is to be announced now, and who
// sent the newest of all; mu is held.
func (b *box) due(now time.Duration, wall time.Time) (due []string, newest string) {
	waits := map[string]*item{} // the one of each sender that was announced most often, else the newest
	looks := 0
	for e := b.items.Back(); e != nil && looks < nudgeLooks; e = e.Prev() {
		it := e.Value.(*item)
		if it.state != waiting {
			continue
		}
		looks++
		if newest == "" {
			newest = it.env.From
		}
		if most := waits[it.env.From]; most == nil || it.announced > most.announced {
			waits[it.env.From] = it
		}
	}
	for from := range b.reminders {
		if waits[from] == nil {
			delete(b.reminders, from)
		}
	}
	if b.reminders == nil {
		b.reminders = map[string]*reminder{}
	}
	for from, it := range waits {
		r := b.reminders[from]
		if r == nil {
			r = remind(it, now, wall)
			b.reminders[from] = r
		}
		r.item = it
		if now >= r.next {
			due = append(due, from)
		}
	}
	return due, newest
}

// remind is the reminder of mail that was not looked at since the start.
func remind(it *item, now time.Duration, wall time.Time) *reminder {
	if it.announced == 0 {
		return &reminder{next: now + nudgeFirst}
	}
	pause := pauseAfter(it.announced)
	left := time.UnixMilli(it.announcedAt).Add(pause).Sub(wall)
	return &reminder{times: it.announced, next: now + min(max(left, nudgeFirst), pause)}
}

// pauseAfter is the pause after mail was announced for the nth time.
func pauseAfter(n int) time.Duration { return nudgePauses[min(n, len(nudgePauses))-1] }

// announce hints at a main's mail, and writes one line into its pane once the
// gate is open, unless the mail is gone by then or its client asks.
func (in *Inbox) announce(ctx context.Context, b *box, e store.Entity, due []string, newest string, hints bool) {
	held, from := in.Held(b.gid), in.cfg.Names.Name(newest)
	if hints {
		in.cfg.Hints.Hint(b.gid, held, from)
	}
	done, lost := e.Pane == "", false
	if !done && len(due) > 0 {
		done, lost = in.writeLine(ctx, b, e, in.cfg.Nudge(held, from))
	}
	done = done || lost && hints // as one that has no pane
	now, wall := in.cfg.Uptime(), in.cfg.Now().UnixMilli()
	var told []*item
	b.mu.Lock()
	b.announcing = nil
	for _, from := range due {
		r := b.reminders[from]
		switch {
		case r == nil: // drained meanwhile
		case done:
			r.times, r.hinted = r.times+1, false
			r.next = now + pauseAfter(r.times)
			r.item.announced, r.item.announcedAt = r.times, wall
			told = append(told, r.item)
		case ctx.Err() == nil:
			r.next, r.hinted = now+nudgeAgain, r.hinted && !lost
		}
	}
	b.mu.Unlock()
	b.note(told...)
}

// writeLine waits for the gate and writes one line. lost says that the pane is
// not the one that was registered: it is not waited for.
func (in *Inbox) writeLine(ctx context.Context, b *box, e store.Entity, text string) (written, lost bool) {
	wait, cancel := context.WithCancel(ctx)
	defer cancel()
	got := in.cfg.Injector.Inject(wait, paneOf(e), text, Hooks{
		Closed: func(reason envelope.Reason) {
			if reason == envelope.PaneChanged { // until it is registered anew, or found where it is now
				cancel()
			}
		},
		Commit: func() error {
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.ready == 0 || len(b.waiters) > 0 {
				return errTaken
			}
			return nil
		},
	})
	written = got.Result == Injected || got.Result == InDoubt
	lost = got.Result == PaneGone || got.Result == AgentGone || got.Result == NotSent && got.Reason == envelope.PaneChanged
	if written {
		in.log.Debug("held mail was announced", "name", e.Name, "pane", e.Pane)
	} else if ctx.Err() == nil {
		in.log.Debug("held mail could not be announced", "name", e.Name, "pane", e.Pane, "reason", got.Reason, "error", got.Err)
	}
	return written, lost
}
