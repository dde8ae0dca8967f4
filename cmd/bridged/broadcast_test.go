package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleetd/mcp"
)

// Fault: a flag of broadcast, groups, ask or answer fills another argument, or
// what came back is not printed.
func TestConversationVerbsSayWhatWasAsked(t *testing.T) {
	w := newWorld(t)
	w.gw.spread = mcp.BroadcastResult{
		MsgID: "m1", TraceID: "t1", Group: "crew", Summary: "2 recipients: 1 not_sent, 1 injected", Expires: "later",
		Recipients: []mcp.Recipient{{To: "a@hostb", State: "not_sent", Reason: "BROKER_DOWN"}, {To: "b@hosta", State: "injected"}},
		Error:      &mcp.Trouble{Code: "BROKER_DOWN", Message: "no link"},
	}
	w.want(result{out: "summary\t2 recipients: 1 not_sent, 1 injected\ngroup\tcrew\nmsg\tm1\ntrace\tt1\nexpires\tlater\n" +
		"error\tBROKER_DOWN: no link\n\nrecipient\tstate\treason\na@hostb\tnot_sent\tBROKER_DOWN\nb@hosta\tinjected\t\n"},
		"broadcast", "freeze", "--group", "crew", "--wait", "50", "--expires=2m", "--key", "k")
	w.gw.groups = mcp.GroupsResult{Name: "rev", GID: "g1", Groups: []string{"crew", "drafts"}}
	w.want(result{out: "name\trev\ngid\tg1\ngroups\tcrew drafts\n"}, "groups", "rev", "--join", "crew,drafts", "--leave", "old")
	w.gw.ask = mcp.AskResult{State: "answered", Answer: "blanks"}
	w.want(result{out: "blanks\n"}, "ask", "tabs?", "--to", "lead", "--timeout", "30")
	w.gw.send = mcp.SendResult{
		State: "ask", MsgID: "m3", TraceID: "t1", To: "rev@hosta", TurnID: "u2",
		Question: &mcp.Message{Kind: "ASK", From: "rev@hosta", MsgID: "m4", TraceID: "t1", TurnID: "u2", Content: "and here?"},
	}
	w.want(result{out: "state\task\nto\trev@hosta\nmsg\tm3\ntrace\tt1\n\n-- ASK | from rev@hosta | msg m4 | trace t1 | turn u2\nand here?\n"},
		"answer", "u1", "blanks", "--wait", "1m")
	want := []any{
		mcp.BroadcastArgs{Content: "freeze", Group: "crew", WaitSeconds: 50, ExpiresInSeconds: 120, IdempotencyKey: "k"},
		mcp.GroupsArgs{Name: "rev", Add: []string{"crew", "drafts"}, Remove: []string{"old"}},
		mcp.AskArgs{Question: "tabs?", To: "lead", TimeoutSeconds: 30},
		mcp.AnswerArgs{TurnID: "u1", Content: "blanks", WaitSeconds: 60},
	}
	if d := cmp.Diff(want, w.gw.asked); d != "" {
		t.Error(d)
	}
}
