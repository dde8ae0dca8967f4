package e2e

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fleetd/fault"
	"fleetd/mcp"
	"fleetd/test/fleet"
)

// What goes wrong in the pane itself: the sender is told the truth, and the
// text is there once or not at all. The cases share two hosts, one after the
// other, each with a worker of its own.
func TestInjectionThatGoesWrong(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*bound)
	defer cancel()
	s := newStage(t, ctx)
	s.inTurn(t, ctx, []turn{
		{"enter swallowed", enterSwallowed},
		{"enter dead", enterDead},
		{"dialog after text", dialogAfterText},
		{"agent gone before text", agentGoneBeforeText},
		{"agent gone after text", agentGoneAfterText},
		{"pane closed", paneClosed},
		{"killed before text", killedBeforeText},
		{"killed before enter", killedBeforeEnter},
		{"killed after enter", killedAfterEnter},
	})
}

// Fails when a lost Enter leaves the brief in the composer, or has the text
// pasted again.
func enterSwallowed(t *testing.T, ctx context.Context, s *stage) {
	w := s.worker(t, ctx, "sleepy", "--reply-with", "awake")
	if err := s.b.Herdr.SwallowEnter(w.Pane, 1); err != nil {
		t.Fatal(err)
	}
	r, err := s.lead.Send(ctx, map[string]any{"to": "sleepy@hostb", "content": "mark-once", "wait_seconds": longest})
	if err != nil || r.State != "replied" || r.Reply.Content != "awake" {
		t.Fatalf("the brief came to %+v, %v", r, err)
	}
	prompted(t, ctx, w, "mark-once")
	wrote(t, w, "mark-once", 1)
	wrote(t, w, "\r", 2)
	s.toldNoMore(t, ctx)
}

var msgIDs = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// A pane in which Enter has no effect: first it is not known what becomes of
// the brief, then it is in doubt, and for good. What stands in the composer
// holds up the next brief. When a person presses Enter at last, the answer
// comes and the next brief goes in. Fails when a doubt is told as anything
// else, when the text is pasted again, or when the answer is lost.
func enterDead(t *testing.T, ctx context.Context, s *stage) {
	w := s.worker(t, ctx, "deaf", "--reply-with", "heard")
	if err := s.b.Herdr.SwallowEnter(w.Pane, 1000); err != nil {
		t.Fatal(err)
	}
	r, err := s.lead.Send(ctx, map[string]any{"to": "deaf@hostb", "content": "mark-deaf"})
	id := r.MsgID
	switch { // a slow machine may have let it settle for long enough to tell of
	case fault.Is(err, fault.Unconfirmed):
		id = msgIDs.FindString(err.Error())
	case err != nil || r.State != "deferred":
		t.Fatalf("the brief came to %+v, %v; want UNCONFIRMED", r, err)
	}
	s.told(t, ctx, id, "FAILED", "IN_DOUBT")
	second := s.brief(t, ctx, w, "mark-behind", "deferred", "UNSENT")
	s.toldNoMore(t, ctx)
	wrote(t, w, "mark-deaf", 1)
	wrote(t, w, "mark-behind", 0)

	if err := s.b.Herdr.SwallowEnter(w.Pane, 0); err != nil {
		t.Fatal(err)
	}
	if err := s.b.Herdr.Type(w.Pane, "\r"); err != nil {
		t.Fatal(err)
	}
	answered := map[string]bool{}
	for len(answered) < 2 {
		switch m := next(t, ctx, s.lead); {
		case m.Kind == "REPLY" && m.Content == "heard" && !answered[m.InReplyTo]:
			answered[m.InReplyTo] = true
		case m.Kind == "INJECTED" && m.InReplyTo == second.MsgID && !answered[m.InReplyTo]:
		default:
			t.Fatalf("lead was told %+v", m)
		}
	}
	if !answered[id] || !answered[second.MsgID] {
		t.Fatalf("answered were %v, want %s and %s", answered, id, second.MsgID)
	}
	wrote(t, w, "mark-deaf", 1)
	wrote(t, w, "mark-behind", 1)
}

// Fails when Enter is pressed into a dialog that opened over the text.
func dialogAfterText(t *testing.T, ctx context.Context, s *stage) {
	w := s.worker(t, ctx, "asker")
	control(t, w, "dialog-after-paste")
	s.fails(t, ctx, w, "mark-covered", fault.InDoubt)
	wrote(t, w, "mark-covered", 1)
	wrote(t, w, "\r", 0)
	dialogUntouched(t, w)
	if state, err := w.State(); err != nil || state.Dialog != "permission" {
		t.Fatalf("the dialog is %q, %v", state.Dialog, err)
	}
	s.toldNoMore(t, ctx)
}

// Fails when a brief is called anything but undelivered although no text was
// written, or when it stays behind in the dead worker's inbox.
func agentGoneBeforeText(t *testing.T, ctx context.Context, s *stage) {
	w := s.worker(t, ctx, "frail")
	tapHerdr(t, s.b, func(method string) bool {
		if method == "pane.send_input" {
			crash(t, ctx, w)
		}
		return true
	})
	s.fails(t, ctx, w, "mark-frail", fault.PaneGone)
	pasted(t, w, "mark-frail", 0)
	s.toldNoMore(t, ctx)
}

// Fails when a text that went down with its agent is called injected, or
// undelivered. Once the worker's end is noticed, it is the last word.
func agentGoneAfterText(t *testing.T, ctx context.Context, s *stage) {
	w := s.worker(t, ctx, "brittle")
	control(t, w, "exit-after-paste on")
	id := msgIDs.FindString(s.fails(t, ctx, w, "mark-brittle", fault.InDoubt))
	pasted(t, w, "mark-brittle", 1)
	s.fails(t, ctx, w, "mark-too-late", fault.PaneGone)
	s.told(t, ctx, id, "ABANDONED", "PANE_GONE")
	s.toldNoMore(t, ctx)
	pasted(t, w, "mark-too-late", 0)
}

// A pane that is closed takes its worker along: the brief that it had is
// abandoned, those that waited for it were never handed over. Fails when one of
// them is told otherwise, or not at all.
func paneClosed(t *testing.T, ctx context.Context, s *stage) {
	w := s.worker(t, ctx, "mortal")
	open := s.brief(t, ctx, w, "mark-open", "injected", "")
	prompted(t, ctx, w, "mark-open")
	control(t, w, "busy")
	status(t, ctx, w, "working")
	want := map[string]string{open.MsgID: "ABANDONED PANE_GONE"}
	for _, reason := range []string{"BUSY", "QUEUED"} {
		want[s.brief(t, ctx, w, "mark-waiting", "deferred", reason).MsgID] = "FAILED PANE_GONE"
	}
	closePane(t, ctx, w)
	for range 3 {
		m := next(t, ctx, s.lead)
		if got := m.Kind + " " + m.Reason; got != want[m.InReplyTo] {
			t.Fatalf("lead was told %s about %s, want %q", got, m.InReplyTo, want[m.InReplyTo])
		}
		delete(want, m.InReplyTo)
	}
	s.toldNoMore(t, ctx)
	pasted(t, w, "mark-open", 1)
	pasted(t, w, "mark-waiting", 0)
	s.fails(t, ctx, w, "mark-too-late", fault.PaneGone)
}

// The gateway is killed right before the text would be written. Fails when the
// brief is injected by the gateway's next life, which cannot know that it was
// not, or its sender is not told that it is in doubt.
func killedBeforeText(t *testing.T, ctx context.Context, s *stage) {
	w := s.worker(t, ctx, "unharmed")
	s.inDoubtOverACrash(t, ctx, w, "mark-unharmed", func(m string) bool { return m == "pane.send_input" })
	s.toldNoMore(t, ctx)
	wrote(t, w, "mark-unharmed", 0)
}

// The same between text and Enter.
func killedBeforeEnter(t *testing.T, ctx context.Context, s *stage) {
	w := s.worker(t, ctx, "halfway")
	s.inDoubtOverACrash(t, ctx, w, "mark-halfway", func(m string) bool { return m == "agent.send_keys" })
	s.toldNoMore(t, ctx)
	wrote(t, w, "mark-halfway", 1)
	wrote(t, w, "\r", 0)
}

// The same when the agent has the brief and before that is recorded. The doubt is told, and the answer still counts. Fails when
// the answer to a brief in doubt is refused, or the brief pasted again.
func killedAfterEnter(t *testing.T, ctx context.Context, s *stage) {
	w := s.worker(t, ctx, "survivor")
	const mark = "mark-survivor"
	var pressed atomic.Bool
	id := s.inDoubtOverACrash(t, ctx, w, mark, func(m string) bool {
		if m == "agent.send_keys" {
			pressed.Store(true)
		}
		return m == "agent.get" && pressed.Load()
	})
	prompted(t, ctx, w, mark)
	if _, err := s.b.API(w.Name).Reply(ctx, mcp.ReplyArgs{Content: "still here", InReplyTo: id}); err != nil {
		t.Fatal(err)
	}
	if m := next(t, ctx, s.lead); m.Kind != "REPLY" || m.Content != "still here" || m.InReplyTo != id {
		t.Fatalf("lead was told %+v", m)
	}
	s.toldNoMore(t, ctx)
	wrote(t, w, mark, 1)
}

// inDoubtOverACrash has lead wait for a brief whose injection ends with
// hostb's gateway, at the first request to herdr that at picks and that is not
// made. The gateway comes back, and lead has to hear IN_DOUBT.
func (s *stage) inDoubtOverACrash(t *testing.T, ctx context.Context, w *fleet.Worker, mark string, at func(method string) bool) (msgID string) {
	t.Helper()
	dead := make(chan struct{})
	kill := sync.OnceFunc(func() {
		defer close(dead)
		if err := s.b.Kill(); err != nil {
			t.Error(err)
		}
	})
	untap := tapHerdr(t, s.b, func(m string) bool {
		if !at(m) {
			return true
		}
		kill()
		return false
	})
	type end struct {
		r   mcp.SendResult
		err error
	}
	sent := make(chan end, 1)
	go func() {
		r, err := s.lead.Send(ctx, map[string]any{"to": w.Name + "@hostb", "content": mark, "wait_seconds": longest})
		sent <- end{r, err}
	}()
	select {
	case <-dead:
	case e := <-sent:
		t.Fatalf("the brief came to %+v, %v before the gateway was killed", e.r, e.err)
	}
	untap()
	revive(t, ctx, s.b)
	reconnect(t, ctx, s.bob)
	e := <-sent
	if !fault.Is(e.err, fault.InDoubt) {
		t.Fatalf("the brief came to %+v, %v; want IN_DOUBT", e.r, e.err)
	}
	return msgIDs.FindString(e.err.Error())
}

// crash ends the agent of w with its pane, from within a hook, and waits until
// it is gone.
func crash(t *testing.T, ctx context.Context, w *fleet.Worker) {
	if err := w.Control("crash"); err != nil {
		t.Error(err)
	}
	for {
		if _, err := w.Host.Herdr.PID(w.Pane); err != nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Error("the pane of a dead agent stays")
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// closePane closes the pane of w as a person does.
func closePane(t *testing.T, ctx context.Context, w *fleet.Worker) {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", w.Host.Herdr.SocketPath())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, `{"id":"close","method":"pane.close","params":{"pane_id":%q}}`+"\n", w.Pane); err != nil {
		t.Fatal(err)
	}
	if answer, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(answer, `"ok"`) {
		t.Fatalf("closing the pane came to %q, %v", answer, err)
	}
}

// tapHerdr puts before in the way of the requests to h's herdr until the test
// ends or the returned function is called.
func tapHerdr(t *testing.T, h *fleet.Host, before func(method string) bool) (untap func()) {
	t.Helper()
	remove, err := h.TapHerdr(before)
	if err != nil {
		t.Fatal(err)
	}
	untap = sync.OnceFunc(func() {
		if err := remove(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(untap)
	return untap
}
