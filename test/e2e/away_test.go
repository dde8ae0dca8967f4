package e2e

import (
	"context"
	"fmt"
	"testing"

	"fleetd/mcp"
	"fleetd/test/fleet"
)

// briefAndLeave has a main send a brief that the worker answers only when told
// to, and hang up before it is.
func briefAndLeave(t *testing.T, ctx context.Context, m *fleet.Main, to string) mcp.SendResult {
	t.Helper()
	r, err := m.Send(ctx, map[string]any{"to": to, "content": "take your time"})
	if err != nil {
		t.Fatal(err)
	}
	if r.State != "injected" && r.State != "deferred" {
		t.Fatalf("the brief is %s, want it accepted", r.State)
	}
	if err := m.Disconnect(); err != nil {
		t.Fatal(err)
	}
	return r
}

// pullReply connects m again and demands exactly one reply to sent.
func pullReply(t *testing.T, ctx context.Context, m *fleet.Main, sent mcp.SendResult, want string) {
	t.Helper()
	if err := m.Connect(ctx); err != nil {
		t.Fatal(err)
	}
	got := 0
	for got == 0 {
		r, err := m.Poll(ctx, map[string]any{"wait_seconds": longest})
		if err != nil {
			t.Fatal(err)
		}
		got += countReplies(t, r, sent, want)
	}
	r, err := m.Poll(ctx, map[string]any{})
	if err != nil {
		t.Fatal(err)
	}
	if got += countReplies(t, r, sent, want); got != 1 {
		t.Fatalf("the reply was handed over %d times", got)
	}
}

func countReplies(t *testing.T, r mcp.PollResult, sent mcp.SendResult, want string) (n int) {
	t.Helper()
	for _, m := range r.Messages {
		if m.Kind != "REPLY" {
			continue
		}
		if m.InReplyTo != sent.MsgID || m.Content != want {
			t.Fatalf("a reply is %+v, want %q to %s", m, want, sent.MsgID)
		}
		n++
	}
	return n
}

// replied waits until the worker has answered.
func replied(t *testing.T, ctx context.Context, w *fleet.Worker) {
	t.Helper()
	eventually(t, ctx, func() error {
		events, err := w.Events()
		for _, e := range events {
			if e.Event == "reply" && e.Error == "" {
				return nil
			}
		}
		return fmt.Errorf("%s has not replied: %v", w.Name, err)
	})
}

// §14: main's client gone. An answer waits for who is away. The parts stand on
// one fleet, which the last one ends; each has a worker of its own.
func TestReplyWaitsForAMainThatIsAway(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*bound)
	defer cancel()
	a, b := twoHosts(t, ctx)
	for _, part := range []struct {
		name string
		run  func(t *testing.T, ctx context.Context, a, b *fleet.Host)
	}{
		{"a second answer", lateSecondAnswer},
		{"its client", whileItsClientIsAway},
		{"its gateway", whileItsGatewayIsAway},
		{"its sender ends", thenItsSenderEnds},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.run(t, ctx, a, b) }) {
			return
		}
	}
}

// A main that was away when the reply came gets it when it is back. Fails when
// a reply is dropped because nobody waits for it.
func whileItsClientIsAway(t *testing.T, ctx context.Context, a, b *fleet.Host) {
	w := addWorker(t, ctx, b, "reviewer-one", "--reply-with", "done", "--work", "6s")
	m := addMain(t, ctx, a, "lead-one")
	seen(t, ctx, m, "reviewer-one@hostb")
	sent := briefAndLeave(t, ctx, m, "reviewer-one@hostb")
	replied(t, ctx, w)
	pullReply(t, ctx, m, sent, "done")
}

// The same over a crash of the main's gateway between brief and reply, and
// another one while the reply is held. Fails when a restart loses or doubles
// held mail.
func whileItsGatewayIsAway(t *testing.T, ctx context.Context, a, b *fleet.Host) {
	w := addWorker(t, ctx, b, "reviewer-two", "--reply-with", "done", "--work", "6s")
	m := addMain(t, ctx, a, "lead-two")
	seen(t, ctx, m, "reviewer-two@hostb")
	sent := briefAndLeave(t, ctx, m, "reviewer-two@hostb")
	if err := a.Kill(); err != nil {
		t.Fatal(err)
	}
	replied(t, ctx, w)
	for range 2 {
		if err := a.Start(ctx); err != nil {
			t.Fatal(err)
		}
		if err := a.Ready(ctx); err != nil {
			t.Fatal(err)
		}
		eventually(t, ctx, func() error {
			who, err := a.API("lead-two").Whoami(ctx)
			if err == nil && who.Held == 0 {
				return fmt.Errorf("nothing is held for lead")
			}
			return err
		})
		if err := a.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Start(ctx); err != nil {
		t.Fatal(err)
	}
	pullReply(t, ctx, m, sent, "done")
}

// The reply is there also when the worker's pane was closed and its whole host
// went away meanwhile, and the main's gateway was restarted after that. Fails
// when mail of a host that is silent, known from memory alone, is not shown.
func thenItsSenderEnds(t *testing.T, ctx context.Context, a, b *fleet.Host) {
	w := addWorker(t, ctx, b, "reviewer-three", "--reply-with", "done", "--work", "6s")
	m := addMain(t, ctx, a, "lead-three")
	seen(t, ctx, m, "reviewer-three@hostb")
	sent := briefAndLeave(t, ctx, m, "reviewer-three@hostb")
	if err := a.Stop(); err != nil {
		t.Fatal(err)
	}
	replied(t, ctx, w)
	if err := w.Control("exit"); err != nil {
		t.Fatal(err)
	}
	if err := b.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := a.Start(ctx); err != nil {
		t.Fatal(err)
	}
	pullReply(t, ctx, m, sent, "done")
}

// A second answer that comes after the open send has returned is held until it
// is pulled. Fails when a late answer is dropped, or refused to the worker.
func lateSecondAnswer(t *testing.T, ctx context.Context, a, b *fleet.Host) {
	addWorker(t, ctx, b, "reviewer", "--reply-with", "looks good", "--replies", "2", "--reply-gap", "1s")
	m := addMain(t, ctx, a, "lead")
	seen(t, ctx, m, "reviewer@hostb")
	r, err := m.Send(ctx, map[string]any{"to": "reviewer", "content": "review this", "wait_seconds": longest})
	if err != nil {
		t.Fatal(err)
	}
	if r.State != "replied" {
		t.Fatalf("the first answer is %+v", r)
	}
	late := polled(t, ctx, m, "REPLY")
	if late.InReplyTo != r.MsgID || late.MsgID == r.Reply.MsgID {
		t.Fatalf("the late answer is %+v, the first was %+v", late, r.Reply)
	}
}
