package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"fleetd/fault"
	"fleetd/mcp"
	"fleetd/test/fleet"
	"fleetd/test/herdrsim"
)

// stage is two hosts with a main on each. What one is told about another's
// failure is asked of lead; bob shows that the way back to lead is empty.
type stage struct {
	a, b      *fleet.Host
	lead, bob *fleet.Main
}

func newStage(t *testing.T, ctx context.Context) *stage {
	t.Helper()
	s := &stage{}
	s.a, s.b = twoHosts(t, ctx)
	s.lead, s.bob = addMain(t, ctx, s.a, "lead"), addMain(t, ctx, s.b, "bob")
	seen(t, ctx, s.lead, "bob@hostb")
	seen(t, ctx, s.bob, "lead@hosta")
	return s
}

// turn is one of several cases on one stage.
type turn struct {
	name string
	run  func(*testing.T, context.Context, *stage)
}

// inTurn runs cases one after the other, up to the first that fails: what it
// leaves behind would fail the others.
func (s *stage) inTurn(t *testing.T, ctx context.Context, turns []turn) {
	t.Helper()
	for _, c := range turns {
		if !t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(ctx, bound)
			defer cancel()
			c.run(t, ctx, s)
		}) {
			return
		}
	}
}

// worker is one on hostb that lead sees and that is idle. It never answers unless flags say so.
func (s *stage) worker(t *testing.T, ctx context.Context, name string, flags ...string) *fleet.Worker {
	t.Helper()
	if len(flags) == 0 {
		flags = []string{"--replies", "-1"}
	}
	w := addWorker(t, ctx, s.b, name, flags...)
	seen(t, ctx, s.lead, name+"@hostb")
	rested(t, ctx, w)
	return w
}

// brief has lead send content to w and demands this state. On a slow machine a
// gate can settle for so long that the sender is told of that first.
func (s *stage) brief(t *testing.T, ctx context.Context, w *fleet.Worker, content, state, reason string) mcp.SendResult {
	t.Helper()
	r, err := s.lead.Send(ctx, map[string]any{"to": w.Name + "@hostb", "content": content})
	if err != nil {
		t.Fatal(err)
	}
	s.went(t, ctx, w, r, state, reason)
	return r
}

// went demands that a send came to this state, or to settling or an absent herdr
// and then to it.
func (s *stage) went(t *testing.T, ctx context.Context, w *fleet.Worker, r mcp.SendResult, state, reason string) {
	t.Helper()
	switch {
	case r.State == state && r.Reason == reason:
	case r.State != "deferred" || r.Reason != "SETTLING" && r.Reason != "HERDR_DOWN":
		t.Fatalf("the brief came to %+v, want %s %s", r, state, reason)
	case state == "injected":
		s.told(t, ctx, r.MsgID, "INJECTED", "")
	default:
		s.refuses(t, ctx, w, reason)
	}
}

// refuses waits until the roster says that w takes nothing for this reason.
func (s *stage) refuses(t *testing.T, ctx context.Context, w *fleet.Worker, reason string) {
	t.Helper()
	eventually(t, ctx, func() error {
		r, err := s.lead.Roster(ctx)
		for _, e := range r.Entities {
			if e.GID == w.GID && strings.HasPrefix(e.Refusing, reason+" ") {
				return nil
			}
		}
		return fmt.Errorf("%s does not refuse for %s: %v", w.Name, reason, err)
	})
}

// fails has lead send content to w and wait, and demands this error. It
// returns the error's words.
func (s *stage) fails(t *testing.T, ctx context.Context, w *fleet.Worker, content string, code fault.Code) string {
	t.Helper()
	r, err := s.lead.Send(ctx, map[string]any{"to": w.Name + "@hostb", "content": content, "wait_seconds": longest})
	if !fault.Is(err, code) {
		t.Fatalf("the brief came to %+v, %v; want %s", r, err, code)
	}
	return err.Error()
}

// next waits for the next piece of mail of m.
func next(t *testing.T, ctx context.Context, m *fleet.Main) mcp.Message {
	t.Helper()
	for {
		r, err := m.Poll(ctx, map[string]any{"wait_seconds": longest, "max": 1})
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Messages) > 0 {
			return r.Messages[0]
		}
	}
}

// told demands that lead's next piece of mail is this report on a message.
func (s *stage) told(t *testing.T, ctx context.Context, msgID, kind, reason string) {
	t.Helper()
	m := next(t, ctx, s.lead)
	if m.Kind != kind || m.Reason != reason || m.InReplyTo != msgID {
		t.Fatalf("lead was told %s %s about %s (%q); want %s %s about %s", m.Kind, m.Reason, m.InReplyTo, m.Content, kind, reason, msgID)
	}
}

// told demands that the next mail of m is a notice of that kind about sent.
func told(t *testing.T, ctx context.Context, m *fleet.Main, sent mcp.SendResult, kind string) {
	t.Helper()
	for {
		r, err := m.Poll(ctx, map[string]any{"wait_seconds": longest, "max": 1})
		if err != nil {
			t.Fatal(err)
		}
		for _, msg := range r.Messages {
			if msg.Kind != kind || msg.InReplyTo != sent.MsgID {
				t.Fatalf("%s got %+v, want %s of %s", m.Name, msg, kind, sent.MsgID)
			}
			return
		}
	}
}

var barriers atomic.Int64

// toldNoMore demands that lead is told nothing else: the next mail that comes
// from hostb is one that bob writes now, which lies behind all reports.
func (s *stage) toldNoMore(t *testing.T, ctx context.Context) {
	t.Helper()
	content := fmt.Sprintf("that is all (%d)", barriers.Add(1))
	eventually(t, ctx, func() error { // a gateway that was just started may not see the other yet
		_, err := s.bob.Send(ctx, map[string]any{"to": "lead@hosta", "content": content, "idempotency_key": content})
		return err
	})
	if m := next(t, ctx, s.lead); m.Content != content {
		t.Fatalf("lead was told too much: %+v", m)
	}
}

// input is what was written to w's pane.
func input(t *testing.T, w *fleet.Worker) []herdrsim.Write {
	t.Helper()
	writes, err := w.Host.Herdr.Input(w.Pane)
	if err != nil {
		t.Fatal(err)
	}
	return writes
}

// wrote demands that so many writes to w's pane held mark.
func wrote(t *testing.T, w *fleet.Worker, mark string, want int) {
	t.Helper()
	n := 0
	for _, one := range input(t, w) {
		if bytes.Contains(one.Bytes, []byte(mark)) {
			n++
		}
	}
	if n != want {
		t.Fatalf("%q was written into the pane of %s %d times, want %d", mark, w.Name, n, want)
	}
}

// pasted demands that the agent itself saw so many pastes that held mark. It
// can be asked when the pane is gone.
func pasted(t *testing.T, w *fleet.Worker, mark string, want int) {
	t.Helper()
	events, err := w.Events()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range events {
		if (e.Event == "paste" || e.Event == "text") && strings.Contains(e.Text, mark) {
			n++
		}
	}
	if n != want {
		t.Fatalf("%s saw %q pasted %d times, want %d", w.Name, mark, n, want)
	}
}

// prompted waits until the model behind w has a prompt with mark, and demands
// that it has only one.
func prompted(t *testing.T, ctx context.Context, w *fleet.Worker, mark string) (prompt string) {
	t.Helper()
	n := 0
	eventually(t, ctx, func() error {
		prompts, err := w.Prompts()
		n = 0
		for _, p := range prompts {
			if strings.Contains(p, mark) {
				n, prompt = n+1, p
			}
		}
		if n == 0 {
			return fmt.Errorf("%s has no prompt with %q: %v", w.Name, mark, err)
		}
		return nil
	})
	if n != 1 {
		t.Fatalf("%s was prompted with %q %d times", w.Name, mark, n)
	}
	return prompt
}

// control tells the agent of w how to behave.
func control(t *testing.T, w *fleet.Worker, command string) {
	t.Helper()
	if err := w.Control(command); err != nil {
		t.Fatal(err)
	}
}

// status waits until herdr shows one of these statuses of w.
func status(t *testing.T, ctx context.Context, w *fleet.Worker, want ...string) {
	t.Helper()
	eventually(t, ctx, func() error {
		_, have, err := w.Host.Herdr.Status(w.Pane)
		if err == nil && !slices.Contains(want, have) {
			err = fmt.Errorf("%s is %s, not yet %v", w.Name, have, want)
		}
		return err
	})
}

// rested waits until w has ended its turn and herdr has seen it.
func rested(t *testing.T, ctx context.Context, w *fleet.Worker) {
	t.Helper()
	eventually(t, ctx, func() error {
		s, err := w.State()
		if err == nil && s.Working {
			err = fmt.Errorf("%s still works", w.Name)
		}
		return err
	})
	status(t, ctx, w, "idle", "done")
}

// dialogUntouched demands that nobody answered a dialog of w.
func dialogUntouched(t *testing.T, w *fleet.Worker) {
	t.Helper()
	events, err := w.Events()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if e.Event == "dialog" {
			t.Fatalf("a dialog of %s was answered: %+v", w.Name, e)
		}
	}
}

// metric is the sum of a metric of h over all series whose labels hold label.
func metric(t *testing.T, h *fleet.Host, name, label string) (sum float64) {
	t.Helper()
	res, err := http.Get("http://" + h.Addr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("the metrics of %s: %s, %v", h.Name, res.Status, err)
	}
	for line := range strings.Lines(string(text)) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if rest, ok := strings.CutPrefix(series, name); ok && (rest == "" || rest[0] == '{') && strings.Contains(rest, label) {
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				t.Fatal(err)
			}
			sum += n
		}
	}
	return sum
}
