package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetd/fabric/envelope"
	"fleetd/fabric/roster"
	"fleetd/fault"
	"fleetd/store"
)

const flow = "0123456789abcdef0123456789abcdef"

// saw notes n steps of the flow on h, one a second.
func (h *host) saw(n int) []store.Event {
	h.w.t.Helper()
	var events []store.Event
	for i := range n {
		e := store.Event{
			TraceID: flow, MsgID: newID(), Kind: "SEND", Step: fmt.Sprint("step-", i), Host: h.name, Entity: lead, Peer: lead,
			Outcome: "waiting", Reason: "HUMAN_TYPING", At: time.Date(2026, 1, 1, 0, 0, i, 0, time.UTC).UnixMilli(),
		}
		events = append(events, e)
		h.store.Trace(e)
	}
	if err := h.store.Flush(context.Background()); err != nil {
		h.w.t.Fatal(err)
	}
	return events
}

// Fails when a step is lost or changed on its way, when a host that does not
// answer ends the call or is not named, when one that is away is asked, or when
// a host can answer for another one.
func TestATraceNamesWhoDidNotAnswer(t *testing.T) {
	w := newWorld(t)
	a, b := w.hosts["hosta"], w.hosts["hostb"]
	want := b.saw(3)
	w.others = []roster.HostView{
		{Host: "hostc", State: roster.Online}, {Host: "hostd", State: roster.Offline}, {Host: "hoste", State: roster.Unknown},
	}
	forged := make(chan struct{})
	w.lose(func(env *envelope.Envelope) bool {
		if env.To == "hostc" { // silent, and hostb speaks up in its name
			go func() {
				defer close(forged)
				a.present().Signal(&envelope.Envelope{Kind: envelope.Traced, Signer: "hostb", InReplyTo: env.MsgID, Body: []byte(`{}`)})
			}()
			return true
		}
		return env.Kind == envelope.Trace && env.To != "hostb"
	})
	go func() {
		<-forged
		await(t, "an answer of hostb", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return len(w.heard) > 0
		})
		close(a.late)
	}()
	got, err := a.Trace(t.Context(), flow)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]Traced{
		{Host: "hostb", Events: want},
		{Host: "hostc", Missing: "no answer in time"},
		{Host: "hostd", Missing: "not asked: it is offline"},
		{Host: "hoste", Missing: "not asked: it was not heard lately"},
	}, got); d != "" {
		t.Error(d)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := len(a.traces); n != 0 {
		t.Errorf("%d questions are still open", n)
	}
}

// Fails when an answer is longer than the asker takes, when the newest steps
// are what is left out, or when it is not said how many are.
func TestALongTraceKeepsTheNewestSteps(t *testing.T) {
	for _, takes := range []int{0, 1000, 10 << 20} {
		t.Run(fmt.Sprint(takes), func(t *testing.T) {
			w := newWorld(t)
			a := w.hosts["hosta"]
			a.end()
			a.takes = takes
			a.begin(2)
			all := w.hosts["hostb"].saw(600)
			got, err := a.Trace(t.Context(), flow)
			if err != nil || len(got) != 1 {
				t.Fatalf("%+v, %v", got, err)
			}
			limit := tracedBytes
			if takes == 1000 {
				limit = 1000
			}
			if n := len(w.last(envelope.Traced).Body); n > limit || n < limit*2/3 {
				t.Errorf("the answer has %d bytes, of %d", n, limit)
			}
			kept := len(got[0].Events)
			if kept == 0 || got[0].Cut+kept != len(all) {
				t.Fatalf("%d steps are told and %d left out, of %d", kept, got[0].Cut, len(all))
			}
			if d := cmp.Diff(all[len(all)-kept:], got[0].Events); d != "" {
				t.Error(d)
			}
		})
	}
}

// Fails when a host that cannot be asked, cannot tell, or says what nobody can
// read, counts as one that saw nothing, or when one host's words crowd out all
// others' or make lines that look like theirs.
func TestATraceThatIsNotTold(t *testing.T) {
	t.Attr("threat", "G3 G6 T6")
	for name, tc := range map[string]struct {
		answer *envelope.Envelope
		down   error
		want   string
	}{
		"not asked":  {down: fault.New(fault.Unroutable, "nobody"), want: "it could not be asked (UNROUTABLE)"},
		"cannot":     {answer: &envelope.Envelope{Reason: "STORE_UNAVAILABLE"}, want: "it could not tell (STORE_UNAVAILABLE)"},
		"unreadable": {answer: &envelope.Envelope{Body: []byte("steps")}, want: "its answer cannot be read by this version"},
		"lines":      {answer: &envelope.Envelope{Body: []byte(`{"events":[{"reason":"` + strings.Repeat(`\n\thosta\tinjected\u001b[2J\u202e`, 50) + `"}]}`)}},
		"huge":       {answer: &envelope.Envelope{Body: []byte(`{"events":[{"reason":"` + strings.Repeat("x", 9000) + `"}],"cut":-1}`)}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			a := w.hosts["hosta"]
			a.down = tc.down
			w.lose(func(env *envelope.Envelope) bool {
				if tc.answer != nil && env.Kind == envelope.Trace {
					answer := *tc.answer
					answer.Kind, answer.Signer, answer.InReplyTo = envelope.Traced, "hostb", env.MsgID
					a.present().Signal(&answer)
				}
				return true
			})
			got, err := a.Trace(t.Context(), flow)
			if err != nil || len(got) != 1 || got[0].Missing != tc.want || got[0].Cut != 0 {
				t.Fatalf("%+v, %v, want %q", got, err, tc.want)
			}
			for _, e := range got[0].Events {
				if n := len(e.Reason); n > tracedText || n < tracedText/2 || strings.ContainsAny(e.Reason, "\n\t\x1b\u202e") {
					t.Errorf("a reason of %d bytes, %.80q", n, e.Reason)
				}
			}
		})
	}
}

// Fails when a request that cannot be read, or a store that cannot, looks like
// a host that saw nothing; or when a question outlives its caller.
func TestAHostSaysThatItCannotTell(t *testing.T) {
	w := newWorld(t)
	a, b := w.hosts["hosta"], w.hosts["hostb"]
	ask := a.request(envelope.Trace, envelope.GatewayAddress("hosta"), "hostb", "", flow, time.Now().Add(hang), []byte("?"))
	w.bring(envelope.LaneControl, ask)
	await(t, "an answer", func() bool { return w.last(envelope.Traced) != nil })
	if e := w.last(envelope.Traced); e.Reason != string(fault.BadRequest) || e.InReplyTo != ask.MsgID || e.To != ask.From || len(e.Body) != 0 {
		t.Errorf("%+v", e)
	}
	if err := b.store.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := a.Trace(t.Context(), flow)
	if err != nil || !strings.HasPrefix(got[0].Missing, "it could not tell (") {
		t.Errorf("%+v, %v", got, err)
	}
	w.lose(func(*envelope.Envelope) bool { return true })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.Trace(ctx, flow); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that went away: %v", err)
	}
	if slices.ContainsFunc(w.sent, func(e *envelope.Envelope) bool { return e.Kind == envelope.Traced && len(e.Body) != 0 }) {
		t.Error("a host told something that it could not read")
	}
}
