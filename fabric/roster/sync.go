package roster

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleetd/fault"
)

const (
	syncWait = 5 * time.Second // for all answers (design §3)

	// When everyone who was heard has answered, somebody may still be about to
	// speak up: so long after the last news the view counts as whole. Hosts
	// that are expected, because entities of theirs are remembered, get more.
	quiet         = 250 * time.Millisecond
	quietExpected = time.Second
)

// syncing is one Sync under way. Instants are monotonic.
type syncing struct {
	since    time.Time
	seq      uint64    // of its solicitation; 0: not sent yet
	echo     time.Time // when that came back to us
	expected []string
	err      error
}

// Sync announces this host and solicits everyone; call it on every new
// connection, once the roster queue is consumed and Publish works. It returns
// nil when our own solicitation came back through the broker, every host heard
// since then has announced itself in full, and 250 ms brought nobody new (1 s
// while a host is silent whose entities we remember); after 5 s, or at the
// deadline of ctx, also without the answers. BROKER_DOWN says that presence does not flow: the
// solicitation could not be published or did not come back. Without a broker
// it does nothing. Run must be running.
func (r *Roster) Sync(ctx context.Context) error {
	if r.cfg.Publish == nil {
		return nil
	}
	s, err := r.beginSync()
	if err != nil {
		return err
	}
	deadline := time.NewTimer(syncWait)
	defer deadline.Stop()
	for {
		changed := r.Changed()
		pause, done, err := r.lookAt(s)
		if done || err != nil {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-changed:
		case <-timer.C:
		case <-deadline.C:
			return r.endSync(s)
		case <-ctx.Done():
			timer.Stop()
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return r.endSync(s)
			}
			r.dropSync(s)
			return fault.Wrap(ctx.Err(), fault.BrokerDown, "the connection was given up before the other hosts had answered")
		}
		timer.Stop()
	}
}

func (r *Roster) beginSync() (*syncing, error) {
	now := r.cfg.Mono()
	r.mu.Lock()
	defer r.unlock()
	if r.out.leaving {
		return nil, fault.New(fault.BrokerDown, "this host is about to stop and announces nothing more")
	}
	s := &syncing{since: now}
	for _, id := range r.hostIDs() {
		if h := r.hosts[id]; id != r.cfg.Host && (h == nil || !h.left) && r.stateOf(id, now) != Never && r.inhabited(id) {
			s.expected = append(s.expected, id)
		}
	}
	r.sync, r.synced, r.connected, r.out.joined = s, false, true, true
	r.wantFull(now)
	if r.out.beat.IsZero() {
		r.out.beat = now
	}
	return s, nil
}

// inhabited reports whether anybody who was not withdrawn lives on host.
func (r *Roster) inhabited(host string) bool {
	for _, h := range r.homesOf[host] {
		if !h.Gone {
			return true
		}
	}
	return false
}

// lookAt says whether s is over and else how long nothing needs to happen.
func (r *Roster) lookAt(s *syncing) (pause time.Duration, done bool, err error) {
	now := r.cfg.Mono()
	r.mu.Lock()
	defer r.unlock()
	switch {
	case r.sync != s:
		return 0, false, fault.New(fault.BrokerDown, "the connection was lost before the other hosts had answered")
	case s.err != nil:
		r.sync = nil
		return 0, false, fault.Wrap(s.err, fault.BrokerDown, "the other hosts could not be asked who lives there")
	case s.echo.IsZero() || len(r.owing(s, now)) > 0:
		return syncWait, false, nil
	}
	wait := quiet
	for _, id := range s.expected {
		if !r.heardSince(id, s.since) {
			wait = quietExpected
		}
	}
	if pause = r.lastNews(s).Add(wait).Sub(now); pause > 0 {
		return pause, false, nil
	}
	r.sync, r.synced = nil, true
	r.changed()
	return 0, true, nil
}

// owing lists the hosts that were heard and have not announced themselves yet.
func (r *Roster) owing(s *syncing, now time.Time) []string {
	var ids []string
	for id, h := range r.hosts {
		if h != r.self && r.heardSince(id, s.since) && h.fullAt.Before(s.since) && h.state(now) != Unknown && !h.left {
			ids = append(ids, id)
		}
	}
	return ids
}

func (r *Roster) heardSince(id string, since time.Time) bool {
	h := r.hosts[id]
	return h != nil && !h.heard.IsZero() && !h.heard.Before(since)
}

func (r *Roster) lastNews(s *syncing) time.Time {
	last := s.echo
	for _, h := range r.hosts {
		last = later(last, h.fullAt)
	}
	return last
}

// endSync is the verdict when time is up. If an echo comes later after all, the
// view counts as synced from then on.
func (r *Roster) endSync(s *syncing) error {
	now := r.cfg.Mono()
	r.mu.Lock()
	defer r.unlock()
	if r.sync != s {
		return fault.New(fault.BrokerDown, "the connection was lost before the other hosts had answered")
	}
	r.sync = nil
	if s.echo.IsZero() {
		return fault.New(fault.BrokerDown, "what this host announces does not come back from the broker; check that its login may write to and read from bridge.roster")
	}
	r.synced = true
	if owing := r.owing(s, now); len(owing) > 0 {
		r.note(hclog.Warn, "some hosts did not say in time who lives there; they are asked again", "hosts", owing)
	}
	r.changed()
	return nil
}

func (r *Roster) dropSync(s *syncing) {
	r.mu.Lock()
	defer r.unlock()
	if r.sync == s {
		r.sync = nil
	}
}

// Disconnected notes that the connection was lost: the view only grows old
// until the next Sync. A Sync under way ends.
func (r *Roster) Disconnected() {
	r.mu.Lock()
	defer r.unlock()
	r.sync, r.synced, r.connected = nil, false, false
	r.changed()
}

// Current reports whether the view of other hosts can be believed: synced, and
// our own heartbeats keep coming back. Only then may be said that somebody does
// not exist. A host without a broker has no others, so its view always is.
func (r *Roster) Current() bool {
	now := r.cfg.Mono()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current(now)
}

func (r *Roster) current(now time.Time) bool {
	return r.cfg.Publish == nil || r.synced && r.age(now) < missed*r.cfg.Interval
}

// Age is how long ago something of our own last came back through the broker,
// which is how old the view of other hosts may be; 0 without a broker, and the
// time since our start if nothing ever did.
func (r *Roster) Age() time.Duration {
	now := r.cfg.Mono()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.age(now)
}

func (r *Roster) age(now time.Time) time.Duration {
	if r.cfg.Publish == nil {
		return 0
	}
	return now.Sub(later(r.echoAt, r.started))
}
