package control

import (
	"context"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fabric/roster"
	"fleetd/fault"
	"fleetd/store"
	"fleetd/test/failpoint"
)

// stopWait is how long a call waits for an end.
const stopWait = 45 * time.Second

// stopping is a call that waits for the word of one host, and for nobody else's.
// Each request is answered, also those that were repeated: what was said to an
// earlier call is no word on this one.
type stopping struct {
	host    string
	trace   string // of this call
	answers chan *envelope.Envelope
}

// Stop ends a worker, here or on another host, and waits for its end some time.
// done is false if the end is on record and goes on. One that has ended already
// is stopped. from is who asks: a gid, or this gateway.
func (c *Control) Stop(ctx context.Context, from, address string) (t roster.Target, done bool, err error) {
	t, err = c.cfg.Fleet.Resolve(address)
	if err != nil {
		return t, false, err
	}
	if t.Kind != store.Worker {
		return t, false, notAWorker(t)
	}
	ctx, cancel := context.WithTimeout(ctx, stopWait)
	defer cancel()
	act := Act{Verb: verbStop, Who: from, From: c.cfg.Host, Host: t.Host, GID: t.GID, TraceID: c.cfg.NewTrace()}
	acted := false
	say := func(outcome string) {
		act.Outcome, acted = outcome, true
		c.audit(act)
	}
	if t.Local {
		done, err = c.stopHere(ctx, t.GID, say)
	} else {
		done, err = c.stopThere(ctx, t, act, say)
	}
	switch {
	case err != nil:
		act.Code = fault.CodeOf(err)
		if act.Code == fault.NotAllowed || act.Code == fault.UnknownRecipient {
			say(actRefused)
		} else {
			say(actFailed)
		}
	case done && acted: // what had ended before was not stopped by this call
		say(actStopped)
	}
	return t, done, err
}

func notAWorker(t roster.Target) error {
	return fault.New(fault.NotAllowed, "%s is a %s, and only workers can be stopped: its client ends by itself, and its entity with `bridged unregister` on its host", t.Address(), t.Kind)
}

func (c *Control) stopHere(ctx context.Context, gid string, say func(outcome string)) (bool, error) {
	if _, ended, found := c.cfg.Entities.Find(gid); found && !ended {
		if err := c.cfg.Entities.Stop(ctx, gid); err != nil {
			return false, err
		}
		say(actBegun)
	}
	return c.cfg.Entities.AwaitEnd(ctx, gid), nil
}

// stopThere asks, and says so once it has.
func (c *Control) stopThere(ctx context.Context, t roster.Target, act Act, say func(outcome string)) (bool, error) {
	if t.Gone {
		return true, nil
	}
	if err := c.reachable(t.Host); err != nil {
		return false, err
	}
	one := stopping{t.Host, act.TraceID, make(chan *envelope.Envelope, 1)}
	c.mu.Lock()
	c.stops[t.GID] = append(c.stops[t.GID], one)
	c.mu.Unlock()
	defer c.deaf(t.GID, one)
	tick := time.NewTicker(c.cfg.Repeat)
	defer tick.Stop()
	expires := c.cfg.Now().Add(stopWait)
	for sent := false; ; sent = true {
		env := c.request(envelope.Stop, act.Who, t.Host, t.GID, act.TraceID, expires, nil)
		if err := c.cfg.Broker.Publish(ctx, envelope.LaneControl, env); err != nil && !sent {
			return false, err
		}
		if !sent {
			say(actAsked)
		}
		failpoint.Hit("control.stop.published")
		select {
		case env := <-one.answers:
			failpoint.Hit("control.stop.heard")
			if env.Kind == envelope.Stopped {
				return true, nil
			}
			return false, stopFailed(t, fault.Code(env.Reason))
		case <-tick.C:
		case <-ctx.Done():
			if now, err := c.cfg.Fleet.Resolve(t.GID); err == nil && now.Gone {
				return false, nil // its end has begun
			}
			return false, fault.New(fault.Unconfirmed, "host %s did not say whether it stopped %s; look with bridge_roster, and call again: that does no harm", t.Host, t.Address())
		}
	}
}

func (c *Control) deaf(gid string, one stopping) {
	c.mu.Lock()
	defer c.mu.Unlock()
	left := c.stops[gid][:0]
	for _, s := range c.stops[gid] {
		if s != one {
			left = append(left, s)
		}
	}
	if c.stops[gid] = left; len(left) == 0 {
		delete(c.stops, gid)
	}
}

func stopFailed(t roster.Target, code fault.Code) error {
	switch code {
	case fault.NotAllowed:
		return fault.New(code, "host %s takes no stops from this one, or %s is no worker; whoever runs that host can change the first with control.allow", t.Host, t.Address())
	case fault.UnknownRecipient:
		return fault.New(code, "%s is not known on %s any more", t.Address(), t.Host)
	case fault.StoreUnavailable:
		return fault.New(code, "host %s cannot store anything now, so %s was not stopped; try again later", t.Host, t.Address())
	}
	return fault.New(code, "%s was not stopped; the log of host %s says why", t.Address(), t.Host)
}

// onStop takes a request of another host.
func (c *Control) onStop(ctx context.Context, env *envelope.Envelope) error {
	failpoint.Hit("control.stop.before")
	kind, ended, found := c.cfg.Entities.Find(env.SpawnID)
	var f *Failure
	switch {
	case !c.cfg.Allows(env.Signer, verbStop) || found && kind != store.Worker:
		f = &Failure{Code: fault.NotAllowed}
	case !found:
		f = &Failure{Code: fault.UnknownRecipient}
	case !ended:
		if err := c.cfg.Entities.Stop(ctx, env.SpawnID); err != nil {
			return err
		}
		c.auditAsked(verbStop, env, actBegun, "")
		c.log.Info("a worker is stopped at the wish of another host", "gid", env.SpawnID, "from", env.From, "host", env.Signer, "trace", env.TraceID)
	}
	if f != nil {
		c.log.Warn("a stop was refused", "gid", env.SpawnID, "from", env.From, "host", env.Signer, "code", f.Code, "trace", env.TraceID)
		c.auditAsked(verbStop, env, actRefused, f.Code)
		c.later(env, envelope.Failed, f)
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begin(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, stopWait)
		defer cancel()
		if c.cfg.Entities.AwaitEnd(ctx, env.SpawnID) {
			if !ended { // a repeated request has a line of its own only when it began something
				c.auditAsked(verbStop, env, actStopped, "")
			}
			failpoint.Hit("control.stopped.before")
			c.answer(context.WithoutCancel(ctx), env, envelope.Stopped, nil)
		}
	})
	return nil
}
