package main

import (
	"context"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"

	"fleetd/fault"
	"fleetd/mcp"
)

// spawn has an agent started on the other host, and given a task.
func (t *tale) spawn(ctx context.Context) error {
	t.out.say("hostb offers the profile drafter and lets hosta start agents of it (control.allow). lead has")
	t.out.say("one started there; no command line crosses the network:")
	if _, err := t.show(ctx, t.a, "spawn", "drafter", "--host", "hostb", "--group", "night", "--task", "Draft the notes.", "--as", "lead"); err != nil {
		return err
	}
	t.out.line("")
	t.out.say("hostb's gateway opened a pane, gave the agent an identity of its own, waited until it took")
	t.out.say("input and typed the task in. Its answer reaches lead:")
	return t.hears(ctx, 1, "drafter@hostb", draft)
}

// hears takes n messages of lead and demands that each is that content from
// one of the addresses.
func (t *tale) hears(ctx context.Context, n int, from, content string) error {
	var heard []string
	for len(heard) < n {
		r, err := t.mainSession.Poll(ctx, map[string]any{"wait_seconds": 50})
		if err != nil {
			return err
		}
		if len(r.Messages) == 0 {
			return fmt.Errorf("lead heard of %q and then nothing for 50 s", heard)
		}
		for _, m := range r.Messages {
			if m.Kind == "INJECTED" { // on a slow machine: it was deferred first
				continue
			}
			if m.Kind != "REPLY" || !strings.Contains(from, m.From) || !strings.HasPrefix(m.Content, content) {
				return fmt.Errorf("lead got %+v, not %q of %s", m, content, from)
			}
			t.out.say("  %s from %s: %q", m.Kind, m.From, m.Content)
			heard = append(heard, m.From)
		}
	}
	if n > 1 && heard[0] == heard[1] {
		return fmt.Errorf("%s answered twice", heard[0])
	}
	return nil
}

// ask has an agent ask in the middle of its work.
func (t *tale) ask(ctx context.Context) error {
	const question = "Tabs or blanks?"
	if _, err := t.b.AddWorker(ctx, "editor", "--ask", question, "--reply-with", "Formatted."); err != nil {
		return err
	}
	if err := until(ctx, func() error { return sees(ctx, t.a, map[string]string{"editor@hostb": "idle"}) }); err != nil {
		return err
	}
	t.out.say(`lead calls bridge_send(to: "editor@hostb", wait_seconds: 50): "Format the sources."`)
	t.out.say("editor, a second agent on hostb, is not sure and calls bridge_ask. lead's send, which waits,")
	t.out.say("returns with the question, and the agent's turn is blocked:")
	q, err := t.mainSession.Send(ctx, map[string]any{"to": "editor@hostb", "content": "Format the sources.", "wait_seconds": 200})
	if err != nil {
		return err
	}
	if q.State != mcp.StateAsk || q.Question == nil || q.Question.Content != question {
		return fmt.Errorf("bridge_send returned %+v, not the question", q)
	}
	t.out.say("  state %s, from %s: %q", q.State, q.Question.From, q.Question.Content)
	r, err := t.mainSession.Answer(ctx, map[string]any{"turn_id": q.TurnID, "content": "Blanks.", "wait_seconds": 200})
	if err != nil {
		return err
	}
	if r.State != mcp.StateReplied || r.Reply == nil || r.Reply.Content != "Formatted. (answer: Blanks.)" {
		return fmt.Errorf("bridge_answer returned %+v, not the reply", r)
	}
	t.out.say(`lead calls bridge_answer(content: "Blanks.", wait_seconds: 50): the answer goes into that turn`)
	t.out.say("and no other one; the agent ends its work, and bridge_answer returns with the reply:")
	t.out.say("  state %s, from %s: %q", r.State, r.Reply.From, r.Reply.Content)
	_, err = t.mainSession.Answer(ctx, map[string]any{"turn_id": q.TurnID, "content": "Tabs!"})
	if !fault.Is(err, fault.TooLate) {
		return fmt.Errorf("a second answer came to %v, not %s", err, fault.TooLate)
	}
	t.out.say("A second answer is injected nowhere: %s.", fault.TooLate)
	return nil
}

// broadcast reaches a group with members on both hosts.
func (t *tale) broadcast(ctx context.Context) error {
	if _, err := t.a.AddWorker(ctx, "scribe", "--reply-with", draft); err != nil {
		return err
	}
	if _, err := t.show(ctx, t.a, "groups", "scribe", "--join", "night"); err != nil {
		return err
	}
	if err := until(ctx, func() error {
		return sees(ctx, t.a, map[string]string{"scribe@hosta": "idle", "drafter@hostb": "idle"})
	}); err != nil {
		return err
	}
	t.out.line("")
	t.out.say("The group night has a member on each host. One broadcast, one publication:")
	printed, err := t.show(ctx, t.a, "broadcast", "Draft the summary.", "--group", "night", "--as", "lead")
	if err != nil {
		return err
	}
	for _, member := range []string{"scribe@hosta", "drafter@hostb"} {
		if !strings.Contains(printed, member) {
			return fmt.Errorf("the answer does not say what became of it at %s:\n%s", member, printed)
		}
	}
	t.out.line("")
	t.out.say("Each answers for itself:")
	return t.hears(ctx, 2, "scribe@hosta drafter@hostb", draft)
}

// outage stops the broker. What stays on one host goes on.
func (t *tale) outage(ctx context.Context) error {
	if t.node == nil {
		t.out.say("The broker is not this demo's own, and is not stopped.")
		return nil
	}
	t.node.Down()
	err := until(ctx, func() error {
		_, err := t.mainSession.Send(ctx, map[string]any{"to": "drafter@hostb", "content": "Are you there?"})
		switch {
		case fault.Is(err, fault.BrokerDown):
			t.out.say("The broker is stopped. A brief to hostb is refused at once, and nothing of it is kept:")
			t.out.say("  %q", err.Error())
			return nil
		case fault.Is(err, fault.InDoubt): // it met the end of the broker
			return fmt.Errorf("a brief to hostb came to %w", err)
		}
		return fmt.Errorf("a brief to hostb came to %v, without a broker", err)
	})
	if err != nil {
		return err
	}
	r, err := t.mainSession.Send(ctx, map[string]any{"to": "scribe@hosta", "content": "Draft on.", "wait_seconds": 200})
	if err != nil {
		return err
	}
	if r.State != mcp.StateReplied || r.Reply == nil || r.Reply.Content != draft {
		return fmt.Errorf("on one host bridge_send returned %+v, not the answer", r)
	}
	t.out.say("A brief to an agent of the same host needs no broker:")
	t.out.say("  state %s, from %s: %q", r.State, r.Reply.From, r.Reply.Content)
	if err := t.node.Restart(ctx); err != nil {
		return err
	}
	both, again := errgroup.WithContext(ctx)
	both.Go(func() error { return t.a.Ready(again) })
	both.Go(func() error { return t.b.Ready(again) })
	if err := both.Wait(); err != nil {
		return err
	}
	if err := until(ctx, func() error { return sees(ctx, t.a, map[string]string{"drafter@hostb": "idle"}) }); err != nil {
		return err
	}
	t.out.say("The broker is started again; both gateways are back by themselves. lead has drafter ended:")
	_, err = t.show(ctx, t.a, "stop", "drafter@hostb", "--as", "lead")
	return err
}
