package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"fleetd/mcp"
)

// A main whose client sits in a pane and does not ask is told by one line there
// that mail waits, and fetches it: the answer of a worker on the other host
// arrives without anybody looking. Fails when held mail is announced nowhere, or
// again after it was fetched.
func TestHeldMailIsAnnouncedInTheMainsPane(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*bound)
	defer cancel()
	a, b := twoHosts(t, ctx)
	addWorker(t, ctx, b, "reviewer", "--reply-with", "looks good")
	m := addMain(t, ctx, a, "lead")
	seat, err := a.Seat(ctx, m)
	if err != nil {
		t.Fatal(err)
	}
	seen(t, ctx, m, "reviewer@hostb")
	for { // until an answer is not so quick that the send itself brings it
		sent, err := m.Send(ctx, map[string]any{"to": "reviewer@hostb", "content": "please review"})
		if err != nil {
			t.Fatal(err)
		}
		if sent.State != mcp.StateReplied {
			break
		}
	}
	polled := func() string {
		events, err := seat.Events()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if e.Event == "call" && e.Tool == "bridge_poll" && strings.Contains(e.Text, "looks good") {
				return e.Text
			}
		}
		return ""
	}
	eventually(t, ctx, func() error {
		if polled() == "" {
			return fmt.Errorf("the answer was not fetched")
		}
		return nil
	})
	prompts, err := seat.Prompts()
	if err != nil || len(prompts) != 1 || !strings.Contains(prompts[0], "bridge_poll") || strings.Contains(prompts[0], "looks good") {
		t.Fatalf("the pane got %q (%v), want one line that says to ask", prompts, err)
	}
	if r, err := m.Poll(ctx, map[string]any{}); err != nil || r.Held != 0 {
		t.Fatalf("after that %+v (%v) is held", r, err)
	}
}
