package e2e

import (
	"context"
	"fmt"
	"testing"

	"fleetd/fault"
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
	if _, err := bob.Poll(ctx, map[string]any{"wait_seconds": longest}); err != nil {
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

// A reply repeated under its idempotency key, without a word of which brief it
// answers, is the first reply, whatever else is open by then and after a
// restart. Fails when it is refused, answers another brief, or takes other
// content for the same.
func TestARepeatedReplyIsTheFirst(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	a := addHost(t, ctx, newFleet(t, ""), "hosta")
	alice, bob := addMain(t, ctx, a, "alice"), addMain(t, ctx, a, "bob")
	brief := func(content string) mcp.SendResult {
		t.Helper()
		sent, err := alice.Send(ctx, map[string]any{"to": "bob", "content": content})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := bob.Poll(ctx, map[string]any{"wait_seconds": longest}); err != nil || len(got.Messages) != 1 {
			t.Fatalf("bob got %+v, %v", got, err)
		}
		return sent
	}
	reply := func(content string) (r mcp.ReplyResult, err error) {
		err = bob.Call(ctx, "bridge_reply", map[string]any{"content": content, "idempotency_key": "k1"}, &r)
		return r, err
	}
	sent := brief("how many?")
	first, err := reply("three")
	if err != nil || first.InReplyTo != sent.MsgID {
		t.Fatalf("%+v, %v", first, err)
	}
	again := func(when string) {
		t.Helper()
		r, err := reply("three")
		if err != nil || r.MsgID != first.MsgID || r.State != first.State || r.InReplyTo != sent.MsgID {
			t.Errorf("%s: the repeated reply came to %+v, %v; the first was %+v", when, r, err, first)
		}
		if r, err := reply("four"); !fault.Is(err, fault.Conflict) {
			t.Errorf("%s: other content came to %+v, %v", when, r, err)
		}
	}
	again("nothing open")
	brief("and now?")
	again("another brief open")
	restart(t, ctx, a)
	reconnect(t, ctx, alice)
	reconnect(t, ctx, bob)
	again("after a restart")
	pullReply(t, ctx, alice, sent, "three")
	if rest, err := alice.Poll(ctx, map[string]any{}); err != nil || len(rest.Messages) != 0 {
		t.Errorf("alice got more: %+v, %v", rest, err)
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
		r, err := bob.Poll(ctx, map[string]any{"wait_seconds": longest})
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
