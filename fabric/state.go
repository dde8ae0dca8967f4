package fabric

import (
	"time"

	"fleetd/fault"
	"fleetd/wait"
)

// Phase is the state of the broker link in one word.
type Phase string

// The phases of design §3.
const (
	Connected  Phase = "connected"
	Connecting Phase = "connecting"
	Blocked    Phase = "blocked" // the broker takes no publishes
)

// State is what is known about the broker link without asking the broker.
type State struct {
	Phase  Phase
	Reason string // why it is not connected; "" when it is
	Since  time.Time
}

// ClaimStatus says whether this gateway holds its host id.
type ClaimStatus string

// The states of the claim. Refused is ordinary for up to three heartbeats
// after a crash or a partition; contested is another gateway.
const (
	ClaimNone      ClaimStatus = "none"
	ClaimHeld      ClaimStatus = "held"
	ClaimRefused   ClaimStatus = "refused"
	ClaimContested ClaimStatus = "contested"
)

// Claim is the state of the claim on the host id.
type Claim struct {
	Status ClaimStatus
	Since  time.Time
}

// State returns the state of the broker link.
func (f *Fabric) State() State {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state
}

// Claim returns the state of the claim on our host id.
func (f *Fabric) Claim() Claim {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.claim
}

// Serving reports what presence says of this gateway (design §8): the claim is
// held, and signals and control messages are consumed.
func (f *Fabric) Serving() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state.Phase == Connected && f.claim.Status == ClaimHeld
}

// OnState registers fn for changes of the state. Register before Run; fn is
// called in order, from one goroutine of Run, and may use the fabric.
func (f *Fabric) OnState(fn func(State)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watchers = append(f.watchers, fn)
}

// update changes the facts under the lock and draws the state from them.
func (f *Fabric) update(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	next := State{Phase: Connected}
	switch {
	case f.sess == nil || !f.sess.up:
		next.Phase, next.Reason = Connecting, f.reason
	case f.sess.blocked != "":
		next.Phase, next.Reason = Blocked, f.sess.blocked
	case f.sess.pub == nil:
		next.Phase, next.Reason = Connecting, f.reason
	}
	if next.Phase == f.state.Phase && next.Reason == f.state.Reason {
		return
	}
	next.Since = f.deps.Now()
	if next.Phase == f.state.Phase {
		next.Since = f.state.Since
	}
	f.state = next
	if next.Reason == errStopped.Error() {
		f.log.Info("broker link ended", "broker", f.dialer.where())
	} else {
		f.log.Info("broker link", "state", next.Phase, "reason", next.Reason, "broker", f.dialer.where())
	}
	f.changes = append(f.changes, next)
	wait.Poke(f.changed)
}

// setClaim records a change of the claim.
func (f *Fabric) setClaim(s ClaimStatus) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.claim.Status != s {
		f.claim = Claim{Status: s, Since: f.deps.Now()}
	}
}

// notify hands the changes of the state to the watchers until stop, those of
// before it too.
func (f *Fabric) notify(stop <-chan struct{}) {
	for over := false; ; {
		f.mu.Lock()
		changes, watchers := f.changes, f.watchers
		f.changes = nil
		f.mu.Unlock()
		for _, s := range changes {
			for _, fn := range watchers {
				fn(s)
			}
		}
		switch {
		case len(changes) > 0:
			continue
		case over:
			return
		}
		select {
		case <-f.changed:
		case <-stop:
			over = true
		}
	}
}

// down is what a caller gets while the broker cannot be used.
func (s State) down() error {
	if s.Phase == Blocked {
		return fault.New(fault.BrokerDown, "the broker takes no messages at present (%s); nothing was sent. Try again later; mail between agents of this host still works", s.Reason)
	}
	return fault.New(fault.BrokerDown, "the broker is not connected (%s); nothing was sent. Try again later; mail between agents of this host still works", s.Reason)
}
