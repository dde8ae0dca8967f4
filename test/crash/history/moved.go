package history

import (
	"slices"
	"strings"
)

// moved holds what came of the old daemon's mail to what lay in its queues: each
// message once, in order, with its sender; and what a run said at its end to
// that (design §12).
func (c *checker) moved() {
	for i := range c.h.Moves {
		m := &c.h.Moves[i]
		s := &Send{Case: m.Case, Token: m.Queue, From: m.Queue, To: m.To}
		var got []string
		seen := map[string]bool{}
		for _, one := range c.h.Shown {
			if !m.holds(one) || seen[one.MsgID] { // what comes again is held against shownTwice
				continue
			}
			seen[one.MsgID] = true
			got = append(got, one.Content)
			if one.Reader != m.To || one.From != m.From || one.Kind != "REPLY" {
				c.add(Untrue, s, "%s was shown %q as a %s of %s", one.Reader, one.Content, one.Kind, one.From)
			}
		}
		missing, more := differ(m.Want, got), differ(got, m.Want)
		switch {
		case len(missing) > 0 || len(more) > 0:
			if len(missing) > 0 {
				c.add(Lost, s, "%d old messages never came, such as %q; the runs said %+v", len(missing), missing[0], m.Runs)
			}
			if len(more) > 0 {
				c.add(Doubled, s, "%d old messages came once more, such as %q", len(more), more[0])
			}
		case !slices.Equal(m.Want, got):
			c.add(Untrue, s, "the old messages came in another order: %q", got)
		}
		told := 0
		for _, r := range m.Runs {
			told += r.Moved + r.Copies
			if r.Found+r.Arrived != r.Moved+r.Copies+r.Left+r.Vanished || r.Left > 0 || r.Vanished > 0 {
				c.add(Untrue, s, "a run that went well said %+v", r)
			}
		}
		if told > len(m.Want) {
			c.add(Untrue, s, "the runs said that they moved %d, of %d", told, len(m.Want))
		}
		if len(m.Runs) == 0 {
			c.add(Unreported, s, "no run came to its end")
		}
	}
}

func (m *Moved) holds(one Shown) bool { return strings.HasPrefix(one.Content, m.Queue+" ") }

// differ lists what a has more of than b.
func differ(a, b []string) (more []string) {
	count := map[string]int{}
	for _, one := range b {
		count[one]++
	}
	for _, one := range a {
		if count[one]--; count[one] < 0 {
			more = append(more, one)
		}
	}
	return more
}
