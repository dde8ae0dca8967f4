package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleetd/fault"
	"fleetd/mcp"
)

// fakeLetters is the fake daemon's dead letters.
type fakeLetters struct {
	list        mcp.ListDeadLettersResult
	show        mcp.ShowDeadLetterResult
	redelivered mcp.RedeliverDeadLettersResult
	purged      mcp.PurgeDeadLettersResult
}

func (g *fakeDaemon) ListDeadLetters(_ context.Context, a mcp.ListDeadLettersArgs) (mcp.ListDeadLettersResult, error) {
	g.note(a)
	return g.list, g.err
}

func (g *fakeDaemon) ShowDeadLetter(_ context.Context, a mcp.ShowDeadLetterArgs) (mcp.ShowDeadLetterResult, error) {
	g.note(a)
	return g.show, g.err
}

func (g *fakeDaemon) RedeliverDeadLetters(_ context.Context, a mcp.RedeliverDeadLettersArgs) (mcp.RedeliverDeadLettersResult, error) {
	g.note(a)
	return g.redelivered, g.err
}

func (g *fakeDaemon) PurgeDeadLetters(_ context.Context, a mcp.PurgeDeadLettersArgs) (mcp.PurgeDeadLettersResult, error) {
	g.note(a)
	return g.purged, g.err
}

func someLetters() []mcp.DeadLetter {
	return []mcp.DeadLetter{
		{MsgID: "m1", TraceID: "t1", Kind: "SEND", From: "lead@hosta", FromID: "g1", To: "rev@hostb", ToID: "g2", Signer: "hosta",
			Reason: "expired", Queue: "agent.g2.inbox.v2", DiedAt: "2026-11-30T10:00:00Z", Bytes: 12, Own: true, Verified: true},
		{MsgID: "m2", TraceID: "t2", Kind: "REPLY", From: "g3", FromID: "g3", To: "lead@hosta", ToID: "g1", Signer: "hostc",
			Reason: "maxlen", Queue: "agent.g1.inbox.v2", DiedAt: "2026-11-30T10:01:00Z", Verified: true},
		{MsgID: "m\n3\x1b", Reason: "unknown", Queue: "unknown", Bytes: 7, Problem: "malformed_header"},
	}
}

// Fault: a letter that nobody vouches for looks like a good one, a column is
// missing, or a flag asks for something else.
func TestDeadLettersAreListed(t *testing.T) {
	w := newWorld(t)
	w.gw.list = mcp.ListDeadLettersResult{Letters: someLetters(), Total: 9, Note: "3 of 9 letters were looked at"}
	want := result{out: "msg\tkind\tfrom\tto\treason\tqueue\tdied\tbytes\ttrace\tsigner\n" +
		"m1\tSEND\tlead@hosta\trev@hostb\texpired\tagent.g2.inbox.v2\t2026-11-30T10:00:00Z\t12\tt1\thosta (this host)\n" +
		"m2\tREPLY\tg3\tlead@hosta\tmaxlen\tagent.g1.inbox.v2\t2026-11-30T10:01:00Z\t0\tt2\thostc\n" +
		"m 3\\x1b\t\t\t\tunknown\tunknown\t\t7\t\tnot verified: malformed_header\n",
		err: "3 of 9 letters were looked at\n"}
	w.want(want, "dlq", "list", "--reason", "expired", "--queue", "q", "--older-than", "1h", "--limit", "3")
	if d := cmp.Diff([]any{mcp.ListDeadLettersArgs{Reason: "expired", Queue: "q", OlderThanSeconds: 3600, Limit: 3}}, w.gw.asked); d != "" {
		t.Error(d)
	}
	var got mcp.ListDeadLettersResult
	if err := json.Unmarshal([]byte(w.run("dlq", "list", "--json").out), &got); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(w.gw.list, got); d != "" {
		t.Error(d)
	}
	w.gw.list = mcp.ListDeadLettersResult{Total: 4}
	w.want(result{err: "no dead letters of this sort; there are 4 others\n"}, "dlq", "list", "--reason", "x")
	w.gw.list = mcp.ListDeadLettersResult{}
	w.want(result{err: "no dead letters\n"}, "dlq", "list")
}

// Fault: show says what a letter holds without being asked to, or leaves out
// what tells a good one from a forged one.
func TestADeadLetterIsShown(t *testing.T) {
	w := newWorld(t)
	l := someLetters()
	l[0].SentAt, l[0].ExpiresAt, l[0].Expired = "2026-11-30T09:00:00Z", "2026-11-30T09:15:00Z", true
	w.gw.show.Letters = []mcp.DeadLetterDetail{
		{Letter: l[0], RoutingKey: "g2", Headers: map[string]string{"to": "g2", "kind": "SEND"}, OtherHeaders: []string{"later", "sig"},
			Deaths: []mcp.Death{{Queue: "q", Reason: "expired", Count: 1, At: "2026-11-30T10:00:00Z"}}},
		{Letter: l[2], RoutingKey: "k", Detail: "header v is missing"},
	}
	plain := "msg\tm1\nkind\tSEND\nfrom\tlead@hosta (g1)\nto\trev@hostb (g2)\ntrace\tt1\nsent\t2026-11-30T09:00:00Z\n" +
		"expires\t2026-11-30T09:15:00Z (over)\nsigner\thosta (this host)\nrouting key\tg2\nbytes\t12\nother headers\tlater, sig\n\n" +
		"header\tvalue\nkind\tSEND\nto\tg2\n\ndied\treason\tqueue\ttimes\n2026-11-30T10:00:00Z\texpired\tq\t1\n"
	forged := "\nmsg\tm 3\\x1b\nsigner\tnot verified: malformed_header\nproblem\theader v is missing\nrouting key\tk\nbytes\t7\n"
	w.want(result{out: plain + forged}, "dlq", "show", "m1")
	w.gw.show.Letters = w.gw.show.Letters[:1]
	w.gw.show.Letters[0].Body, w.gw.show.Letters[0].BodyCut = "what it says", true
	w.want(result{out: plain + "\nwhat it says\n-- this is the beginning; the whole has 12 bytes\n"}, "dlq", "show", "m1", "--body")
	want := []any{mcp.ShowDeadLetterArgs{MsgID: "m1"}, mcp.ShowDeadLetterArgs{MsgID: "m1", Body: true}}
	if d := cmp.Diff(want, w.gw.asked); d != "" {
		t.Error(d)
	}
}

// Fault: a letter that stays is passed over in silence, or the command succeeds
// beside it.
func TestRedeliverySaysWhatStays(t *testing.T) {
	w := newWorld(t)
	gone := mcp.Redelivery{MsgID: "m1", TraceID: "t1", To: "rev@hostb", State: mcp.StateRedelivered}
	stays := mcp.Redelivery{MsgID: "m2", TraceID: "t2", To: "zoe@hostc", State: mcp.StateStays, Code: fault.Expired, Detail: "its life ended"}
	head := "msg\tto\tstate\tnew msg\tcode\twhy\ttrace\n"
	w.gw.redelivered = mcp.RedeliverDeadLettersResult{Letters: []mcp.Redelivery{gone}, Redelivered: 1}
	w.want(result{out: head + "m1\trev@hostb\tredelivered\t\t\t\tt1\n"}, "dlq", "redeliver", "m1")

	w.gw.redelivered = mcp.RedeliverDeadLettersResult{Letters: []mcp.Redelivery{stays}, Stay: 1}
	row := "m2\tzoe@hostc\tstays\t\tEXPIRED\tits life ended\tt2\n"
	w.want(result{code: 1, out: head + row, err: "bridged: EXPIRED: m2: its life ended\n"}, "dlq", "redeliver", "m2")

	anew := mcp.Redelivery{MsgID: "m3", To: "rev@hostb", State: mcp.StateSentAnew, NewMsgID: "m4"}
	w.gw.redelivered = mcp.RedeliverDeadLettersResult{Letters: []mcp.Redelivery{stays, anew}, Stay: 1, Redelivered: 1}
	w.want(result{code: 1, out: head + row + "m3\trev@hostb\tsent_anew\tm4\t\t\t\n", err: "bridged: REFUSED: 1 of 2 letters stay; the table says why\n"},
		"dlq", "redeliver", "--all", "--reason", "expired", "--anew", "--queue-if-offline")

	w.gw.redelivered = mcp.RedeliverDeadLettersResult{Letters: []mcp.Redelivery{gone}, Redelivered: 1, Note: "the link went down"}
	w.want(result{code: 1, out: head + "m1\trev@hostb\tredelivered\t\t\t\tt1\n", err: "bridged: UNCONFIRMED: 1 redelivered, 0 stay: the link went down\n"},
		"dlq", "redeliver", "--queue", "q")
	w.gw.redelivered = mcp.RedeliverDeadLettersResult{}
	w.want(result{err: "no such dead letters\n"}, "dlq", "redeliver", "--older-than", "2h")
	want := []any{
		mcp.RedeliverDeadLettersArgs{MsgID: "m1"}, mcp.RedeliverDeadLettersArgs{MsgID: "m2"},
		mcp.RedeliverDeadLettersArgs{All: true, Reason: "expired", Anew: true, QueueIfOffline: true},
		mcp.RedeliverDeadLettersArgs{Queue: "q"}, mcp.RedeliverDeadLettersArgs{OlderThanSeconds: 7200},
	}
	if d := cmp.Diff(want, w.gw.asked); d != "" {
		t.Error(d)
	}
}

// Fault: purge takes more than was said, or is taken for done when it is not.
func TestPurge(t *testing.T) {
	w := newWorld(t)
	w.gw.purged = mcp.PurgeDeadLettersResult{Purged: 3, Stay: 2}
	w.want(result{out: "purged\t3\nstay\t2\n"}, "dlq", "purge", "--reason", "expired", "--queue", "q", "--older-than", "60")
	w.want(result{out: "purged\t3\nstay\t2\n"}, "dlq", "purge", "--all")
	w.gw.purged.Note = "the work ended after 5 of 9 letters; repeat it for the rest"
	w.want(result{code: 1, out: "purged\t3\nstay\t2\n", err: "bridged: UNCONFIRMED: the work ended after 5 of 9 letters; repeat it for the rest\n"}, "dlq", "purge", "m1")
	want := []any{
		mcp.PurgeDeadLettersArgs{Reason: "expired", Queue: "q", OlderThanSeconds: 60},
		mcp.PurgeDeadLettersArgs{All: true}, mcp.PurgeDeadLettersArgs{MsgID: "m1"},
	}
	if d := cmp.Diff(want, w.gw.asked); d != "" {
		t.Error(d)
	}
}

// Fault: a slip picks all letters instead of one or none.
func TestWhichLettersHasToBeSaid(t *testing.T) {
	for args, want := range map[string]string{
		"purge":                              "name a letter",
		"redeliver":                          "name a letter",
		"redeliver --anew":                   "name a letter",
		"purge m1 --all":                     "not both",
		"redeliver m1 --reason expired":      "not both",
		"purge --older-than soon":            "write whole seconds",
		"purge m1 m2":                        "accepts at most 1 arg",
		"show":                               "accepts 1 arg",
		"redeliver --all --queue-if-offline": "goes with --anew",
		"purg":                               "did you mean 'bridged dlq purge'?",
		"":                                   "needs a command: list, show, redeliver, purge",
	} {
		w := newWorld(t)
		r := w.run(append([]string{"dlq"}, strings.Fields(args)...)...)
		if r.code != 2 || !strings.Contains(r.err, want) || len(w.gw.asked) != 0 {
			t.Errorf("%s: %+v, asked %v", args, r, w.gw.asked)
		}
	}
}
