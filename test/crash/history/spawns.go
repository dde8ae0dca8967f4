package history

import (
	"cmp"
	"slices"
	"strings"
)

// spawns holds what was said of agents that begin and end to the panes and the
// gateways (design §9): one spawn id is launched once at most; whoever was told
// that it lives finds it, whoever was told that it does not never meets it; and
// what was stopped stays so.
func (c *checker) spawns() {
	for i := range c.h.Spawns {
		c.spawn(&c.h.Spawns[i])
	}
	for i := range c.h.Stops {
		c.stopped(&c.h.Stops[i])
	}
	c.orphans()
}

func (c *checker) addSpawn(v Verdict, s *Spawn, format string, args ...any) {
	c.add(v, &Send{Case: s.Case, Token: s.Token, From: s.From, To: "an agent on " + s.Host}, format, args...)
}

func (c *checker) panes(gid string) (all []Pane, open bool) {
	for _, p := range c.h.Panes {
		if p.GID == gid {
			all, open = append(all, p), open || p.Open
		}
	}
	return all, open
}

// lives reports whether gid is an entity that has not ended.
func (c *checker) lives(gid string) bool {
	return slices.ContainsFunc(c.h.Entities, func(e Entity) bool { return e.GID == gid && e.State != "gone" })
}

// Codes after which nothing of a launch is left.
var notStarted = map[string]bool{"SPAWN_FAILED": true, "PROFILE_UNKNOWN": true, "NOT_ALLOWED": true, "CONFLICT": true, "HERDR_DOWN": true}

func (c *checker) spawn(s *Spawn) {
	if len(s.GIDs) > 1 {
		c.addSpawn(Doubled, s, "one wish has the ids %v", s.GIDs)
	}
	for _, gid := range s.GIDs {
		if all, _ := c.panes(gid); len(all) > 1 {
			c.addSpawn(Doubled, s, "%d panes were opened for %s, the last one at %s", len(all), gid, clock(all[len(all)-1].At))
		}
	}
	spawned, failed := false, false
	for i, call := range s.Calls {
		all, _ := c.panes(call.GID)
		switch {
		case call.State == "spawned":
			spawned = true
			if len(all) == 0 || all[0].At.After(call.Ended) {
				c.addSpawn(Untrue, s, "it was said at %s that %s lives, and no pane was opened for it by then", clock(call.Ended), call.GID)
			}
			c.kept(s, call)
		case notStarted[call.Code]:
			failed = true
			for _, gid := range s.GIDs {
				if _, open := c.panes(gid); open || c.lives(gid) {
					c.addSpawn(Untrue, s, "it was said at %s that it was not started (%s), and %s is there", clock(call.Ended), call.Code, gid)
				}
			}
		case nothingSent[call.Code]:
			for _, p := range c.h.Panes {
				if slices.Contains(s.GIDs, p.GID) && (i+1 == len(s.Calls) || p.At.Before(s.Calls[i+1].Began)) {
					c.addSpawn(Untrue, s, "it was said at %s that nothing was started (%s), and a pane was opened at %s", clock(call.Ended), call.Code, clock(p.At))
				}
			}
		}
	}
	if s.Owes && slices.ContainsFunc(s.GIDs, c.lives) {
		c.addSpawn(Lost, s, "it lives and was never sent its task")
	}
	switch {
	case spawned && failed:
		c.addSpawn(Untrue, s, "it was said to live, and not to have been started")
	case !spawned && !failed && s.Asks:
		last := Call{}
		if n := len(s.Calls); n > 0 {
			last = s.Calls[n-1].Call
		}
		if !nothingSent[last.Code] {
			c.addSpawn(Unreported, s, "who asked for it heard %s in the end, and no more", cmp.Or(last.Code, "nothing"))
		}
	}
}

// kept: what was said to live does until somebody stops it.
func (c *checker) kept(s *Spawn, call SpawnCall) {
	stops := slices.DeleteFunc(slices.Clone(c.h.Stops), func(st Stop) bool { return st.GID != call.GID })
	_, open := c.panes(call.GID)
	switch {
	case len(stops) > 0 && stops[0].Before:
		c.addSpawn(Lost, s, "%s was said to live, and had ended before anybody stopped it", call.GID)
	case len(stops) == 0 && (!open || !c.lives(call.GID)):
		c.addSpawn(Lost, s, "%s was said to live, nobody stopped it, and it is not there", call.GID)
	}
}

// stopped: what was said to be gone is, for good.
func (c *checker) stopped(s *Stop) {
	about := &Spawn{Case: s.Case, Token: s.GID, From: s.From, Host: "some host"}
	for i := range c.h.Spawns {
		if slices.Contains(c.h.Spawns[i].GIDs, s.GID) {
			about = &c.h.Spawns[i]
		}
	}
	told := ""
	for _, call := range s.Calls {
		switch {
		case call.State == "stopped" || call.Code == "UNKNOWN_RECIPIENT":
			told = cmp.Or(call.State, call.Code)
			all, open := c.panes(s.GID)
			if open || c.lives(s.GID) {
				c.addSpawn(Untrue, about, "%s was said at %s to be stopped, and lives in the end", s.GID, clock(call.Ended))
			}
			for _, p := range all {
				if p.At.After(call.Ended) {
					c.addSpawn(Untrue, about, "%s was said at %s to be stopped, and got a pane at %s", s.GID, clock(call.Ended), clock(p.At))
				}
			}
		case call.State == "stopping":
			told = cmp.Or(told, call.State)
		}
	}
	if told == "" {
		c.addSpawn(Unreported, about, "who wanted %s stopped never heard that it is", s.GID)
	}
}

// orphans: every pane has an entity and every entity a pane, and the fleet sees
// those that live and no others.
func (c *checker) orphans() {
	for _, p := range c.h.Panes {
		if p.Open && !c.lives(p.GID) {
			c.add(Unreported, nil, "a pane on %s, opened at %s for %s, is there and nobody knows of it", p.Host, clock(p.At), p.GID)
		}
	}
	for _, e := range c.h.Entities {
		_, open := c.panes(e.GID)
		switch {
		case e.State == "launching" || e.State == "stopping":
			c.add(Unreported, nil, "%s on %s is %s and does not get on", e.GID, e.Host, e.State)
		case e.State == "live" && !open:
			c.add(Untrue, nil, "%s on %s is said to live, and has no pane", e.GID, e.Host)
		case e.State == "live" && len(e.Seen) < len(c.h.Hosts):
			c.add(Untrue, nil, "%s on %s lives, and only the rosters of %q have it", e.GID, e.Host, e.Seen)
		case e.State == "gone" && len(e.Seen) > 0:
			c.add(Untrue, nil, "%s on %s has ended, and is in the rosters of %s", e.GID, e.Host, strings.Join(e.Seen, ", "))
		}
	}
}
