package migrations

import (
	"fmt"
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

// line gives messages, in the order of their queue, their keys. Those behind the
// last mark get none. Keys in out are passed over: their messages are out of the
// queue for good, so an equal one that now stands there is another.
func line(places []place, out map[string]bool) []place {
	var under string
	equals := map[string]int{}
	for i := len(places) - 1; i >= 0; i-- {
		p := &places[i]
		switch {
		case p.mark != nil:
			under, equals = p.mark.name, map[string]int{}
			p.under, p.key = under, under
		case under != "":
			p.under = under
			for again := true; again; again = out[p.key] {
				equals[p.hash]++
				p.key = derive(under, p.hash, equals[p.hash])
			}
		}
	}
	return places
}
