package main

import (
	"math"
	"testing"
)

// Fails if the ratio is that of the medians instead of the rounds' own, a bar
// that is missed reads as reached, or a line has another form than people and
// scripts look for.
func TestALineSaysWhatWasMeasured(t *testing.T) {
	l := line{
		name: "x", unit: "ms", ours: []float64{2, 30, 8}, base: []float64{1, 20, 2},
		bars: []bar{ratioAtMost(1.9), oursBelow(8, "ms")}, note: "so",
	}
	want := "bench x ours=8.000 base=2.000 ratio=2.000 unit=ms (median of 3 rounds, min 1.500 max 4.000) [ratio ≤ 1.9: missed] [ours ≤ 8 ms: reached] — so"
	if got := l.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	alone := line{name: "y", unit: "ms", ours: []float64{1, 3}}
	if got, want := alone.String(), "bench y ours=2.000 base=- ratio=- unit=ms (median of 2 rounds, min 1.000 max 3.000)"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Fails if a percentile is off by one or an order of the values is relied on.
func TestPercentileIsTheNearestRank(t *testing.T) {
	var hundred []float64
	for i := range 100 {
		hundred = append(hundred, float64(100-i)) // 100 … 1
	}
	for p, want := range map[float64]float64{0: 1, 50: 50.5, 99: 99, 100: 100} {
		if got := percentile(hundred, p); got != want {
			t.Errorf("p%g of 1…100 is %g, want %g", p, got, want)
		}
	}
	if got := percentile([]float64{7}, 99); got != 7 {
		t.Errorf("p99 of one value is %g", got)
	}
	if got := percentile(nil, 50); got != 0 || math.IsNaN(got) {
		t.Errorf("of nothing it is %g", got)
	}
}
