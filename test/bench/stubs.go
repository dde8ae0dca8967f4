package main

import (
	"context"

	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/fabric/roster"
	"fleetd/fault"
	"fleetd/inbox"
	"fleetd/store"
)

// What surrounds the gateway where only its store is measured.

// known is a directory of the three of year.
type known struct{ y *year }

func (k known) Resolve(address string) (roster.Target, error) {
	t := roster.Target{GID: address, Host: "hosta", Local: true, HostState: roster.Online}
	switch address {
	case k.y.lead.GID:
		t.Name, t.Kind = "lead", store.Main
	case k.y.worker.GID:
		t.Name, t.Kind = "worker", store.Worker
	case k.y.far:
		t.Name, t.Kind, t.Host, t.Local = "far", store.Main, otherHost, false
	default:
		return roster.Target{}, fault.New(fault.UnknownRecipient, "nobody is known as %s", address)
	}
	return t, nil
}

func (k known) Current() bool { return true }

func (k known) Entities(roster.Filter) []roster.EntityView { return nil }

func (k known) Hosts() []roster.HostView { return nil }

func (k known) Name(gid string) string {
	if t, err := k.Resolve(gid); err == nil {
		return t.Address()
	}
	return gid
}

// willing is a broker that takes everything.
type willing struct{}

func (willing) Connected() (bool, string) { return true, "" }

func (willing) Reachable(context.Context, string) error { return nil }

func (willing) Publish(_ context.Context, _ envelope.Lane, _ *envelope.Envelope, settled func(fabric.Outcome)) (fabric.Outcome, error) {
	if settled != nil {
		settled(fabric.Confirmed)
	}
	return fabric.Confirmed, nil
}

func (willing) InboxFull(context.Context, string) (bool, error) { return false, nil }

func (willing) Renew(context.Context, string) (bool, error) { return true, nil }

// settled is the broker's hold on a delivery that nobody checks.
type settled struct{}

func (settled) Ack() error     { return nil }
func (settled) Reject() error  { return nil }
func (settled) Requeue() error { return nil }
func (settled) Held() bool     { return false }

// open is a pane whose gate is always open.
type open struct{}

func (open) Frame(_ string, m inbox.Piece) (string, bool) { return m.Content, false }

func (open) Inject(_ context.Context, _ inbox.Pane, _ string, h inbox.Hooks) inbox.Injection {
	if err := h.Commit(); err != nil {
		return inbox.Injection{Result: inbox.NotSent, Err: err}
	}
	return inbox.Injection{Result: inbox.Injected}
}

func (open) Identify(_ context.Context, id string) (inbox.Pane, error) {
	return inbox.Pane{ID: id, Terminal: "t1", Kind: kind}, nil
}

func (open) Close(context.Context, string, inbox.Pane) error { return nil }
