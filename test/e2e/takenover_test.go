package e2e

import (
	"context"
	"fmt"
	"testing"

	"fleetd/fabric/envelope"
	"fleetd/mcp"
	"fleetd/test/fleet"
	"fleetd/test/rabbit"
)

// Whoever has a trusted gateway and a login sees the ids of others' messages and
// signs for entities of his own. Fails when one of them answers, ends or takes
// over a call that waits for somebody else on another host.
func TestATakenOverHostAnswersForNobodyElse(t *testing.T) {
	t.Attr("threat", "G1 G3")
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*bound)
	defer cancel()
	f := newFleet(t, rabbit.URI(t))
	a, b, c := addHost(t, ctx, f, "hosta"), addHost(t, ctx, f, "hostb"), addHost(t, ctx, f, "hostc")
	if err := f.TrustEachOther(); err != nil {
		t.Fatal(err)
	}
	for _, h := range []*fleet.Host{a, b, c} {
		if err := h.Ready(ctx); err != nil {
			t.Fatal(err)
		}
	}
	lead, bob, mallory := addMain(t, ctx, a, "lead"), addMain(t, ctx, b, "bob"), addMain(t, ctx, c, "mallory")
	seen(t, ctx, lead, "bob@hostb", "mallory@hostc")
	thief := newAttacker(t, &stage{a: c, b: a, lead: mallory}, f.Prefix)

	type sent struct {
		r   mcp.SendResult
		err error
	}
	answer := make(chan sent, 1)
	go func() {
		r, err := lead.Send(ctx, map[string]any{"to": "bob@hostb", "content": "may I?", "wait_seconds": longest})
		answer <- sent{r, err}
	}()
	asked := polled(t, ctx, bob, "SEND")
	forge := func(key string, kind envelope.Kind, body string, change func(*envelope.Envelope)) {
		t.Helper()
		e := thief.letter(t, lead.GID, body, func(e *envelope.Envelope) {
			e.Kind, e.Signer, e.InReplyTo, e.TraceID = kind, "hostc", asked.MsgID, asked.TraceID
			e.ExpiresAt = e.TS + bound.Milliseconds()
			if change != nil {
				change(e)
			}
		})
		thief.publish(t, ctx, thief.names.Msg(), key, e, nil)
	}
	failed := func(e *envelope.Envelope) { e.Reason = "PANE_GONE" }
	asBob := func(e *envelope.Envelope) { e.From = bob.GID }
	forge(lead.GID+".signal", envelope.Ask, "which password?", func(e *envelope.Envelope) { e.TurnID = e.MsgID })
	forge(lead.GID+".signal", envelope.Abandoned, "", failed)
	forge(lead.GID, envelope.Failed, "", failed)
	forge(lead.GID, envelope.Reply, "yes, says bob", asBob)
	forge(lead.GID, envelope.Reply, "yes", nil)
	// The last is mail of mallory's own, and comes as that.
	ended := func() {
		t.Helper()
		select {
		case got := <-answer:
			t.Fatalf("the call that waits for bob ended with %+v, %v", got.r, got.err)
		default:
		}
	}
	eventually(t, ctx, func() error {
		ended()
		r, err := a.API("lead").Poll(ctx, mcp.PollArgs{WaitSeconds: 1})
		if err != nil {
			return err
		}
		for _, m := range r.Messages {
			if m.Kind == "REPLY" && m.Content == "yes" && m.From == "mallory@hostc" {
				return nil
			}
		}
		return fmt.Errorf("lead got %+v", r.Messages)
	})
	ended()
	if err := bob.Call(ctx, "bridge_reply", map[string]any{"content": "no", "in_reply_to": asked.MsgID}, new(mcp.ReplyResult)); err != nil {
		t.Fatal(err)
	}
	if got := <-answer; got.err != nil || got.r.State != "replied" || got.r.Reply == nil || got.r.Reply.Content != "no" {
		t.Errorf("lead's call came to %+v, %v", got.r, got.err)
	}
}
