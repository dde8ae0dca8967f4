package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"fleetd/fault"
	"fleetd/mcp"
	"fleetd/test/fleet"
)

// Questions in the middle of the work, over two hosts. The parts stand on one
// fleet; each has mains and workers of its own.
func TestQuestions(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*bound)
	defer cancel()
	a, b := twoHosts(t, ctx)
	for _, part := range []struct {
		name string
		run  func(t *testing.T, ctx context.Context, a, b *fleet.Host)
	}{
		{"asked and answered", asksAndIsAnswered},
		{"nobody listens", asksNobody},
		{"on a blocked poll", surfacesOnAPoll},
		{"too late", answeredTooLate},
	} {
		t.Run(part.name, func(t *testing.T) { part.run(t, ctx, a, b) })
	}
}

// A worker asks in the middle of its work, the main that sent it answers and
// goes on waiting: the answer is in the reply. Over two hosts and on one. Fails
// when the question does not surface on the blocked send, or its answer meets
// no turn.
func asksAndIsAnswered(t *testing.T, ctx context.Context, a, b *fleet.Host) {
	m := addMain(t, ctx, a, "lead")
	for _, h := range []*fleet.Host{a, b} {
		addWorker(t, ctx, h, "asker-"+h.Name, "--ask", "tabs or blanks?", "--reply-with", "formatted")
		to := "asker-" + h.Name + "@" + h.Name
		seen(t, ctx, m, to)
		q, err := m.Send(ctx, map[string]any{"to": to, "content": "format it", "wait_seconds": longest})
		if err != nil {
			t.Fatal(err)
		}
		if q.State != "ask" || q.Question == nil || q.Question.Content != "tabs or blanks?" || q.Question.From != to || q.TurnID == "" {
			t.Fatalf("the send to %s returned %+v, want its question", to, q)
		}
		r, err := m.Answer(ctx, map[string]any{"turn_id": q.TurnID, "content": "blanks", "wait_seconds": longest})
		if err != nil {
			t.Fatal(err)
		}
		if r.State != "replied" || r.Reply == nil || r.Reply.Content != "formatted (answer: blanks)" || r.Reply.InReplyTo != q.MsgID {
			t.Fatalf("after the answer came %+v, want the reply to %s", r, q.MsgID)
		}
		_, err = m.Answer(ctx, map[string]any{"turn_id": q.TurnID, "content": "tabs"})
		wantFault(t, "a second answer", err, fault.TooLate, "was answered")
	}
}

// Nobody listens: the asker hears it at once, and not when its time runs out.
// Fails when a question waits for somebody to come.
func asksNobody(t *testing.T, ctx context.Context, a, b *fleet.Host) {
	addWorker(t, ctx, b, "lonely", "--ask", "may I?", "--reply-with", "done")
	m := addMain(t, ctx, a, "away")
	seen(t, ctx, m, "lonely@hostb")
	s, err := m.Send(ctx, map[string]any{"to": "lonely@hostb", "content": "do it"})
	if err != nil {
		t.Fatal(err)
	}
	var reply string
	eventually(t, ctx, func() error {
		r, err := m.Poll(ctx, map[string]any{})
		for _, one := range r.Messages {
			if one.Kind == "ASK" {
				t.Fatalf("a poll that does not wait was given a question: %+v", one)
			}
			if one.InReplyTo == s.MsgID && one.Kind == "REPLY" {
				reply = one.Content
			}
		}
		if reply == "" {
			return fmt.Errorf("no reply yet (%v)", err)
		}
		return err
	})
	if !strings.Contains(reply, "no answer: NO_WAITER") {
		t.Fatalf("the worker was told %q, want NO_WAITER", reply)
	}
}

// A question surfaces on a blocked poll that admits its asker, not on one for
// somebody else. Fails when the filter is not held to.
func surfacesOnAPoll(t *testing.T, ctx context.Context, a, b *fleet.Host) {
	asker := addWorker(t, ctx, b, "asker", "--work", "2m") // one that asks does not reply meanwhile
	addWorker(t, ctx, b, "other")
	m, second := addMain(t, ctx, a, "first"), addMain(t, ctx, a, "second")
	seen(t, ctx, m, "asker@hostb", "other@hostb")
	sees(t, ctx, b, a)
	other, closeOther := polls(t, ctx, m, "other@hostb")
	defer closeOther()

	// Nobody admits it yet. The poll for another one goes on.
	as := b.API(asker.Name)
	if err := askUntil(ctx, as, "first@hosta", fault.NoWaiter); err != nil {
		t.Fatal(err)
	}
	select {
	case r := <-other:
		t.Fatalf("the poll for another worker ended with %+v", r)
	default:
	}

	mine, closeMine := polls(t, ctx, second, "asker@hostb")
	defer closeMine()
	answer := make(chan any, 1)
	go func() {
		for {
			r, err := as.Ask(ctx, mcp.AskArgs{Question: "which one?", To: "second@hosta"})
			if fault.Is(err, fault.NoWaiter) && ctx.Err() == nil {
				continue // the poll was not there yet
			}
			if err != nil {
				answer <- err
				return
			}
			answer <- r.Answer
			return
		}
	}()
	var r mcp.PollResult
	select {
	case r = <-mine:
	case <-ctx.Done():
		t.Fatal("no question came")
	}
	if len(r.Messages) != 1 || r.Messages[0].Kind != "ASK" || r.Messages[0].Content != "which one?" || r.Messages[0].TurnID == "" {
		t.Fatalf("the poll returned %+v, want the question", r)
	}
	// It is open until it is answered, for this one and nobody else.
	turn := r.Messages[0].TurnID
	var who mcp.WhoamiResult
	if err := second.Call(ctx, "bridge_whoami", nil, &who); err != nil || len(who.Questions) != 1 || who.Questions[0].TurnID != turn {
		t.Fatalf("whoami says %+v (%v), want the open question", who.Questions, err)
	}
	_, err := m.Answer(ctx, map[string]any{"turn_id": turn, "content": "mine"})
	wantFault(t, "an answer to a stranger's question", err, fault.NotAllowed, "somebody else")
	// A send is not an answer, and its sender is told.
	s, err := second.Send(ctx, map[string]any{"to": "asker@hostb", "content": "the left one", "wait_seconds": longest})
	if err != nil || s.TurnID != turn || !strings.Contains(s.Note, "bridge_answer") {
		t.Fatalf("a send to the one who waits returned %+v (%v), want to be told of the turn", s, err)
	}
	got, err := second.Answer(ctx, map[string]any{"turn_id": turn, "content": "the left one"})
	if err != nil || got.State != "injected" {
		t.Fatalf("the answer came to %+v (%v)", got, err)
	}
	select {
	case a := <-answer:
		if a != "the left one" {
			t.Fatalf("the asker got %v", a)
		}
	case <-ctx.Done():
		t.Fatal("the asker got nothing")
	}
}

// An answer is too late after the time ran out, after the worker ended, and
// after either gateway was started again; it reaches nobody. Fails when it is
// injected, or said to have arrived.
func answeredTooLate(t *testing.T, ctx context.Context, a, b *fleet.Host) {
	m := addMain(t, ctx, a, "slow")

	for _, c := range []struct {
		name string
		over func(t *testing.T, w *fleet.Worker, asked <-chan error) // ends the turn
		err  fault.Code                                              // what the asker was told; "": nothing
	}{
		{"timed out", func(t *testing.T, _ *fleet.Worker, asked <-chan error) {}, fault.Expired},
		{"worker ended", func(t *testing.T, w *fleet.Worker, _ <-chan error) {
			if _, err := b.API("").Unregister(ctx, mcp.UnregisterArgs{Name: w.Name}); err != nil {
				t.Fatal(err)
			}
		}, fault.NotAuthenticated},
		{"gateway of the asker restarted", func(t *testing.T, _ *fleet.Worker, _ <-chan error) { again(t, ctx, b, a) }, ""},
		{"gateway of the main restarted", func(t *testing.T, _ *fleet.Worker, _ <-chan error) {
			again(t, ctx, a, b)
			if err := m.Connect(ctx); err != nil {
				t.Fatal(err)
			}
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			name := strings.ReplaceAll(c.name, " ", "-")
			w := addWorker(t, ctx, b, name)
			seen(t, ctx, m, name+"@hostb")
			mail, closeMail := polls(t, ctx, m, name+"@hostb")
			defer closeMail()
			timeout := longest
			switch {
			case c.err == fault.Expired:
				timeout = 3
			case strings.Contains(c.name, "of the main"): // its asker hears nothing before
				timeout = 15
			}
			asked, surfaced := make(chan error, 1), make(chan struct{})
			go func() {
				for {
					_, err := b.API(w.Name).Ask(ctx, mcp.AskArgs{Question: "still there?", To: "slow@hosta", TimeoutSeconds: timeout})
					select {
					case <-surfaced:
					case <-time.After(time.Second): // what came to the poll is on its way to the test
						if fault.Is(err, fault.NoWaiter) && ctx.Err() == nil {
							continue // the poll was not there yet
						}
						if fault.Is(err, fault.Expired) && ctx.Err() == nil {
							timeout = min(2*timeout, longest) // too short to surface
							continue
						}
					}
					asked <- err
					return
				}
			}()
			var turn string
			select {
			case r := <-mail:
				turn = r.Messages[0].TurnID
				close(surfaced)
			case <-ctx.Done():
				t.Fatal("no question came")
			}
			c.over(t, w, asked)
			if err := <-asked; c.err != "" && !fault.Is(err, c.err) || err == nil {
				t.Fatalf("the asker was told %v, want %s", err, c.err)
			}
			eventually(t, ctx, func() error { // that the asker has ended reaches the other host some moments later
				_, err := m.Answer(ctx, map[string]any{"turn_id": turn, "content": "yes"})
				if !fault.Is(err, fault.HostOffline) {
					wantFault(t, "a late answer", err, fault.TooLate, "")
					return nil
				}
				return err
			})
			if prompts, err := w.Prompts(); err == nil && len(prompts) > 0 {
				t.Fatalf("the pane got %q", prompts)
			}
		})
	}
}

// Fails when a call that can come to nothing is not refused, or is in words
// that say nothing.
func TestBadQuestionsAndAnswers(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	f := newFleet(t, "")
	a := addHost(t, ctx, f, "hosta")
	m := addMain(t, ctx, a, "lead")
	for _, c := range []struct {
		tool string
		args map[string]any
		code fault.Code
		word string
	}{
		{"bridge_ask", map[string]any{"question": "who?"}, fault.BadRequest, `"to"`},
		{"bridge_ask", map[string]any{"question": "who?", "to": "nobody"}, fault.UnknownRecipient, "nobody"},
		{"bridge_ask", map[string]any{"question": "me?", "to": "lead"}, fault.BadRequest, "yourself"},
		{"bridge_ask", map[string]any{"question": " ", "to": "lead"}, fault.BadContent, "empty"},
		{"bridge_ask", map[string]any{"question": "who?", "to": "lead", "timeout_seconds": 241}, fault.BadRequest, "240"},
		{"bridge_ask", map[string]any{"question": "who?", "to": "lead", "timeout_seconds": 0}, fault.BadRequest, "240"},
		{"bridge_answer", map[string]any{"turn_id": "7", "content": "x"}, fault.BadRequest, "turn id"},
		{"bridge_answer", map[string]any{"turn_id": "0198c2aa-1111-7222-8333-444455556666", "content": "x"}, fault.TooLate, "bridge_send"},
		{"bridge_answer", map[string]any{"content": "x"}, fault.BadRequest, "turn_id"},
	} {
		wantFault(t, fmt.Sprint(c.tool, c.args), m.Call(ctx, c.tool, c.args, nil), c.code, c.word)
	}
}

func wantFault(t *testing.T, what string, err error, code fault.Code, word string) {
	t.Helper()
	if !fault.Is(err, code) || !strings.Contains(err.Error(), word) {
		t.Fatalf("%s came to %v, want %s and %q", what, err, code, word)
	}
}

// polls blocks in a poll for mail of one address, until closed.
func polls(t *testing.T, ctx context.Context, m *fleet.Main, from string) (result <-chan mcp.PollResult, end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	c, done := make(chan mcp.PollResult, 1), make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			r, err := m.Poll(ctx, map[string]any{"from": from, "wait_seconds": longest})
			if err == nil && len(r.Messages) > 0 {
				c <- r
				return
			}
		}
	}()
	return c, func() { cancel(); <-done }
}

// askUntil asks until the answer is code.
func askUntil(ctx context.Context, as interface {
	Ask(context.Context, mcp.AskArgs) (mcp.AskResult, error)
}, to string, code fault.Code) error {
	for {
		_, err := as.Ask(ctx, mcp.AskArgs{Question: "anybody?", To: to})
		if fault.Is(err, code) || ctx.Err() != nil || !fault.Is(err, fault.UnknownRecipient) && !fault.Is(err, fault.BrokerDown) {
			if fault.Is(err, code) {
				return nil
			}
			return fmt.Errorf("asking %s came to %w, want %s", to, err, code)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// again crashes a gateway and starts it; it and other see each other then.
func again(t *testing.T, ctx context.Context, h, other *fleet.Host) {
	t.Helper()
	if err := h.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := h.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := h.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	meet(t, ctx, h, other)
}
