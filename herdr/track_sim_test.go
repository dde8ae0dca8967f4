package herdr

import (
	"os"
	"testing"

	"fleetd/test/herdrsim"
)

func (s *sim) tracker() *Tracker { return &Tracker{Client: s.client} }

// view is what a monitor would show now.
func (s *sim) view() View {
	s.t.Helper()
	return (&Monitor{Client: s.client}).poll(s.t.Context())
}

// track follows s.pane and demands that it is found again, with another pin
// than before.
func (s *sim) track() {
	s.t.Helper()
	at, lost := s.tracker().Track(s.t.Context(), s.pane, s.view())
	if lost || at == s.pane || at.Leader != s.pane.Leader || at.Kind != s.pane.Kind {
		s.t.Fatalf("it is at %+v (lost: %v), was %+v", at, lost, s.pane)
	}
	s.pane = at
}

// Fault: an agent that lived through a move or a handoff is not known again, or
// the text for it does not go in.
func TestSimTheSameTerminalIsFoundAgain(t *testing.T) {
	s := simulate(t, herdrsim.Options{}, "claude")
	if s.pane.Leader == "" {
		t.Fatal("nothing proves the terminal")
	}
	if at, lost := s.tracker().Track(t.Context(), s.pane, s.view()); at != s.pane || lost {
		t.Errorf("in its place it is %+v (lost: %v)", at, lost)
	}
	if _, err := s.srv.MoveToNewWorkspace(s.pane.ID); err != nil {
		t.Fatal(err)
	}
	s.track()
	old := s.pane
	if err := s.srv.Handoff(); err != nil {
		t.Fatal(err)
	}
	s.eventually("the new server sees the agent", func() bool { k, _, _ := s.srv.Status(s.pane.ID); return k == "claude" })
	s.track()
	if s.pane.Terminal == old.Terminal {
		t.Errorf("the handoff kept %s", old.Terminal)
	}
	want(t, s.inject(brief("x"), Hooks{}), Injected, "")
	s.received(brief("x"))
	// Its pane's id is another's now.
	other, err := s.srv.Run("other", []string{os.Args[0], "--kind", "claude"}, map[string]string{"AGENT_TEST_MAIN": "1"}, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	stray := Pane{ID: other.PaneID, Terminal: "term_none", Kind: "claude", Leader: s.pane.Leader}
	if at, lost := s.tracker().Track(t.Context(), stray, s.view()); at != stray || lost {
		t.Errorf("another pane is taken for it: %+v (lost: %v)", at, lost)
	}
	// What an earlier version registered gets its proof while its terminal is there.
	s.pane.Leader = ""
	if at, _ := s.tracker().Track(t.Context(), s.pane, s.view()); at.Leader != old.Leader {
		t.Errorf("pinned later it is %+v", at)
	}
}

// Fault: a plain shell, or another agent of the same kind under the same pane
// id, is taken for the agent that a restart of herdr ended; or its end is not
// told.
func TestSimAfterARestartNothingIsTheSame(t *testing.T) {
	for name, restart := range map[string]func(*herdrsim.Server) error{
		"its pane comes back": (*herdrsim.Server).Restart,
		"its id is reused":    (*herdrsim.Server).RestartForgetful,
	} {
		t.Run(name, func(t *testing.T) {
			s := simulate(t, herdrsim.Options{}, "claude")
			if err := restart(s.srv); err != nil {
				t.Fatal(err)
			}
			if at, lost := s.tracker().Track(t.Context(), s.pane, s.view()); at != s.pane || !lost {
				t.Errorf("it is %+v (lost: %v)", at, lost)
			}
			argv := []string{os.Args[0], "--kind", "claude"}
			env := map[string]string{"AGENT_TEST_MAIN": "1", "HERDR_AGENT": "claude"}
			if err := s.srv.ReplaceProgram(s.pane.ID, argv, env); err != nil {
				if _, err := s.srv.Run("claude", argv, env, t.TempDir()); err != nil {
					t.Fatal(err)
				}
			}
			s.eventually("another claude", func() bool { k, _, _ := s.srv.Status(s.pane.ID); return k == "claude" })
			if at, lost := s.tracker().Track(t.Context(), s.pane, s.view()); at != s.pane || !lost {
				t.Errorf("beside another one it is %+v (lost: %v)", at, lost)
			}
			// Without the proof it is not said that it ended, nor that it is there.
			s.pane.Leader = ""
			if at, lost := s.tracker().Track(t.Context(), s.pane, s.view()); at != s.pane || lost {
				t.Errorf("without a proof it is %+v (lost: %v)", at, lost)
			}
		})
	}
}

// Fault: an agent that ended with its herdr counts as there until herdr comes
// back.
func TestSimAnAgentEndsWithItsHerdr(t *testing.T) {
	s := simulate(t, herdrsim.Options{}, "claude")
	s.srv.Crash()
	if at, lost := s.tracker().Track(t.Context(), s.pane, s.view()); at != s.pane || !lost {
		t.Errorf("it is %+v (lost: %v)", at, lost)
	}
}
