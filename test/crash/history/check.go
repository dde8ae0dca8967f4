package history

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Check finds every broken promise of h.
func Check(h History) []Finding {
	c := newChecker(h)
	for i := range h.Sends {
		c.send(&h.Sends[i])
	}
	c.turns()
	c.spawns()
	c.moved()
	c.shownTwice()
	c.strangers()
	c.leftovers()
	slices.SortStableFunc(c.found, func(a, b Finding) int { return cmp.Compare(a.Case, b.Case) })
	return c.found
}

type checker struct {
	h       History
	byID    map[string]*Send
	reports map[string][]Shown // by the id they are about
	replies map[string][]Shown // by the id they answer
	answers map[string][]Answer
	shown   map[string][]Shown // by their own id
	found   []Finding
}

func newChecker(h History) *checker {
	c := &checker{
		h: h, byID: map[string]*Send{}, reports: map[string][]Shown{}, replies: map[string][]Shown{},
		answers: map[string][]Answer{}, shown: map[string][]Shown{},
	}
	for i := range h.Sends {
		for _, id := range h.Sends[i].MsgIDs {
			c.byID[id] = &h.Sends[i]
		}
	}
	for _, m := range h.Shown {
		c.shown[m.MsgID] = append(c.shown[m.MsgID], m)
		switch m.Kind {
		case "REPLY":
			c.replies[m.InReplyTo] = append(c.replies[m.InReplyTo], m)
		case "INJECTED", "FAILED", "ABANDONED":
			c.reports[m.InReplyTo] = append(c.reports[m.InReplyTo], m)
		}
	}
	for _, a := range h.Answers {
		c.answers[a.To] = append(c.answers[a.To], a)
	}
	return c
}

func (c *checker) add(v Verdict, s *Send, format string, args ...any) {
	f := Finding{Verdict: v, Why: fmt.Sprintf(format, args...)}
	if s != nil {
		f.Case, f.Token = s.Case, s.Token
		f.Why = fmt.Sprintf("%s → %s: %s", s.From, s.To, f.Why)
	}
	c.found = append(c.found, f)
}

// fate is what became of one message.
type fate struct {
	pastes  []Paste
	prompts []Prompt
	drained []Shown // by its recipient, if that is a main
	reports []Shown // to its sender
	replies []Shown // to its sender
	asked   bool    // its sender was shown a question about it
	arrived time.Time
}

func (c *checker) fate(s *Send) fate {
	var f fate
	see := func(t time.Time) {
		if f.arrived.IsZero() || t.Before(f.arrived) {
			f.arrived = t
		}
	}
	for _, p := range c.h.Pastes {
		if holds(p.Text, s.Token) && s.with(p.Worker) {
			f.pastes = append(f.pastes, p)
			see(p.At)
		}
	}
	for _, p := range c.h.Prompts {
		if holds(p.Text, s.Token) && s.with(p.Worker) {
			f.prompts = append(f.prompts, p)
			see(p.At)
		}
	}
	for _, m := range c.h.Shown {
		if (m.Kind == "SEND" || m.Kind == "BROADCAST" && m.Reader == s.To) && holds(m.Content, s.Token) {
			f.drained = append(f.drained, m)
			see(m.At)
		}
	}
	for _, id := range s.MsgIDs {
		f.asked = f.asked || slices.ContainsFunc(c.h.Shown, func(m Shown) bool {
			return m.Kind == "ASK" && m.InReplyTo == id && m.Reader == s.From
		})
		for _, m := range c.reports[id] {
			if s.with(m.From) {
				f.reports = append(f.reports, m)
			}
		}
		for _, m := range c.replies[id] {
			if s.with(m.From) {
				f.replies = append(f.replies, m)
			}
		}
	}
	return f
}

// with reports whether what name@host did with a message is for s to answer
// for: of a message to several only what its own recipient did.
func (s *Send) with(who string) bool { return !s.Cast || who == s.To }

func (c *checker) send(s *Send) {
	f := c.fate(s)
	c.once(s, f)
	c.ended(s, f)
	c.answered(s)
	c.believed(s, f)
}

// once: a brief enters a pane at most once, and one place only.
func (c *checker) once(s *Send, f fate) {
	if len(f.pastes) > 1 {
		c.add(Doubled, s, "it was pasted %d times: %s", len(f.pastes), times(f.pastes, func(p Paste) (time.Time, string) { return p.At, p.Worker }))
	}
	if len(f.prompts) > 1 {
		c.add(Doubled, s, "a model was given it %d times: %s", len(f.prompts), times(f.prompts, func(p Prompt) (time.Time, string) { return p.At, p.Worker }))
	}
	ids := map[string]bool{}
	for _, m := range f.drained {
		ids[m.MsgID] = true
	}
	if len(ids) > 1 {
		c.add(Doubled, s, "it was shown under %d ids", len(ids))
	}
}

// ended: what was accepted arrives or is reported, and a sender who was left
// in the dark is told in the end.
func (c *checker) ended(s *Send, f fate) {
	t := s.told()
	failed := t.end || slices.ContainsFunc(f.reports, func(m Shown) bool { return m.Kind != "INJECTED" })
	switch {
	case !f.arrived.IsZero():
		if !t.there && !t.end && !f.asked && len(f.reports)+len(f.replies) == 0 && (t.open != "" || s.Worker && s.Stored) {
			c.add(Unreported, s, "it arrived at %s, and its sender was told %s and no more", clock(f.arrived), cmp.Or(t.open, "nothing"))
		}
	case failed:
	case t.refused && t.open == "":
	case t.accepted:
		c.add(Lost, s, "it was accepted and never arrived, and nobody told its sender")
	case t.open != "" || s.Stored:
		c.add(Unreported, s, "it never arrived, and its sender was told %s and no more", cmp.Or(t.open, "nothing, though the store has it"))
	}
}

// told is what the calls for one message said, taken together.
type told struct {
	accepted bool   // in words that promise an end
	there    bool   // that it is where it belongs
	open     string // the word that left its end open; "" if none did
	end      bool   // its own end
	refused  bool   // in the last one, that nothing was sent
}

func (s *Send) told() (t told) {
	for _, call := range s.Calls {
		switch {
		case call.State == "deferred":
			t.accepted, t.open = true, call.State
		case call.State != "":
			t.accepted, t.there = true, true
		case call.Report:
			t.end = true
		case openEnd[call.Code]:
			t.open = call.Code
		}
		t.refused = nothingSent[call.Code] && !call.Report
	}
	return t
}

// answered: a reply that a worker was told is accepted is shown to the one who
// asked; one in doubt is published again until it is.
func (c *checker) answered(s *Send) {
	for _, id := range s.MsgIDs {
		answers, accepted, keyed, refused := 0, 0, 0, ""
		for _, a := range c.answers[id] {
			if !s.with(a.Worker) {
				continue
			}
			answers++
			if a.Error == "" || isCode(a.Error, "IN_DOUBT") {
				accepted++
			}
			if a.Keyed {
				keyed++
			}
			if code, _, _ := strings.Cut(a.Error, ":"); a.Keyed && nothingSent[code] {
				refused = code
			}
		}
		ids := map[string]bool{}
		for _, m := range c.replies[id] {
			if m.Reader == s.From && s.with(m.From) {
				ids[m.MsgID] = true
			}
		}
		if len(ids) < accepted {
			c.add(Lost, s, "%d replies were accepted from its worker and %d shown to its sender", accepted, len(ids))
		}
		switch {
		case keyed == 0 || len(ids) <= accepted:
		case refused != "":
			c.add(Untrue, s, "its worker was told %s, and the reply was shown to its sender", refused)
		case keyed == answers:
			c.add(Doubled, s, "its worker gave %d replies, and its sender was shown %d", accepted, len(ids))
		}
	}
}

func isCode(text, code string) bool { return len(text) >= len(code) && text[:len(code)] == code }

// believed: nothing that a client was told contradicts what happened.
func (c *checker) believed(s *Send, f fate) {
	for i, call := range s.Calls {
		switch {
		case call.Code != "" && nothingSent[call.Code] && !call.Report:
			next := len(s.Calls) > i+1
			if !f.arrived.IsZero() && f.arrived.After(call.Began) && (!next || f.arrived.Before(s.Calls[i+1].Began)) {
				c.add(Untrue, s, "a call was told %s at %s, and it arrived at %s", call.Code, clock(call.Ended), clock(f.arrived))
			}
		case call.Report && call.Code != "IN_DOUBT" && call.Code != "ABANDONED" && !f.arrived.IsZero():
			c.add(Untrue, s, "a call was told that it failed with %s at %s, and it arrived at %s", call.Code, clock(call.Ended), clock(f.arrived))
		case s.Worker && (call.State == "injected" || call.State == "pending" || call.State == "replied" || call.State == "ask"):
			c.claimed(s, f, call.State, call.Ended)
		}
	}
	for _, m := range f.reports {
		switch {
		case m.Reader != s.From:
			c.add(Untrue, s, "%s was told about it: %s %s", m.Reader, m.Kind, m.Reason)
		case m.Kind == "INJECTED":
			c.claimed(s, f, "INJECTED", m.At)
		case m.Kind == "FAILED" && m.Reason != "IN_DOUBT" && !f.arrived.IsZero():
			c.add(Untrue, s, "FAILED(%s) was shown at %s, and it arrived at %s", m.Reason, clock(m.At), clock(f.arrived))
		}
	}
	for _, m := range f.replies {
		switch {
		case m.Reader != s.From:
			c.add(Untrue, s, "%s was shown the answer to it", m.Reader)
		case s.Worker && len(f.prompts) == 0:
			c.add(Untrue, s, "an answer was shown, and no model was given it")
		case s.Worker && !holds(m.Content, s.Token):
			c.add(Untrue, s, "the answer shown is not the one to it: %.80q", m.Content)
		}
	}
}

// claimed holds a word that means "it is there" to when it came.
func (c *checker) claimed(s *Send, f fate, word string, at time.Time) {
	if f.arrived.IsZero() || f.arrived.After(at) {
		c.add(Untrue, s, "%s was said at %s, and by then it had not arrived", word, clock(at))
	}
}

// shownTwice: what a client has got comes again only if its gateway was killed
// about then, which may have taken the note of it, and then it is marked.
func (c *checker) shownTwice() {
	for id, all := range c.shown {
		last := map[string]Shown{}
		for _, m := range slices.SortedStableFunc(slices.Values(all), func(a, b Shown) int { return a.At.Compare(b.At) }) {
			first, again := last[m.Reader]
			switch {
			case !again:
			case !m.Redelivered:
				c.add(Doubled, c.about(m), "%s was shown %s %s at %s and again at %s, unmarked", m.Reader, m.Kind, id, clock(first.At), clock(m.At))
			case !m.Asked && !c.killedBetween(m.Reader, first.At.Add(-killSlack), m.At):
				c.add(Doubled, c.about(m), "%s was shown %s %s at %s and again at %s, and its gateway ran on", m.Reader, m.Kind, id, clock(first.At), clock(m.At))
			}
			last[m.Reader] = m
		}
		if len(last) > 1 && all[0].Kind != "BROADCAST" { // each member has a copy
			c.add(Doubled, c.about(all[0]), "%s %s was shown to %d clients", all[0].Kind, id, len(last))
		}
	}
}

// killSlack is how much later than a kill a client may note the last response
// that it got before.
const killSlack = 10 * time.Second

func (c *checker) killedBetween(reader string, from, to time.Time) bool {
	return slices.ContainsFunc(c.h.Kills, func(k Kill) bool {
		return strings.HasSuffix(reader, "@"+k.Host) && k.At.After(from) && k.At.Before(to)
	})
}

// about is the message that m is, answers or reports on.
func (c *checker) about(m Shown) *Send {
	if s := c.byID[m.MsgID]; s != nil {
		return s
	}
	return c.byID[m.InReplyTo]
}

// strangers: nobody is shown or given what nobody sent, or sent to others.
func (c *checker) strangers() {
	for _, m := range c.h.Shown {
		if m.Kind == "BROADCAST" && !slices.ContainsFunc(c.h.Sends, func(s Send) bool { return s.To == m.Reader && slices.Contains(s.MsgIDs, m.MsgID) }) {
			c.add(Untrue, c.about(m), "%s was shown BROADCAST %s, and is no member", m.Reader, m.MsgID)
		}
		if c.about(m) == nil && !slices.ContainsFunc(c.h.Moves, func(old Moved) bool { return old.holds(m) }) {
			c.add(Untrue, nil, "%s was shown %s %s about %q, which nobody sent: %.80q", m.Reader, m.Kind, m.MsgID, m.InReplyTo, m.Content)
		}
	}
}

// leftovers: nothing is left unexplained in a store or on a broker.
func (c *checker) leftovers() {
	for _, l := range c.h.Left {
		s := c.byID[l.MsgID]
		if l.Dead && s != nil {
			f := c.fate(s)
			if !f.arrived.IsZero() || s.told().end || slices.ContainsFunc(f.reports, func(m Shown) bool { return m.Kind != "INJECTED" }) {
				continue
			}
		}
		if l.Dead && len(c.shown[l.MsgID]) > 0 {
			continue // a copy of what was shown
		}
		c.add(Unreported, s, "%s still holds %s: %s", l.Where, cmp.Or(l.MsgID, "mail"), l.What)
	}
}

func clock(t time.Time) string { return t.Format("15:04:05.000") }

func times[T any](all []T, of func(T) (time.Time, string)) string {
	text := ""
	for i, one := range all {
		if i > 0 {
			text += ", "
		}
		at, who := of(one)
		text += clock(at) + " " + who
	}
	return text
}
