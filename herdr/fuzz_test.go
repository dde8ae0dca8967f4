package herdr

import (
	"context"
	"errors"
	"net"
	"testing"

	"fleetd/fault"
)

// Fails when an answer of herdr makes a call panic, hang, or end in another way
// than the four that the client promises.
func FuzzAnswers(f *testing.F) {
	for _, s := range []string{
		`{"id":"1","result":{"type":"pane_read","read":{"text":"x"}}}`, `{"id":"","error":{"code":"invalid_request","message":"m"}}`,
		`{"result":{"explain":{"state":"idle","visible_idle":"odd","skip_state_update":true}}}`, `{"result":{"panes":[{"pane_id":"w1:p1","tokens":{"a":"b"}}]}}`,
		`{"result":{"agents":[{"agent":"claude","state_change_seq":18446744073709551615}]}}`, `{"result":null}`, "", "[]", "{",
	} {
		f.Add([]byte(s + "\n"))
	}
	f.Add([]byte(`{"result":{}}`)) // and no newline
	f.Fuzz(func(t *testing.T, answer []byte) {
		c := &Client{Socket: "/run/herdr.sock", dial: func(context.Context) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go func() {
				defer theirs.Close()
				if _, err := theirs.Read(make([]byte, 1<<16)); err == nil {
					_, _ = theirs.Write(answer) // the client may have read enough
				}
			}()
			return ours, nil
		}}
		ctx := t.Context()
		for name, call := range map[string]func() error{
			"ping":    func() error { _, err := c.Ping(ctx); return err },
			"agent":   func() error { _, err := c.AgentGet(ctx, "w1:p1"); return err },
			"agents":  func() error { _, err := c.AgentList(ctx); return err },
			"pane":    func() error { _, err := c.PaneGet(ctx, "w1:p1"); return err },
			"panes":   func() error { _, err := c.PaneList(ctx); return err },
			"read":    func() error { _, err := c.PaneRead(ctx, "w1:p1", SourceDetection, false); return err },
			"explain": func() error { _, err := c.AgentExplain(ctx, "w1:p1"); return err },
			"input":   func() error { return c.SendInput(ctx, "w1:p1", "x") },
		} {
			err := call()
			_, api := errors.AsType[*APIError](err)
			_, unknown := errors.AsType[*UnknownError](err)
			if err != nil && !api && !unknown && !fault.Is(err, fault.HerdrDown) {
				t.Errorf("%s, answered with %q: %T %v", name, answer, err, err)
			}
		}
	})
}

// Fails when what stands on a screen, an agent's own words included, makes the
// reading of it panic.
func FuzzScreen(f *testing.F) {
	for _, s := range []string{
		"╭──╮\n│ > x │\n╰──╯\n  ? for shortcuts", "› draft\n\n  send", "┃\n┃  text\n┃\n", "❯ 1. Yes\n  2. No", "\x1b[2m> \x1b[0m\x1b[38;5;1mx", "\x1b[", "────\n>\n────",
	} {
		f.Add(s, "a brief of words")
	}
	f.Fuzz(func(t *testing.T, screen, text string) {
		for _, name := range append([]string{"other"}, allKinds...) {
			k := kindOf(name)
			rows := screenRows(screen)
			s := k.look(rows)
			k.draft(s, k.dimComposer(screen))
			p := newProbe(text)
			k.locate(&s, p)
			if s.known && (s.composer.Top > s.composer.Bottom || s.composer.Bottom > len(rows)) {
				t.Errorf("the composer of %q is %+v of %d rows", screen, s.composer, len(rows))
			}
		}
	})
}
