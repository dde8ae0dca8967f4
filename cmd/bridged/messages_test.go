package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"fleetd/cmd/bridged/config"
	"fleetd/fault"
	"fleetd/mcp"
)

// Fault: a flag of send fills another argument, or a unit is lost.
func TestSendSaysWhatWasAsked(t *testing.T) {
	w := newWorld(t)
	w.gw.send = mcp.SendResult{
		State: "replied", MsgID: "m1", TraceID: "t1", To: "rev@hosta", Held: 2,
		Reply: &mcp.Message{Kind: "REPLY", From: "rev@hosta", MsgID: "m2", TraceID: "t1", InReplyTo: "m1", Content: "fine"},
	}
	w.want(result{out: "state\treplied\nto\trev@hosta\nmsg\tm1\ntrace\tt1\nheld\t2\n\n" +
		"-- REPLY | from rev@hosta | msg m2 | trace t1 | in reply to m1\nfine\n"},
		"send", "rev", "look at it", "--wait", "50", "--expires=2m", "--key", "k", "--queue-if-offline")
	want := []any{mcp.SendArgs{
		To: "rev", Content: "look at it", WaitSeconds: 50, ExpiresInSeconds: 120, IdempotencyKey: "k", QueueIfOffline: true,
	}}
	if d := cmp.Diff(want, w.gw.asked); d != "" {
		t.Error(d)
	}
}

// Fault: content of standard input is changed, unbounded, or taken as missing.
func TestContentFromStandardInput(t *testing.T) {
	for _, x := range []struct {
		name, in string
		args     []string
		want     string
	}{
		{"left out", "from a pipe\n", []string{"send", "rev"}, "from a pipe"},
		{"dash", "two\nlines\n\n", []string{"send", "rev", "-"}, "two\nlines\n"},
		{"argument", "not this", []string{"send", "rev", "this"}, "this"},
		{"reply", "done", []string{"reply"}, "done"},
		{"just at the limit", strings.Repeat("x", 100) + "\n", []string{"send", "rev"}, strings.Repeat("x", 100)},
	} {
		w := newWorld(t).env("BRIDGED_LIMITS_CONTENT_BYTES=100")
		w.in = x.in
		if r := w.run(x.args...); r.code != 0 || len(w.gw.asked) != 1 {
			t.Errorf("%s: %+v", x.name, r)
			continue
		}
		got := ""
		switch a := w.gw.asked[0].(type) {
		case mcp.SendArgs:
			got = a.Content
		case mcp.ReplyArgs:
			got = a.Content
		}
		if got != x.want {
			t.Errorf("%s: sent %q, want %q", x.name, got, x.want)
		}
	}
	w := newWorld(t).env("BRIDGED_LIMITS_CONTENT_BYTES=100")
	w.in = strings.Repeat("x", 101)
	w.want(result{code: 1, err: "bridged: TOO_LARGE: the content is longer than 100 bytes (limits.content_bytes); send a part of it, or the name of a file that holds it\n"}, "send", "rev", "-")
	w.in = "caf\xe9"
	w.want(result{code: 1, err: "bridged: BAD_CONTENT: the content is not valid UTF-8; send text, and binary data as a file path\n"}, "send", "rev")
	w.in = "\n"
	w.want(result{code: 2, err: "bridged: BAD_REQUEST: the content is empty; there is nothing to send\n"}, "send", "rev")
	w.deps.InTTY = true
	w.want(result{code: 2, err: "bridged: BAD_REQUEST: there is nothing to send; add the content, or - to type it and end with Ctrl-D\n"}, "send", "rev")
	if len(w.gw.asked) != 0 {
		t.Errorf("asked %v", w.gw.asked)
	}
}

// Fault: a time that was written is read as another, or a bad one as zero.
func TestSeconds(t *testing.T) {
	for in, want := range map[string]int{"50": 50, "50s": 50, "15m": 900, "1h": 3600, "0": 0, "1500ms": -1, "-5": -1, "soon": -1, "": -1} {
		var s seconds
		err := s.Set(in)
		if want < 0 && err == nil || want >= 0 && (err != nil || int(s) != want) {
			t.Errorf("%q: %d, %v", in, s, err)
		}
	}
	newWorld(t).want(result{code: 2, err: "bridged: BAD_REQUEST: invalid argument \"soon\" for \"--wait\" flag: write whole seconds, as in 50, 50s or 15m; see 'bridged poll --help'\n"}, "poll", "--wait", "soon")
}

// Fault: mail is printed without what is needed to answer it, or a message
// that was cut looks whole.
func TestPollPrintsMail(t *testing.T) {
	w := newWorld(t)
	w.gw.poll = mcp.PollResult{Remaining: 3, WindowFull: true, Note: "a note", Messages: []mcp.Message{
		{Kind: "SEND", From: "a@hosta", MsgID: "m1", TraceID: "t1", Content: "one\n", SentAt: "2026-11-30T10:00:00Z", Redelivered: true},
		{Kind: "FAILED", From: "_gateway@hostb", MsgID: "m2", TraceID: "t2", InReplyTo: "m0", Reason: "EXPIRED", Note: "It was not injected in time."},
		{Kind: "SEND", From: "b@hosta", MsgID: "m3", TraceID: "t3", Content: "begin", NextOffset: 5, Total: 9000},
	}}
	w.want(result{
		out: `-- SEND | from a@hosta | msg m1 | trace t1 | sent 2026-11-30T10:00:00Z | redelivered
one

-- FAILED | from _gateway@hostb | msg m2 | trace t2 | in reply to m0 | reason EXPIRED
It was not injected in time.

-- SEND | from b@hosta | msg m3 | trace t3
begin
-- this is the beginning, 5 of 9000 bytes; the whole: bridged read m3
`,
		err: "3 more wait; poll again\nmore may hide behind what is held; take mail of other senders first\na note\n",
	}, "poll", "--from", "a", "--max", "3", "--wait", "5s")
	if d := cmp.Diff([]any{mcp.PollArgs{From: "a", WaitSeconds: 5, Max: 3}}, w.gw.asked); d != "" {
		t.Error(d)
	}
	w.gw.poll = mcp.PollResult{}
	w.want(result{err: "no mail\n"}, "poll")
}

// Fault: read stops after the first part, or goes round for ever.
func TestReadPrintsTheWhole(t *testing.T) {
	w := newWorld(t)
	parts := []mcp.ReadResult{
		{MsgID: "m1", From: "a@hosta", Content: "abc", Total: 8, NextOffset: 3},
		{MsgID: "m1", From: "a@hosta", Content: "def", Offset: 3, Total: 8, NextOffset: 6},
		{MsgID: "m1", From: "a@hosta", Content: "gh", Offset: 6, Total: 8},
	}
	w.gw.reads = parts
	w.want(result{out: "abcdefgh\n"}, "read", "m1")
	want := []any{mcp.ReadArgs{MsgID: "m1"}, mcp.ReadArgs{MsgID: "m1", Offset: 3}, mcp.ReadArgs{MsgID: "m1", Offset: 6}}
	if d := cmp.Diff(want, w.gw.asked); d != "" {
		t.Error(d)
	}
	w.gw.reads = parts
	var got mcp.ReadResult
	if err := json.Unmarshal([]byte(w.run("read", "m1", "--json").out), &got); err != nil || got.Content != "abcdefgh" || got.NextOffset != 0 || got.Total != 8 {
		t.Errorf("%+v, %v", got, err)
	}
	w.gw.reads = []mcp.ReadResult{parts[0], parts[0]}
	w.want(result{code: 1, err: "bridged: INTERNAL: the daemon gave the same part of m1 twice; report this\n"}, "read", "m1")
}

// Fault: reply answers another brief than was named.
func TestReply(t *testing.T) {
	w := newWorld(t)
	w.gw.reply = mcp.ReplyResult{State: "queued", MsgID: "m2", TraceID: "t", InReplyTo: "m1", To: "main@hosta"}
	w.want(result{out: "state\tqueued\nto\tmain@hosta\nmsg\tm2\ntrace\tt\nin reply to\tm1\n"}, "reply", "done", "--to-msg", "m1", "--key", "k")
	if d := cmp.Diff([]any{mcp.ReplyArgs{Content: "done", InReplyTo: "m1", IdempotencyKey: "k"}}, w.gw.asked); d != "" {
		t.Error(d)
	}
}

// Fault: a terminal obeys what a message holds; or a pipe gets other bytes than
// were sent.
func TestTerminalDoesNotObeyContent(t *testing.T) {
	t.Attr("threat", "T6")
	w := newWorld(t)
	evil := "a\x1b]0;x\x07b\u009bc\x9bd\u202ee\tf\r\ng"
	w.gw.poll.Messages = []mcp.Message{{Kind: "SEND", From: "a\x1b[2J@h", MsgID: "m", TraceID: "t", Content: evil}}
	if got := w.run("poll").out; !strings.Contains(got, evil) {
		t.Errorf("the pipe got %q", got)
	}
	w.deps.OutTTY = true
	want := "-- SEND | from a\\x1b[2J@h | msg m | trace t\n" + `a\x1b]0;x\x07b\x9bc\x9bd\u202ee` + "\tf" + `\x0d` + "\ng\n"
	if got := w.run("poll").out; got != want {
		t.Errorf("got %q\nwant %q", got, want)
	}
	// JSON says the same, and is obeyed no more.
	hidden := "\x7f\u009b2J\u2066\u2028\u200b\U000e0041 \u200d\u00e9\uFFFD"
	w.gw.poll.Messages[0].Content = hidden
	raw := w.run("poll", "--json").out
	var back mcp.PollResult
	if err := json.Unmarshal([]byte(raw), &back); err != nil || len(back.Messages) != 1 || back.Messages[0].Content != hidden {
		t.Errorf("%q reads as %+v, %v", raw, back, err)
	}
	w.gw.err = errors.New(hidden)
	failed := w.run("whoami", "--json").err
	var log bytes.Buffer
	newLogger(config.Log{Level: "info", JSON: true}, &log).Info("x", "said", hidden)
	for what, text := range map[string]string{"a result": raw, "an error": failed, "the log": log.String(), "what a person reads": visible(hidden)} {
		if i := strings.IndexFunc(text, func(r rune) bool { return r != '\n' && r != '\u200d' && !unicode.IsPrint(r) }); i >= 0 || text == "" {
			t.Errorf("%s: %q", what, text)
		}
	}
	if got := visible("a replacement \uFFFD stays"); got != "a replacement \uFFFD stays" {
		t.Errorf("%q", got)
	}
}

// Fault: a failure is printed without its code, with exit code 0, or not in
// JSON where JSON was asked for.
func TestFailures(t *testing.T) {
	w := newWorld(t)
	w.gw.err = fault.New(fault.HostOffline, "hostb is offline; add --queue-if-offline or try later")
	w.want(result{code: 1, err: "bridged: HOST_OFFLINE: hostb is offline; add --queue-if-offline or try later\n"}, "send", "x@hostb", "y")
	w.want(result{code: 1, err: `{"error":{"code":"HOST_OFFLINE","message":"hostb is offline; add --queue-if-offline or try later"}}` + "\n"}, "send", "x@hostb", "y", "--json")
	w.gw.err = fmt.Errorf("send: %w", context.Canceled)
	w.want(result{code: 1, err: "bridged: INTERNAL: interrupted; what was accepted before stays accepted\n"}, "send", "x", "y")
	w.gw.err = errors.New("connect: refused <\x1b>")
	w.want(result{code: 1, err: "bridged: INTERNAL: the gateway met an error of its own; see its log (connect: refused <\\x1b>)\n"}, "whoami")
	w.want(result{code: 1, err: `{"error":{"code":"INTERNAL","message":"the gateway met an error of its own; see its log","cause":"connect: refused <\u001b>"}}` + "\n"}, "whoami", "--json")
}
