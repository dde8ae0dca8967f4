package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric"
	"fleetd/mcp"
	"fleetd/test/fleet"
)

// brief is the plain case: sent, typed in, answered, received.
func (t *tale) brief(ctx context.Context) error {
	const content = "Please review parser.go. Does it cope with an empty file?"
	t.out.say(`lead calls bridge_send(to: "reviewer@hostb", wait_seconds: 50):`)
	t.out.say("  %q", content)
	type sent struct {
		r   mcp.SendResult
		err error
	}
	answered := make(chan sent, 1)
	go func() {
		r, err := t.mainSession.Send(ctx, map[string]any{"to": "reviewer@hostb", "content": content, "wait_seconds": 50})
		answered <- sent{r, err}
	}()
	err := t.screenOf(ctx, 1, content)
	if err == nil {
		t.out.line("")
		t.out.say("It went in as one paste and one Enter, typed by hostb's own gateway: the broker carries")
		t.out.say("messages, never keystrokes. The agent works for %v; then bridge_send returns:", work)
	}
	got := <-answered // it ends with ctx
	switch {
	case err != nil:
		return err
	case got.err != nil:
		return got.err
	case got.r.State != mcp.StateReplied || got.r.Reply == nil:
		return fmt.Errorf("bridge_send returned %+v, not the answer", got.r)
	}
	t.first = got.r
	t.out.say("  state %s, from %s: %q", got.r.State, got.r.Reply.From, got.r.Reply.Content)
	return t.isAnswer(*got.r.Reply, got.r.MsgID)
}

// screenOf shows the pane once the nth brief is on it.
func (t *tale) screenOf(ctx context.Context, n int, content string) error {
	if err := t.typedOnce(ctx, n, content); err != nil {
		return err
	}
	var screen string
	err := until(ctx, func() (err error) {
		if screen, err = t.agent.Screen(); err == nil && !strings.Contains(screen, content) {
			err = fmt.Errorf("the pane shows no brief:\n%s", screen)
		}
		return err
	})
	if err == nil {
		t.out.screen("pane "+t.agent.Pane+" on hostb: reviewer", screen)
	}
	return err
}

func (t *tale) isAnswer(m mcp.Message, msgID string) error {
	if m.Content != answer || m.From != "reviewer@hostb" || m.InReplyTo != msgID {
		return fmt.Errorf("the mail %+v is not the answer of reviewer@hostb to %s", m, msgID)
	}
	return nil
}

// late is an answer that nobody waits for any more.
func (t *tale) late(ctx context.Context) error {
	const content = "Please review lexer.go too."
	wait := int(patience.Seconds())
	if err := t.idle(ctx); err != nil {
		return err
	}
	t.out.say("lead sends another brief and waits for %d seconds only (wait_seconds: %d).", wait, wait)
	r, err := t.mainSession.Send(ctx, map[string]any{"to": "reviewer@hostb", "content": content, "wait_seconds": wait})
	if err != nil {
		return err
	}
	if r.State != mcp.StatePending && r.State != mcp.StateDeferred { // deferred: on a slow machine, not typed in yet
		return fmt.Errorf("bridge_send returned %+v, not state %s", r, mcp.StatePending)
	}
	t.out.say("bridge_send returns: state %s.", r.State)
	t.out.say("  %q", r.Note)
	if err := t.typedOnce(ctx, 2, content); err != nil {
		return err
	}
	if err := until(ctx, func() error { return t.answered(2) }); err != nil {
		return err
	}
	if err := until(ctx, func() error { return t.holds(ctx, r.State) }); err != nil {
		return err
	}
	t.out.say("Seconds later the answer is there. It is held, and every tool result says so:")
	if _, err := t.show(ctx, t.a, "whoami", "--as", "lead"); err != nil {
		return err
	}
	t.out.line("")
	t.out.say("lead calls bridge_poll and gets it:")
	return t.pollOnce(ctx, r.MsgID)
}

// holds sees that the answer is held for the main after a send that returned
// state; a deferred brief leaves a notice too.
func (t *tale) holds(ctx context.Context, state string) error {
	var me mcp.WhoamiResult
	if err := t.mainSession.Call(ctx, "bridge_whoami", map[string]any{}, &me); err != nil {
		return err
	}
	if me.Held == 0 || me.Held > 1 && state == mcp.StatePending {
		return fmt.Errorf("%d messages are held for lead after state %s", me.Held, state)
	}
	return nil
}

// pollOnce takes the answer to msgID and sees that it does not come twice.
func (t *tale) pollOnce(ctx context.Context, msgID string) error {
	for answers := 0; answers == 0; {
		var err error
		if answers, err = t.poll(ctx, msgID, 50); err != nil {
			return err
		}
		if answers > 1 {
			return fmt.Errorf("the answer to %s came %d times", msgID, answers)
		}
	}
	again, err := t.poll(ctx, msgID, 0)
	if err == nil && again > 0 {
		err = fmt.Errorf("the answer to %s came again", msgID)
	}
	if err == nil {
		t.out.say("Another bridge_poll does not bring it again: it came exactly once.")
	}
	return err
}

// poll tells what came and how many answers to msgID were among it. A notice
// that the brief is in the pane may precede them: a gateway that was killed
// asks again what became of what it sent.
func (t *tale) poll(ctx context.Context, msgID string, wait int) (answers int, err error) {
	r, err := t.mainSession.Poll(ctx, map[string]any{"wait_seconds": wait})
	if err != nil {
		return 0, err
	}
	if wait > 0 && len(r.Messages) == 0 {
		return 0, fmt.Errorf("bridge_poll brought no answer to %s within %d s", msgID, wait)
	}
	for _, m := range r.Messages {
		if m.Kind == "INJECTED" && m.InReplyTo == msgID {
			t.out.say("  a notice, %s: %q", m.Kind, m.Note)
			continue
		}
		t.out.say("  %s from %s: %q", m.Kind, m.From, m.Content)
		if err := t.isAnswer(m, msgID); err != nil {
			return answers, err
		}
		answers++
	}
	return answers, nil
}

// crash kills the main's gateway while the agent works.
func (t *tale) crash(ctx context.Context) error {
	const content = "And printer.go, please."
	if err := t.idle(ctx); err != nil {
		return err
	}
	r, err := t.mainSession.Send(ctx, map[string]any{"to": "reviewer@hostb", "content": content})
	if err != nil {
		return err
	}
	if r.State != mcp.StateInjected && r.State != mcp.StateDeferred { // deferred: the agent was not quite ready
		return fmt.Errorf("bridge_send returned %+v, not state %s", r, mcp.StateInjected)
	}
	t.out.say("lead sends a third brief and does not wait at all (wait_seconds: 0): state %s.", r.State)
	if err := t.typedOnce(ctx, briefs, content); err != nil {
		return err
	}
	if err := t.answered(briefs - 1); err != nil {
		return err
	}
	if err := t.a.Kill(); err != nil {
		return err
	}
	t.out.say("It is in the pane. While the agent works on it, hosta's gateway is killed (kill -9).")
	if err := until(ctx, func() error { return t.answered(briefs) }); err != nil {
		return err
	}
	if err := until(ctx, t.waitsOnBroker); err != nil {
		return err
	}
	t.out.say("The agent answers all the same. Its answer lies in lead's durable inbox on the broker.")
	if err := t.a.Start(ctx); err != nil {
		return err
	}
	if err := t.a.Ready(ctx); err != nil {
		return err
	}
	if err := t.mainSession.Connect(ctx); err != nil {
		return err
	}
	t.out.say("hosta's gateway is started again; lead connects, with the same token, and polls:")
	if err := t.pollOnce(ctx, r.MsgID); err != nil {
		return err
	}
	return t.typedOnce(ctx, briefs, content)
}

// idle waits until the main's host sees that the agent can take a brief.
func (t *tale) idle(ctx context.Context) error {
	return until(ctx, func() error { return sees(ctx, t.a, map[string]string{"reviewer@hostb": "idle"}) })
}

// answered compares how many answers the agent has given.
func (t *tale) answered(n int) error {
	_, _, replies, err := t.given()
	if err == nil && len(replies) != n {
		err = fmt.Errorf("the agent has answered %d times, not %d", len(replies), n)
	}
	return err
}

// waitsOnBroker asks the broker for the main's inbox.
func (t *tale) waitsOnBroker() error {
	conn, err := amqp.DialConfig(t.fleet.Broker, amqp.Config{Heartbeat: 5 * time.Second})
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	name := fabric.Names{Prefix: t.fleet.Prefix}.Inbox(t.mainSession.GID)
	q, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
	if err == nil && q.Messages != 1 {
		err = fmt.Errorf("%d messages wait in the inbox of lead, not 1", q.Messages)
	}
	return err
}

// trip is what must be noted of a brief and its answer, on each host in this
// order. More may be.
var trip = map[string][]string{
	"hosta": {"sent SEND", "published SEND", "received REPLY", "drained REPLY"},
	"hostb": {"received SEND", "injecting SEND", "injected SEND", "sent REPLY"},
}

// trace shows what both hosts noted of the first brief.
func (t *tale) trace(ctx context.Context) error {
	id := t.first.TraceID
	t.out.say("Every step of the first brief and of its answer was noted, on both hosts under one id,")
	t.out.say("never with content. `bridged trace %s`", id)
	t.out.say("shows one host's part; here both are merged by time:")
	names := map[string]string{t.agent.GID: "reviewer@hostb", t.mainSession.GID: "lead@hosta"}
	var hops []mcp.Hop
	for _, h := range []*fleet.Host{t.a, t.b} {
		r, err := h.API("").Trace(ctx, mcp.TraceArgs{TraceID: id})
		if err != nil {
			return err
		}
		if err := isTrip(h.Name, r.Hops); err != nil {
			return err
		}
		hops = append(hops, r.Hops...)
	}
	slices.SortStableFunc(hops, func(x, y mcp.Hop) int { return strings.Compare(x.At, y.At) })
	var rows [][]string
	for _, h := range hops {
		_, clock, _ := strings.Cut(strings.TrimSuffix(h.At, "Z"), "T")
		rows = append(rows, []string{clock, h.Host, h.Step, h.Kind, named(names, h.Entity), named(names, h.Peer), h.Outcome})
	}
	t.out.rows([]string{"UTC", "host", "step", "kind", "entity", "peer", "outcome"}, rows)
	return nil
}

// isTrip finds the steps that a host must have noted.
func isTrip(host string, hops []mcp.Hop) error {
	var have []string
	want := trip[host]
	for _, h := range hops {
		step := h.Step + " " + h.Kind
		have = append(have, step)
		if len(want) > 0 && step == want[0] && h.Host == host {
			want = want[1:]
		}
	}
	if len(want) > 0 {
		return fmt.Errorf("%s noted %q: no %q after what must come before it", host, have, want[0])
	}
	return nil
}

// named turns an id into an address.
func named(names map[string]string, id string) string {
	if name, ok := names[id]; ok {
		return name
	}
	return id
}
