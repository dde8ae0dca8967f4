package migrations

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"fleetd/fault"
)

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

const (
	managementWait  = 30 * time.Second
	managementBytes = 64 << 20
)

// FindQueues asks the management API at base (http://host:15672), of RabbitMQ or
// LavinMQ, for the old daemon's queues in vhost: their names and whether they
// are durable and without arguments tell them. secure is for https; nil: the
// system's authorities.
func FindQueues(ctx context.Context, base, vhost, user, password string, secure *tls.Config) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, managementWait)
	defer cancel()
	at, err := url.Parse(base)
	if err != nil || at.Host == "" || at.User != nil || at.Scheme != "http" && at.Scheme != "https" {
		return nil, fault.New(fault.BadRequest, "--management takes the URL of the broker's management API, as http://broker:15672")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(at.String(), "/")+"/api/queues/"+url.PathEscape(vhost), nil)
	if err != nil {
		return nil, fault.New(fault.BadRequest, "--management %s is no URL that can be asked", at.Redacted())
	}
	req.SetBasicAuth(user, password)
	client := &http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: secure, DisableKeepAlives: true}}
	res, err := client.Do(req)
	if notTrusted(err) {
		return nil, fault.Wrap(err, fault.BrokerRefused, "the certificate of the management API is not trusted; set broker.tls.ca to the PEM file of its authority, or name the queues with --queue")
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.BrokerDown, "the management API does not answer; see its URL, or name the queues with --queue")
	}
	defer res.Body.Close()
	switch res.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized, http.StatusForbidden:
		return nil, fault.New(fault.BrokerRefused, "the management API does not take the login %s (RabbitMQ: it needs the tag management); ask with another, as http://USER@broker:15672, or name the queues with --queue", user)
	default:
		return nil, fault.New(fault.BrokerRefused, "the management API answers %s; see its URL and the vhost %s, or name the queues with --queue", res.Status, vhost)
	}
	var all []struct {
		Name      string         `json:"name"`
		Durable   bool           `json:"durable"`
		Arguments map[string]any `json:"arguments"`
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, managementBytes)).Decode(&all); err != nil {
		return nil, fault.Wrap(err, fault.BrokerRefused, "the management API gave no list of queues; see its URL, or name the queues with --queue")
	}
	var found []string
	for _, q := range all {
		delete(q.Arguments, "x-queue-type") // RabbitMQ 4 may add its default
		if _, ok := PaneOf(q.Name); ok && q.Durable && len(q.Arguments) == 0 {
			found = append(found, q.Name)
		}
	}
	return found, nil
}

func notTrusted(err error) bool {
	_, is := errors.AsType[*tls.CertificateVerificationError](err)
	return is
}
