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
	var calls [2][]float64 // ours, bare
	counted := func(side int, fn func(context.Context, int) (time.Duration, error)) func(context.Context, int) (time.Duration, error) {
		return func(ctx context.Context, i int) (time.Duration, error) {
			before := p.calls()
			d, err := fn(ctx, i)
			calls[side] = append(calls[side], float64(p.calls()-before))
			return d, err
		}
	}
	err = p.inTurn(ctx, h, counted(1, bare), counted(0, func(ctx context.Context, i int) (time.Duration, error) {
		d, err := send(ctx, i)
		p.trip.end(false)
		return d, err
	}), &b, &o)
	if err != nil {
		return err
	}
	line{name: "local_inject", unit: "ms", ours: o.p50, base: b.p50, bars: []bar{ratioAtMost(1.2)}, note: "p50"}.print()
	line{name: "local_inject_p99", unit: "ms", ours: o.p99, base: b.p99}.print()
	line{name: "local_inject_calls", unit: "calls", ours: calls[0], base: calls[1], note: "of herdr, for one message; how often the agent was still drawing is part of it"}.print()
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
