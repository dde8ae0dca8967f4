package herdr

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/wait"
)

// herdrDown closes every gate.
const herdrDown = envelope.Reason(fault.HerdrDown)

// minProtocol is herdr 0.7.5, the first with agent.send_keys as used here
// (herdr socket reference §9.1).
const minProtocol = 17

// verdict is what one look at a gate said.
type verdict struct {
	open   bool
	gone   bool
	reason envelope.Reason
	err    error
	after  time.Duration // when to look again; 0: as the reason asks
	status bool          // closed by the agent's status, whose change the monitor sees
}

func closed(reason envelope.Reason, err error) verdict { return verdict{reason: reason, err: err} }

func closedf(reason envelope.Reason, format string, args ...any) verdict {
	return verdict{reason: reason, err: fmt.Errorf(format, args...)}
}

// gate waits until a text may go into one pane: steps 2 to 6 of the herdr
// socket reference §10. It belongs to the holder of the terminal's lock.
type gate struct {
	in    *Injector
	kind  Kind
	pane  Pane
	seat  *seat
	hooks Hooks
	last  envelope.Reason // reason told last

	agent  AgentInfo // as last seen open
	screen string    // likewise
	why    error     // what closed the gate last
}

// wait looks until the gate opens. ok is false if it will not; the outcome then
// says why.
func (g *gate) wait(ctx context.Context) (out Outcome, ok bool) {
	for {
		if g.expired() {
			return g.expiry(), false
		}
		view, change := g.in.view()
		v := g.look(ctx)
		switch {
		case v.open:
			if g.expired() {
				return g.expiry(), false
			}
			return Outcome{}, true
		case v.gone:
			return Outcome{Result: Gone, Reason: v.reason, Err: v.err}, false
		case ctx.Err() != nil:
			return g.stopped(ctx), false
		}
		g.why = v.err
		g.tell(v.reason)
		if err := g.sleep(ctx, v, view, change); err != nil {
			return g.stopped(ctx), false
		}
	}
}

func (g *gate) tell(reason envelope.Reason) {
	if reason == g.last {
		return
	}
	g.last = reason
	g.in.log().Debug("gate closed", "pane", g.pane.ID, "reason", reason, "why", g.why)
	if g.hooks.Closed != nil {
		g.hooks.Closed(reason)
	}
}

func (g *gate) expired() bool { return expired(g.in.now(), g.hooks.Expires) }

func expired(now, at time.Time) bool { return !at.IsZero() && !now.Before(at) }

func (g *gate) expiry() Outcome {
	reason := g.last
	if reason == "" {
		reason = "no look"
	}
	return Outcome{Result: NotSent, Reason: envelope.Reason(fault.Expired), Err: fault.Wrap(g.why, fault.Expired,
		"the message expired before it could go into pane %s (%s)", g.pane.ID, reason)}
}

func (g *gate) stopped(ctx context.Context) Outcome {
	reason := g.last
	if reason == "" {
		reason = envelope.Settling
	}
	return Outcome{Result: NotSent, Reason: reason, Err: context.Cause(ctx)}
}

// sleep waits until a look is worth it: the pane changed, some time passed, or
// the message is about to expire.
func (g *gate) sleep(ctx context.Context, v verdict, seen View, change <-chan struct{}) error {
	t := g.in.Timing
	d := t.Poll
	switch {
	case v.after > 0:
		d = v.after
	case v.reason == herdrDown:
		d = t.Down
	case v.status && change != nil:
		d = t.Recheck
	}
	if !g.hooks.Expires.IsZero() {
		d = min(d, max(g.hooks.Expires.Sub(g.in.now()), time.Millisecond))
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return nil
		case <-change:
			var now View
			now, change = g.in.view()
			if g.differs(seen, now) || change == nil {
				return nil
			}
		}
	}
}

func (g *gate) differs(a, b View) bool {
	x, y := a.Panes[g.pane.ID], b.Panes[g.pane.ID]
	return a.Up != b.Up || x.Terminal != y.Terminal || x.Kind != y.Kind || x.Status != y.Status || x.Seq != y.Seq
}

// look goes once through steps 2 to 6.
func (g *gate) look(ctx context.Context) verdict {
	pong, err := g.in.fit(ctx)
	if err != nil {
		return g.trouble(err)
	}
	if why := pong.Unfit(); why != "" {
		return closedf(envelope.Unfit, "%s", why)
	}
	a, v := g.occupant(ctx)
	if v.reason != "" {
		return v
	}
	if v = g.status(a); v.reason != "" {
		return v
	}
	if v = g.stable(a, pong); v.reason != "" {
		return v
	}
	if v = g.clear(ctx); v.reason != "" {
		return v
	}
	if err := wait.Pause(ctx, g.in.Timing.Look); err != nil {
		return closed(envelope.Settling, err)
	}
	// The looks took a while: only if nothing moved is what they saw the present.
	// Who is there is asked while the screen is read again.
	start := g.in.now()
	var b AgentInfo
	var unseen error
	var ask sync.WaitGroup
	ask.Go(func() { b, unseen = g.in.Client.AgentGet(ctx, g.pane.ID) })
	v = g.settled(ctx)
	ask.Wait()
	if v.reason != "" {
		return v
	}
	if g.in.late(start) {
		b, unseen = g.in.Client.AgentGet(ctx, g.pane.ID)
	}
	if v = g.judge(ctx, b, unseen); v.reason != "" {
		return v
	}
	if v = g.status(b); v.reason != "" {
		return v
	}
	if b.StateChangeSeq != a.StateChangeSeq {
		return closedf(envelope.Settling, "the agent's state moved while its screen was read")
	}
	g.agent = b
	return verdict{open: true}
}

// occupant is step 3: who is there.
func (g *gate) occupant(ctx context.Context) (AgentInfo, verdict) {
	a, err := g.in.Client.AgentGet(ctx, g.pane.ID)
	return a, g.judge(ctx, a, err)
}

// judge says what an agent.get means.
func (g *gate) judge(ctx context.Context, a AgentInfo, err error) verdict {
	if hasCode(err, "agent_not_found") {
		return g.absent(ctx)
	}
	if err != nil {
		return g.trouble(err)
	}
	g.seat.misses = 0
	switch {
	case a.TerminalID != g.pane.Terminal:
		return closedf(envelope.PaneChanged, "pane %s has another terminal than the one registered; register it again", g.pane.ID)
	case a.Agent == "" || a.LaunchPending:
		return verdict{reason: envelope.NotReady, err: errors.New("the agent is starting"), status: true}
	case a.Agent != g.pane.Kind:
		return closedf(envelope.PaneChanged, "pane %s holds %s, registered is %s; register it again", g.pane.ID, a.Agent, g.pane.Kind)
	}
	g.seat.meet(a, g.in.now())
	return verdict{}
}

// absent tells a pane that is gone from an agent that is, and both from a pane
// that moved to another workspace.
func (g *gate) absent(ctx context.Context) verdict {
	p, err := g.in.Client.PaneGet(ctx, g.pane.ID)
	switch {
	case hasCode(err, "pane_not_found"):
		return verdict{gone: true, reason: envelope.Reason(fault.PaneGone), err: fault.Wrap(err, fault.PaneGone, "pane %s is closed", g.pane.ID)}
	case err != nil:
		return g.trouble(err)
	case p.TerminalID != g.pane.Terminal:
		return closedf(envelope.PaneChanged, "pane %s has another terminal than the one registered; register it again", g.pane.ID)
	case p.PaneID != g.pane.ID:
		g.pane.ID = p.PaneID // agent.* refuses the old id of a moved pane
		return closedf(envelope.NotReady, "the pane moved to %s", p.PaneID)
	case p.Agent != "":
		return closedf(envelope.NotReady, "herdr lists %s in the pane but cannot reach it", p.Agent)
	}
	if g.seat.misses++; g.seat.misses < missesToGo {
		return closedf(envelope.NotReady, "herdr sees no agent in the pane")
	}
	return verdict{gone: true, reason: envelope.AgentGone, err: fault.New(fault.PaneGone, "the agent in pane %s ended; only its shell is there", g.pane.ID)}
}

// status is step 4.
func (g *gate) status(a AgentInfo) verdict {
	switch a.AgentStatus {
	case StatusIdle, StatusDone:
		return verdict{}
	case StatusBlocked:
		return verdict{reason: envelope.Blocked, err: errors.New("the agent waits for an answer to a dialog"), status: true}
	case StatusWorking:
		return verdict{reason: envelope.Busy, err: errors.New("the agent is working"), status: true}
	}
	return verdict{reason: envelope.NotReady, err: errors.New("herdr does not know the agent's state"), status: true}
}

// stable is step 5: no transition lately, and not the idle that an older herdr
// shows of every new agent before it looks at its screen.
func (g *gate) stable(a AgentInfo, pong Pong) verdict {
	t, s, now := g.in.Timing, g.seat, g.in.now()
	since, first := s.since, s.first
	if view, _ := g.in.view(); view.Up {
		p := view.Panes[g.pane.ID]
		if p.Terminal == g.pane.Terminal && p.Kind == a.Agent {
			first = earlier(first, p.FirstSeen)
			if p.Status == a.AgentStatus && p.Seq == a.StateChangeSeq {
				since = earlier(since, p.Stable)
			}
		}
	}
	left := t.Stable - now.Sub(since)
	if guessesIdle(pong.Version) {
		left = max(left, t.FirstSight-now.Sub(first))
	}
	if left > 0 {
		return verdict{reason: envelope.Settling, err: errors.New("the agent is idle, but not for long enough"), after: left}
	}
	return verdict{}
}

// clear is step 6, its first look: what herdr and the screen say, side by side.
// The screen is read twice, to meet somebody who is typing. What is in the
// composer need not be compared: anything but nothing and a placeholder closes
// the gate.
func (g *gate) clear(ctx context.Context) verdict {
	var first verdict
	var look sync.WaitGroup
	look.Go(func() { first = g.composer(ctx) })
	v := g.explained(ctx)
	look.Wait()
	if v.reason != "" {
		return v
	}
	return first
}

// settled is the second look, and the wait of the kind after its first empty
// composer.
func (g *gate) settled(ctx context.Context) verdict {
	if v := g.composer(ctx); v.reason != "" {
		return v
	}
	now := g.in.now()
	if g.seat.composer.IsZero() {
		g.seat.composer = now
	}
	if left := min(g.kind.Settle, g.in.Timing.Settle) - now.Sub(g.seat.composer); left > 0 {
		return verdict{reason: envelope.Settling, err: errors.New("the composer was only just drawn"), after: left}
	}
	return verdict{}
}

// explained is step 6a: what herdr's screen rules say now.
func (g *gate) explained(ctx context.Context) verdict {
	e, err := g.in.Client.AgentExplain(ctx, g.pane.ID)
	switch {
	case err != nil:
		// Also an agent that herdr cannot explain: its keys would be refused too,
		// and a text left without its Enter.
		return g.trouble(err)
	case e.ScreenSkipped:
		return verdict{}
	case e.VisibleBlocker || e.State == StatusBlocked:
		return closedf(envelope.Blocked, "herdr sees a dialog")
	case e.VisibleWorking || e.State == StatusWorking:
		return closedf(envelope.Busy, "herdr sees a running turn")
	case e.SkipStateUpdate:
		return closedf(envelope.NotReady, "a view covers the agent's composer")
	case e.State != StatusIdle:
		return closedf(envelope.NotReady, "herdr's screen rules say %s", strconv.Quote(e.State))
	}
	return verdict{}
}

// composer is step 6b: one look of our own.
func (g *gate) composer(ctx context.Context) verdict {
	r, err := g.in.Client.PaneRead(ctx, g.pane.ID, SourceDetection, false)
	if err != nil {
		return g.trouble(err)
	}
	s := g.kind.look(screenRows(r.Text))
	if s.reason != "" {
		return closedf(s.reason, "the screen shows no idle composer")
	}
	if g.kind.draft(s, false) {
		dim, err := g.dim(ctx)
		if err != nil {
			return g.trouble(err)
		}
		if g.kind.draft(s, dim) {
			if framed(s.composer.Text) {
				return closedf(envelope.Unsent, "the composer holds a message whose sender was told that it is in doubt")
			}
			return closedf(envelope.Draft, "the composer holds a text")
		}
	}
	g.screen = r.Text
	return verdict{}
}

func (g *gate) dim(ctx context.Context) (bool, error) {
	r, err := g.in.Client.PaneRead(ctx, g.pane.ID, SourceVisible, true)
	return err == nil && g.kind.dimComposer(r.Text), err
}

// trouble is the verdict on a request that failed.
func (g *gate) trouble(err error) verdict {
	g.in.forget()
	if _, ok := errors.AsType[*APIError](err); ok && !hasCode(err, "server_unavailable") {
		return closed(envelope.NotReady, err)
	}
	return closed(herdrDown, AsFault(err))
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
