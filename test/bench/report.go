package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// A bar is what a line should reach.
type bar struct {
	text string
	met  func(ours, ratio float64) bool
}

func ratioAtMost(x float64) bar {
	return bar{fmt.Sprintf("ratio ≤ %g", x), func(_, ratio float64) bool { return ratio <= x }}
}

func ratioAtLeast(x float64) bar {
	return bar{fmt.Sprintf("ratio ≥ %g", x), func(_, ratio float64) bool { return ratio >= x }}
}

func oursBelow(x float64, unit string) bar {
	return bar{fmt.Sprintf("ours ≤ %g %s", x, unit), func(ours, _ float64) bool { return ours <= x }}
}

// A line is one measurement: a figure of each side from every round.
type line struct {
	name       string
	unit       string
	ours, base []float64 // base is empty where there is no raw path
	bars       []bar
	note       string
}

func (l line) print() { fmt.Println(l) }

// String is the line as people and scripts read it. The ratio is the median of
// the rounds' own ratios: a machine that slows down slows both sides of a
// round. min and max are those of the ratios, of ours where there is no base.
func (l line) String() string {
	ours, base, ratio := median(l.ours), 0.0, 0.0
	spread := l.ours
	fields := []string{"bench " + l.name, "ours=" + number(ours)}
	if len(l.base) > 0 {
		spread = nil
		for i := range min(len(l.ours), len(l.base)) {
			spread = append(spread, l.ours[i]/l.base[i])
		}
		base, ratio = median(l.base), median(spread)
		fields = append(fields, "base="+number(base), "ratio="+number(ratio))
	} else {
		fields = append(fields, "base=-", "ratio=-")
	}
	fields = append(fields, "unit="+l.unit, fmt.Sprintf("(median of %d rounds, min %s max %s)",
		len(spread), number(slices.Min(spread)), number(slices.Max(spread))))
	for _, b := range l.bars {
		verdict := "reached"
		if !b.met(ours, ratio) {
			verdict = "missed"
		}
		fields = append(fields, fmt.Sprintf("[%s: %s]", b.text, verdict))
	}
	if l.note != "" {
		fields = append(fields, "— "+l.note)
	}
	return strings.Join(fields, " ")
}

func number(x float64) string {
	switch {
	case x >= 1000:
		return fmt.Sprintf("%.0f", x)
	case x >= 10:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.3f", x)
}

func median(xs []float64) float64 { return percentile(xs, 50) }

// percentile is the nearest rank; of an even number of values the median is the
// mean of the two in the middle.
func percentile(xs []float64, p float64) float64 {
	if len(xs) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(xs))
	n := len(s)
	if p == 50 && n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[max(0, int(math.Ceil(float64(n)*p/100))-1)]
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// leastRounds are measured even where time is short.
const leastRounds = 2

// lineBound is how long one line goes on with further rounds: a machine that is
// busy with other things gets fewer, and the run still ends.
const lineBound = 12 * time.Second

// sides runs both sides in turn for every round, the raw one first in every
// other round, and collects a figure of each.
func (h *host) sides(rounds int, base, ours func() (float64, error)) (o, b []float64, err error) {
	run := func(fn func() (float64, error), into *[]float64) {
		if err == nil {
			var x float64
			if x, err = fn(); err == nil {
				*into = append(*into, x)
			}
		}
	}
	begin := time.Now()
	for i := 0; i < rounds && err == nil && (i < leastRounds || time.Since(begin) < lineBound); i++ {
		if i%2 == 0 && !h.oursOnly {
			run(base, &b)
		}
		run(ours, &o)
		if i%2 == 1 && !h.oursOnly {
			run(base, &b)
		}
	}
	return o, b, err
}
