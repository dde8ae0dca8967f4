package fabric

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/hashicorp/go-hclog"
	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/wait"
)

// Fabric is this gateway's side of the broker. Make it with New, start it with
// Run; all methods may be called at any time and from any goroutine.
type Fabric struct {
	cfg      Config
	deps     Deps
	log      hclog.Logger
	dialer   *dialer
	names    Names
	verifier *verifier
	refusals *refusals
	stats    *stats
	load     load // what is unsettled of all inboxes
	pace     pace

	inboxCap    int64         // InboxCap but in tests
	confirmWait time.Duration // confirmWait but in tests
	browseBound time.Duration // browseBound but in tests
	refusedFor  time.Duration // refusedBeats but in tests
	loadBytes   int64         // loadBytes but in tests
	lookEvery   time.Duration // lookEvery but in tests
	solicitWait time.Duration // solicitWait but in tests
	uptime      func() time.Duration
	lavin       func(*amqp.Connection) bool // lavin but in tests

	changed  chan struct{}
	attachMu sync.Mutex    // orders Attach, Detach and SetGroups
	browsing chan struct{} // held by the one who looks at the dead letters

	mu       sync.Mutex
	state    State
	reason   string // why there is no session that is up
	claim    Claim
	claimed  bool // the claim was held in this boot
	sess     *session
	inboxes  map[string]*inbox
	watchers []func(State)
	changes  []State
	heard    map[string]uint64 // full announcements per host, counted
	probed   probeState
	reached  reaches
	// remembered is the reader's of the signal queue alone.
	remembered memory
}

// Backoff of every retry (design §3).
const (
	retryMin = 200 * time.Millisecond
	retryMax = 10 * time.Second
	// settled is how long something must have worked before its next failure
	// is retried at once again.
	settledAfter = 5 * time.Second
)

func newBackoff(most time.Duration) *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = retryMin, most
	b.Reset()
	return b
}

// Run keeps a session with the broker until ctx ends, redialling for ever. It
// returns nil then, with everything it started ended.
func (f *Fabric) Run(ctx context.Context) error {
	stop := make(chan struct{})
	var notifier sync.WaitGroup
	notifier.Go(func() { f.notify(stop) })
	defer notifier.Wait()
	defer close(stop)

	f.update(func() { f.reason = "connecting for the first time" })
	b := newBackoff(retryMax)
	for {
		began := time.Now()
		s := newSession(f)
		err := s.run(ctx)
		f.update(func() {
			f.reason = errStopped.Error()
			if ctx.Err() == nil {
				f.reason = err.Error()
			}
		})
		if ctx.Err() != nil {
			return nil
		}
		f.log.Debug("broker session ended", "session", s.word, "error", err)
		f.stats.sessions.Add(1)
		if s.wasUp && time.Since(began) > settledAfter {
			b.Reset()
		}
		if wait.Pause(ctx, b.NextBackOff()) != nil {
			f.update(func() { f.reason = errStopped.Error() })
			return nil
		}
	}
}

// Ready reports whether mail flows: connected, every inbox attached, and the
// last probe to ourselves came back. The text says what is missing.
func (f *Fabric) Ready() (bool, string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state.Phase != Connected {
		return false, fmt.Sprintf("broker %s: %s", f.state.Phase, f.state.Reason)
	}
	if f.claim.Status != ClaimHeld {
		return false, fmt.Sprintf("the claim on host id %s is %s", f.cfg.Host, f.claim.Status)
	}
	for gid, in := range f.inboxes {
		if s := in.status(); s.Status != InboxAttached {
			return false, fmt.Sprintf("inbox of %s is %s", gid, s.Status)
		}
	}
	if !f.probed.fresh(3 * f.cfg.Heartbeat) {
		return false, "no probe has come back from the broker lately"
	}
	return true, ""
}
