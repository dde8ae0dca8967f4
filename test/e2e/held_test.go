package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"fleetd/fabric"
	"fleetd/test/rabbit"
)

// Mail that nobody fetches, and a brief that waits for its pane, are held for
// several times as long as the broker lets a delivery be unacked. Fails when
// either is lost, is handed over twice, or costs its inbox.
func TestHeldMailOutlivesTheBrokersLimit(t *testing.T) {
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
	brief, err := sender.Send(ctx, map[string]any{"to": "reviewer@hostb", "content": "mark-held"})
	if err != nil || brief.State != "deferred" {
		t.Fatalf("the brief came to %+v, %v", brief, err)
	}
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
	r, err := reader.Poll(ctx, map[string]any{"wait_seconds": 20})
	if err != nil || len(r.Messages) != 3 || r.Remaining != 0 {
		t.Fatalf("the reader got %+v, %v", r, err)
	}
	for i, m := range r.Messages {
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
	const flood = 300 // the window has 256
	ctx, cancel := context.WithTimeout(t.Context(), 4*bound)
	defer cancel()
	a, b := twoHosts(t, ctx)
	reader := addMain(t, ctx, b, "reader")
	chatty, rare := addMain(t, ctx, a, "chatty"), addMain(t, ctx, a, "rare")
	seen(t, ctx, chatty, "reader@hostb")
	for i := range flood {
		if _, err := chatty.Send(ctx, map[string]any{"to": "reader@hostb", "content": fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := rare.Send(ctx, map[string]any{"to": "reader@hostb", "content": "needle"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, ctx, func() error {
		who, err := b.API("reader").Whoami(ctx)
		if err == nil && who.Held != flood+1 {
			err = fmt.Errorf("%d are held, want %d", who.Held, flood+1)
		}
		return err
	})
	r, err := reader.Poll(ctx, map[string]any{"from": "rare@hosta", "wait_seconds": 20})
	if err != nil || len(r.Messages) != 1 || r.Messages[0].Content != "needle" || r.WindowFull {
		t.Fatalf("the filtered poll came to %+v, %v", r, err)
	}
	for got := 0; got < flood; {
		r, err := reader.Poll(ctx, map[string]any{"max": 100, "wait_seconds": 20})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range r.Messages {
			if m.Content != fmt.Sprint(got) || m.Redelivered {
				t.Fatalf("message %d is %q, redelivered %t", got, m.Content, m.Redelivered)
			}
			got++
		}
		if r.Remaining != flood-got {
			t.Fatalf("%d remain after %d of %d", r.Remaining, got, flood)
		}
	}
}
