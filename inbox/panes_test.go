package inbox

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
)

// panes are the panes of a world: what is on their screens outlives every
// gateway.
type panes struct {
	mu     sync.Mutex
	all    map[string]*pane
	change chan struct{} // closed whenever something changes
	// attempt, if set, decides what becomes of a message before and after its
	// commit; nil: it goes in.
	attempt func(msgID string) *plan
	// written is told of each text before it is on the screen.
	written func(msgID string)
	absent  atomic.Int64 // looks that found no agent
	away    error        // herdr cannot be reached
	asked   atomic.Int64 // to close a pane: once a round
}

// plan is how one attempt goes.
type plan struct {
	before *Injection // instead of a commit
	after  *Injection // instead of going in
	text   bool       // with after: the text is on the screen all the same
	do     func()     // after the commit, before anything else
}

type pane struct {
	reason envelope.Reason // why the gate is closed; "" open
	gone   bool
	closed bool // by the gateway
	agent  bool
	// terminal is its name for the pane's terminal; "": that of the first opening.
	terminal string
	text     []string // message ids in order
}

func newPanes() *panes {
	return &panes{all: map[string]*pane{}, change: make(chan struct{})}
}

func (p *panes) set(fn func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fn()
	close(p.change)
	p.change = make(chan struct{})
}

func (p *panes) script(attempt func(msgID string) *plan) { p.set(func() { p.attempt = attempt }) }

func (p *panes) onWritten(fn func(msgID string)) { p.set(func() { p.written = fn }) }

func (p *panes) open(id string) { p.set(func() { p.all[id] = &pane{agent: true} }) }

// gate closes a pane's gate with reason, or opens it.
func (p *panes) gate(id string, reason envelope.Reason) { p.set(func() { p.all[id].reason = reason }) }

// screen lists the messages in a pane.
func (p *panes) screen(id string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.all[id].text...)
}

func (p *panes) Identify(_ context.Context, id string) (Pane, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all[id] == nil {
		return Pane{}, fault.New(fault.BadRequest, "no pane %s", id)
	}
	return Pane{ID: id, Terminal: "term-" + id, Kind: "agent"}, nil
}

func (p *panes) Close(_ context.Context, _ string, at Pane) error {
	p.mu.Lock()
	away := p.away
	p.mu.Unlock()
	p.asked.Add(1)
	if away != nil {
		return away
	}
	p.set(func() {
		if known := p.all[at.ID]; known != nil && at.Terminal == "term-"+at.ID {
			known.closed = true
		}
	})
	return nil
}

func (p *panes) isClosed(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all[id].closed
}

// long is the content that a pane gets announced only.
const long = 200

// injector is a gateway's hand on the panes.
type injector struct {
	*panes
	world *world
	life  *life
}

func (i injector) Frame(_ string, p Piece) (string, bool) {
	if len(p.Content) > long {
		return p.MsgID + "\n(announced)", true
	}
	return p.MsgID + "\n" + p.Content, false
}

func (i injector) Inject(ctx context.Context, at Pane, text string, h Hooks) Injection {
	msgID, _, _ := strings.Cut(text, "\n")
	if got, ok := i.wait(ctx, at, h); !ok {
		return got
	}
	do := &plan{}
	i.panes.mu.Lock()
	attempt, written := i.attempt, i.written
	i.panes.mu.Unlock()
	if attempt != nil {
		if p := attempt(msgID); p != nil {
			do = p
		}
	}
	if do.before != nil {
		return *do.before
	}
	if err := h.Commit(); err != nil {
		return Injection{Result: NotSent, Reason: envelope.Reason(fault.CodeOf(err)), Err: err}
	}
	if do.do != nil {
		do.do()
	}
	if do.after != nil && !do.text {
		return *do.after
	}
	if written != nil {
		written(msgID)
	}
	i.life.alive(func() {
		i.set(func() { i.all[at.ID].text = append(i.all[at.ID].text, msgID) })
	})
	if do.after != nil {
		return *do.after
	}
	return Injection{Result: Injected}
}

// wait waits for the gate, as long as the message lives.
func (i injector) wait(ctx context.Context, at Pane, h Hooks) (Injection, bool) {
	last := envelope.Reason("")
	for {
		i.panes.mu.Lock()
		p, change := *i.all[at.ID], i.change
		i.panes.mu.Unlock()
		if p.terminal != "" && p.terminal != at.Terminal {
			p.reason = "PANE_CHANGED"
		}
		switch {
		case p.gone:
			return Injection{Result: PaneGone}, false
		case !p.agent:
			i.absent.Add(1)
			return Injection{Result: AgentGone}, false
		case !h.Expires.IsZero() && !i.world.clock.now().Before(h.Expires):
			return Injection{Result: NotSent, Reason: envelope.Reason(fault.Expired), Err: errors.New("expired")}, false
		case p.reason == "":
			return Injection{}, true
		case p.reason != last && h.Closed != nil:
			h.Closed(p.reason)
			last = p.reason
		}
		select {
		case <-ctx.Done():
			return Injection{Result: NotSent, Reason: last, Err: ctx.Err()}, false
		case <-change:
		case <-time.After(5 * time.Millisecond): // the clock may have moved
		}
	}
}
