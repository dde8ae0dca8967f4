package main

import (
	"context"
	"time"
)

// localInject is a send on one host until it is known to be injected, against
// the bare calls of the paste procedure.
func localInject(ctx context.Context, h *host) error {
	p, err := newPair(ctx, h, "local", agentCount)
	if err != nil {
		return err
	}
	defer p.close()
	bare := func(ctx context.Context, i int) (time.Duration, error) {
		ctx, cancel := context.WithTimeout(ctx, tripBound)
		defer cancel()
		id := newID()
		begin := time.Now()
		err := p.typeBare(ctx, p.panes[i], id, frame(id, string(body)))
		return time.Since(begin), err
	}
	send := func(ctx context.Context, i int) (time.Duration, error) {
		return p.inject(ctx, p.b, p.boss, p.workers[i])
	}
	var o, b percentiles
	err = p.inTurn(ctx, h, bare, func(ctx context.Context, i int) (time.Duration, error) {
		d, err := send(ctx, i)
		p.trip.end(false)
		return d, err
	}, &b, &o)
	if err != nil {
		return err
	}
	line{name: "local_inject", unit: "ms", ours: o.p50, base: b.p50, bars: []bar{ratioAtMost(1.2)}, note: "p50"}.print()
	line{name: "local_inject_p99", unit: "ms", ours: o.p99, base: b.p99}.print()
	if h.steps {
		p.trip.report("local_inject")
	}
	side := func(fn func(context.Context, int) (time.Duration, error)) func() (float64, error) {
		return func() (float64, error) {
			took, err := p.everyPane(ctx, tripsOfPane, fn)
			return percentile(took, 50), err
		}
	}
	many, base, err := h.sides(min(h.rounds, 3), side(bare), side(send))
	if err == nil {
		line{name: "local_inject_8", unit: "ms", ours: many, base: base, note: "p50, 8 in flight, one a pane"}.print()
	}
	return err
}
