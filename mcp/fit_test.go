package mcp

import (
	"strings"
	"testing"
)

// Fails if a part of a message of which JSON makes six times as many bytes is
// cut to nothing: a reader would take that for its end.
func TestEveryPartHoldsSomething(t *testing.T) {
	content := strings.Repeat("\x01", resultMail)
	read := ReadResult{Content: content, Offset: 100, NextOffset: 100 + len(content)}
	send := SendResult{Reply: &Message{Content: content}}
	poll := PollResult{Messages: []Message{{Content: content}}}
	for name, r := range map[string]struct {
		result fitter
		left   *string
		next   *int
		begins int
	}{
		"read": {&read, &read.Content, &read.NextOffset, 100},
		"send": {&send, &send.Reply.Content, &send.Reply.NextOffset, 0},
		"poll": {&poll, &poll.Messages[0].Content, &poll.Messages[0].NextOffset, 0},
	} {
		text, ok, err := fitted(r.result, maxResultBytes)
		if err != nil || !ok || len(text) < maxResultBytes/2 {
			t.Errorf("%s: fits %v, %v, in %d bytes", name, ok, err, len(text))
		}
		if n := len(*r.left); n == 0 || *r.next != r.begins+n {
			t.Errorf("%s: %d bytes are left, and it goes on at %d", name, n, *r.next)
		}
	}
}
