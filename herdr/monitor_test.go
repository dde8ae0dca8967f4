package herdr

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetd/fabric/envelope"
	"fleetd/fault"
)

// monitored runs a monitor of f in fake time and collects its views.
func monitored(t *testing.T, f *fake, do func(t *testing.T, m *Monitor, views func() []View)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var all []View
		m := &Monitor{Client: f.client(), Changed: func(v View) { mu.Lock(); defer mu.Unlock(); all = append(all, v) }}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx) }()
		synctest.Wait()
		do(t, m, func() []View { synctest.Wait(); mu.Lock(); defer mu.Unlock(); return append([]View(nil), all...) })
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run returned %v", err)
		}
	})
}

func (f *fake) change(do func(f *fake)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do(f)
}

// Fault: a change is not told, an unchanged list is told again, or the times are
// those of the last poll.
func TestMonitorTellsChanges(t *testing.T) {
	f := newFake()
	monitored(t, f, func(t *testing.T, m *Monitor, views func() []View) {
		start := time.Now()
		time.Sleep(5100 * time.Millisecond)
		if n := len(views()); n != 1 {
			t.Fatalf("%d views of an unchanged herdr", n)
		}
		f.change(func(f *fake) { f.set("working") })
		time.Sleep(2 * time.Second)
		all := views()
		if len(all) != 2 {
			t.Fatalf("%d views after a change", len(all))
		}
		at := start.Add(5500 * time.Millisecond)
		want := PaneState{Terminal: testTerm, Kind: "claude", Status: "working", Seq: 8, Since: at, Stable: at, FirstSeen: start}
		if d := cmp.Diff(want, m.View().Panes[testPane]); d != "" {
			t.Error(d)
		}
		f.change(func(f *fake) { f.seq += 2 }) // idle in between
		time.Sleep(time.Second)
		if p := m.View().Panes[testPane]; !p.Since.Equal(at) || !p.Stable.After(at) {
			t.Errorf("%+v", p)
		}
	})
}

// Fault: a pane or agent that one list lacks is given up at once, or one that is
// gone is kept.
func TestMonitorNeedsTwoMisses(t *testing.T) {
	f := newFake()
	monitored(t, f, func(t *testing.T, m *Monitor, views func() []View) {
		f.change(func(f *fake) { f.shell = true })
		time.Sleep(600 * time.Millisecond)
		if p := m.View().Panes[testPane]; p.Kind != "claude" || p.Status != StatusUnknown {
			t.Errorf("after one miss: %+v", p)
		}
		f.change(func(f *fake) { f.shell = false })
		time.Sleep(600 * time.Millisecond)
		f.change(func(f *fake) { f.shell = true })
		time.Sleep(600 * time.Millisecond)
		if p := m.View().Panes[testPane]; p.Kind != "claude" {
			t.Errorf("misses that do not follow each other add up: %+v", p)
		}
		time.Sleep(600 * time.Millisecond)
		if p := m.View().Panes[testPane]; p.Kind != "" || p.Terminal != testTerm {
			t.Errorf("after two misses: %+v", p)
		}
		f.change(func(f *fake) { f.closed = true })
		time.Sleep(300 * time.Millisecond)
		if p, ok := m.View().Panes[testPane]; ok {
			t.Errorf("pane_not_found did not end %+v", p)
		}
	})
	f = newFake()
	monitored(t, f, func(t *testing.T, m *Monitor, views func() []View) {
		f.change(func(f *fake) {
			f.closed = true
			f.fail["pane.get"] = []string{"lost", "lost", "lost"} // cannot be asked
		})
		time.Sleep(600 * time.Millisecond)
		if _, ok := m.View().Panes[testPane]; !ok {
			t.Error("one miss ended the pane")
		}
		time.Sleep(600 * time.Millisecond)
		if _, ok := m.View().Panes[testPane]; ok {
			t.Error("two misses did not end the pane")
		}
	})
}

// Fault: an outage wipes the view, is not told, or is not got over; or a new
// terminal in an old pane passes for the old one.
func TestMonitorOverAnOutage(t *testing.T) {
	f := newFake()
	monitored(t, f, func(t *testing.T, m *Monitor, views func() []View) {
		start := time.Now()
		f.change(func(f *fake) { f.down = true })
		time.Sleep(10 * time.Second)
		v := m.View()
		if v.Up || !fault.Is(v.Err, fault.HerdrDown) || len(v.Panes) != 1 {
			t.Errorf("%+v", v)
		}
		f.change(func(f *fake) { f.down, f.terminal = false, "term_2" })
		time.Sleep(2 * time.Second)
		v = m.View()
		if p := v.Panes[testPane]; !v.Up || v.Err != nil || p.Terminal != "term_2" || !p.FirstSeen.After(start) {
			t.Errorf("%+v", v)
		}
		if n := len(views()); n != 3 {
			t.Errorf("%d views told", n)
		}
	})
}

// Fault: a waiting gate polls herdr although a monitor runs, or sleeps through
// the change that opens it.
func TestMonitorWakesTheGate(t *testing.T) {
	f := newFake()
	f.status = "working"
	monitored(t, f, func(t *testing.T, m *Monitor, _ func() []View) {
		in := NewInjector(f.client(), m, nil)
		in.Timing.Recheck = time.Hour
		start := time.Now()
		time.AfterFunc(20*time.Second, func() { f.change(func(f *fake) { f.set("idle") }) })
		out := in.Inject(t.Context(), pinned, brief("x"), Hooks{})
		want(t, out, Injected, "")
		if took := time.Since(start); took > 25*time.Second {
			t.Errorf("took %s", took)
		}
		if n := f.count["agent.get"]; n > 15 {
			t.Errorf("%d looks", n)
		}
	})
}

// Fault: an agent that the monitor has seen idle for long is made to wait again.
func TestMonitorKnowsTheStableAgent(t *testing.T) {
	f := newFake()
	f.version = "0.8.0"
	monitored(t, f, func(t *testing.T, m *Monitor, _ func() []View) {
		time.Sleep(10 * time.Second)
		in := NewInjector(f.client(), m, nil)
		in.Timing.Settle = 0
		start := time.Now()
		out := in.Inject(t.Context(), pinned, brief("x"), Hooks{Closed: func(r envelope.Reason) { t.Errorf("closed: %s", r) }})
		want(t, out, Injected, "")
		if took := time.Since(start); took > time.Second {
			t.Errorf("took %s", took)
		}
	})
}
