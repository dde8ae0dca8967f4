package e2e

import (
	"context"
	"fmt"
	"testing"

	"fleetd/mcp"
)

// A call repeated under its idempotency key after the answer was handed over
// gets the answer again, and sends nothing. Fails when it is told to wait for
// what it has had.
func TestARepeatedSendGetsItsAnswerAgain(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	a := addHost(t, ctx, newFleet(t, ""), "hosta")
	alice, bob := addMain(t, ctx, a, "alice"), addMain(t, ctx, a, "bob")
	ask := map[string]any{"to": "bob", "content": "how many?", "idempotency_key": "k1"}
	sent, err := alice.Send(ctx, ask)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bob.Poll(ctx, map[string]any{"wait_seconds": 20}); err != nil {
		t.Fatal(err)
	}
	var reply mcp.ReplyResult
	if err := bob.Call(ctx, "bridge_reply", map[string]any{"content": "three", "in_reply_to": sent.MsgID}, &reply); err != nil {
		t.Fatal(err)
	}
	pullReply(t, ctx, alice, sent, "three")
	eventually(t, ctx, func() error { // the drain is recorded behind its response
		again, err := alice.Send(ctx, ask)
		if err != nil || again.MsgID != sent.MsgID || again.State != "replied" || again.Reply == nil || again.Reply.Content != "three" {
			return fmt.Errorf("the repeated call came to %+v, %w", again, err)
		}
		return nil
	})
	rest, err := bob.Poll(ctx, map[string]any{})
	if err != nil || len(rest.Messages) != 0 {
		t.Errorf("bob got %+v, %v", rest, err)
	}
}

// A main with many unanswered briefs still sees what it fetched last. Fails
// when the newest are the ones that a long list leaves out.
func TestWhoamiShowsTheNewest(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	a := addHost(t, ctx, newFleet(t, ""), "hosta")
	alice, bob := addMain(t, ctx, a, "alice"), addMain(t, ctx, a, "bob")
	const many = 100
	last := ""
	for n := range many {
		sent, err := alice.Send(ctx, map[string]any{"to": "bob", "content": fmt.Sprint("brief ", n)})
		if err != nil {
			t.Fatal(err)
		}
		last = sent.MsgID
	}
	for got := 0; got < many; {
		r, err := bob.Poll(ctx, map[string]any{"wait_seconds": 20})
		if err != nil {
			t.Fatal(err)
		}
		for _, msg := range r.Messages {
			if got++; msg.Redelivered {
				t.Errorf("came again: %+v", msg)
			}
		}
	}
	eventually(t, ctx, func() error { // the last ones are recorded behind the response
		var who mcp.WhoamiResult
		if err := bob.Call(ctx, "bridge_whoami", map[string]any{}, &who); err != nil {
			return err
		}
		if len(who.Drained) == 0 || who.Drained[0].MsgID != last {
			return fmt.Errorf("fetched last was %s, listed are %d: %.200v", last, len(who.Drained), who.Drained)
		}
		if n := len(who.OpenBriefs); n == 0 || who.OpenBriefs[n-1].MsgID != last || who.Note == "" {
			return fmt.Errorf("the newest brief is %s, listed are %d: %v, noted is %q", last, n, who.OpenBriefs, who.Note)
		}
		return nil
	})
}
