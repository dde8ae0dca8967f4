// Package doctor answers why a host does not work: for a person who set one up,
// what was looked at, how it stands, and what to do next.
//
// It only looks. What the daemon knows it is asked for; what keeps a daemon from
// starting is checked by the code that would refuse it. Every wait has a bound,
// and no line holds a password, a token or the text of a message.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"fleetd/cmd/bridged/config"
	"fleetd/fabric"
	"fleetd/fault"
	"fleetd/mcp"
)

// The levels of a finding. Warn is worth a look; Fail keeps something from
// working.
const (
	OK   = "ok"
	Warn = "warn"
	Fail = "fail"
)

// Finding is one thing that was looked at.
type Finding struct {
	Check string `json:"check"` // what kind of thing: config, files, disk, daemon, …
	Level string `json:"level"`
	What  string `json:"what"`
	Next  string `json:"next,omitempty"` // what to do
}

// Daemon is the running daemon, asked as the host's own user.
type Daemon interface {
	Diagnose(ctx context.Context) (mcp.Diagnosis, error)
	Roster(ctx context.Context, a mcp.RosterArgs) (mcp.RosterResult, error)
}

// Patient is the host that is looked at.
type Patient struct {
	Config  config.Config
	Broker  fabric.Config // as the daemon would use it; an empty URI is none
	Version string        // of this program
	Daemon  Daemon
	// Bearer asks the daemon with the token of this environment who it is; nil:
	// there is no token.
	Bearer func(ctx context.Context) (mcp.WhoamiResult, error)
	// Free is how many bytes the user can still write at path.
	Free func(path string) (uint64, error)
}

// report gathers findings.
type report []Finding

func (r *report) add(level, check, what, next string) {
	*r = append(*r, Finding{Check: check, Level: level, What: what, Next: next})
}

// fault adds an error whose sentence says, behind its first semicolon, what to
// do.
func (r *report) fault(check string, err error) {
	f := fault.From(err)
	what, next, _ := strings.Cut(f.Sentence, "; ")
	if f.Cause != nil {
		what += " (" + f.Cause.Error() + ")"
	}
	r.add(Fail, check, what, next)
}

// Examine looks at everything, in the order in which a host is set up.
func Examine(ctx context.Context, p Patient) []Finding {
	var r report
	p.config(&r)
	p.files(&r)
	p.disk(&r)
	d, running := p.daemon(ctx, &r)
	if !running {
		p.port(ctx, &r)
		p.herdr(ctx, &r, false)
		p.visit(ctx, &r)
		return r
	}
	p.endpoint(ctx, &r, d.URL)
	p.token(ctx, &r)
	needed := p.entities(ctx, &r, d.Host)
	p.herdr(ctx, &r, needed)
	p.link(&r, d)
	p.peers(&r, d)
	p.mail(&r, d)
	return r
}

// Unconfigured is the finding of a configuration that cannot be used; nothing
// else can be looked at then.
func Unconfigured(err error) []Finding {
	f := fault.From(err)
	what := f.Sentence
	if f.Cause != nil {
		what += " (" + f.Cause.Error() + ")"
	}
	return []Finding{{Check: "config", Level: Fail, What: what, Next: "correct it, then run this again: nothing else was looked at"}}
}

// Healthy is whether no finding is a failure.
func Healthy(all []Finding) bool {
	return !slices.ContainsFunc(all, func(f Finding) bool { return f.Level == Fail })
}

func (p Patient) config(r *report) {
	what := "no configuration file: defaults, variables and flags"
	if p.Config.File != "" {
		what = "the configuration is " + p.Config.File
	}
	r.add(OK, "config", fmt.Sprintf("%s; this is host %s", what, p.Config.Host), "")
	for _, w := range p.Config.Warnings {
		what, next, _ := strings.Cut(w, "; ")
		r.add(Warn, "config", what, next)
	}
}

// timeout reports whether err is the end of a wait.
func timeout(err error) bool {
	return errors.Is(err, context.DeadlineExceeded)
}
