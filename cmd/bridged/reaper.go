package main

import (
	"context"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleetd/herdr"
	"fleetd/inbox"
	"fleetd/store"
)

// How long herdr must show a worker gone before it is ended for good. A pane
// that is missing was missed twice already; an agent may only be hidden by a
// child in its foreground (herdr reference §8).
const (
	reapEvery  = time.Second
	paneGrace  = 3 * time.Second
	agentGrace = time.Minute
)

// reap follows the panes of this host's entities where herdr takes them, and
// ends workers whose pane or agent is gone, so that whoever waits for one is
// told at once and not with the next message (design §7, abandoned).
func (g *gateway) reap(ctx context.Context) error {
	t := time.NewTicker(reapEvery)
	defer t.Stop()
	r := newReaper(g.inbox, g.tracker.Track, g.log)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		view := g.monitor.View()
		for _, e := range g.inbox.Entities() {
			r.attend(ctx, e, view)
		}
	}
}

// seats are the entities as the reaper changes them (inbox.Inbox).
type seats interface {
	Reseat(ctx context.Context, gid string, was, at inbox.Pane) error
	Unseat(ctx context.Context, gid string, was inbox.Pane) error
	Reap(ctx context.Context, gid string, was inbox.Pane) error
}

// reaper is what reap remembers; it belongs to one goroutine.
type reaper struct {
	seats   seats
	track   func(context.Context, herdr.Pane, herdr.View) (at herdr.Pane, lost bool)
	log     hclog.Logger
	missing map[string]missing // by gid
	said    map[string]string  // by gid: the trouble that is in the log
}

// missing is a pane, or its agent, that herdr does not show since then.
type missing struct {
	pane  herdr.Pane
	since time.Time
}

func newReaper(s seats, track func(context.Context, herdr.Pane, herdr.View) (herdr.Pane, bool), log hclog.Logger) *reaper {
	return &reaper{seats: s, track: track, log: log, missing: map[string]missing{}, said: map[string]string{}}
}

// attend does for one entity what herdr's view of its pane asks for.
func (r *reaper) attend(ctx context.Context, e store.Entity, view herdr.View) {
	if e.State != store.EntityLive || e.Pane == "" {
		delete(r.missing, e.GID)
		delete(r.said, e.GID)
		return
	}
	was := herdr.Pane{ID: e.Pane, Terminal: e.Terminal, Kind: e.AgentKind, Leader: e.Leader}
	at, lost := r.track(ctx, was, view)
	switch {
	case at != was:
		done := ""
		if at.Terminal != was.Terminal {
			done = "herdr shows a known terminal under another id; it is the same agent's"
		}
		r.say(e, r.seats.Reseat(ctx, e.GID, inbox.Pane(was), inbox.Pane(at)), done, "where a pane is now could not be recorded yet")
		return
	case e.Kind != store.Worker:
		return
	case lost && !e.Launched:
		r.say(e, r.seats.Unseat(ctx, e.GID, inbox.Pane(was)),
			"a worker's agent ended with its terminal; register its pane again once an agent runs there",
			"the end of a worker's agent could not be told yet")
		return
	}
	grace, gone := time.Duration(0), lost
	if !lost {
		grace, gone = ended(e, view)
	}
	if !gone {
		delete(r.missing, e.GID)
		return
	}
	m, noted := r.missing[e.GID]
	if !noted || m.pane != was {
		m = missing{was, time.Now()}
		r.missing[e.GID] = m
	}
	if time.Since(m.since) < grace {
		return
	}
	r.say(e, r.seats.Reap(ctx, e.GID, inbox.Pane(was)),
		"a worker's pane or agent was gone; the worker ends", "a worker that is gone could not be ended yet")
}

// say logs what was done, or why not. It is tried every second: what does not
// change is said once.
func (r *reaper) say(e store.Entity, err error, done, notYet string) {
	switch {
	case err == nil:
		delete(r.said, e.GID)
		if done != "" {
			r.log.Info(done, "name", e.Name, "pane", e.Pane)
		}
	case r.said[e.GID] != err.Error():
		r.said[e.GID] = err.Error()
		r.log.Error(notYet, "name", e.Name, "pane", e.Pane, "error", err)
	}
}

// ended reports whether herdr shows the worker's pane or its agent gone, and
// how long that must last. A pane that has moved keeps its terminal; one with
// another terminal is a herdr that was restarted, which proves nothing of an
// agent that a person may start again there and register.
func ended(e store.Entity, view herdr.View) (grace time.Duration, gone bool) {
	if !view.Up {
		return 0, false
	}
	if pane, found := view.Panes[e.Pane]; found {
		// The identity of what we launched was in the environment of its pane,
		// which no restart of herdr keeps: what is there now is a plain shell.
		return agentGrace, (pane.Terminal == e.Terminal || e.Launched) && pane.Kind == ""
	}
	for _, pane := range view.Panes {
		if pane.Terminal == e.Terminal {
			return agentGrace, pane.Kind == ""
		}
	}
	return paneGrace, true
}
