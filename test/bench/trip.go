package main

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// trip notes when the message that is under way passed each step. It means
// something only while there is one message at a time.
type trip struct {
	mu        sync.Mutex
	sent      time.Time // Send was called
	intended  time.Time // the intent is committed
	confirmed time.Time // the broker's word came
	arrived   time.Time // the recipient's gateway was handed it
	begun     time.Time // the injector was called
	opened    time.Time // the gate is open
	recorded  time.Time // injecting is committed
	typed     time.Time // the injector returned
	told      time.Time // the sender knows

	shut     map[string]int // reasons for which a gate was closed
	segments map[string][]float64
	order    []string
}

func (t *trip) mark(at *time.Time) {
	t.mu.Lock()
	*at = time.Now()
	t.mu.Unlock()
}

func (t *trip) closed(reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.shut == nil {
		t.shut = map[string]int{}
	}
	t.shut[reason]++
}

// end files the steps of one trip.
func (t *trip) end(remote bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.sent
	add := func(what string, next time.Time) {
		if t.segments == nil {
			t.segments = map[string][]float64{}
		}
		if _, known := t.segments[what]; !known {
			t.order = append(t.order, what)
		}
		t.segments[what] = append(t.segments[what], millis(next.Sub(at)))
		at = next
	}
	if remote {
		add("commit intent", t.intended)
		add("sign, broker, verify", t.arrived)
		add("accept", t.begun)
	} else {
		add("reserve", t.begun)
	}
	add("gate", t.opened)
	if remote {
		add("commit injecting", t.recorded)
	} else {
		add("commit held, beside the gate, and injecting", t.recorded)
	}
	add("type", t.typed)
	add("tell the sender", t.told)
}

// report prints the median of each step and forgets them.
func (t *trip) report(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var parts []string
	for _, what := range t.order {
		parts = append(parts, fmt.Sprintf("%s %.3f", what, median(t.segments[what])))
	}
	fmt.Printf("  steps of %s, ms: %s; gates closed: %v\n", name, strings.Join(parts, " · "), t.shut)
	t.segments, t.order, t.shut = nil, nil, nil
}

// forget drops what was filed, after a warm-up.
func (t *trip) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.segments, t.order, t.shut = nil, nil, nil
}
