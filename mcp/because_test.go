package mcp

import (
	"testing"

	"fleetd/store"
)

// briefBook is a worker's mailbox of which only the briefs matter.
type briefBook struct {
	Mailbox
	open []store.Brief
	last store.Brief
}

func (b briefBook) OpenBriefs(string) ([]store.Brief, error) { return b.open, nil }

func (b briefBook) BriefLast(string) (store.Brief, bool, error) {
	return b.last, b.last.MsgID != "", nil
}

// Fails if a worker that answers before it writes on begins at no hops, so that a
// circle of such is never stopped; if an old brief left open hides those that it
// answers; or if a message leaves the flow of the one brief that is open.
func TestWorkersCountOnFromTheBriefTheyHadLast(t *testing.T) {
	old := store.Brief{MsgID: "old", TraceID: "told", Hops: 2}
	late := store.Brief{MsgID: "late", TraceID: "tlate", Hops: 7}
	for name, c := range map[string]struct {
		book  briefBook
		trace string
		hops  int
	}{
		"nothing":                      {briefBook{}, "", 0},
		"works on it":                  {briefBook{open: []store.Brief{late}, last: late}, "tlate", 8},
		"answered it":                  {briefBook{last: late}, "", 8},
		"answered it, an old one open": {briefBook{open: []store.Brief{old}, last: late}, "told", 8},
		"never answers":                {briefBook{open: []store.Brief{old, late}, last: late}, "", 8},
	} {
		conversation := &Conversation{Mailbox: c.book}
		trace, hops, err := conversation.because(Caller{GID: "w", Kind: store.Worker})
		if trace != c.trace || hops != c.hops || err != nil {
			t.Errorf("%s: flow %q, %d hops (%v); want %q, %d", name, trace, hops, err, c.trace, c.hops)
		}
	}
}
