package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/herdr"
	"fleetd/inbox"
)

// panes is herdr as the inbox sees it, with the waits of the paste procedure
// left out.
type panes struct {
	client  *herdr.Client
	monitor *herdr.Monitor
	trip    *trip

	// skip leaves the typing out: the gate is open at once and the text is in.
	skip atomic.Bool

	mu   sync.Mutex
	each map[string]*typist // by pane
}

// typist is the real injector of one pane. Its clock stands still while it
// types: the procedure's waits are nothing then, and its bounds (a slow commit
// has the gate looked at again, a text may take so long to appear) neither
// strike sooner nor later because of it. Timing.Finish, in real time, bounds
// an injection.
type typist struct {
	*herdr.Injector
	now atomic.Int64 // Unix ns
}

// withoutWaits keeps the bounds and drops the pauses.
func withoutWaits() herdr.Timing {
	t := herdr.DefaultTiming()
	t.Stable, t.FirstSight, t.Settle, t.Look, t.VerifyPoll, t.EnterAgain = 0, 0, 0, 0, 0, 0
	t.Poll = time.Millisecond // a gate that is closed is no pause; those are kept out of the measure
	return t
}

func (p *panes) of(pane string) *typist {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.each[pane]
	if t == nil {
		t = &typist{Injector: herdr.NewInjector(p.client, p.monitor, nil)}
		t.Timing = withoutWaits()
		t.Now = func() time.Time { return time.Unix(0, t.now.Load()) }
		p.each[pane] = t
	}
	return t
}

func (p *panes) Frame(kind string, m inbox.Piece) (string, bool) {
	return herdr.Frame(herdr.Message{
		ID: m.MsgID, Kind: string(m.Kind), From: m.From, Content: m.Content, InReplyTo: m.InReplyTo,
		ExpectsReply: m.Kind.Brief(), Limit: herdr.PasteLimit(kind),
	})
}

func (p *panes) Inject(ctx context.Context, at inbox.Pane, text string, h inbox.Hooks) inbox.Injection {
	if p.skip.Load() {
		if err := h.Commit(); err != nil {
			return inbox.Injection{Result: inbox.NotSent, Err: err}
		}
		return inbox.Injection{Result: inbox.Injected}
	}
	t := p.of(at.ID)
	t.now.Store(time.Now().UnixNano())
	p.trip.mark(&p.trip.begun)
	out := t.Injector.Inject(ctx, herdr.Pane(at), text, herdr.Hooks{
		Closed: func(reason envelope.Reason) { p.trip.closed(string(reason)); h.Closed(reason) },
		Commit: func() error {
			p.trip.mark(&p.trip.opened)
			defer p.trip.mark(&p.trip.recorded)
			return h.Commit()
		},
		Expires: h.Expires,
	})
	p.trip.mark(&p.trip.typed)
	got := inbox.Injection{Reason: out.Reason, Err: out.Err}
	switch out.Result {
	case herdr.Injected:
		got.Result = inbox.Injected
	case herdr.InDoubt:
		got.Result = inbox.InDoubt
	case herdr.Gone:
		got.Result = inbox.PaneGone
	default:
		got.Result = inbox.NotSent
	}
	return got
}

func (p *panes) Identify(ctx context.Context, id string) (inbox.Pane, error) {
	pane, err := p.client.Identify(ctx, id)
	return inbox.Pane(pane), err
}

func (p *panes) Close(ctx context.Context, _ string, at inbox.Pane) error {
	return p.client.Close(ctx, herdr.Pane(at))
}
