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
// arrives without anybody looking. A client that takes notifications is told
// there too. Fails when held mail is announced nowhere, or again after it was
// fetched.
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
	notes, end, err := m.Listen(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer end()
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
	select {
	case note := <-notes:
		data, _ := note["data"].(map[string]any)
		if data["held"] != 1.0 || data["from"] != "reviewer@hostb" || note["level"] != "notice" {
			t.Errorf("the client that listens was told %v", note)
		}
	case <-ctx.Done():
		t.Fatal("the client that listens was told nothing")
	}
	prompts, err := seat.Prompts()
	if err != nil || len(prompts) != 1 || !strings.Contains(prompts[0], "bridge_poll") || strings.Contains(prompts[0], "looks good") {
		t.Fatalf("the pane got %q (%v), want one line that says to ask", prompts, err)
	}
	if r, err := m.Poll(ctx, map[string]any{}); err != nil || r.Held != 0 {
		t.Fatalf("after that %+v (%v) is held", r, err)
	}
}
