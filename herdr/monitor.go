package herdr

import (
	"context"
	"maps"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleetd/wait"
)

// missesToGo is how many successive lists must lack a pane, or its agent,
// before it is believed to be gone.
const missesToGo = 2

// PaneState is what the monitor knows of one pane.
type PaneState struct {
	Terminal string
	Kind     string // of the agent in it; empty: none
	Name     string // of the agent, if herdr knows one
	Status   string // Status… constants
	Seq      uint64 // herdr's count of the agent's last raw transition
	Label    string

	Since     time.Time // Status is this one since
	Stable    time.Time // Status and Seq are these since
	FirstSeen time.Time // this terminal with an agent of this kind was first seen then
}

// View is what herdr showed last. It is shared: read only. While herdr is down,
// Panes holds what was seen last.
type View struct {
	Up    bool
	Err   error // why not; a fault.HerdrDown
	Panes map[string]PaneState
}

// Monitor polls herdr's lists and tells what changed. Run it once; the other
// methods may be called from anywhere.
type Monitor struct {
	Client   *Client
	Interval time.Duration // between polls while herdr is up; 0 means 500 ms
	Down     time.Duration // while it is down; 0 means 2 s
	Now      func() time.Time
	Logger   hclog.Logger

	// Changed is called from Run with each view that differs from the one
	// before. It must not wait.
	Changed func(View)

	running atomic.Bool
	mu      sync.Mutex
	view    View
	change  chan struct{} // closed and replaced at every change

	misses map[string]int // by pane, of Run alone: successive lists without it
	absent map[string]int // by pane, of Run alone: successive lists without its agent
}

// View returns the latest view.
func (m *Monitor) View() View {
	v, _ := m.watch()
	return v
}

// watch returns the latest view and a channel that closes when there is
// another.
func (m *Monitor) watch() (View, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.change == nil {
		m.change = make(chan struct{})
	}
	return m.view, m.change
}

// Run polls until ctx ends and then returns nil.
func (m *Monitor) Run(ctx context.Context) error {
	m.running.Store(true)
	defer m.running.Store(false)
	m.misses, m.absent = map[string]int{}, map[string]int{}
	for {
		next := m.poll(ctx)
		if ctx.Err() != nil {
			return nil
		}
		m.publish(next)
		if err := wait.Pause(ctx, m.interval(next.Up)); err != nil {
			return nil
		}
	}
}

func (m *Monitor) interval(up bool) time.Duration {
	switch {
	case up && m.Interval > 0:
		return m.Interval
	case up:
		return 500 * time.Millisecond
	case m.Down > 0:
		return m.Down
	}
	return 2 * time.Second
}

func (m *Monitor) now() time.Time {
	if m.Now != nil {
		return m.Now()
	}
	return time.Now()
}

func (m *Monitor) log() hclog.Logger {
	if m.Logger != nil {
		return m.Logger
	}
	return hclog.NewNullLogger()
}

// poll makes the next view. Both lists pass through herdr's application loop,
// so answering them is being alive.
func (m *Monitor) poll(ctx context.Context) View {
	last := m.View()
	agents, err := m.Client.AgentList(ctx)
	if err != nil {
		return m.lost(last, err)
	}
	panes, err := m.Client.PaneList(ctx)
	if err != nil {
		return m.lost(last, err)
	}
	next := merge(last.Panes, panes, agents, m.absent, m.now())
	for id, old := range last.Panes {
		if _, here := next[id]; here {
			delete(m.misses, id)
			continue
		}
		if m.misses[id]++; m.misses[id] < missesToGo && !m.gone(ctx, id) {
			next[id] = old
			continue
		}
		delete(m.misses, id)
		delete(m.absent, id)
	}
	return View{Up: true, Panes: next}
}

// lost makes the view of a herdr that does not answer. Misses do not add up
// over an outage: the session may still be restoring.
func (m *Monitor) lost(last View, err error) View {
	clear(m.misses)
	clear(m.absent)
	return View{Err: AsFault(err), Panes: last.Panes}
}

// gone asks herdr for a pane that a list lacked.
func (m *Monitor) gone(ctx context.Context, pane string) bool {
	_, err := m.Client.PaneGet(ctx, pane)
	return hasCode(err, "pane_not_found")
}

func (m *Monitor) publish(next View) {
	m.mu.Lock()
	last := m.view
	if m.change != nil && same(last, next) {
		m.mu.Unlock()
		return
	}
	if m.change != nil {
		close(m.change)
	}
	m.view, m.change = next, make(chan struct{})
	m.mu.Unlock()
	switch {
	case last.Up && !next.Up:
		m.log().Warn("herdr is gone; workers' mail waits", "error", next.Err)
	case !last.Up && next.Up:
		m.log().Info("herdr answers", "panes", len(next.Panes))
	}
	if m.Changed != nil {
		m.Changed(next)
	}
}

func same(a, b View) bool {
	return a.Up == b.Up && text(a.Err) == text(b.Err) && maps.EqualFunc(a.Panes, b.Panes, func(x, y PaneState) bool {
		return reflect.DeepEqual(x, y)
	})
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// merge makes the states of the panes listed now out of both lists and the
// states before. An agent that one list lacks stays, with status unknown, until
// absent has counted missesToGo.
func merge(last map[string]PaneState, panes []PaneInfo, agents []AgentInfo, absent map[string]int, now time.Time) map[string]PaneState {
	byPane := make(map[string]AgentInfo, len(agents))
	for _, a := range agents {
		byPane[a.PaneID] = a
	}
	next := make(map[string]PaneState, len(panes))
	for _, p := range panes {
		s := PaneState{Terminal: p.TerminalID, Status: p.AgentStatus, Label: p.Label}
		old, known := last[p.PaneID]
		known = known && old.Terminal == p.TerminalID
		if a, ok := byPane[p.PaneID]; ok && a.TerminalID == p.TerminalID {
			s.Kind, s.Name, s.Status, s.Seq = a.Agent, a.Name, a.AgentStatus, a.StateChangeSeq
		}
		switch {
		case s.Kind != "" || !known || old.Kind == "":
			delete(absent, p.PaneID)
		default:
			if absent[p.PaneID]++; absent[p.PaneID] < missesToGo {
				s.Kind, s.Name, s.Seq, s.Status = old.Kind, old.Name, old.Seq, StatusUnknown
			} else {
				delete(absent, p.PaneID)
			}
		}
		s.Since, s.Stable, s.FirstSeen = now, now, now
		if known && old.Kind == s.Kind {
			s.FirstSeen = old.FirstSeen
			if old.Status == s.Status {
				s.Since = old.Since
				if old.Seq == s.Seq {
					s.Stable = old.Stable
				}
			}
		}
		next[p.PaneID] = s
	}
	return next
}
