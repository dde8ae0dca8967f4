package herdr

import (
	"context"
	"testing"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/test/herdrsim"
)

// Fault: the monitor does not see on a real herdr what it sees on a scripted
// one.
func TestSimMonitor(t *testing.T) {
	s := simulate(t, herdrsim.Options{}, "claude")
	m := &Monitor{Client: s.client, Interval: 20 * time.Millisecond, Down: 50 * time.Millisecond}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	pane := func() PaneState { return m.View().Panes[s.pane.ID] }
	s.eventually("idle", func() bool {
		p := pane()
		return p.Kind == "claude" && p.Terminal == s.pane.Terminal && p.Status != StatusWorking
	})
	s.do("busy")
	s.eventually("working", func() bool { return pane().Status == StatusWorking })
	s.in.Monitor = m
	s.in.Timing.Recheck = time.Hour
	want(t, s.inject(brief("x"), onClosed(envelope.Busy, func() { s.do("idle") })), Injected, "")
	s.received(brief("x"))
	s.srv.Crash()
	s.eventually("down", func() bool { return !m.View().Up })
}
