package migrations

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"fleetd/fault"
)

// Row is a v1 queue in a plan, and where its mail goes.
type Row struct {
	Queue     string `json:"queue"`
	Pane      string `json:"pane"`
	Messages  int    `json:"messages"`
	Consumers int    `json:"consumers"`
	From      string `json:"from,omitempty"` // address of the worker that sent what lies there
	FromID    string `json:"from_id,omitempty"`
	To        string `json:"to,omitempty"` // address of the main that will get it
	ToID      string `json:"to_id,omitempty"`
	Inbox     string `json:"inbox,omitempty"`   // the queue of that main
	Problem   string `json:"problem,omitempty"` // why nothing can be moved
	// Foreign: nobody on this host knows the pane, so the queue may be another
	// host's. It is left alone.
	Foreign bool `json:"foreign,omitempty"`
}

// Person is a worker or a main of this host.
type Person struct {
	GID     string
	Address string // for people
}

// Sources say where old queues may be, and whom their mail is from and for.
type Sources struct {
	Panes   []string          // that herdr has: their queues may be there or not
	Queues  []string          // that must be there
	Found   []string          // that the management API lists
	Skip    []string          // patterns (path.Match) of queues to leave alone
	Workers map[string]Person // by pane
	Main    Person            // zero: there is none to deliver to
	NoMain  string            // why not, and what to do
	Inbox   string            // the queue of Main
}

// Plan looks at every queue that there may be and says what a move would do.
// It changes nothing. BAD_REQUEST: a queue or a pattern cannot be meant so.
func Plan(ctx context.Context, b Broker, s Sources) ([]Row, error) {
	var names []string
	named := map[string]bool{} // must be there
	ours := map[string]bool{}  // somebody here says whose it is
	for _, pane := range s.Panes {
		q := QueueOf(pane)
		names, ours[q] = append(names, q), true
	}
	for _, q := range s.Queues {
		if _, ok := PaneOf(q); !ok {
			return nil, fault.New(fault.BadRequest, "%q is no queue of the old daemon: those are called agent.PANE.inbox", q)
		}
		names, named[q], ours[q] = append(names, q), true, true
	}
	names = append(names, s.Found...)
	slices.Sort(names)
	rows := []Row{}
	for _, name := range slices.Compact(names) {
		switch skip, err := s.skips(name); {
		case err != nil:
			return nil, err
		case skip && named[name]:
			return nil, fault.New(fault.BadRequest, "%s is named by --queue and left out by --skip; say one of them", name)
		case skip:
			continue
		}
		q, err := b.Look(ctx, name)
		switch {
		case errors.Is(err, ErrNoQueue) && named[name]:
			return nil, fault.New(fault.BadRequest, "there is no queue %s on the broker; leave it out, or see broker.uri and its vhost", name)
		case errors.Is(err, ErrNoQueue):
			continue
		case fault.Is(err, fault.NotAllowed):
			pane, _ := PaneOf(name)
			rows = append(rows, Row{Queue: name, Pane: pane, Problem: fault.From(err).Sentence, Foreign: !ours[name]})
			continue
		case err != nil:
			return nil, err
		}
		r := s.row(name, q)
		r.Foreign = !ours[name]
		if r.Problem == "" && q.Ready > 0 {
			r.Problem, err = ofAnotherType(ctx, b, name)
			if errors.Is(err, ErrNoQueue) { // by now
				continue
			}
			if err != nil {
				return nil, err
			}
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// ofAnotherType says what to do with a queue out of which mail cannot be moved
// in order; "": it can.
func ofAnotherType(ctx context.Context, b Broker, name string) (problem string, err error) {
	odd, err := b.Replicated(ctx, name)
	if err != nil || !odd {
		return "", err
	}
	return "it is a quorum queue (or a stream), out of which mail cannot be moved in its order: have the broker move it into a classic queue first, as docs/upgrade.md shows, or leave the queue out with --skip " + name, nil
}

// skips reports whether queue is to be left alone.
func (s Sources) skips(queue string) (bool, error) {
	for _, pattern := range s.Skip {
		match, err := path.Match(pattern, queue)
		if err != nil {
			return false, fault.New(fault.BadRequest, "--skip %q is no name of a queue and no pattern: * stands for any letters, ? for one", pattern)
		}
		if match {
			return true, nil
		}
	}
	return false, nil
}

func (s Sources) row(name string, q Queue) Row {
	pane, _ := PaneOf(name)
	r := Row{Queue: name, Pane: pane, Messages: q.Ready, Consumers: q.Consumers}
	from, known := s.Workers[pane]
	if known {
		r.From, r.FromID = from.Address, from.GID
	}
	if s.Main.GID != "" {
		r.To, r.ToID, r.Inbox = s.Main.Address, s.Main.GID, s.Inbox
	}
	switch {
	case q.Consumers > 0:
		r.Problem = "an old daemon still consumes it: stop it, or, if it is another host's, leave the queue out with --skip " + name
	case q.Ready == 0: // there is nothing to move
	case !known:
		r.Problem = fmt.Sprintf("no worker of this host is registered with pane %s: register it, or say whose mail it was with --map %s=NAME; if it is another host's, leave the queue out with --skip %s", pane, pane, name)
	case s.Main.GID == "":
		r.Problem = s.NoMain
	}
	return r
}

// Ready returns nil if every row can be moved.
func Ready(rows []Row) error {
	var bad []string
	code := fault.BadRequest
	for _, r := range rows {
		if r.Problem == "" {
			continue
		}
		if r.Consumers > 0 {
			code = fault.Conflict
		}
		bad = append(bad, r.Queue+": "+r.Problem)
	}
	if len(bad) == 0 {
		return nil
	}
	return fault.New(code, "nothing was moved. %s", strings.Join(bad, ". "))
}
