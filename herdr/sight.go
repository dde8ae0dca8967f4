package herdr

import (
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"fleetd/fabric/envelope"
)

const (
	// nearRows is how many rows at the bottom count as the present where no
	// composer is recognised; what stands higher is history.
	nearRows = 12
	// lostRows is how far above the composer a program's reply is looked for.
	lostRows = 6
)

// sight is what one look at a screen tells.
type sight struct {
	rows     []string
	known    bool            // the composer was recognised
	composer Composer        // if known
	reason   envelope.Reason // why nothing may be typed, drafts aside; "" if nothing speaks against it
}

// look reads a screen. Without a recognised composer, a kind that should have
// one is never ready: that is the rule that holds for every dialog (agent fact
// §6); word lists only say why.
func (k *Kind) look(rows []string) sight {
	s := sight{rows: rows}
	if k.Composer != nil {
		s.composer, s.known = k.Composer(rows)
	}
	if s.known {
		s.reason = k.obstacle(rows, s.composer)
		return s
	}
	near := tail(rows, nearRows)
	switch {
	case anyMatch(near, k.Dialog), anyMatch(near, k.Login):
		s.reason = envelope.Blocked
	case anyMatch(near, k.Working):
		s.reason = envelope.Busy
	case k.Composer != nil:
		s.reason = envelope.NotReady
	}
	return s
}

// obstacle says what around a composer speaks against typing into it. Its own
// rows are not searched: they hold text of others.
func (k *Kind) obstacle(rows []string, c Composer) envelope.Reason {
	below, above := rows[c.Bottom:], rows[:c.Top]
	switch {
	case anyMatch(below, k.Dialog), anyMatch(below, k.Login),
		k.Lost != nil && anyMatch(tail(above, lostRows), k.Lost):
		return envelope.Blocked
	case anyMatch(below, k.Working), anyMatch(tail(above, k.Above), k.Working):
		return envelope.Busy
	}
	return ""
}

// draft reports whether the composer holds what a person typed. A placeholder
// is none; dim says whether the composer's text is drawn dim.
func (k *Kind) draft(s sight, dim bool) bool {
	switch {
	case !s.known:
		return false
	case s.composer.Foreign:
		return true
	case s.composer.Text == "" || dim:
		return false
	}
	return k.Placeholder == nil || !k.Placeholder.MatchString(s.composer.Text)
}

// probe is how an injected text is known again on a screen.
type probe struct {
	head     string // squashed: the message id of the first line, or that line
	tail     string // squashed: the end of the last line
	newlines int
	chars    int // code points

	before int    // how often head was on the screen before the paste
	marker string // what the paste collapsed to, once seen
	marked int    // how often that was on the screen outside the composer then
}

var messageID = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)

// newProbe makes the probe of a text. An id is looked for in the first line
// only, since the content may quote others.
func newProbe(text string) probe {
	const most = 48 // characters of a line that are enough to know it
	first, _, _ := strings.Cut(text, "\n")
	last := text[strings.LastIndexByte(text, '\n')+1:]
	head := messageID.FindString(first)
	if head == "" {
		head = first
	}
	h, t := []rune(squash(head)), []rune(squash(last))
	return probe{
		head:     string(h[:min(len(h), most)]),
		tail:     string(t[max(0, len(t)-most):]),
		newlines: strings.Count(text, "\n"),
		chars:    utf8.RuneCountInString(text),
	}
}

// place is where a text stands on a screen.
type place struct {
	inComposer bool   // it, or a part of it
	whole      bool   // its end too, or a collapse marker of the right size
	elsewhere  bool   // outside the composer: in the transcript, or queued
	marker     string // the collapse marker in the composer, if it is ours
}

// locate finds the text of p. Without a recognised composer nothing can be said
// about where it stands but that it is there.
func (k *Kind) locate(s *sight, p probe) place {
	if !s.known && k.Floor != nil {
		k.openTop(s, p)
	}
	if !s.known {
		return place{elsewhere: strings.Count(squash(strings.Join(s.rows, "")), p.head) > p.before}
	}
	inside := squash(s.composer.Text)
	pl := place{marker: k.collapsed(s.composer.Text, p)}
	pl.whole = pl.marker != "" || p.tail != "" && strings.Contains(inside, p.tail)
	pl.inComposer = pl.whole || strings.Contains(inside, p.head)
	outside := s.outside()
	pl.elsewhere = strings.Count(squash(outside), p.head) > p.before ||
		p.marker != "" && strings.Count(outside, p.marker) > p.marked
	return pl
}

// openTop recognises a composer that is taller than the screen by what stands
// directly over its floor: the end of our own text.
func (k *Kind) openTop(s *sight, p probe) {
	floor := lastMatch(s.rows, k.Floor)
	if floor < 0 || p.tail == "" || !strings.HasSuffix(squash(strings.Join(s.rows[:floor], "")), p.tail) {
		return
	}
	s.known = true
	s.composer = Composer{Bottom: floor, Text: join("", s.rows[:floor])}
	s.reason = k.obstacle(s.rows, s.composer)
}

// outside returns the rows outside the composer.
func (s *sight) outside() string {
	return strings.Join(s.rows[:s.composer.Top], "\n") + "\n" + strings.Join(s.rows[s.composer.Bottom:], "\n")
}

// collapsed returns the marker in a composer's text whose size fits the paste.
func (k *Kind) collapsed(text string, p probe) string {
	if k.Collapsed == nil {
		return ""
	}
	for _, m := range k.Collapsed.FindAllStringSubmatch(text, -1) {
		size := 0
		if m[1] != "" {
			n, err := strconv.Atoi(m[1])
			if err != nil {
				continue
			}
			size = n
		}
		if d := size - k.Size(p); d >= -k.Slack && d <= k.Slack {
			return m[0]
		}
	}
	return ""
}
