package herdr

import (
	"os"
	"testing"
)

// Fails if herdr is asked without end who leads a terminal although it does not
// say, or says what proves nothing; or if it is not asked about another
// terminal, or never again.
func TestALeaderThatCannotBeHadIsNotAskedForAllTheTime(t *testing.T) {
	for name, c := range map[string]struct {
		shell int
		known string // the leader of the pinned terminal
		other string // the terminal that is shown now
	}{
		"herdr refuses":                    {0, "", testTerm},
		"a process that leads no terminal": {os.Getpid(), "", testTerm},
		"another terminal, herdr refuses":  {0, living(t), "term_b"},
		"another terminal, no leader":      {os.Getpid(), living(t), "term_b"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			f.shellPID, f.terminal = c.shell, c.other
			tracker := &Tracker{Client: f.client()}
			p := pinned
			p.Leader = c.known
			look := func(calls int) (asked int) {
				t.Helper()
				view := View{Up: true, Panes: map[string]PaneState{testPane: {Terminal: f.terminal}}}
				before := f.calls("pane.process_info")
				for range calls {
					if at, lost := tracker.Track(t.Context(), p, view); at != p || lost {
						t.Fatalf("it is %+v (lost: %v)", at, lost)
					}
				}
				return f.calls("pane.process_info") - before
			}
			if n := look(600); n < 5 || n > 12 {
				t.Errorf("in 10 minutes asked %d times", n)
			}
			if n := look(3000); n < 3 || n > 7 {
				t.Errorf("in 50 more asked %d times", n)
			}
			f.terminal = "term_c"
			if p.Leader == "" {
				p.Terminal = f.terminal
			}
			if n := look(1); n != 1 {
				t.Errorf("about another terminal asked %d times", n)
			}
			if n := len(tracker.unproven); n != 1 {
				t.Errorf("%d terminals are remembered, one is there", n)
			}
		})
	}
}

func (f *fake) calls(method string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count[method]
}
