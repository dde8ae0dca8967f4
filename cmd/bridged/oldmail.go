package main

import (
	"context"
	"slices"
	"time"

	"fleetd/fabric"
	"fleetd/herdr"
	"fleetd/migrations"
	"fleetd/wait"
)

// oldEvery is how often a running daemon looks for mail of the old one; oldSoon
// where herdr could not say which panes it has.
const (
	oldEvery = 10 * time.Minute
	oldSoon  = 5 * time.Second
)

// oldMail says which queues of the old daemon still hold mail for this host:
// once the broker link is up, and again when it changed.
func (g *gateway) oldMail(ctx context.Context) error {
	said := map[string]int{}
	next := time.Second
	for wait.Pause(ctx, next) == nil {
		if g.fabric.State().Phase != fabric.Connected {
			continue
		}
		queues, all := g.oldQueues(ctx)
		if next = oldEvery; !all {
			next = oldSoon
		}
		for pane, q := range queues {
			if q.Ready > 0 && said[pane] != q.Ready && q.Consumers == 0 {
				g.log.Warn("a queue of the old daemon still holds mail; move it with `bridged migrate`", "queue", migrations.QueueOf(pane), "messages", q.Ready)
			}
			said[pane] = q.Ready
		}
	}
	return nil
}

// oldQueues looks at the old daemon's queues of this host, by pane; whether at
// all of them. What is not there is an empty one.
func (g *gateway) oldQueues(ctx context.Context) (queues map[string]migrations.Queue, all bool) {
	panes, all := g.panes(ctx)
	queues = map[string]migrations.Queue{}
	for _, pane := range panes {
		q, err := g.fabric.OldQueue(ctx, migrations.QueueOf(pane))
		if err != nil {
			g.log.Debug("an old queue could not be looked at", "pane", pane, "error", err)
			continue
		}
		queues[pane] = q
	}
	return queues, all
}

// panes are those that herdr has and those of registered workers; these alone
// where herdr does not answer.
func (g *gateway) panes(ctx context.Context) (ids []string, all bool) {
	for _, e := range g.inbox.Entities() {
		if e.Pane != "" && !e.Ended() {
			ids = append(ids, e.Pane)
		}
	}
	list, err := (&herdr.Client{Socket: g.cfg.Herdr.Socket}).PaneList(ctx)
	if err != nil {
		g.log.Debug("herdr was not asked for panes of the old daemon", "error", err)
	}
	for _, p := range list {
		ids = append(ids, p.PaneID)
	}
	slices.Sort(ids)
	return slices.Compact(ids), err == nil
}
