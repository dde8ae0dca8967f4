package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"fleetd/fault"
	"fleetd/mcp"
	"fleetd/test/fleet"
)

// §14: herdr down. A worker that cannot take a brief now gets it once, when it can; until then
// its sender knows why it waits and nothing is pressed in its pane. One stage
// and one worker serve all cases, each of which leaves it idle.
func TestBriefWaitsForItsWorker(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 4*bound)
	defer cancel()
	s := newStage(t, ctx)
	w := s.worker(t, ctx, "reviewer")
	with := func(run func(*testing.T, context.Context, *stage, *fleet.Worker)) func(*testing.T, context.Context, *stage) {
		return func(t *testing.T, ctx context.Context, s *stage) {
			rested(t, ctx, w)
			run(t, ctx, s, w)
		}
	}
	s.inTurn(t, ctx, []turn{
		{"busy", with(waitsForBusy)},
		{"dialog", with(waitsForDialog)},
		{"draft", with(waitsForDraft)},
		{"herdr down", with(waitsForHerdr)},
		{"expires", with(expiresWaiting)},
		{"gateway killed", with(waitsOverACrash)},
		{"herdr restarted", with(waitsForItsPane)},
	})
}

// goesInOnce demands that a brief that waited is injected, once, and that its
// sender is told so, once.
func goesInOnce(t *testing.T, ctx context.Context, s *stage, w *fleet.Worker, sent mcp.SendResult, mark string) {
	t.Helper()
	s.told(t, ctx, sent.MsgID, "INJECTED", "")
	prompted(t, ctx, w, mark)
	wrote(t, w, mark, 1)
	s.toldNoMore(t, ctx)
}

// Fails when a text goes into a running turn, or its sender is not told that
// it waits, or that it is in.
func waitsForBusy(t *testing.T, ctx context.Context, s *stage, w *fleet.Worker) {
	control(t, w, "busy")
	status(t, ctx, w, "working")
	sent := s.brief(t, ctx, w, "mark-busy", "deferred", "BUSY")
	wrote(t, w, "mark-busy", 0)
	control(t, w, "idle")
	goesInOnce(t, ctx, s, w, sent, "mark-busy")
}

// Fails when a dialog is pasted into or answered.
func waitsForDialog(t *testing.T, ctx context.Context, s *stage, w *fleet.Worker) {
	before := len(input(t, w))
	control(t, w, "dialog")
	status(t, ctx, w, "blocked")
	sent := s.brief(t, ctx, w, "mark-dialog", "deferred", "BLOCKED")
	if after := len(input(t, w)); after != before {
		t.Fatalf("%d writes went into the dialog", after-before)
	}
	control(t, w, "close-dialog")
	goesInOnce(t, ctx, s, w, sent, "mark-dialog")
	dialogUntouched(t, w)
}

// Fails when a person's draft is sent along, or lost.
func waitsForDraft(t *testing.T, ctx context.Context, s *stage, w *fleet.Worker) {
	const draft = "half a thought of"
	control(t, w, "draft "+draft)
	sent := s.brief(t, ctx, w, "mark-draft", "deferred", "DRAFT")
	wrote(t, w, "mark-draft", 0)
	state, err := w.State()
	if err != nil || state.Composer != draft {
		t.Fatalf("the composer holds %q, %v; want the draft", state.Composer, err)
	}
	control(t, w, "clear")
	goesInOnce(t, ctx, s, w, sent, "mark-draft")
	if p := prompted(t, ctx, w, "mark-draft"); strings.Contains(p, draft) {
		t.Fatalf("the draft went along: %q", p)
	}
}

// Fails when an absent herdr fails a brief, or is not found again.
func waitsForHerdr(t *testing.T, ctx context.Context, s *stage, w *fleet.Worker) {
	if err := s.b.Herdr.RefuseConnections(); err != nil {
		t.Fatal(err)
	}
	sent := s.brief(t, ctx, w, "mark-herdr", "deferred", "HERDR_DOWN")
	if err := s.b.Herdr.TakeConnections(); err != nil {
		t.Fatal(err)
	}
	goesInOnce(t, ctx, s, w, sent, "mark-herdr")
}

// Fails when the end of a brief's life is not told, or told by more than one of
// those who see it (the worker's gateway on two lanes, the dead letter, the
// sender's own watch), or when the brief goes in after it. Fails too when an
// operator is not shown that counters grow.
func expiresWaiting(t *testing.T, ctx context.Context, s *stage, w *fleet.Worker) {
	control(t, w, "busy")
	status(t, ctx, w, "working")
	sent, err := s.lead.Send(ctx, map[string]any{"to": w.Name + "@hostb", "content": "mark-expired", "expires_in_seconds": 2})
	switch {
	case fault.Is(err, fault.Expired): // a slow machine takes as long as it lives, and the call itself is told
	case err != nil || sent.State != "deferred":
		t.Fatalf("the brief came to %+v, %v", sent, err)
	default:
		s.told(t, ctx, sent.MsgID, "FAILED", "EXPIRED")
	}
	// The dead letter has been dealt with too.
	eventually(t, ctx, func() error {
		if n := metric(t, s.a, "bridged_dead_letters_total", ""); n != 1 {
			return fmt.Errorf("hosta counts %v dead letters", n)
		}
		return nil
	})
	for _, name := range []string{"bridged_presence_total", "bridged_publishes_total", "bridged_store_bytes", "bridged_store_commits_total"} {
		if metric(t, s.a, name, "") == 0 {
			t.Errorf("an operator sees no %s", name)
		}
	}
	s.toldNoMore(t, ctx)
	control(t, w, "idle")
	rested(t, ctx, w)
	s.brief(t, ctx, w, "mark-after-expiry", "injected", "")
	wrote(t, w, "mark-expired", 0)
}

// Fails when a brief that waits does not outlive the gateway of its worker, or
// is injected by both lives of it.
func waitsOverACrash(t *testing.T, ctx context.Context, s *stage, w *fleet.Worker) {
	control(t, w, "busy")
	status(t, ctx, w, "working")
	sent := s.brief(t, ctx, w, "mark-crash", "deferred", "BUSY")
	restart(t, ctx, s.b)
	reconnect(t, ctx, s.bob)
	control(t, w, "idle")
	goesInOnce(t, ctx, s, w, sent, "mark-crash")
}

// Fails when a text is typed into whatever has the worker's pane id after a
// restart of herdr, when a brief that the agent had is not told as abandoned
// once, or when a later one is lost to the worker that comes back.
func waitsForItsPane(t *testing.T, ctx context.Context, s *stage, w *fleet.Worker) {
	who, err := s.b.API(w.Name).Whoami(ctx)
	if err != nil {
		t.Fatal(err)
	}
	had := map[string]bool{}
	for _, open := range who.OpenBriefs {
		had[open.MsgID] = true
	}
	if err := s.b.Herdr.Restart(); err != nil {
		t.Fatal(err)
	}
	for len(had) > 0 {
		if m := next(t, ctx, s.lead); m.Kind != "ABANDONED" || m.Reason != "PANE_GONE" || !had[m.InReplyTo] {
			t.Fatalf("lead was told %s %s about %s (%q)", m.Kind, m.Reason, m.InReplyTo, m.Content)
		} else {
			delete(had, m.InReplyTo)
		}
	}
	if pid, err := s.b.Herdr.PID(w.Pane); err != nil || pid == 0 {
		t.Fatalf("no shell has the pane's id: %v", err)
	}
	sent := s.brief(t, ctx, w, "mark-changed", "deferred", "PANE_CHANGED")
	if all := input(t, w); len(all) != 0 {
		t.Fatalf("the shell was given %q", all[0].Bytes)
	}
	if err := w.Reopen(ctx); err != nil {
		t.Fatal(err)
	}
	goesInOnce(t, ctx, s, w, sent, "mark-changed")
}

// restart ends a gateway as a crash does and starts it again.
func restart(t *testing.T, ctx context.Context, h *fleet.Host) {
	t.Helper()
	if err := h.Kill(); err != nil {
		t.Fatal(err)
	}
	revive(t, ctx, h)
}

// revive starts a gateway that was killed.
func revive(t *testing.T, ctx context.Context, h *fleet.Host) {
	t.Helper()
	if err := h.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := h.Ready(ctx); err != nil {
		t.Fatal(err)
	}
}

// reconnect opens a new session of m, whose gateway was restarted.
func reconnect(t *testing.T, ctx context.Context, m *fleet.Main) {
	t.Helper()
	if err := m.Connect(context.WithoutCancel(ctx)); err != nil {
		t.Fatal(err)
	}
}

// Briefs to another host and what becomes of them, on one stage.
func TestABriefCrossesHosts(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 3*bound)
	defer cancel()
	s := newStage(t, ctx)
	s.inTurn(t, ctx, []turn{
		{"and is answered", answeredAcrossHosts},
		{"too long to be pasted", announcedAndRead},
		{"its worker ends", abandonedByItsWorker},
	})
}

// A brief crosses two hosts and its answer comes back. Fails when any hop of
// the trip is broken.
func answeredAcrossHosts(t *testing.T, ctx context.Context, s *stage) {
	w := s.worker(t, ctx, "reviewer", "--reply-with", "looks good")
	r, err := s.lead.Send(ctx, map[string]any{"to": "reviewer@hostb", "content": "please review parser.go", "wait_seconds": longest})
	if err != nil {
		t.Fatal(err)
	}
	if r.State != "replied" || r.Reply == nil || r.Reply.Content != "looks good" || r.Reply.From != "reviewer@hostb" {
		t.Fatalf("the reply is %+v, want one from reviewer@hostb", r)
	}
	prompts, err := w.Prompts()
	if err != nil {
		t.Fatal(err)
	}
	if len(prompts) != 1 || !strings.Contains(prompts[0], "please review parser.go") || !strings.Contains(prompts[0], r.MsgID) {
		t.Fatalf("the model was given %q, want the brief once", prompts)
	}
}

// §14: worker's pane gone. A main whose brief is with a worker that ends is told so, without anybody
// writing to that worker again. Fails when the end of a pane is only noticed
// with the next message for it.
func abandonedByItsWorker(t *testing.T, ctx context.Context, s *stage) {
	w := s.worker(t, ctx, "mortal", "--replies=-1", "--work", "1h")
	sent := s.brief(t, ctx, w, "take your time", "injected", "")
	if err := w.Control("exit"); err != nil {
		t.Fatal(err)
	}
	told(t, ctx, s.lead, sent, "ABANDONED")
}

// A brief too long to be pasted is announced by one line, read whole by the
// worker and answered. Fails when it is pasted, cut, or its answer is not
// known to be one.
func announcedAndRead(t *testing.T, ctx context.Context, s *stage) {
	w := s.worker(t, ctx, "reader", "--reply-with", "read it all")
	var b strings.Builder
	for i := 0; b.Len() < 20<<10; i++ {
		fmt.Fprintf(&b, "%04d: straße, 日本, \"quoted\" and @named\n", i)
	}
	brief := b.String()
	r, err := s.lead.Send(ctx, map[string]any{"to": "reader@hostb", "content": brief, "wait_seconds": longest})
	if err != nil || r.State != "replied" || r.Reply.Content != "read it all" || r.Reply.InReplyTo != r.MsgID {
		t.Fatalf("the long brief came to %+v, %v", r, err)
	}
	prompt := prompted(t, ctx, w, r.MsgID)
	if strings.Contains(prompt, "\n") || !strings.Contains(prompt, "bridge_read") || strings.Contains(prompt, "0000: straße") {
		t.Fatalf("it was announced as %q", prompt)
	}
	wrote(t, w, r.MsgID, 1)
	events, err := w.Events()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if e.Event == "read" {
			if e.Text != brief || e.Error != "" {
				t.Fatalf("the worker read %d bytes of %d, error %q", len(e.Text), len(brief), e.Error)
			}
			return
		}
	}
	t.Fatal("the worker did not read it")
}
