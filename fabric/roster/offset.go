package roster

import (
	"slices"
	"time"
)

const (
	samples    = 7               // heartbeats over which a peer's clock is judged
	enough     = 3               // of them before anything is said
	skewLimit  = 5 * time.Second // beyond it the difference is warned about (design §8)
	skewAgreed = 4 * time.Second // below it a later warning is due again
)

// offset estimates how far a peer's wall clock is ahead of ours: the median
// over the last heartbeats, so that one late message says nothing. The way
// through the broker makes a peer look that much behind.
type offset struct {
	seen   []time.Duration // newest last
	warned bool
}

// add takes one heartbeat and reports whether the difference is to be warned
// about now.
func (o *offset) add(ahead time.Duration) (warn bool) {
	if len(o.seen) == samples {
		o.seen = slices.Delete(o.seen, 0, 1)
	}
	o.seen = append(o.seen, ahead)
	if len(o.seen) < enough {
		return false
	}
	switch skew := o.estimate().Abs(); {
	case skew < skewAgreed:
		o.warned = false
	case skew > skewLimit && !o.warned:
		o.warned = true
		return true
	}
	return false
}

// estimate is positive for a peer whose clock is ahead.
func (o *offset) estimate() time.Duration {
	if len(o.seen) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(o.seen))
	return sorted[len(sorted)/2]
}
