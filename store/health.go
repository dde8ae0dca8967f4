package store

import (
	"context"
	"time"

	"fleetd/fault"
)

const (
	probeFirst = 100 * time.Millisecond
	probeLast  = 2 * time.Second
	// hangBound is how long a commit may take before the store reads unhealthy.
	hangBound = 10 * time.Second
	// probeMax bounds the size of a probe, in bytes.
	probeMax = 2 << 20
)

// outage is a time in which commits fail, or the rest of a run that met damage.
type outage struct {
	since   time.Time
	began   time.Time // since, for measuring
	cause   error
	damaged bool // it does not end by itself
}

func (o *outage) fault() error {
	if o.damaged {
		return fault.Wrap(o.cause, fault.StoreUnavailable,
			"the store is damaged, as was found at %s, so nothing is taken and nothing will be before it is mended; stop the daemon, run \"bridged store check\", and restore a copy if it finds damage",
			o.since.Format(time.RFC3339))
	}
	return fault.Wrap(o.cause, fault.StoreUnavailable,
		"the store cannot be written since %s, so nothing is taken; free or mend the disk, work goes on by itself when writes succeed again",
		o.since.Format(time.RFC3339))
}

// Healthy returns nil, or STORE_UNAVAILABLE with the time since which commits
// fail, or at which damage was met, or for which the disk has not answered.
func (s *Store) Healthy() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down != nil {
		return s.down.fault()
	}
	if hung := time.Since(s.began); !s.began.IsZero() && hung > hangBound {
		return fault.New(fault.StoreUnavailable,
			"the disk has not answered a write of the store for %s, so what needs it waits; look after the disk, work goes on by itself when it answers",
			hung.Truncate(time.Second))
	}
	return nil
}

// committing notes that a commit begins, at the zero time that it is over.
func (s *Store) committing(since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began = since
}

// failed begins an outage: everybody who waits is told, and what nobody waits
// for goes back to the head of the queue. Who waits for the commit that failed
// is told once it is certain that it does not stand.
func (s *Store) failed(batch []*request, cause error) {
	s.mu.Lock()
	s.stats.Failures++
	s.failedBytes = s.lastBytes
	if s.down == nil {
		s.down = &outage{since: s.opts.Now(), cause: cause}
	}
	s.down.began = time.Now()
	s.mu.Unlock() // from here on nothing is taken
	s.noteDamage(cause)
	if !damage(cause) {
		s.log.Error("the store cannot be written", "error", cause)
	}
	revoked := s.revoke()
	if revoked != nil {
		s.noteDamage(revoked)
		s.log.Error("the store tells nobody yet what became of a commit that failed", "error", revoked)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var riders []*request
	for i, r := range append(batch, s.queue...) {
		switch {
		case r.done == nil:
			riders = append(riders, r)
		case i < len(batch) && revoked != nil:
			s.unsure = append(s.unsure, r)
		default:
			r.done <- s.down.fault()
		}
	}
	s.queue, s.riders = riders, len(riders)
}

// awaitWrites probes until a write works or the writer is to end.
func (s *Store) awaitWrites(ctx context.Context) bool {
	for wait := probeFirst; ; wait = min(2*wait, probeLast) {
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
		case <-s.stop:
		}
		t.Stop()
		if s.stopping(ctx) {
			return false
		}
		if s.fit() && s.probe() == nil && s.recovered() {
			return true
		}
	}
}

// probe writes as much as the commit that failed did, up to a bound: on a disk
// that is nearly full a few bytes still fit where a body does not. Twice as
// much, because a commit also writes the neighbours of its records anew.
func (s *Store) probe() error {
	size := min(2*s.failedBytes, probeMax)
	return s.update(func(tx *Tx) error {
		b, err := tx.bucket(bucketMeta)
		if err != nil {
			return err
		}
		value := make([]byte, 1+size)
		value[0] = recordVersion
		return tx.put(b, keyProbe, value)
	})
}

// recovered ends the outage, unless damage was met meanwhile. The probe's record
// is removed with the next commit.
func (s *Store) recovered() bool {
	s.Later(func(tx *Tx) error {
		b, err := tx.bucket(bucketMeta)
		if err != nil {
			return err
		}
		_, err = tx.delete(b, keyProbe)
		return err
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down.damaged {
		return false
	}
	s.log.Info("the store can be written again", "since", s.down.since)
	s.down = nil
	return true
}
