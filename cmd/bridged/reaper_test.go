package main

import (
	"testing"
	"time"

	"fleetd/herdr"
	"fleetd/inbox"
	"fleetd/store"
)

// Fails if a worker is ended for a herdr that is down or was restarted, for a
// pane that moved, or if one whose pane or agent is gone is kept.
func TestEnded(t *testing.T) {
	worker := store.Entity{Kind: inbox.Worker, State: inbox.Live, Pane: "w1:p1", Terminal: "term_a"}
	launched := worker
	launched.Launched = true
	view := func(up bool, panes map[string]herdr.PaneState) herdr.View { return herdr.View{Up: up, Panes: panes} }
	with := func(kind, terminal string) map[string]herdr.PaneState {
		return map[string]herdr.PaneState{"w1:p1": {Terminal: terminal, Kind: kind}}
	}
	for name, c := range map[string]struct {
		entity store.Entity
		view   herdr.View
		grace  time.Duration
		gone   bool
	}{
		"there":                     {worker, view(true, with("claude", "term_a")), 0, false},
		"herdr down":                {worker, view(false, nil), 0, false},
		"herdr restarted":           {worker, view(true, with("", "term_b")), 0, false},
		"launched, herdr restarted": {launched, view(true, with("", "term_b")), agentGrace, true},
		"launched, resumed":         {launched, view(true, with("claude", "term_b")), 0, false},
		"pane closed":               {worker, view(true, map[string]herdr.PaneState{}), paneGrace, true},
		"agent ended":               {worker, view(true, with("", "term_a")), agentGrace, true},
		"moved": {worker, view(true, map[string]herdr.PaneState{"w2:p1": {Terminal: "term_a", Kind: "claude"}}),
			0, false},
	} {
		grace, gone := ended(c.entity, c.view)
		if gone != c.gone || gone && grace != c.grace {
			t.Errorf("%s: gone %v after %s, want %v after %s", name, gone, grace, c.gone, c.grace)
		}
	}
}
