package fabric

import (
	"maps"
	"sync"
	"sync/atomic"
)

// Stats are the counters of the fabric since its start; Parked is a gauge.
// Refusals has its own, by reason.
type Stats struct {
	Confirmed, Returned, Nacked, InDoubt, Refused uint64 // publishes by outcome
	SessionsLost                                  uint64
	Dropped                                       uint64 // signals and requests of unknown home from a silent host
	UnknownKinds                                  uint64 // ignored messages of a newer minor version
	Unsupported                                   uint64 // control messages nobody serves
	Parked                                        int64  // messages that wait for their sender's home
	Delivered                                     uint64 // verified mail handed on
	Signals                                       uint64 // verified signals handed on
	ForeignDead                                   uint64 // dead letters that are not ours
	HandedBack                                    uint64 // deliveries that were held for long and taken again
	Dead                                          map[DeadKey]uint64
}

// DeadKey counts our own dead letters by what the broker says of them.
type DeadKey struct{ Queue, Reason string }

type stats struct {
	outcomes                                  [Refused + 1]atomic.Uint64
	sessions, dropped, unknownKinds           atomic.Uint64
	unsupported, delivered, signals, foreigns atomic.Uint64
	handedBack                                atomic.Uint64
	parked                                    atomic.Int64

	mu   sync.Mutex
	dead map[DeadKey]uint64
}

func newStats() *stats { return &stats{dead: map[DeadKey]uint64{}} }

func (s *stats) published(o Outcome) { s.outcomes[o].Add(1) }

// deadMost bounds the counters: queue names come from a header.
const deadMost = 4096

func (s *stats) died(queue, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := DeadKey{Queue: queue, Reason: reason}
	if _, ok := s.dead[k]; !ok && len(s.dead) >= deadMost {
		k = DeadKey{Queue: "other", Reason: "other"}
	}
	s.dead[k]++
}

// Stats returns a snapshot of the counters.
func (f *Fabric) Stats() Stats {
	s := f.stats
	s.mu.Lock()
	defer s.mu.Unlock()
	return Stats{
		Confirmed: s.outcomes[Confirmed].Load(), Returned: s.outcomes[Returned].Load(),
		Nacked: s.outcomes[Nacked].Load(), InDoubt: s.outcomes[InDoubt].Load(), Refused: s.outcomes[Refused].Load(),
		SessionsLost: s.sessions.Load(), Dropped: s.dropped.Load(), UnknownKinds: s.unknownKinds.Load(),
		Unsupported: s.unsupported.Load(), Parked: s.parked.Load(), Delivered: s.delivered.Load(),
		Signals: s.signals.Load(), ForeignDead: s.foreigns.Load(), HandedBack: s.handedBack.Load(), Dead: maps.Clone(s.dead),
	}
}
