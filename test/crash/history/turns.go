package history

import (
	"slices"
	"time"
)

// turns holds questions and answers to each other (design §7): nothing of them
// is stored, so all that is promised is that who answers is told whether his
// answer got there, and that it gets nowhere else.
func (c *checker) turns() {
	for _, a := range c.h.Told {
		c.given(a)
	}
	for _, q := range c.h.Questions {
		c.asked(q)
	}
}

// given holds an answer to where it arrived.
func (c *checker) given(a Told) {
	ask, s := c.turn(a.Turn)
	var got []Question
	for _, q := range c.h.Questions {
		if holds(q.Answer, a.Token) {
			got = append(got, q)
		}
	}
	if len(got) > 1 {
		c.add(Doubled, s, "the answer of %s reached %d questions", a.By, len(got))
	}
	notGiven := a.Code == "TOO_LATE" || nothingSent[a.Code]
	switch {
	case a.State != "" && len(got) == 0:
		c.add(Untrue, s, "%s was told at %s that its answer arrived, and no question has it", a.By, clock(a.Ended))
	case notGiven && len(got) > 0:
		c.add(Untrue, s, "%s was told %s at %s, and the one who asked has the answer", a.By, a.Code, clock(a.Ended))
	case a.Code == "TOO_LATE":
		for _, q := range c.h.Questions {
			if q.Brief == ask.InReplyTo && q.Began.Before(ask.At) && q.Ended.After(a.Ended.Add(lateSlack)) && c.ranOn(q, a.By) {
				c.add(Untrue, s, "%s was told TOO_LATE at %s, and %s waited until %s", a.By, clock(a.Ended), q.Worker, clock(q.Ended))
			}
		}
	}
	if len(got) > 0 && s != nil && !slices.Contains(s.MsgIDs, got[0].Brief) {
		c.add(Untrue, s, "the answer of %s met the question about another brief, %s", a.By, got[0].Brief)
	}
}

// lateSlack is how much later than its gateway an agent may note that it waits
// no more.
const lateSlack = 5 * time.Second

// ranOn reports whether neither side of a question was killed while it was open:
// else its call was broken off and made again, as another turn.
func (c *checker) ranOn(q Question, main string) bool {
	return !c.killedBetween(q.Worker, q.Began.Add(-killSlack), q.Ended) && !c.killedBetween(main, q.Began.Add(-killSlack), q.Ended)
}

// asked holds what came back from a question to what became of it.
func (c *checker) asked(q Question) {
	s := c.byID[q.Brief]
	var shown []Shown
	for _, m := range c.h.Shown {
		if m.Kind == "ASK" && m.InReplyTo == q.Brief && !m.At.Before(q.Began) && (q.Ended.IsZero() || m.At.Before(q.Ended)) {
			shown = append(shown, m)
		}
	}
	switch {
	case q.Ended.IsZero():
		c.add(Unreported, s, "%s asked at %s and never heard anything", q.Worker, clock(q.Began))
	case q.Error == "" && !slices.ContainsFunc(c.h.Told, func(a Told) bool { return holds(q.Answer, a.Token) }):
		c.add(Untrue, s, "%s got an answer that nobody gave: %.80q", q.Worker, q.Answer)
	case notAsked(q.Error) && len(shown) > 0 && c.ranOn(q, shown[0].Reader):
		c.add(Untrue, s, "%s was told %.40q, and %s was shown the question at %s", q.Worker, q.Error, shown[0].Reader, clock(shown[0].At))
	}
}

// notAsked reports whether an error says that nobody was asked.
func notAsked(text string) bool {
	for code := range nothingSent {
		if isCode(text, code) {
			return true
		}
	}
	return isCode(text, "NO_WAITER")
}

// turn finds the question of a turn, as it was shown, and the brief that it was
// about.
func (c *checker) turn(id string) (Shown, *Send) {
	for _, m := range c.h.Shown {
		if m.Kind == "ASK" && m.TurnID == id {
			return m, c.byID[m.InReplyTo]
		}
	}
	return Shown{}, nil
}
