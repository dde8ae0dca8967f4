package mcp

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"fleetd/fabric/control"
	"fleetd/store"
)

// waitFor keeps a client patient while other hosts are asked.
func (a TraceArgs) waitFor() time.Duration {
	if !a.Fleet {
		return 0
	}
	return control.TraceWait
}

// offsetSaid is how far off another host's clock is worth a word beside its
// steps.
const offsetSaid = time.Second

// Trace shows what this host, or the fleet, saw of one flow.
func (c *Conversation) Trace(ctx context.Context, a TraceArgs) (TraceResult, error) {
	events, err := c.Traces.TraceOf(a.TraceID)
	if err != nil {
		return TraceResult{}, err
	}
	r := TraceResult{TraceID: a.TraceID, Hops: []Hop{}}
	saw := "This host saw nothing"
	var notes []string
	if a.Fleet {
		told, err := c.Control.Trace(ctx, a.TraceID)
		if err != nil {
			return TraceResult{}, err
		}
		for _, t := range told {
			events = append(events, t.Events...)
			r.Hosts = append(r.Hosts, TraceHost{
				Host: t.Host, Answered: t.Missing == "", Steps: len(t.Events), LeftOut: t.Cut, Reason: t.Missing,
				ClockOffset: t.Offset.Seconds(),
			})
		}
		slices.SortStableFunc(events, func(a, b store.Event) int { return cmp.Compare(a.At, b.At) })
		saw, notes = "No host that answered saw anything", fleetNotes(told, c.brokerless())
	}
	for _, e := range events {
		r.Hops = append(r.Hops, Hop{
			At: time.UnixMilli(e.At).UTC().Format("2006-01-02T15:04:05.000Z07:00"), Host: e.Host, Step: e.Step,
			MsgID: e.MsgID, Kind: e.Kind, Entity: c.name(e.Entity), Peer: c.name(e.Peer), Outcome: e.Outcome, Reason: e.Reason,
		})
	}
	if len(r.Hops) == 0 {
		notes = append(notes, saw+" under this id: it may be a message id rather than a trace id, older than a week, or the flow of other hosts.")
	}
	r.Note = strings.Join(notes, " ")
	return r, nil
}

func (c *Conversation) brokerless() bool {
	state, _ := c.Broker()
	return state == "none"
}

// fleetNotes says what is missing in the steps of the fleet, or misleads.
func fleetNotes(told []control.Traced, brokerless bool) []string {
	var silent, cut, off []string
	for _, t := range told {
		switch {
		case t.Missing != "":
			silent = append(silent, fmt.Sprintf("%s (%s)", t.Host, t.Missing))
			continue
		case t.Cut > 0:
			cut = append(cut, fmt.Sprintf("%s (%d)", t.Host, t.Cut))
		}
		if len(t.Events) > 0 && t.Offset.Abs() >= offsetSaid {
			off = append(off, fmt.Sprintf("%s (%+.1f s)", t.Host, t.Offset.Seconds()))
		}
	}
	var notes []string
	switch {
	case brokerless:
		notes = append(notes, "This gateway has no broker: there is no other host to ask.")
	case len(told) == 0:
		notes = append(notes, "No other host is known.")
	}
	if len(silent) > 0 {
		notes = append(notes, "What these hosts saw is not known: "+some(silent)+".")
	}
	if len(cut) > 0 {
		notes = append(notes, "These hosts left out so many steps of theirs, the oldest: "+some(cut)+".")
	}
	if len(off) > 0 {
		notes = append(notes, "These clocks differ from that of this host, and the order of the steps with them: "+some(off)+".")
	}
	return notes
}

// some lists the first few of names.
func some(names []string) string {
	const few = 8
	if more := len(names) - few; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), more)
	}
	return strings.Join(names, ", ")
}
