package herdrsim

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Place names a pane that a test made.
type Place struct {
	WorkspaceID string
	TabID       string
	PaneID      string
	TerminalID  string
}

// Run makes a pane of its own tab that runs argv with env; no words are a
// shell. The first call makes a workspace. It is layout.apply from within.
func (s *Server) Run(label string, argv []string, env map[string]string, dir string) (Place, error) {
	var place Place
	err := s.inspect(func(c *core) error {
		if c.active == nil {
			c.newWorkspace("sim")
		}
		if len(argv) == 0 {
			argv = nil // a shell; an empty command there is none
		}
		q := layoutApplyParams{Root: layoutNode{Type: "pane", Label: &label, Command: argv, Env: env}, TabLabel: &label}
		if dir != "" {
			q.Root.Cwd = &dir
		}
		if _, err := c.layoutApply(&q); err != nil {
			if len(c.active.tabs) == 0 {
				c.dropWorkspace(c.active)
			}
			return err
		}
		t := c.active.tabs[len(c.active.tabs)-1]
		place = Place{WorkspaceID: c.active.id, TabID: t.id, PaneID: t.focus.id, TerminalID: t.focus.term.id}
		return nil
	})
	return place, err
}

// on runs f on a pane that has a terminal; an old id of a moved pane will do.
func (s *Server) on(paneID string, f func(c *core, p *pane) error) error {
	return s.inspect(func(c *core) error {
		p, err := c.inputPane(paneID)
		if err != nil {
			return err
		}
		return f(c, p)
	})
}

// Input returns every write to the pane's terminal so far, byte for byte; of a
// closed pane what it had been given.
func (s *Server) Input(paneID string) ([]Write, error) {
	var out []Write
	err := s.inspect(func(c *core) error {
		p, err := c.inputPane(paneID)
		term := c.closed[paneID]
		switch {
		case err == nil:
			term = p.term
		case term == nil:
			return err
		}
		out = term.log()
		return nil
	})
	return out, err
}

// Opened is a pane as layout.apply made it.
type Opened struct {
	At     time.Time
	PaneID string
	Label  string
}

// Opened lists all panes that layout.apply has made since the server began, of
// which some may be closed.
func (s *Server) Opened() (all []Opened, err error) {
	err = s.inspect(func(c *core) error {
		all = slices.Clone(c.opened)
		return nil
	})
	return all, err
}

// Screen returns the pane's bottom screenful as text.
func (s *Server) Screen(paneID string) (string, error) {
	var out string
	err := s.on(paneID, func(c *core, p *pane) error {
		out = strings.Join(c.texts(p.term.screenRows(), false), "\n")
		return nil
	})
	return out, err
}

// Status returns the pane's agent kind ("" if none) and shown status.
func (s *Server) Status(paneID string) (kind, status string, err error) {
	err = s.on(paneID, func(_ *core, p *pane) error {
		kind, status = p.agent.kind, string(p.shown())
		return nil
	})
	return kind, status, err
}

// PID returns the process id of the pane's program.
func (s *Server) PID(paneID string) (int, error) {
	pid := 0
	err := s.on(paneID, func(_ *core, p *pane) error { pid = p.term.cmd.Process.Pid; return nil })
	return pid, err
}

// ScrollUp is the user scrolling the pane up by rows; 0 is the bottom. Only
// the source visible shows it.
func (s *Server) ScrollUp(paneID string, rows int) error {
	return s.on(paneID, func(c *core, p *pane) error {
		p.scrolled = min(rows, max(0, len(p.term.history())-c.opts.Rows))
		return nil
	})
}

// Type is a person typing into the pane, beside every API client.
func (s *Server) Type(paneID, keys string) error {
	return s.on(paneID, func(_ *core, p *pane) error { return p.term.put("person", []byte(keys), false) })
}

// MoveToNewWorkspace moves the pane as a user would and returns its new id;
// the old one stays an alias for pane.* methods.
func (s *Server) MoveToNewWorkspace(paneID string) (string, error) {
	id := ""
	err := s.on(paneID, func(c *core, p *pane) error {
		_, err := c.paneMove(&paneMoveParams{PaneID: paneID, Destination: destination{Type: "new_workspace"}})
		id = p.id
		return err
	})
	return id, err
}

// SwallowEnter makes the next n writes that are nothing but Enter vanish: the
// client is told ok, the program never reads them.
func (s *Server) SwallowEnter(paneID string, n int) error {
	return s.on(paneID, func(_ *core, p *pane) error { p.fault.swallowEnter = n; return nil })
}

// DelayEnter makes the next write that is nothing but Enter reach the program
// d later; what comes after it is not held up.
func (s *Server) DelayEnter(paneID string, d time.Duration) error {
	return s.on(paneID, func(_ *core, p *pane) error { p.fault.lateEnter = d; return nil })
}

// QueueFull makes the next n writes to the pane fail with the error of a full
// queue; nothing of them is written.
func (s *Server) QueueFull(paneID string, n int) error {
	return s.on(paneID, func(_ *core, p *pane) error { p.fault.queueFull = n; return nil })
}

// AfterText runs f once, on a thread of its own, after the next write that is
// not an Enter: the moment between text and Enter. f may use the API and every
// method here.
func (s *Server) AfterText(paneID string, f func()) error {
	return s.on(paneID, func(_ *core, p *pane) error { p.fault.afterText = f; return nil })
}

// ForceStatus pins the raw status of the pane's agent (idle, working, blocked,
// unknown) whatever the screen shows: stuck at working, idle over a dialog.
// The empty status ends it.
func (s *Server) ForceStatus(paneID, raw string) error {
	switch status(raw) {
	case "", idle, working, blocked, unknown:
	default:
		return fmt.Errorf("%q is no raw status", raw)
	}
	return s.on(paneID, func(c *core, p *pane) error {
		p.fault.forced = status(raw)
		if raw != "" && p.agent.kind != "" {
			c.publish(p, status(raw))
		}
		return nil
	})
}

// FlapStatus makes the status alternate between working and idle every period;
// 0 ends it.
func (s *Server) FlapStatus(paneID string, period time.Duration) error {
	return s.on(paneID, func(_ *core, p *pane) error { p.fault.flap = period; return nil })
}

// BlindRules makes every screen rule miss, so that herdr assumes idle, over a
// dialog too; agent.explain then names the fallback.
func (s *Server) BlindRules(paneID string, on bool) error {
	return s.on(paneID, func(_ *core, p *pane) error { p.fault.blind = on; return nil })
}

// ReplaceProgram ends what runs in the pane and starts argv there, pane id and
// pane stay, the terminal id stays too: another agent in the same place.
func (s *Server) ReplaceProgram(paneID string, argv []string, env map[string]string) error {
	if len(argv) == 0 {
		return errors.New("no argv to start in the pane")
	}
	return s.on(paneID, func(c *core, p *pane) error {
		old := p.term
		id := old.id
		c.endTerminal(p)
		if err := c.spawn(p, argv, env); err != nil {
			p.term = nil
			return err
		}
		p.term.id = id
		if p.agent.kind != "" {
			c.release(p)
		}
		return nil
	})
}
