package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/herdr"
	"fleetd/inbox"
	"fleetd/store"
)

// Fails if a worker is ended for a herdr that is down or was restarted, for a
// pane that moved, or if one whose pane or agent is gone is kept.
func TestEnded(t *testing.T) {
	worker := store.Entity{Kind: store.Worker, State: store.EntityLive, Pane: "w1:p1", Terminal: "term_a"}
	launched := worker
	launched.Launched = true
	view := func(up bool, panes map[string]herdr.PaneState) herdr.View { return herdr.View{Up: up, Panes: panes} }
	with := func(kind, terminal string) map[string]herdr.PaneState {
		return map[string]herdr.PaneState{"w1:p1": {Terminal: terminal, Kind: kind}}
	}
	for name, c := range map[string]struct {
		entity store.Entity
		view   herdr.View
		grace  time.Duration
		gone   bool
	}{
		"there":                     {worker, view(true, with("claude", "term_a")), 0, false},
		"herdr down":                {worker, view(false, nil), 0, false},
		"herdr restarted":           {worker, view(true, with("", "term_b")), 0, false},
		"launched, herdr restarted": {launched, view(true, with("", "term_b")), agentGrace, true},
		"launched, resumed":         {launched, view(true, with("claude", "term_b")), 0, false},
		"pane closed":               {worker, view(true, map[string]herdr.PaneState{}), paneGrace, true},
		"agent ended":               {worker, view(true, with("", "term_a")), agentGrace, true},
		"moved": {worker, view(true, map[string]herdr.PaneState{"w2:p1": {Terminal: "term_a", Kind: "claude"}}),
			0, false},
	} {
		grace, gone := ended(c.entity, c.view)
		if gone != c.gone || gone && grace != c.grace {
			t.Errorf("%s: gone %v after %s, want %v after %s", name, gone, grace, c.gone, c.grace)
		}
	}
}

// fakeSeats takes what a reaper does.
type fakeSeats struct {
	fail error
	did  []string
}

func (f *fakeSeats) do(what string) error {
	if f.fail == nil {
		f.did = append(f.did, what)
	}
	return f.fail
}

func (f *fakeSeats) Reseat(_ context.Context, _ string, _, at inbox.Pane) error {
	return f.do("reseat " + at.Terminal)
}

func (f *fakeSeats) Unseat(_ context.Context, _ string, was inbox.Pane) error {
	return f.do("unseat " + was.Terminal)
}

func (f *fakeSeats) Reap(_ context.Context, _ string, was inbox.Pane) error {
	return f.do("reap " + was.Terminal)
}

// Fails if what cannot be done for an entity is logged with every try and not
// once, is not tried on, or is said to be done before it is.
func TestTroubleWithAPaneIsSaidOnce(t *testing.T) {
	for want, c := range map[string]struct {
		at   herdr.Pane
		lost bool
	}{
		"reseat term_b": {at: herdr.Pane{ID: "w1:p1", Terminal: "term_b"}},
		"unseat term_a": {at: herdr.Pane{ID: "w1:p1", Terminal: "term_a"}, lost: true},
	} {
		t.Run(want, func(t *testing.T) {
			var log bytes.Buffer
			f := &fakeSeats{fail: errors.New("the disk is full")}
			track := func(context.Context, herdr.Pane, herdr.View) (herdr.Pane, bool) { return c.at, c.lost }
			r := newReaper(f, track, hclog.New(&hclog.LoggerOptions{Output: &log}))
			e := store.Entity{GID: "g", Kind: store.Worker, State: store.EntityLive, Pane: "w1:p1", Terminal: "term_a"}
			for range 5 {
				r.attend(t.Context(), e, herdr.View{Up: true})
			}
			f.fail = errors.New("another reason")
			for range 5 {
				r.attend(t.Context(), e, herdr.View{Up: true})
			}
			if n := strings.Count(log.String(), "\n"); n != 2 {
				t.Errorf("%d lines, want one for each reason:\n%s", n, log.String())
			}
			f.fail = nil
			r.attend(t.Context(), e, herdr.View{Up: true})
			if n := strings.Count(log.String(), "[INFO]"); !slices.Equal(f.did, []string{want}) || n != 1 {
				t.Errorf("did %q, want %s:\n%s", f.did, want, log.String())
			}
		})
	}
}

// Fails if the time for which a worker's old pane was gone counts against the
// one in which it was registered since.
func TestANewPaneGetsAGraceOfItsOwn(t *testing.T) {
	f := &fakeSeats{}
	track := func(_ context.Context, p herdr.Pane, _ herdr.View) (herdr.Pane, bool) { return p, false }
	r := newReaper(f, track, hclog.NewNullLogger())
	e := store.Entity{GID: "g", Kind: store.Worker, State: store.EntityLive, Pane: "w1:p1", Terminal: "term_a"}
	view := herdr.View{Up: true, Panes: map[string]herdr.PaneState{"w1:p1": {Terminal: "term_a"}}} // no agent
	r.attend(t.Context(), e, view)
	m := r.missing["g"]
	m.since = m.since.Add(-agentGrace + paneGrace/2) // the grace is nearly over
	r.missing["g"] = m
	e.Pane, e.Terminal = "w1:p2", "term_b" // which the view does not have yet
	r.attend(t.Context(), e, view)
	if len(f.did) > 0 {
		t.Errorf("did %q", f.did)
	}
	m = r.missing["g"]
	m.since = m.since.Add(-paneGrace)
	r.missing["g"] = m
	r.attend(t.Context(), e, view)
	if !slices.Equal(f.did, []string{"reap term_b"}) {
		t.Errorf("did %q", f.did)
	}
}

// Fails if a pane that is another now, as after a move or a handoff of herdr,
// costs a call to the broker, which may not answer; or if other groups do not.
func TestAPaneAloneDoesNotConcernTheBroker(t *testing.T) {
	var nobody struct { // nothing is dialled, so nobody is asked
		envelope.Trust
		fabric.Homes
		fabric.Noted
		fabric.Owner
	}
	f, err := fabric.New(fabric.Config{Host: "hosta", URI: "amqp://127.0.0.1:1/"}, fabric.Deps{
		Key: make(ed25519.PrivateKey, ed25519.PrivateKeySize), Trust: nobody, Homes: nobody, Noted: nobody, Owner: nobody,
	})
	if err != nil {
		t.Fatal(err)
	}
	g := &gateway{fabric: f, log: hclog.NewNullLogger()}
	e := store.Entity{GID: newID(), Kind: store.Worker, State: store.EntityLive, Pane: "w1:p1", Groups: []string{"a", "b"}}
	g.attached.Store(e.GID, e.Groups)
	e.Pane = "w2:p1"
	if err := g.attach(e); err != nil { // the fabric does not know it
		t.Errorf("with another pane it was asked: %v", err)
	}
	e.Groups = []string{"a"}
	for range 2 { // a failure is no success the next time
		if err := g.attach(e); !fault.Is(err, fault.UnknownRecipient) {
			t.Errorf("with other groups it was not asked: %v", err)
		}
	}
}
