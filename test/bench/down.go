package main

import (
	"context"
	"fmt"
	"time"

	"fleetd/fault"
	"fleetd/outbox"
)

const downSends = 200

// sendBrokerDown is a remote send while the broker is down: it says so at once
// and writes nothing. There is no raw path to that.
func sendBrokerDown(ctx context.Context, h *host) error {
	p, err := newPair(ctx, h, "down", 0)
	if err != nil {
		return err
	}
	defer p.close()
	h.node.Kill()
	err = until(ctx, func() error {
		if ok, _ := (link{p.a}).Connected(); ok {
			return fmt.Errorf("the loss of the broker to be seen")
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := p.a.store.Flush(ctx); err != nil {
		return err
	}
	before := p.a.store.Stats()
	var longest []float64
	for range h.rounds {
		var took []float64
		for range downSends {
			begin := time.Now()
			_, err := p.a.outbox.Send(ctx, outbox.Request{From: p.lead, To: "boss@hostb", Content: body})
			took = append(took, millis(time.Since(begin)))
			if !fault.Is(err, fault.BrokerDown) {
				return fmt.Errorf("a send without a broker returned %w", err)
			}
		}
		longest = append(longest, percentile(took, 100))
	}
	if err := p.a.store.Flush(ctx); err != nil {
		return err
	}
	commits := p.a.store.Stats().Commits - before.Commits
	note := fmt.Sprintf("the longest of %d sends a round; commits meanwhile: %d", downSends, commits)
	nothing := bar{"nothing written", func(float64, float64) bool { return commits == 0 }}
	line{name: "send_broker_down", unit: "ms", ours: longest, bars: []bar{oursBelow(10, "ms"), nothing}, note: note}.print()
	node := h.node
	h.node = nil // whoever needs a broker after this starts another
	return node.Stop()
}
