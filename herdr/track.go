package herdr

import "context"

// Tracker follows terminals. It belongs to one goroutine.
type Tracker struct {
	Client *Client

	unproven map[question]*rest
}

// question is who leads the terminal that is where a pane was.
type question struct {
	of       Pane
	terminal string
}

// rest is how often a question is not asked, and not asked the next time: where
// herdr or the system does not say, they would be asked for ever.
type rest struct{ left, next int }

// restMost bounds a rest, in calls of Track.
const restMost = 600

// Track finds the terminal of a pinned pane in what herdr showed last. herdr
// numbers its terminals anew when it is restarted and when it hands over to
// another version (reference §2). The process that leads the terminal's session
// tells the two apart: a handoff keeps it, a restart ends it and puts a plain
// shell in its place. Without that proof nothing is taken for what it was.
//
// at is p as it is now, with the pane's present id, terminal and leader, or p
// itself if the terminal was not found. lost says that it is gone for good: its
// leader has ended.
func (t *Tracker) Track(ctx context.Context, p Pane, v View) (at Pane, lost bool) {
	at = p
	if id, found := v.find(p); found {
		at.ID = id
		if !leaderKnown(p.Leader) { // of none, or of one that is not to be seen from here
			if name := t.leader(ctx, p, at.ID, at.Terminal, v); name != "" {
				at.Leader = name
			}
		}
		return at, false
	}
	if p.Leader == "" {
		return p, false
	}
	if leaderEnded(p.Leader) {
		return p, true
	}
	now, there := v.Panes[p.ID]
	if v.Up && there && leaderKnown(p.Leader) && t.leader(ctx, p, p.ID, now.Terminal, v) == p.Leader {
		at.Terminal = now.Terminal
	}
	return at, false
}

// leader is leaderOf, and after an answer that proves nothing for p "" for some
// time, twice as long after each.
func (t *Tracker) leader(ctx context.Context, p Pane, pane, terminal string, v View) string {
	q := question{p, terminal}
	r := t.unproven[q]
	if r != nil && r.left > 0 {
		r.left--
		return ""
	}
	name := t.Client.leaderOf(ctx, pane, terminal)
	if name != "" && (name == p.Leader || !leaderKnown(p.Leader)) {
		delete(t.unproven, q)
		return name
	}
	if r == nil {
		t.forget(v)
		r = &rest{next: 1}
		t.unproven[q] = r
	}
	r.left, r.next = r.next, min(2*r.next, restMost)
	return ""
}

// forget drops what was asked about terminals that are no more.
func (t *Tracker) forget(v View) {
	there := map[string]bool{}
	for _, pane := range v.Panes {
		there[pane.Terminal] = true
	}
	kept := map[question]*rest{}
	for q, r := range t.unproven {
		if there[q.terminal] {
			kept[q] = r
		}
	}
	t.unproven = kept
}

// find returns the id of the pane with the terminal of p.
func (v View) find(p Pane) (id string, found bool) {
	if !v.Up || p.Terminal == "" {
		return "", false
	}
	if v.Panes[p.ID].Terminal == p.Terminal {
		return p.ID, true
	}
	for id, pane := range v.Panes {
		if pane.Terminal == p.Terminal {
			return id, true
		}
	}
	return "", false
}

// leaderOf names the leader of the terminal that the caller saw in a pane, ""
// if it is not to be had. A terminal that is there before and after was there
// in between: its number never comes again.
func (c *Client) leaderOf(ctx context.Context, pane, terminal string) string {
	pid, err := c.paneShell(ctx, pane)
	if err != nil || pid == 0 {
		return ""
	}
	name := leader(pid)
	if name == "" {
		return ""
	}
	if now, err := c.PaneGet(ctx, pane); err != nil || now.TerminalID != terminal {
		return ""
	}
	return name
}
