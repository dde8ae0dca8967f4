package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric"
	"fleetd/fault"
	"fleetd/mcp"
	"fleetd/test/fleet"
	"fleetd/test/rabbit"
)

// Mail that nobody fetches, and a brief that waits for its pane, are held for
// several times as long as the broker lets a delivery be unacked. Fails when
// either is lost, is handed over twice, or costs its inbox.
func TestHeldMailOutlivesTheBrokersLimit(t *testing.T) {
	t.Parallel()
	const limit = 3 * time.Second
	ctx, cancel := context.WithTimeout(t.Context(), 4*bound)
	defer cancel()
	node := rabbit.Private(t)
	_, err := node.Ctl(ctx, "eval", fmt.Sprintf(
		"application:set_env(rabbit,consumer_timeout,%d), application:set_env(rabbit,channel_tick_interval,200).", limit.Milliseconds()))
	if err != nil {
		t.Fatal(err)
	}
	f := newFleet(t, node.URI)
	a, b := addHost(t, ctx, f, "hosta"), addHost(t, ctx, f, "hostb")
	if err := f.TrustEachOther(); err != nil {
		t.Fatal(err)
	}
	w := addWorker(t, ctx, b, "reviewer", "--reply-with", "done")
	reader, sender := addMain(t, ctx, b, "reader"), addMain(t, ctx, a, "sender")
	seen(t, ctx, sender, "reviewer@hostb", "reader@hostb")
	control(t, w, "busy")
	status(t, ctx, w, "working")
	brief := mcp.SendResult{MsgID: forOneThatWorks(t, ctx, sender, "reviewer@hostb", "mark-held")}
	for i := range 3 {
		r, err := sender.Send(ctx, map[string]any{"to": "reader@hostb", "content": fmt.Sprint("mail ", i)})
		if err != nil || r.State != "queued" {
			t.Fatalf("mail %d came to %+v, %v", i, r, err)
		}
	}
	eventually(t, ctx, func() error { // each of the four twice, and more
		if n := metric(t, b, "bridged_handed_back_total", ""); n < 8 {
			return fmt.Errorf("only %v messages were handed back", n)
		}
		return nil
	})
	for i := range 3 {
		m := next(t, ctx, reader)
		if want := fmt.Sprint("mail ", i); m.Content != want || m.Redelivered {
			t.Errorf("message %d is %q, redelivered %t; want %q for the first time", i, m.Content, m.Redelivered, want)
		}
	}
	control(t, w, "idle")
	prompted(t, ctx, w, "mark-held")
	pullReply(t, ctx, sender, brief, "done")
	wrote(t, w, "mark-held", 1)
	if r, err := reader.Poll(ctx, map[string]any{}); err != nil || len(r.Messages) != 0 || r.Remaining != 0 {
		t.Errorf("more came: %+v, %v", r, err)
	}
	acked(t, ctx, node, f.Prefix, reader.GID, w.GID)
}

// acked waits until the broker has nothing left for these: what was settled
// while it was handed back is acked when it comes again.
func acked(t *testing.T, ctx context.Context, node *rabbit.Node, prefix string, gids ...string) {
	t.Helper()
	eventually(t, ctx, func() error {
		out, err := node.Ctl(ctx, "list_queues", "name", "messages")
		if err != nil {
			return err
		}
		for _, gid := range gids {
			if queue := (fabric.Names{Prefix: prefix}).Inbox(gid); !strings.Contains(out, queue+"\t0\n") {
				return fmt.Errorf("%s is not empty: %s", queue, out)
			}
		}
		return nil
	})
}

// A filtered poll finds what lies behind more mail than is taken at once, and
// tells how much there is. Fails when a full window hides mail, or what lies on
// the broker is not counted.
func TestAFilterFindsMailBehindAFullWindow(t *testing.T) {
	t.Parallel()
	const flood = 600 // the window has 256
	ctx, cancel := context.WithTimeout(t.Context(), 4*bound)
	defer cancel()
	a, b := twoHosts(t, ctx)
	reader := addMain(t, ctx, b, "reader")
	rare := addMain(t, ctx, a, "rare")
	seen(t, ctx, rare, "reader@hostb")
	var chatty *fleet.Main
	for i := range flood {
		if i%200 == 0 { // one sender may not send so much to one recipient
			chatty = addMain(t, ctx, a, fmt.Sprint("chatty", i))
		}
		if _, err := chatty.Send(ctx, map[string]any{"to": "reader@hostb", "content": fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := rare.Send(ctx, map[string]any{"to": "reader@hostb", "content": "needle"}); err != nil {
		t.Fatal(err)
	}
	held := func(want int) { // what is on its way from the broker is counted when it is here
		t.Helper()
		eventually(t, ctx, func() error {
			who, err := b.API("reader").Whoami(ctx)
			if err == nil && who.Held != want {
				err = fmt.Errorf("%d are held, want %d", who.Held, want)
			}
			return err
		})
	}
	held(flood + 1)
	r, err := reader.Poll(ctx, map[string]any{"from": "rare@hosta", "wait_seconds": longest})
	if err != nil || len(r.Messages) != 1 || r.Messages[0].Content != "needle" || r.WindowFull {
		t.Fatalf("the filtered poll came to %+v, %v", r, err)
	}
	held(flood)
	for got := 0; got < flood; {
		r, err := reader.Poll(ctx, map[string]any{"max": 100, "wait_seconds": longest})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range r.Messages {
			if m.Content != fmt.Sprint(got) || m.Redelivered {
				t.Fatalf("message %d is %q, redelivered %t", got, m.Content, m.Redelivered)
			}
			got++
		}
		if r.Remaining > flood-got {
			t.Fatalf("%d remain after %d of %d", r.Remaining, got, flood)
		}
		held(flood - got)
	}
}

// The inbox of a host that is away takes 100 000 messages and refuses the next,
// whose sender learns it at once; with room in it it takes mail again. Fails when
// a full inbox pushes out what it had accepted, or its refusal has another name.
func TestAFullInboxRefusesTheNewest(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 4*bound)
	defer cancel()
	uri := rabbit.URI(t)
	f := newFleet(t, uri)
	a, b := addHost(t, ctx, f, "hosta"), addHost(t, ctx, f, "hostb")
	if err := f.TrustEachOther(); err != nil {
		t.Fatal(err)
	}
	sender, reader := addMain(t, ctx, a, "sender"), addMain(t, ctx, b, "reader")
	seen(t, ctx, sender, "reader@hostb")
	seen(t, ctx, reader, "sender@hosta")
	if err := b.Stop(); err != nil {
		t.Fatal(err)
	}
	send := func(content string) (mcp.SendResult, error) {
		return sender.Send(ctx, map[string]any{"to": "reader@hostb", "content": content, "queue_if_offline": true})
	}
	if r, err := send("accepted"); err != nil || r.State != "queued" {
		t.Fatalf("before it is full: %+v, %v", r, err)
	}
	conn, err := amqp.DialConfig(uri, amqp.Config{Heartbeat: time.Minute}) // a busy machine misses shorter ones
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	queue := fabric.Names{Prefix: f.Prefix}.Inbox(reader.GID)
	for range fabric.InboxCap - 1 {
		if err := ch.PublishWithContext(ctx, "", queue, false, false, amqp.Publishing{}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, ctx, func() error {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		if err == nil && q.Messages < fabric.InboxCap {
			err = fmt.Errorf("%d messages are in", q.Messages)
		}
		return err
	})
	if r, err := send("refused"); !fault.Is(err, fault.InboxFull) {
		t.Fatalf("a send to a full inbox came to %+v, %v", r, err)
	}
	first, ok, err := ch.Get(queue, false)
	if err != nil || !ok || string(first.Body) != "accepted" {
		t.Fatalf("the oldest is %q now: %t, %v", first.Body, ok, err)
	}
	if _, err := ch.QueuePurge(queue, false); err != nil {
		t.Fatal(err)
	}
	if err := first.Nack(false, true); err != nil {
		t.Fatal(err)
	}
	if r, err := send("accepted again"); err != nil || r.State != "queued" {
		t.Fatalf("with room again: %+v, %v", r, err)
	}
	if err := b.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := reader.Connect(ctx); err != nil {
		t.Fatal(err)
	}
	var got []string
	eventually(t, ctx, func() error {
		r, err := reader.Poll(ctx, map[string]any{"wait_seconds": 5})
		for _, m := range r.Messages {
			got = append(got, m.Content)
		}
		if err == nil && len(got) < 2 {
			err = fmt.Errorf("the reader got %q", got)
		}
		return err
	})
	if strings.Join(got, ", ") != "accepted, accepted again" {
		t.Errorf("the reader got %q", got)
	}
}

// Mail that its reader never fetches ends with its life: the sender is told by
// the reader's own gateway, the letter is listed, and nobody gets it later. Fails
// when the end is left to the sender's watch, or when expired mail vanishes
// without a dead letter.
func TestHeldMailEndsWithItsLife(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*bound)
	defer cancel()
	a, b := twoHosts(t, ctx)
	sender, reader := addMain(t, ctx, a, "sender"), addMain(t, ctx, b, "reader")
	seen(t, ctx, sender, "reader@hostb")
	sent, err := sender.Send(ctx, map[string]any{"to": "reader@hostb", "content": "short-lived", "expires_in_seconds": 10})
	if err != nil || sent.State != "queued" {
		t.Fatalf("the send came to %+v, %v", sent, err)
	}
	if _, err := sender.Send(ctx, map[string]any{"to": "reader@hostb", "content": "stays"}); err != nil {
		t.Fatal(err)
	}
	if m := next(t, ctx, sender); m.Kind != "FAILED" || m.Reason != "EXPIRED" || m.InReplyTo != sent.MsgID {
		t.Errorf("the sender was told %+v", m)
	}
	eventually(t, ctx, func() error {
		trace, err := b.API("").Trace(ctx, mcp.TraceArgs{TraceID: sent.TraceID})
		if err == nil && !slices.ContainsFunc(trace.Hops, func(h mcp.Hop) bool { return h.Step == "reported" && h.Kind == "FAILED" }) {
			err = fmt.Errorf("not by the reader's gateway: %+v", trace.Hops)
		}
		return err
	})
	eventually(t, ctx, func() error {
		dead, err := a.API("").ListDeadLetters(ctx, mcp.ListDeadLettersArgs{})
		if err == nil && (len(dead.Letters) != 1 || dead.Letters[0].MsgID != sent.MsgID || dead.Letters[0].Reason != "rejected") {
			err = fmt.Errorf("dead letters: %+v", dead)
		}
		return err
	})
	got, err := reader.Poll(ctx, map[string]any{"wait_seconds": longest})
	if err != nil || len(got.Messages) != 1 || got.Messages[0].Content != "stays" {
		t.Fatalf("the reader got %+v, %v", got, err)
	}
	if told, err := sender.Poll(ctx, map[string]any{}); err != nil || len(told.Messages) != 0 {
		t.Errorf("the sender was told more: %+v, %v", told, err)
	}
}
