package main

import (
	"context"
	"fmt"
	"time"

	"fleetd/test/crash/history"
	"fleetd/test/failpoint"
	"fleetd/test/faultproxy"
)

// How long the traffic of a case may take to come to its point. The last word
// of a gateway comes a minute after the message's life, and after one more
// question.
const (
	hitBound     = time.Minute
	verdictBound = 2 * time.Minute
)

// order is what the failpoint does for a damage: it kills, or it holds the
// step still while something else is broken.
func (k kase) order() failpoint.Order {
	o := failpoint.Order{Name: k.point.Name, Nth: k.nth, Action: failpoint.Pause}
	switch k.damage {
	case kill:
		o.Action = failpoint.Kill
	case stall:
		o.Action = failpoint.Stall
	}
	return o
}

// site is where the point of k is hit.
func (w *world) site(k kase) *site {
	sender := k.point.Side == failpoint.Sender
	switch {
	case k.path == failpoint.Local, k.path == failpoint.QuestionHere, k.path == failpoint.LaunchHere:
		return w.a
	case k.path == failpoint.Reply || k.path == failpoint.Question:
		sender = !sender
	}
	if sender {
		return w.a
	}
	return w.b
}

// arm arms the point of k.
func (w *world) arm(ctx context.Context, k kase) error { return w.site(k).control.arm(ctx, k.order()) }

// strike waits until the point of k is hit, and does the damage. The fleet may
// not be well after it.
func (w *world) strike(ctx context.Context, k kase) (hit bool, err error) {
	s, bound := w.site(k), hitBound
	if k.point.Setup == failpoint.Unseen {
		bound = verdictBound
	}
	if !s.control.hit(ctx, bound) {
		return false, s.control.arm(ctx, failpoint.Order{})
	}
	switch k.damage {
	case kill:
		return true, w.revive(ctx, s)
	case stall:
		return true, w.starve(ctx, k, s)
	}
	return true, w.damage(ctx, k, s, s.control)
}

// damage breaks what k says around a process of s that stands at a point, and
// lets that go on.
func (w *world) damage(ctx context.Context, k kase, s *site, c *control) error {
	if k.damage == cut {
		w.cut(s)
		return c.release()
	}
	w.rec.broken(history.Fault{})
	w.node.Kill()
	if err := c.release(); err != nil {
		return err
	}
	return w.node.Restart(ctx)
}

// cut resets every connection of s to the broker.
func (w *world) cut(s *site) {
	w.rec.broken(history.Fault{Host: s.host.Name})
	s.proxy.Reset()
}

// revive starts a gateway again that was killed. Its panes are left as a
// person would leave them who looked in meanwhile.
func (w *world) revive(ctx context.Context, s *site) error {
	if err := w.bury(s); err != nil {
		return err
	}
	return s.host.Start(ctx)
}

func (w *world) bury(s *site) error {
	if err := s.host.Kill(); err != nil {
		return err
	}
	w.rec.killed(s.host.Name)
	for _, one := range s.workers {
		if err := one.tidy(); err != nil {
			return err
		}
	}
	return nil
}

// hold stops s at a point, and returns when it stands there.
func (w *world) hold(ctx context.Context, s *site, name string, begin func()) error {
	if err := s.control.arm(ctx, failpoint.Order{Name: name, Nth: 1, Action: failpoint.Pause}); err != nil {
		return err
	}
	begin()
	if !s.control.hit(ctx, hitBound) {
		return fmt.Errorf("%s was not hit on the way to another point", name)
	}
	return nil
}

// fell kills s at a point that is on the way to another one, and leaves it dead.
func (w *world) fell(ctx context.Context, s *site, name string, begin func()) error {
	if err := s.control.arm(ctx, failpoint.Order{Name: name, Nth: 1, Action: failpoint.Kill}); err != nil {
		return err
	}
	begin()
	if !s.control.hit(ctx, hitBound) {
		return fmt.Errorf("%s was not hit on the way to another point", name)
	}
	return w.bury(s)
}

// orphan brings one message of s onto the wire and cuts the connection before
// the broker's word on it comes; with up it does not even reach the broker.
// While the message is there, then is called.
func (w *world) orphan(ctx context.Context, s *site, begin func(), then func() error) error {
	if err := w.hold(ctx, s, "outbox.publish.before", begin); err != nil {
		return err
	}
	stall, reached := faultproxy.StallUp, w.rng.IntN(2) == 0
	if reached {
		stall = faultproxy.StallDown
	}
	s.proxy.Set(stall)
	defer s.proxy.Set(faultproxy.Pass)
	var freed error
	err := w.hold(ctx, s, "fabric.publish.written", func() { freed = s.control.release() })
	if err != nil || freed != nil {
		return fmt.Errorf("%w %w", err, freed)
	}
	if reached {
		pause(ctx, 100*time.Millisecond) // most reach it; either way is one of the two
	}
	if err := then(); err != nil {
		return err
	}
	w.cut(s)
	return s.control.release()
}
