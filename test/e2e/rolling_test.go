package e2e

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/mcp"
	"fleetd/test/fleet"
	"fleetd/test/rabbit"
)

// side is a host with who lives on it.
type side struct {
	*fleet.Host
	lead        *fleet.Main
	hand, asker *fleet.Worker
}

func (s *side) at(name string) string { return name + "@" + s.Name }

// A fleet is upgraded host by host, so that for a while two minor versions talk
// to each other: hosta is of this version, hostb of a later one, whose messages
// have one more signed header and which sends one more kind. Fails when
// something that both know does not go both ways, when the later kind is not
// refused and counted in an inbox or not ignored and counted elsewhere, when it
// stops what comes behind it or comes again, or when a host that changes its
// version, forwards or back, loses what waited for it.
func TestTwoMinorVersionsInOneFleet(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 6*bound)
	defer cancel()
	f := newFleet(t, rabbit.URI(t))
	later, err := f.Newer(ctx)
	if err != nil {
		t.Fatal(err)
	}
	seenOnTheWire := tapWire(t, rabbit.URI(t), fabric.Names{Prefix: f.Prefix})
	var sides []*side
	for name, other := range map[string]string{"hosta": "hostb", "hostb": "hosta"} {
		h, err := f.AddHost(ctx, name, profiles(f), "BRIDGED_CONTROL_ALLOW={"+other+": [send, spawn, stop]}")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("log of %s:\n%s", name, tail(h.Log(), 12000))
			}
		})
		if name == "hostb" {
			h.Use(later)
		}
		if err := h.Start(ctx); err != nil {
			t.Fatal(err)
		}
		sides = append(sides, &side{Host: h})
	}
	if sides[0].Name == "hostb" {
		sides[0], sides[1] = sides[1], sides[0]
	}
	a, b := sides[0], sides[1]
	if err := f.TrustEachOther(); err != nil {
		t.Fatal(err)
	}
	for _, s := range sides {
		if err := s.Ready(ctx); err != nil {
			t.Fatal(err)
		}
		s.lead = addMain(t, ctx, s.Host, "lead-"+s.Name)
		s.hand = addWorker(t, ctx, s.Host, "hand-"+s.Name, "--reply-with", "done")
		s.asker = addWorker(t, ctx, s.Host, "asker-"+s.Name, "--ask", "tabs or blanks?", "--reply-with", "formatted")
	}

	for _, d := range []struct{ from, to *side }{{a, b}, {b, a}} {
		t.Run("from "+d.from.Name, func(t *testing.T) { allThatBothKnow(t, ctx, d.from, d.to) })
	}
	t.Run("what only the later one knows", func(t *testing.T) { whatOnlyTheLaterKnows(t, ctx, a, b, fabric.Names{Prefix: f.Prefix}) })
	// The envelopes were those of two versions, or all this shows nothing.
	wire := seenOnTheWire()
	if got := fmt.Sprint(wire["hosta"]); got != fmt.Sprint(map[string]bool{"1 lang=": true}) {
		t.Errorf("hosta sends %v", got)
	}
	if got := fmt.Sprint(wire["hostb"]); got != fmt.Sprint(map[string]bool{"1.1 lang=en": true}) {
		t.Errorf("hostb sends %v", got)
	}
	t.Run("rolled forwards and back", func(t *testing.T) {
		rolled(t, ctx, a, b, later)
		rolled(t, ctx, a, b, f.Binary())
	})
}

// allThatBothKnow has the one side's people talk to the other's in every way.
func allThatBothKnow(t *testing.T, ctx context.Context, from, to *side) {
	seen(t, ctx, from.lead, to.at(to.lead.Name), to.at(to.hand.Name), to.at(to.asker.Name))
	hand := to.at(to.hand.Name)

	sent, err := from.lead.Send(ctx, map[string]any{"to": hand, "content": "please do", "wait_seconds": longest})
	if err != nil || sent.State != "replied" || sent.Reply.Content != "done" || sent.Reply.From != hand {
		t.Fatalf("a brief came to %+v, %v", sent, err)
	}
	letter, err := from.lead.Send(ctx, map[string]any{"to": to.at(to.lead.Name), "content": "how many?"})
	if err != nil || letter.State != "queued" {
		t.Fatalf("mail for a main came to %+v, %v", letter, err)
	}
	if got := polled(t, ctx, to.lead, "SEND"); got.Content != "how many?" || got.MsgID != letter.MsgID {
		t.Fatalf("the main got %+v", got)
	}
	if err := to.lead.Call(ctx, "bridge_reply", map[string]any{"content": "seven", "in_reply_to": letter.MsgID}, &struct{}{}); err != nil {
		t.Fatal(err)
	}
	if got := polled(t, ctx, from.lead, "REPLY"); got.Content != "seven" || got.InReplyTo != letter.MsgID {
		t.Fatalf("the answer is %+v", got)
	}

	q, err := from.lead.Send(ctx, map[string]any{"to": to.at(to.asker.Name), "content": "format it", "wait_seconds": longest})
	if err != nil || q.State != "ask" || q.Question.Content != "tabs or blanks?" {
		t.Fatalf("a brief that needs a question came to %+v, %v", q, err)
	}
	r, err := from.lead.Answer(ctx, map[string]any{"turn_id": q.TurnID, "content": "blanks", "wait_seconds": longest})
	if err != nil || r.State != "replied" || r.Reply.Content != "formatted (answer: blanks)" {
		t.Fatalf("the answered question came to %+v, %v", r, err)
	}

	for _, s := range []*side{from, to} {
		if out, errs, err := bridged(ctx, s.Host, "groups", s.hand.Name, "--join", "crew-"+from.Name); err != nil {
			t.Fatalf("%v: %s%s", err, out, errs)
		}
	}
	inGroup(t, ctx, from.lead, "crew-"+from.Name, from.at(from.hand.Name), hand)
	call, err := from.lead.Broadcast(ctx, map[string]any{"group": "crew-" + from.Name, "content": "freeze at noon", "wait_seconds": longest})
	if err != nil {
		t.Fatal(err)
	}
	wantStates(t, call, map[string]string{from.at(from.hand.Name): "injected", hand: "injected"})
	for range 2 {
		if got := polled(t, ctx, from.lead, "REPLY"); got.InReplyTo != call.MsgID {
			t.Fatalf("an answer to the broadcast is %+v", got)
		}
	}

	agent, err := from.lead.Spawn(ctx, map[string]any{"profile": "aide", "host": to.Name, "task": "begin", "timeout_seconds": 200})
	if err != nil || agent.State != "spawned" {
		t.Fatalf("spawned %+v, %v", agent, err)
	}
	if got := polled(t, ctx, from.lead, "REPLY"); got.FromID != agent.GID || got.Content != "done as asked" {
		t.Fatalf("its task was answered with %+v", got)
	}
	if end, err := from.lead.Stop(ctx, agent.Address); err != nil || end.State != "stopped" {
		t.Fatalf("stopped %+v, %v", end, err)
	}

	eventually(t, ctx, func() error {
		out, errs, err := bridged(ctx, from.Host, "trace", sent.TraceID, "--fleet", "--json")
		if err == nil && (!strings.Contains(out, `"host": "hosta"`) || !strings.Contains(out, `"host": "hostb"`)) {
			err = fmt.Errorf("the steps of both hosts are not there")
		}
		if err != nil {
			return fmt.Errorf("%w: %s%s", err, out, errs)
		}
		return nil
	})
}

// whatOnlyTheLaterKnows sends HINT from b on every lane.
func whatOnlyTheLaterKnows(t *testing.T, ctx context.Context, a, b *side, names fabric.Names) {
	hand := a.at(a.hand.Name)
	refused := func() float64 { return metric(t, a.Host, "bridged_refusals_total", "") }
	before := refused()
	for i, to := range []string{hand, a.at(a.lead.Name)} {
		sent, err := b.lead.Send(ctx, map[string]any{"to": to, "content": "hint: look here", "wait_seconds": []int{longest, 0}[i]})
		if i == 0 { // for a worker the send waits for an outcome
			wantFault(t, "a HINT for a worker", err, fault.Refused, "")
		} else {
			if err != nil || sent.State != "queued" {
				t.Fatalf("a HINT for a main came to %+v, %v", sent, err)
			}
			if got := polled(t, ctx, b.lead, "FAILED"); got.InReplyTo != sent.MsgID || got.Reason != "REFUSED" {
				t.Fatalf("its sender is told %+v", got)
			}
		}
	}
	if n := metric(t, a.Host, "bridged_refusals_total", "unknown_kind"); n != 2 || refused() != before+2 {
		t.Errorf("%v of an unknown kind and %v in all are counted as refused, want 2", n, refused()-before)
	}

	// A HINT went ahead of every INJECTED, and none of them was a refusal. On
	// the lanes of gateways the later version would send it like this.
	ignored := func() float64 { return metric(t, a.Host, "bridged_unknown_kinds_total", "") }
	signals := ignored()
	if signals < 4 {
		t.Errorf("%v signals of an unknown kind are counted, want one for each brief to hostb", signals)
	}
	key, err := b.Key()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := amqp.DialConfig(rabbit.URI(t), amqp.Config{Heartbeat: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) }()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	for exchange, to := range map[string]string{
		names.Control(): "hosta", names.Roster(): envelope.RosterKey("hostb", envelope.RosterGateway),
	} {
		trace, err := envelope.NewTraceID(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		e := &envelope.Envelope{
			V: "1.1", Kind: "HINT", MsgID: uuid.Must(uuid.NewV7()).String(), TraceID: trace, From: envelope.GatewayAddress("hostb"),
			To: to, Signer: "hostb", TS: now.UnixMilli(), ExpiresAt: now.Add(time.Minute).UnixMilli(), Headers: map[string]string{"lang": "en"},
		}
		if err := e.Sign(key); err != nil {
			t.Fatal(err)
		}
		if err := ch.PublishWithContext(ctx, exchange, to, false, false, amqp.Publishing{Headers: e.Table()}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, ctx, func() error {
		if n := ignored(); n < signals+2 {
			return fmt.Errorf("%v of an unknown kind are counted as ignored on the lanes of gateways, want 2", n-signals)
		}
		return nil
	})
	if refused() != before+2 {
		t.Errorf("what is to be ignored was refused: %v", refused()-before-2)
	}

	// What comes behind is not held up, and nothing comes again: not when a
	// gateway starts, nor as a dead letter of the one that sent it.
	for _, s := range []*side{a, b} {
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
		if err := s.Start(ctx); err != nil {
			t.Fatal(err)
		}
		if err := s.Ready(ctx); err != nil {
			t.Fatal(err)
		}
		meet(t, ctx, a.Host, b.Host)
	}
	sent, err := b.lead.Send(ctx, map[string]any{"to": hand, "content": "behind it", "wait_seconds": longest})
	if err != nil || sent.State != "replied" {
		t.Fatalf("the brief behind it came to %+v, %v", sent, err)
	}
	if got := polledSome(t, ctx, a.lead); len(got) != 0 {
		t.Errorf("hosta's main was given %v", got)
	}
	if got := polledSome(t, ctx, b.lead); len(got) != 0 {
		t.Errorf("hostb's main is told once more: %v", got)
	}
	if refused() != 0 {
		t.Errorf("after the restart %v messages were refused", refused())
	}
	prompts, err := a.hand.Prompts()
	if err != nil || strings.Contains(strings.Join(prompts, "\n"), "hint:") {
		t.Errorf("it was typed in: %q, %v", prompts, err)
	}
}

// polledSome is what waits for m now, but for word of what went in late.
func polledSome(t *testing.T, ctx context.Context, m *fleet.Main) (kinds []string) {
	t.Helper()
	r, err := m.Poll(ctx, map[string]any{})
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range r.Messages {
		if one.Kind == "INJECTED" { // of a brief that had to wait
			continue
		}
		kinds = append(kinds, one.Kind+" "+one.Reason+" "+one.Content)
	}
	return kinds
}

// rolled stops hosta, has mail wait for it, and starts it with another binary on
// the same data.
func rolled(t *testing.T, ctx context.Context, a, b *side, binary string) {
	if err := a.Stop(); err != nil {
		t.Fatal(err)
	}
	eventually(t, ctx, func() error { // else nobody knows whether it was there to take it
		r, err := b.API("").Roster(ctx, mcp.RosterArgs{Host: a.Name})
		if err == nil && (len(r.Hosts) != 1 || r.Hosts[0].State != "offline") {
			err = fmt.Errorf("%s is not seen offline: %+v", a.Name, r.Hosts)
		}
		return err
	})
	waiting := map[string]string{}
	for _, to := range []string{a.at(a.lead.Name), a.at(a.hand.Name)} {
		sent, err := b.lead.Send(ctx, map[string]any{"to": to, "content": "wait for " + to, "queue_if_offline": true})
		if err != nil || sent.State != "queued" {
			t.Fatalf("mail for a host that is being upgraded came to %+v, %v", sent, err)
		}
		waiting[to] = sent.MsgID
	}
	a.Use(binary)
	if err := a.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := a.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	if got := polled(t, ctx, a.lead, "SEND"); got.MsgID != waiting[a.at(a.lead.Name)] {
		t.Errorf("the main got %+v", got)
	}
	if got := polled(t, ctx, b.lead, "REPLY"); got.InReplyTo != waiting[a.at(a.hand.Name)] || got.Content != "done" {
		t.Errorf("the brief that waited was answered with %+v", got)
	}
}

// tapWire listens to all exchanges until it is asked which versions and which
// further headers each host signed.
func tapWire(t *testing.T, uri string, names fabric.Names) func() map[string]map[string]bool {
	t.Helper()
	conn, err := amqp.DialConfig(uri, amqp.Config{Heartbeat: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) })
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	q, err := ch.QueueDeclare("", false, true, true, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, exchange := range []string{names.Msg(), names.Roster()} {
		if err := ch.ExchangeDeclare(exchange, amqp.ExchangeTopic, true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
		if err := ch.QueueBind(q.Name, "#", exchange, false, nil); err != nil {
			t.Fatal(err)
		}
	}
	messages, err := ch.Consume(q.Name, "", true, true, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	all := map[string]map[string]bool{}
	go func() { // ends with the connection
		for m := range messages {
			word := func(name string) string { s, _ := m.Headers[name].(string); return s }
			mu.Lock()
			if all[word("signer")] == nil {
				all[word("signer")] = map[string]bool{}
			}
			all[word("signer")][word("v")+" lang="+word("lang")] = true
			mu.Unlock()
		}
	}()
	return func() map[string]map[string]bool {
		mu.Lock()
		defer mu.Unlock()
		seen := map[string]map[string]bool{}
		for signer, words := range all {
			seen[signer] = maps.Clone(words)
		}
		return seen
	}
}
