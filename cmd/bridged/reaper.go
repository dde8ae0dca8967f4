package main

import (
	"context"
	"time"

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
	missing := map[string]time.Time{} // by gid, since when
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		view := g.monitor.View()
		for _, e := range g.inbox.Entities() {
			if e.State != inbox.Live || e.Pane == "" {
				delete(missing, e.GID)
				continue
			}
			g.attend(ctx, e, view, missing)
		}
	}
}

// attend does for one entity that has a pane what herdr's view of it asks for.
func (g *gateway) attend(ctx context.Context, e store.Entity, view herdr.View, missing map[string]time.Time) {
	was := herdr.Pane{ID: e.Pane, Terminal: e.Terminal, Kind: e.AgentKind, Leader: e.Leader}
	at, lost := g.client.Track(ctx, was, view)
	switch {
	case at != was:
		if at.Terminal != was.Terminal {
			g.log.Info("herdr shows a known terminal under another id; it is the same agent's", "name", e.Name, "pane", at.ID)
		}
		if err := g.inbox.Reseat(ctx, e.GID, inbox.Pane(was), inbox.Pane(at)); err != nil {
			g.log.Error("where a pane is now could not be recorded yet", "name", e.Name, "pane", at.ID, "error", err)
		}
		return
	case e.Kind != inbox.Worker:
		return
	case lost && !e.Launched:
		g.log.Info("a worker's agent ended with its terminal; register its pane again once an agent runs there", "name", e.Name, "pane", e.Pane)
		if err := g.inbox.Unseat(ctx, e.GID, inbox.Pane(was)); err != nil {
			g.log.Error("the end of a worker's agent could not be told yet", "name", e.Name, "error", err)
		}
		return
	}
	grace, gone := time.Duration(0), lost
	if !lost {
		grace, gone = ended(e, view)
	}
	if !gone {
		delete(missing, e.GID)
		return
	}
	since, noted := missing[e.GID]
	if !noted {
		since = time.Now()
		missing[e.GID] = since
	}
	if time.Since(since) < grace {
		return
	}
	g.log.Info("a worker's pane or agent is gone; the worker ends", "name", e.Name, "pane", e.Pane)
	if err := g.inbox.Reap(ctx, e.GID); err != nil {
		g.log.Error("a worker that is gone could not be ended yet", "name", e.Name, "error", err)
		return
	}
	delete(missing, e.GID)
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
