package herdrsim

import (
	"cmp"
	"os"
	"time"

	"github.com/hashicorp/go-hclog"
)

// Version chooses which herdr is played (reference §9).
type Version string

// The versions that differ in what a gateway notices.
const (
	V080 Version = "0.8.0" // protocol 19; prompts go into blocked agents; first sight is idle
	Base Version = "base"  // says 0.8.0, protocol 20; otherwise as V080
	V082 Version = "0.8.2" // protocol 20; agent_blocked; first sight is unknown; 120x40
)

// wire returns what ping says for v.
func (v Version) wire() (version string, protocol int) {
	switch v {
	case V080:
		return "0.8.0", 19
	case V082:
		return "0.8.2", 20
	default:
		return "0.8.0", 20
	}
}

// Timing holds herdr's time constants. A zero field means herdr's own value,
// given in brackets; tests shorten what they need.
type Timing struct {
	Poll        time.Duration // sleep between two looks of a connection, wait or subscription [100 ms] (§1.3, §6.2)
	RequestLine time.Duration // time for the whole request line [5 s] (§1.3)
	TickShell   time.Duration // look for an agent in a pane that has none [500 ms] (§8.1)
	TickAgent   time.Duration // look at the screen of an agent [300 ms] (§8.1)
	Reprobe     time.Duration // look at an agent's process again [5 s] (§8.1)
	FirstSight  time.Duration // the screen is not looked at this long [3 s] (§8.2)
	Damping     time.Duration // one of three checks before a weak working→idle [100 ms] (§8.4)
	PromptEnter time.Duration // text to Enter in agent.prompt [300 ms] (§5.5)
	PromptStall time.Duration // no state change this long after a prompt [5 s] (§5.5)
	StartSettle time.Duration // agent.start is not ready earlier [3 s] (§11)
	CloseStep   time.Duration // between HUP, TERM and KILL [250 ms] (§5.4)
}

// Options says which herdr to play, and where.
type Options struct {
	// SocketPath is the JSON socket; empty: Dir/herdr.sock. Unix socket paths
	// end at 107 bytes.
	SocketPath string
	// Dir holds the socket when SocketPath is empty; empty: a new temporary
	// directory that Close removes.
	Dir string
	// Version is the herdr to play; empty: Base.
	Version Version
	// Shell is the argv of the shell of new panes; empty: $SHELL, else /bin/sh.
	Shell []string
	// Env is the server's own environment; nil: that of this process.
	Env []string
	// Timing shortens herdr's time constants.
	Timing Timing
	// Cols and Rows are the size of every pane; zero: 80x24, on V082 120x40.
	Cols, Rows int
	// TrimUnicode makes reads trim no-break blanks at the end of rows too. The
	// reference says "trailing blanks" and leaves open which; a client should
	// stand both.
	TrimUnicode bool
	// Logger gets what the server would write to its log; nil: nothing.
	Logger hclog.Logger
}

func (o Options) withDefaults() Options {
	o.Version = cmp.Or(o.Version, Base)
	if o.Env == nil {
		o.Env = os.Environ()
	}
	if len(o.Shell) == 0 {
		shell := lookEnv(o.Env, "SHELL")
		if shell == "" {
			shell = "/bin/sh"
		}
		o.Shell = []string{shell}
	}
	if o.Cols == 0 || o.Rows == 0 {
		o.Cols, o.Rows = 80, 24
		if o.Version == V082 {
			o.Cols, o.Rows = 120, 40
		}
	}
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	o.Timing = o.Timing.withDefaults()
	return o
}

func (t Timing) withDefaults() Timing {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&t.Poll, 100 * time.Millisecond},
		{&t.RequestLine, 5 * time.Second},
		{&t.TickShell, 500 * time.Millisecond},
		{&t.TickAgent, 300 * time.Millisecond},
		{&t.Reprobe, 5 * time.Second},
		{&t.FirstSight, 3 * time.Second},
		{&t.Damping, 100 * time.Millisecond},
		{&t.PromptEnter, 300 * time.Millisecond},
		{&t.PromptStall, 5 * time.Second},
		{&t.StartSettle, 3 * time.Second},
		{&t.CloseStep, 250 * time.Millisecond},
	} {
		*d.field = cmp.Or(*d.field, d.value)
	}
	return t
}

// Fast returns a Timing with which tests do not wait: the same order of
// things, a tenth to a hundredth of the time. What others are given time for
// stays herdr's own: a client's line, and an agent that was prompted.
func Fast() Timing {
	return Timing{
		Poll:      5 * time.Millisecond,
		TickShell: 20 * time.Millisecond, TickAgent: 15 * time.Millisecond,
		Reprobe: 50 * time.Millisecond, FirstSight: 60 * time.Millisecond,
		Damping: 5 * time.Millisecond, PromptEnter: 40 * time.Millisecond,
		StartSettle: 60 * time.Millisecond, CloseStep: 100 * time.Millisecond,
	}
}
