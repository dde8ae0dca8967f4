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

// reap ends workers whose pane or agent is gone, so that whoever waits for one
// is told at once and not with the next message (design §7, abandoned).
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
		now, view := time.Now(), g.monitor.View()
		for _, e := range g.inbox.Entities() {
			grace, gone := ended(e, view)
			if !gone {
				delete(missing, e.GID)
				continue
			}
			since, noted := missing[e.GID]
			if !noted {
				missing[e.GID] = now
				continue
			}
			if now.Sub(since) < grace {
				continue
			}
			g.log.Info("a worker's pane or agent is gone; the worker ends", "name", e.Name, "pane", e.Pane)
			if err := g.inbox.Reap(ctx, e.GID); err != nil {
				g.log.Error("a worker that is gone could not be ended yet", "name", e.Name, "error", err)
				continue
			}
			delete(missing, e.GID)
		}
	}
}

// ended reports whether herdr shows the worker's pane or its agent gone, and
// how long that must last. A pane that has moved keeps its terminal; one with
// another terminal is a herdr that was restarted, which proves nothing of an
// agent that a person may start again there and register.
func ended(e store.Entity, view herdr.View) (grace time.Duration, gone bool) {
	if e.Kind != inbox.Worker || e.State != inbox.Live || e.Pane == "" || !view.Up {
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
