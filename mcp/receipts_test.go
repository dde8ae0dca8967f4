package mcp

import (
	"context"
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"fleetd/fault"
)

// Fails if a batch that the next hop has to confirm counts as handed over
// before it did, if another entity can confirm it, or if it can be confirmed
// twice.
func TestExplicitReceipt(t *testing.T) {
	settled := make(chan bool, 1)
	g := &fakeGateway{poll: func(ctx context.Context, _ PollArgs) (PollResult, error) {
		OnWritten(ctx, func(written bool) { settled <- written })
		return PollResult{}, nil
	}}
	r := start(t, with(g), withSocket(t))
	confirm := func(id, as string, written bool) int {
		body, _ := json.Marshal(ReceiptArgs{ID: id, Written: written})
		status, _, _ := r.doSocket(t, request{method: "POST", path: "/api/v1/receipt", body: string(body), header: map[string]string{"Authorization": "Bearer " + as}})
		return status
	}
	poll := request{method: "POST", path: "/api/v1/poll", body: "{}", header: map[string]string{"Authorization": "Bearer tok-ann", ReceiptHeader: ReceiptExplicit}}
	for _, written := range []bool{true, false} {
		_, _, header := r.doSocket(t, poll)
		id := header.Get(ReceiptHeader)
		if status := confirm(id, "tok-bob", true); status != 409 {
			t.Errorf("another entity's confirmation: %d", status)
		}
		select {
		case got := <-settled:
			t.Fatalf("settled as %v before it was confirmed", got)
		default:
		}
		if status := confirm(id, "tok-ann", written); status != 200 {
			t.Errorf("the confirmation: %d", status)
		}
		if got := receive(t, "the receipt", settled); got != written {
			t.Errorf("confirmed %v, settled %v", written, got)
		}
		if status := confirm(id, "tok-ann", true); status != 409 {
			t.Errorf("a second confirmation: %d", status)
		}
	}

	_, _, _ = r.doSocket(t, poll)
	r.stop()
	if receive(t, "the receipt", settled) {
		t.Error("what nobody confirmed counts as handed over after a stop")
	}
}

// Fails if a batch whose next hop is silent is never offered again.
func TestSilentReceiptCountsAsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r receipts
		settled := make(chan bool, 1)
		ctx, receipt := WithReceipt(t.Context())
		OnWritten(ctx, func(written bool) { settled <- written })
		id := r.hold("gid-ann", receipt)
		time.Sleep(receiptTimeout - time.Second)
		synctest.Wait()
		if len(settled) != 0 {
			t.Fatal("settled too early")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(settled) != 1 || <-settled {
			t.Error("a silent hop's batch does not count as lost in time")
		}
		if err := r.confirm("gid-ann", id, true); !fault.Is(err, fault.Conflict) {
			t.Errorf("a late confirmation: %v", err)
		}
	})
}

// Fails if a session stays bound for ever, so that memory grows with every
// client there ever was, or is forgotten while it is used.
func TestSessionsAreForgotten(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	s := sessions{now: func() time.Time { return now }, bound: map[string]boundSession{}, pruned: now}
	s.admit("used", "ann")
	s.admit("left", "ann")
	for range 30 {
		now = now.Add(time.Hour)
		if s.admit("used", "bob") || !s.admit("used", "ann") {
			t.Fatal("a session in use changed hands")
		}
	}
	if _, ok := s.bound["left"]; ok || len(s.bound) != 1 {
		t.Errorf("%d sessions are remembered", len(s.bound))
	}
}
