package fabric

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// syncWait bounds the roster's catching up (design §3).
const syncWait = 5 * time.Second

// session is one life of the link: two connections and all that hangs on
// them, under one connection word.
type session struct {
	f    *Fabric
	word string
	con  *connection // consumes, declares, asks
	out  *connection // publishes

	ctx    context.Context // ends with the session; the cause says why
	cancel context.CancelCauseFunc

	topology chan struct{} // closed once the shared exchanges exist
	held     chan struct{} // closed once the claim is held
	bound    chan struct{} // closed once control messages come, or that was tried
	wasUp    bool

	spawning sync.Mutex // guards closed against wg.Wait
	closed   bool
	wg       sync.WaitGroup

	// Under Fabric.mu:
	pub      *pubChannel // nil while there is no publish channel
	presence bool        // presence may be published: before the state is connected
	up       bool        // everything of design §3's "connected" but pub and blocked
	blocked  string      // the broker's reason for taking no publishes
	declared bool        // the inboxes of before are on the broker, or soon
	inboxes  bool        // inboxes attach at once
	awaits   []*awaited  // of the lane readers
}

func newSession(f *Fabric) *session {
	return &session{f: f, word: f.deps.Word(), topology: make(chan struct{}), held: make(chan struct{}), bound: make(chan struct{})}
}

// spawn runs fn as part of the session; false if the session is over.
func (s *session) spawn(fn func()) bool {
	s.spawning.Lock()
	defer s.spawning.Unlock()
	if s.closed {
		return false
	}
	s.wg.Go(fn)
	return true
}

// fail ends the session; the first cause counts.
func (s *session) fail(format string, args ...any) { s.cancel(fmt.Errorf(format, args...)) }

// run lives the session to its end and returns why it ended.
func (s *session) run(parent context.Context) error {
	s.ctx, s.cancel = context.WithCancelCause(parent)
	defer s.cancel(nil)
	if err := s.connect(); err != nil {
		return err
	}
	err := s.start()
	if err == nil {
		<-s.ctx.Done()
		err = context.Cause(s.ctx)
	} else if cause := context.Cause(s.ctx); cause != nil {
		err = cause // what ended the session says more than what then failed
	}
	if parent.Err() != nil {
		err = errStopped
	}
	s.stop(err)
	return err
}

func (s *session) connect() (err error) {
	f := s.f
	if s.con, err = f.dialer.dial(s.ctx, "bridged "+f.cfg.Host+" consume "+s.word); err != nil {
		return err
	}
	if s.out, err = f.dialer.dial(s.ctx, "bridged "+f.cfg.Host+" publish "+s.word); err != nil {
		s.con.end()
		return err
	}
	f.update(func() { f.sess, f.reason = s, "setting up" })
	s.watch("consuming", s.con)
	s.watch("publishing", s.out)
	return nil
}

// watch ends the session with the connection.
func (s *session) watch(what string, c *connection) {
	closes := c.NotifyClose(make(chan *amqp.Error, 1))
	s.spawn(func() {
		if err, ok := <-closes; ok {
			s.fail("the %s connection was lost: %w", what, err)
		} else {
			s.fail("the %s connection was closed", what)
		}
	})
}

// start brings everything up in the order of design §3.
func (s *session) start() error {
	f := s.f
	first, err := s.openPublisher()
	if err != nil {
		return err
	}
	s.watchBlocked()
	s.spawn(func() { s.keepPublisher(first) })
	s.spawn(s.keepClaim)
	if !f.claimedBefore() {
		select { // before this nothing else is declared, bound, consumed or announced
		case <-s.held:
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		}
	}
	if err := declareShared(s.con, f.names); err != nil {
		return err
	}
	close(s.topology)
	if err := s.startLanes(); err != nil {
		return err
	}
	s.declareInboxes()
	f.update(func() { s.presence = true })
	s.sync()
	select {
	case <-s.held: // the claim is ours: that we serve is told with the link
		select {
		case <-s.bound:
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		}
	default:
	}
	f.update(func() { s.up = true })
	s.wasUp = true
	s.spawn(s.keepReports)
	s.spawn(s.probe)
	f.attachAll(s)
	return s.ctx.Err()
}

// sync lets the roster catch up. A roster that does not answer must not keep a
// gateway down: it may be alone.
func (s *session) sync() {
	if s.f.deps.Sync == nil {
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, syncWait)
	defer cancel()
	if err := s.f.deps.Sync(ctx); err != nil {
		s.f.log.Warn("the roster is not complete; going on with what is known", "error", err)
	}
}

// stop ends the session: no new work, connections closed, everyone waited for.
func (s *session) stop(cause error) {
	f := s.f
	f.update(func() {
		f.reason = cause.Error()
		f.sess, s.pub, s.up, s.presence, s.inboxes = nil, nil, false, false, false
	})
	s.cancel(cause)
	var both sync.WaitGroup
	both.Go(s.con.end)
	both.Go(s.out.end)
	both.Wait()
	s.spawning.Lock()
	s.closed = true
	s.spawning.Unlock()
	s.wg.Wait()
	if f.Claim().Status == ClaimHeld {
		f.setClaim(ClaimNone)
	}
}

func (s *session) watchBlocked() {
	events := s.out.NotifyBlocked(make(chan amqp.Blocking, 16))
	s.spawn(func() {
		for e := range events {
			s.f.update(func() {
				s.blocked = ""
				if e.Active {
					s.blocked = "the broker blocks publishers: " + e.Reason
				}
			})
		}
	})
}

// aside runs do on a throw-away channel of the consuming connection, which an
// alarm does not stop. It gives up with ctx; the library gives up with the
// connection.
func (s *session) aside(ctx context.Context, do func(*amqp.Channel) error) error {
	result := make(chan error, 1)
	if !s.spawn(func() { result <- aside(s.con, do) }) {
		return errSessionOver
	}
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// errStopped is the end that was asked for.
var errStopped = errors.New("stopped")

var errSessionOver = errors.New("the broker session is over")

// session returns the session if it is in use.
func (f *Fabric) session() (*session, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sess == nil || !f.sess.up {
		return nil, f.state.down()
	}
	return f.sess, nil
}

func (f *Fabric) claimedBefore() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.claimed
}
