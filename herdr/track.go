package herdr

import "context"

// Track finds the terminal of a pinned pane in what herdr showed last. herdr
// numbers its terminals anew when it is restarted and when it hands over to
// another version (reference §2). The process that leads the terminal's session
// tells the two apart: a handoff keeps it, a restart ends it and puts a plain
// shell in its place. Without that proof nothing is taken for what it was.
//
// at is p as it is now, with the pane's present id, terminal and leader, or p
// itself if the terminal was not found. lost says that it is gone for good: its
// leader has ended.
func (c *Client) Track(ctx context.Context, p Pane, v View) (at Pane, lost bool) {
	at = p
	if id, found := v.find(p); found {
		at.ID = id
		if p.Leader == "" {
			at.Leader = c.leaderOf(ctx, at.ID, at.Terminal)
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
	if v.Up && there && c.leaderOf(ctx, p.ID, now.Terminal) == p.Leader {
		at.Terminal = now.Terminal
	}
	return at, false
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
