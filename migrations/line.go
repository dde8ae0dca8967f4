package migrations

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// A mark is a message that a run puts behind the mail of an old queue and takes
// out last. It tells a message from an equal one: by how many of its equals
// stand between it and the mark. That stays true however many of those before
// are out, whatever comes in behind, and when a broker that was killed hands out
// again what was out: then the mark is there again too.
const (
	markPrefix = "bridged.migrate.mark/"
	// markText is for who reads it in the old daemon.
	markText = "[bridged migrate was interrupted here; this is no reply, there is nothing to do]"
)

// mark is the name of a mark and when it was made.
type mark struct {
	name string // a UUID
	ts   int64  // Unix milliseconds
}

func (m mark) messageID() string { return fmt.Sprintf("%s%s/%d", markPrefix, m.name, m.ts) }

// mark reads a mark.
func (o Old) mark() (m mark, ok bool) {
	rest, ok := strings.CutPrefix(o.MessageID, markPrefix)
	if !ok {
		return m, false
	}
	name, ts, _ := strings.Cut(rest, "/")
	m.ts, _ = strconv.ParseInt(ts, 10, 64) // 0 is stale
	_, err := uuid.Parse(name)
	m.name = name
	return m, err == nil && len(name) == 36
}

// place is that of one message in a queue.
type place struct {
	hash  string
	mark  *mark  // it is one
	under string // name of the mark behind it
	key   string // tells the message from all others; a mark's is its name
}

// equals are the messages before one mark that say the same.
type equals struct{ mark, hash string }

func (p place) equals() equals { return equals{p.under, p.hash} }

// key is that of the one with that number.
func (e equals) key(number int) string { return derive(e.mark, e.hash, number) }

// order says which numbers equals have that a run numbered anew, in the order
// from the mark on: those of Here, those of Gone, and then on as ever. The zero
// order is as ever: 1, 2, 3 …
type order struct {
	Here []int `json:"here"` // of as many as lay there
	Gone []int `json:"gone"` // of those that were out: if as many lie there, the broker lost their acks
}

// number is that of the nth equal from the mark, which is the first.
func (o order) number(n int) int {
	switch here, gone := len(o.Here), len(o.Gone); {
	case n <= here:
		return o.Here[n-1]
	case n <= here+gone:
		return o.Gone[n-here-1]
	}
	return n // the others are those up to here + gone
}

// anew is the order of as many as lie there, none of which is out.
func (o order) anew(lie int, out func(number int) bool) order {
	now := order{Gone: slices.Clone(o.Gone)}
	for n := 1; len(now.Here) < lie || n <= len(o.Here); n++ {
		if len(o.Here) < n && n <= len(o.Here)+len(o.Gone) {
			continue
		}
		if number := o.number(n); out(number) {
			now.Gone = append(now.Gone, number)
		} else {
			now.Here = append(now.Here, number)
		}
	}
	return now
}

// line gives messages, in the order of their queue, their keys. Those behind the
// last mark get none.
func line(places []place, orders map[equals]order) []place {
	var under string
	count := map[string]int{}
	for i := len(places) - 1; i >= 0; i-- {
		p := &places[i]
		switch {
		case p.mark != nil:
			under, count = p.mark.name, map[string]int{}
			p.under, p.key = under, under
		case under != "":
			p.under = under
			count[p.hash]++
			e := p.equals()
			p.key = e.key(orders[e].number(count[p.hash]))
		}
	}
	return places
}
