package main

import (
	"context"
	"sync/atomic"
	"time"

	"fleetd/herdr"
)

const (
	tripsOfRound = 120             // one in flight
	tripsFor     = 4 * time.Second // of one round, which ends earlier then
	tripsOfPane  = 10              // with all panes at once
)

// percentiles are the two figures of one round of trips.
type percentiles struct{ p50, p99 []float64 }

func (p *percentiles) add(took []float64) {
	p.p50 = append(p.p50, percentile(took, 50))
	p.p99 = append(p.p99, percentile(took, 99))
}

// roundtrip is SEND → INJECTED across two hosts, against a bare persistent
// confirmed ping-pong on the same broker (two connections a side) with the
// bare calls of the paste procedure between ping and pong.
func roundtrip(ctx context.Context, h *host) error {
	p, err := newPair(ctx, h, "trip", agentCount)
	if err != nil {
		return err
	}
	defer p.close()
	var at atomic.Pointer[herdr.Pane] // where the bare side types
	raw, err := newPingPong(ctx, p.brokerURI, "trip", func(ctx context.Context) error {
		id := newID()
		return p.typeBare(ctx, *at.Load(), id, frame(id, string(body)))
	})
	if err != nil {
		return err
	}
	defer raw.close()
	bare := func(ctx context.Context, i int) (time.Duration, error) {
		ctx, cancel := context.WithTimeout(ctx, tripBound)
		defer cancel()
		at.Store(&p.panes[i])
		begin := time.Now()
		err := raw.trip(ctx, body)
		return time.Since(begin), err
	}
	ours := func(ctx context.Context, i int) (time.Duration, error) {
		d, err := p.inject(ctx, p.a, p.lead, p.workers[i])
		p.trip.end(true)
		return d, err
	}
	var o, b percentiles
	if err := p.inTurn(ctx, h, bare, ours, &b, &o); err != nil {
		return err
	}
	line{name: "roundtrip_p50", unit: "ms", ours: o.p50, base: b.p50, bars: []bar{ratioAtMost(1.8)}}.print()
	line{name: "roundtrip_p99", unit: "ms", ours: o.p99, base: b.p99, bars: []bar{ratioAtMost(2.5)}}.print()
	if h.steps {
		p.trip.report("roundtrip")
	}
	if err := p.roundtripMany(ctx, h); err != nil {
		return err
	}
	return p.untyped(ctx, h)
}

const untypedOfRound = 150

// untyped is the trip without its typing on both sides: what the gateways add
// to the broker, commits and signatures included.
func (p *pair) untyped(ctx context.Context, h *host) error {
	p.b.panes.skip.Store(true)
	raw, err := newPingPong(ctx, p.brokerURI, "untyped", func(context.Context) error { return nil })
	if err != nil {
		return err
	}
	defer raw.close()
	round := func(trip func(context.Context) (time.Duration, error)) func() (float64, error) {
		return func() (float64, error) {
			var took []float64
			for begin := time.Now(); len(took) < untypedOfRound && time.Since(begin) < tripsFor; {
				d, err := trip(ctx)
				if err != nil {
					return 0, err
				}
				took = append(took, millis(d))
			}
			return percentile(took, 50), nil
		}
	}
	o, b, err := h.sides(h.rounds, round(func(ctx context.Context) (time.Duration, error) {
		begin := time.Now()
		err := raw.trip(ctx, body)
		return time.Since(begin), err
	}), round(func(ctx context.Context) (time.Duration, error) {
		return p.inject(ctx, p.a, p.lead, p.workers[0])
	}))
	if err == nil {
		line{name: "roundtrip_untyped", unit: "ms", ours: o, base: b, note: "p50, both sides without the typing"}.print()
	}
	return err
}

// inTurn measures trips, one in flight, each to the next pane. Within a round
// the sides change with every message: on a machine that does other things as
// well, a moment hits both.
func (p *pair) inTurn(ctx context.Context, h *host, bare, ours func(context.Context, int) (time.Duration, error), b, o *percentiles) error {
	for round := range h.rounds + 1 {
		took, err := p.oneRound(ctx, round == 0, h.oursOnly, bare, ours)
		if err != nil {
			return err
		}
		if round == 0 { // to warm up
			p.trip.forget()
			continue
		}
		if !h.oursOnly {
			b.add(took[0])
		}
		o.add(took[1])
	}
	return nil
}

func (p *pair) oneRound(ctx context.Context, warm, oursOnly bool, bare, ours func(context.Context, int) (time.Duration, error)) (took [2][]float64, err error) {
	n := tripsOfRound
	if warm {
		n = len(p.panes)
	}
	begin := time.Now()
	for i := 0; i < n && time.Since(begin) < tripsFor; i++ {
		for side, trip := range [2]func(context.Context, int) (time.Duration, error){bare, ours} {
			if side == 0 && oursOnly {
				continue
			}
			pane, err := p.pane(ctx)
			if err != nil {
				return took, err
			}
			d, err := trip(ctx, pane)
			if err != nil {
				return took, err
			}
			took[side] = append(took[side], millis(d))
		}
	}
	return took, nil
}

// roundtripMany is the same with a message under way to every pane.
func (p *pair) roundtripMany(ctx context.Context, h *host) error {
	raws := make([]*pingPong, len(p.panes))
	for i, pane := range p.panes {
		raw, err := newPingPong(ctx, p.brokerURI, "many."+pane.ID, func(ctx context.Context) error {
			id := newID()
			return p.typeBare(ctx, pane, id, frame(id, string(body)))
		})
		if err != nil {
			return err
		}
		defer raw.close()
		raws[i] = raw
	}
	o, b, err := h.sides(min(h.rounds, 3), func() (float64, error) {
		took, err := p.everyPane(ctx, tripsOfPane, func(ctx context.Context, i int) (time.Duration, error) {
			begin := time.Now()
			err := raws[i].trip(ctx, body)
			return time.Since(begin), err
		})
		return percentile(took, 50), err
	}, func() (float64, error) {
		took, err := p.everyPane(ctx, tripsOfPane, func(ctx context.Context, i int) (time.Duration, error) {
			return p.inject(ctx, p.a, p.lead, p.workers[i])
		})
		return percentile(took, 50), err
	})
	if err == nil {
		line{name: "roundtrip_8_p50", unit: "ms", ours: o, base: b, note: "8 in flight, one a pane"}.print()
	}
	return err
}
