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
	c.slowness()
	c.turns()
	c.spawns()
	c.moved()
	c.shownTwice()
	c.recorded()
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
	slow    []slow
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
	drained []Shown   // by its recipient, if that is a main
	reports []Shown   // to its sender
	replies []Shown   // to its sender
	asked   bool      // its sender was shown a question about it
	arrived time.Time // the first trace of it where it belongs, such as a paste
	given   time.Time // a model had it, or a main: a paste may never be submitted
}

func (c *checker) fate(s *Send) fate {
	var f fate
	first := func(of *time.Time, t time.Time) {
		if of.IsZero() || t.Before(*of) {
			*of = t
		}
	}
	for _, p := range c.h.Pastes {
		if holds(p.Text, s.Token) && p.Worker == s.To {
			f.pastes = append(f.pastes, p)
			first(&f.arrived, p.At)
		}
	}
	for _, p := range c.h.Prompts {
		if holds(p.Text, s.Token) && p.Worker == s.To {
			f.prompts = append(f.prompts, p)
			first(&f.arrived, p.At)
			first(&f.given, p.At)
		}
	}
	for _, m := range c.h.Shown {
		if mail(m) && m.Reader == s.To && holds(m.Content, s.Token) {
			f.drained = append(f.drained, m)
			first(&f.arrived, m.At)
			first(&f.given, m.At)
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

// mail reports whether m is what was sent, and not a word about it.
func mail(m Shown) bool { return m.Kind == "SEND" || m.Kind == "BROADCAST" }

// with reports whether what name@host did with a message is for s to answer
// for: of a message to several only what its own recipient did.
func (s *Send) with(who string) bool { return !s.Cast || who == s.To }

func (c *checker) send(s *Send) {
	f := c.fate(s)
	c.once(s, f)
	c.toldOnce(s, f)
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

// toldOnce: one end, one notice (design §5, §6). Another one is a correction,
// and says something else: what a sender's gateway concluded by itself is
// outranked by what the recipient's says, and all that failed by ABANDONED.
func (c *checker) toldOnce(s *Send, f fate) {
	var told []Shown
	for _, m := range slices.SortedStableFunc(slices.Values(f.reports), func(a, b Shown) int { return a.At.Compare(b.At) }) {
		if slices.ContainsFunc(told, func(t Shown) bool { return t.MsgID == m.MsgID }) {
			continue // is held against shownTwice
		}
		for _, t := range told {
			if !corrects(m, t) {
				c.add(Doubled, s, "its sender was told %s(%s) at %s and %s(%s) at %s, under two ids", t.Kind, t.Reason, clock(t.At), m.Kind, m.Reason, clock(m.At))
				break
			}
		}
		told = append(told, m)
	}
}

// corrects reports whether m may be told although t was.
func corrects(m, t Shown) bool {
	switch {
	case m.Kind == "INJECTED" || t.Kind == "INJECTED":
		return m.Kind != t.Kind
	case t.Kind == "ABANDONED":
		return false
	}
	return m.Kind == "ABANDONED" || concluded[t.Reason] && m.Reason != t.Reason
}

// Reasons that a sender's gateway gives by itself.
var concluded = map[string]bool{
	"EXPIRED": true, "IN_DOUBT": true, "INBOX_FULL": true, "REFUSED": true, "UNROUTABLE": true, "BROKER_REFUSED": true,
}

// ended: what was accepted arrives or is reported, and a sender who was left
// in the dark is told in the end.
func (c *checker) ended(s *Send, f fate) {
	t := s.told()
	failed := t.end || slices.ContainsFunc(f.reports, func(m Shown) bool { return m.Kind != "INJECTED" })
	switch {
	case !f.given.IsZero():
		if !t.there && !t.end && !f.asked && len(f.reports)+len(f.replies) == 0 && (t.open != "" || s.Worker && s.Stored) {
			c.add(Unreported, s, "it arrived at %s, and its sender was told %s and no more", clock(f.given), cmp.Or(t.open, "nothing"))
		}
	case failed:
	case !f.arrived.IsZero():
		c.add(Unreported, s, "it was pasted at %s and never submitted, and its sender was told nothing of that", clock(f.arrived))
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
		t.refused = call.nothingSent()
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
		case call.nothingSent():
			next := len(s.Calls) > i+1
			if !f.arrived.IsZero() && f.arrived.After(call.Began) && (!next || f.arrived.Before(s.Calls[i+1].Began)) {
				c.add(Untrue, s, "a call was told %s at %s, and it arrived at %s", call.Code, clock(call.Ended), clock(f.arrived))
			}
		case call.Report && call.Code == "IN_DOUBT":
			c.doubted(s, f, call.Ended)
		case call.Report && call.Code != "ABANDONED" && !f.arrived.IsZero():
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
		case m.Kind == "FAILED" && m.Reason == "IN_DOUBT":
			c.doubted(s, f, m.At)
		case m.Kind == "FAILED" && !f.arrived.IsZero():
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

// claimed holds a word that means "it is there" to when it came: a state never
// claims more than was observed, and a brief is injected once it was submitted.
func (c *checker) claimed(s *Send, f fate, word string, at time.Time) {
	switch {
	case f.arrived.IsZero() || f.arrived.After(at):
		c.add(Untrue, s, "%s was said at %s, and by then it had not arrived", word, clock(at))
	case f.given.IsZero() || f.given.After(at):
		c.add(Untrue, s, "%s was said at %s, and by then no model was given what was pasted at %s", word, clock(at), clock(f.arrived))
	}
}

// doubted: what became of a message is in doubt only where something broke on
// its way while it was under way (design §5, §6). One that stays on its host is
// put in doubt by nothing but the end of its gateway, or its own pane.
func (c *checker) doubted(s *Send, f fate, at time.Time) {
	var from time.Time
	if len(s.Calls) > 0 {
		from = s.Calls[0].Began.Add(-killSlack)
	}
	_, here, _ := strings.Cut(s.From, "@")
	_, there, _ := strings.Cut(s.To, "@")
	within := func(t time.Time) bool { return t.After(from) && t.Before(at) }
	killed := slices.ContainsFunc(c.h.Kills, func(k Kill) bool { return (k.Host == here || k.Host == there) && within(k.At) })
	broken := slices.ContainsFunc(c.h.Faults, func(f Fault) bool {
		if f.Worker != "" {
			return f.Worker == s.To && within(f.At)
		}
		return here != there && (f.Host == "" || f.Host == here || f.Host == there) && within(f.At)
	})
	stopped := slices.ContainsFunc(c.h.Spawns, func(sp Spawn) bool {
		return sp.Token == s.Token && slices.ContainsFunc(c.h.Stops, func(st Stop) bool { return slices.Contains(sp.GIDs, st.GID) })
	})
	if killed || broken || stopped {
		return
	}
	if !f.arrived.IsZero() && f.arrived.Before(at) && (f.given.IsZero() || f.given.Sub(f.arrived) > slowPane) {
		c.slow = append(c.slow, slow{s, at})
		return
	}
	c.add(Untrue, s, "its sender was told at %s that it is in doubt, and nothing was broken on its way", clock(at))
}

// slowPane is how long an agent may take with a paste before its gateway, which
// looks for three seconds, may rightly give up.
const slowPane = 2 * time.Second

// slow is a message that was put in doubt by nothing but a slow pane.
type slow struct {
	s  *Send
	at time.Time
}

// slowness: a machine that is busy makes a pane slow now and then. Where it is
// many it is no accident.
func (c *checker) slowness() {
	briefs := 0
	for _, s := range c.h.Sends {
		if s.Worker {
			briefs++
		}
	}
	if len(c.slow) <= 1+briefs/20 {
		return
	}
	for _, one := range c.slow {
		c.add(Untrue, one.s, "its sender was told at %s that it is in doubt, nothing was broken on its way, and so it went with %d of %d briefs", clock(one.at), len(c.slow), briefs)
	}
}

// shownTwice: what a client has got comes again only if its gateway was killed
// about then, and then it is marked. Once a response is written, what it
// carries is recorded as drained, and is never shown again (design §6); only a
// kill before that record takes it. How long after the kill it is shown again
// is up to its reader, who may be away.
func (c *checker) shownTwice() {
	for id, all := range c.shown {
		last := map[string]Shown{}
		for _, m := range slices.SortedStableFunc(slices.Values(all), func(a, b Shown) int { return a.At.Compare(b.At) }) {
			first, again := last[m.Reader]
			if again && first.Asked && !m.Asked && m.Began.Before(first.At) {
				first, m = m, first // two calls at once: which is noted first says nothing
			}
			switch {
			case !again:
			case !m.Redelivered:
				c.add(Doubled, c.about(m), "%s was shown %s %s at %s and again at %s, unmarked", m.Reader, m.Kind, id, clock(first.At), clock(m.At))
			case !m.Asked && !c.killedBetween(m.Reader, first.At.Add(-killSlack), earlier(m.At, first.At.Add(drainBound))):
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

// drainBound is how long a gateway waits for the record of what it has shown;
// what it does not get it says, and shows it again.
const drainBound = 10 * time.Second

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

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

// recorded: what a gateway gave to somebody, or took off the broker, is on
// record: it is answered and asked for, and does not come again (design §6).
func (c *checker) recorded() {
	for i := range c.h.Sends {
		if s := &c.h.Sends[i]; s.Forgot {
			if f := c.fate(s); !f.arrived.IsZero() {
				c.add(Lost, s, "it arrived at %s, and its gateway has no record of it", clock(f.arrived))
			}
		}
	}
	for _, m := range c.h.Shown {
		if m.Forgot {
			c.add(Lost, c.about(m), "%s was shown %s %s at %s, and its gateway has no record of it", m.Reader, m.Kind, m.MsgID, clock(m.At))
		}
	}
	for _, a := range c.h.Astray {
		c.found = append(c.found, Finding{Verdict: Lost, Case: a.Case, Why: "a message was off the broker, and " + a.Host + " had no record of it when it was killed"})
	}
}

// strangers: nobody is shown or given what nobody sent, or sent to others.
func (c *checker) strangers() {
	for _, p := range c.h.Pastes {
		c.misled(p.Text, p.Worker, "a paste", p.At)
		c.misplaced(p)
	}
	for _, p := range c.h.Prompts {
		c.misled(p.Text, p.Worker, "a prompt", p.At)
	}
	for _, m := range c.h.Shown {
		if m.Kind == "BROADCAST" && !slices.ContainsFunc(c.h.Sends, func(s Send) bool { return s.To == m.Reader && slices.Contains(s.MsgIDs, m.MsgID) }) {
			c.add(Untrue, c.about(m), "%s was shown BROADCAST %s, and is no member", m.Reader, m.MsgID)
		}
		if s := c.about(m); s != nil && (m.Kind == "SEND" && m.Reader != s.To || m.Kind == "ASK" && m.Reader != s.From) {
			c.add(Untrue, s, "%s was shown %s %s, which is for another one", m.Reader, m.Kind, m.MsgID)
		}
		if c.about(m) == nil && !slices.ContainsFunc(c.h.Moves, func(old Moved) bool { return old.holds(m) }) {
			c.add(Untrue, nil, "%s was shown %s %s about %q, which nobody sent: %.80q", m.Reader, m.Kind, m.MsgID, m.InReplyTo, m.Content)
		}
	}
}

// misled: what a worker gets was sent to it.
func (c *checker) misled(text, worker, what string, at time.Time) {
	var sent *Send
	for i := range c.h.Sends {
		if s := &c.h.Sends[i]; holds(text, s.Token) {
			if sent = s; s.To == worker {
				return
			}
		}
	}
	if sent != nil {
		c.add(Untrue, sent, "%s got it as %s at %s, and it was not sent there", worker, what, clock(at))
	}
}

// misplaced: a task goes into the pane of its own agent.
func (c *checker) misplaced(p Paste) {
	for i := range c.h.Spawns {
		if s := &c.h.Spawns[i]; p.GID != "" && holds(p.Text, s.Token) && !slices.Contains(s.GIDs, p.GID) {
			c.addSpawn(Untrue, s, "its task was pasted at %s into the pane of %s", clock(p.At), p.GID)
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
