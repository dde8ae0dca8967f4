package main

import (
	"encoding/json"
	"strings"
	"testing"

	"fleetd/fault"
	"fleetd/mcp"
)

// The daemon's sentences name tools and arguments, for agents. Fails when one
// reaches a person at a shell with a name that no command or flag has, or when
// what people wrote to each other is changed.
func TestSentencesNameCommandsAndFlags(t *testing.T) {
	for said, want := range map[string]string{
		"nobody is known as \"x\"; bridge_roster lists everyone":                                           "nobody is known as \"x\"; bridged roster lists everyone",
		`"wait_seconds" of bridge_send must be from 0 to 240.`:                                             "--wait of bridged send must be from 0 to 240.",
		"Say queue_if_offline to leave it in its inbox":                                                    "Say --queue-if-offline to leave it in its inbox",
		"choose expires_in_seconds within that":                                                            "choose --expires within that",
		"several briefs are open, so say with in_reply_to which one you answer":                            "several briefs are open, so say with --to-msg which one you answer",
		`Ask again with idempotency_key "k"`:                                                               `Ask again with --key "k"`,
		`Say in "to" who it is; bridge_whoami lists your open briefs`:                                      `Say in --to who it is; bridged whoami lists your open briefs`,
		"The agent is blocked until you answer: call bridge_answer with turn_id 01a2. It waits until noon": "The agent is blocked until you answer: run bridged answer 01a2. It waits until noon",
	} {
		w := newWorld(t)
		w.gw.err = fault.New(fault.BadRequest, "%s", said)
		w.want(result{code: 1, err: "bridged: BAD_REQUEST: " + want + "\n"}, "whoami")
		var got struct{ Error struct{ Message string } }
		if err := json.Unmarshal([]byte(w.run("whoami", "--json").err), &got); err != nil || got.Error.Message != want {
			t.Errorf("in JSON: %v: %s", err, got.Error.Message)
		}
	}
	w := newWorld(t)
	w.gw.poll = mcp.PollResult{Note: "Call bridge_poll again.", Messages: []mcp.Message{
		{Kind: "SEND", From: "ann@hosta", Content: "try bridge_send"},
		{Kind: "FAILED", From: "ann@hosta", Content: "did not arrive. Ask bridge_roster who is there.", Note: "Too long to show here; get it with bridge_read from offset 0."},
	}}
	r := w.run("poll")
	for _, want := range []string{"\ntry bridge_send\n", "Ask bridged roster who is there", "get it with bridged read.\n"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("nothing says %q: %s", want, r.out)
		}
	}
	if r.err != "Run bridged poll again.\n" {
		t.Errorf("standard error says %s", r.err)
	}
	w.gw.send = mcp.SendResult{State: "pending", Note: "fetch it with bridge_poll."}
	w.want(result{out: "state\tpending\nnote\tfetch it with bridged poll.\n"}, "send", "x", "y")
}
