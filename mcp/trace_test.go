package mcp

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"fleetd/fabric/control"
	"fleetd/fabric/roster"
	"fleetd/fault"
	"fleetd/store"
)

// nobody is a roster that resolves nothing.
type nobody struct{ Fleet }

func (nobody) Resolve(string) (roster.Target, error) {
	return roster.Target{}, fault.New(fault.UnknownRecipient, "nobody")
}

type ownSteps []store.Event

func (o ownSteps) TraceOf(string) ([]store.Event, error) { return o, nil }

type others struct {
	Control
	told []control.Traced
	err  error
}

func (o others) Trace(context.Context, string) ([]control.Traced, error) { return o.told, o.err }

func step(host string, at int64) store.Event { return store.Event{Host: host, Step: "s", At: at} }

func tracer(broker string, own ownSteps, told ...control.Traced) *Conversation {
	return &Conversation{
		Host: "hosta", Fleet: nobody{}, Traces: own, Control: others{told: told},
		Broker: func() (string, string) { return broker, "" },
	}
}

// Fails when the steps of several hosts do not stand in one order of time, when
// a host that did not answer, left something out or has another clock is not
// named in words, or when other hosts are asked though nobody wished it.
func TestATraceOfTheFleet(t *testing.T) {
	own := ownSteps{step("hosta", 1), step("hosta", 5)}
	c := tracer("connected", own,
		control.Traced{Host: "hostb", Events: []store.Event{step("hostb", 2), step("hostb", 5), step("hostb", 7)}, Cut: 4, Offset: -3 * time.Second},
		control.Traced{Host: "hostc", Missing: "no answer in time"})
	r, err := c.Trace(t.Context(), TraceArgs{TraceID: "t", Fleet: true})
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, h := range r.Hops {
		order = append(order, h.Host+h.At[len(h.At)-2:len(h.At)-1])
	}
	if got := strings.Join(order, " "); got != "hosta1 hostb2 hosta5 hostb5 hostb7" {
		t.Errorf("order %s", got)
	}
	for _, want := range []string{"hostc (no answer in time)", "the oldest: hostb (4)", "hostb (-3.0 s)"} {
		if !strings.Contains(r.Note, want) {
			t.Errorf("the note is %q, without %q", r.Note, want)
		}
	}
	if want := (TraceHost{Host: "hostb", Answered: true, Steps: 3, LeftOut: 4, ClockOffset: -3}); len(r.Hosts) != 2 || r.Hosts[0] != want ||
		r.Hosts[1] != (TraceHost{Host: "hostc", Reason: "no answer in time"}) {
		t.Errorf("hosts %+v", r.Hosts)
	}
	r, err = c.Trace(t.Context(), TraceArgs{TraceID: "t"})
	if err != nil || len(r.Hops) != 2 || len(r.Hosts) != 0 || r.Note != "" {
		t.Errorf("of this host: %+v, %v", r, err)
	}
}

// Fails when a gateway without others hides its own steps, or does not say that
// nobody was asked.
func TestATraceOfAFleetOfOne(t *testing.T) {
	for broker, want := range map[string]string{"none": "no broker", "connected": "No other host"} {
		r, err := tracer(broker, ownSteps{step("hosta", 1)}).Trace(t.Context(), TraceArgs{TraceID: "t", Fleet: true})
		if err != nil || len(r.Hops) != 1 || !strings.Contains(r.Note, want) {
			t.Errorf("%s: %+v, %v", broker, r, err)
		}
	}
	r, err := tracer("connected", nil, control.Traced{Host: "hostb"}).Trace(t.Context(), TraceArgs{TraceID: "t", Fleet: true})
	if err != nil || !strings.Contains(r.Note, "No host that answered saw anything") {
		t.Errorf("%+v, %v", r, err)
	}
}

// Fails when a trace that is too long for one result loses its newest steps, or
// the word on a host that did not answer, or does not say what is left out.
func TestALongTraceIsCutAtItsBeginning(t *testing.T) {
	r := TraceResult{TraceID: "t", Note: "hostc did not answer.", Hosts: []TraceHost{{Host: "hostc"}}}
	for i := range 500 {
		r.Hops = append(r.Hops, Hop{Host: "hosta", Step: fmt.Sprint("step-", i), Reason: strings.Repeat("r", i%40)})
	}
	text, ok, err := fitted(&r, maxResultBytes)
	if err != nil || !ok || len(text) < maxResultBytes*2/3 {
		t.Fatalf("fits %v, %v, in %d bytes", ok, err, len(text))
	}
	if n := len(r.Hops); n == 0 || r.Hops[n-1].Step != "step-499" || r.Hops[0].Step != fmt.Sprint("step-", 500-n) {
		t.Errorf("%d steps are left: %+v", n, r.Hops)
	}
	want := fmt.Sprintf("hostc did not answer. %d of 500 steps, the oldest, are left out here.", 500-len(r.Hops))
	if r.Note != want || len(r.Hosts) != 1 {
		t.Errorf("the note is %q, want %q; hosts %+v", r.Note, want, r.Hosts)
	}
}
