package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"fleetd/fault"
	"fleetd/mcp"
	"fleetd/test/crash/history"
	"fleetd/test/failpoint"
	"fleetd/test/faultproxy"
)

// life of an ordinary brief, and of one that is meant to expire.
const (
	ordinaryLife = 30 * time.Second
	shortLife    = 4 * time.Second
)

// openSend is how long a send that waits for the answer does, in seconds.
const openSend = 8

// script brings messages to the point of a case, and has it struck.
type script func(w *world, ctx context.Context, k kase) (hit bool, err error)

var scripts = map[failpoint.Setup]script{
	failpoint.Ordinary:  (*world).ordinary,
	failpoint.Waiting:   (*world).waiting,
	failpoint.Away:      (*world).away,
	failpoint.Dead:      (*world).dead,
	failpoint.Expired:   (*world).expired,
	failpoint.Doubtful:  (*world).doubtful,
	failpoint.Refused:   (*world).refused,
	failpoint.Gone:      (*world).gone,
	failpoint.Again:     (*world).again,
	failpoint.Asked:     (*world).asked,
	failpoint.Duplicate: (*world).duplicate,
	failpoint.Untold:    (*world).untold,
	failpoint.Held:      (*world).held,
	failpoint.Unseen:    (*world).unseen,
	failpoint.Booted:    (*world).booted,
	failpoint.Repeated:  (*world).repeated,
	failpoint.Unheard:   (*world).unheard,
	failpoint.Late:      (*world).late,
	failpoint.Failing:   (*world).failing,
}

// target is the worker that the first message of k goes to.
func (w *world) target(k kase) *worker {
	switch k.path {
	case failpoint.Local:
		return w.a.workers[0]
	case failpoint.Question:
		return w.asker
	case failpoint.QuestionHere:
		return w.nearAsker
	}
	return w.b.workers[0]
}

// send has main i send one message in the background, delay from now.
func (w *world) send(ctx context.Context, k kase, i int, delay time.Duration, one wish) {
	w.tokens++
	token := fmt.Sprintf("tok%04dx%05d", k.n, w.tokens)
	one.life = cmp.Or(one.life, ordinaryLife)
	one.retries = one.retries || w.ask
	w.sends.Go(func() {
		pause(ctx, delay)
		w.mains[i].send(ctx, k.n, token, one)
	})
}

// traffic sends the message of k and, a moment later, others beside it: blocked
// sends and such that return at once, clients that ask again and such that
// don't. What goes the same way as the message stays behind it.
func (w *world) traffic(ctx context.Context, k kase, first wish) {
	coin := func() bool { return w.rng.IntN(2) == 0 }
	wait := func() int { return w.rng.IntN(2) * openSend }
	later := func() time.Duration { return time.Duration(50+w.rng.IntN(100)) * time.Millisecond }
	first.retries, first.wait = coin(), wait()
	if k.path == failpoint.Forward && k.point.Side == failpoint.Sender {
		first.wait = openSend // some steps are only taken when somebody waits
	}
	if k.damage == stall {
		stalled(k, &first)
	}
	if asks(k.path) {
		switch {
		case first.by > 0: // it must not listen
			first.wait = 0
		case first.delay > 0 || w.rng.IntN(4) > 0: // else a poll takes the question
			first.wait = openSend
		}
	}
	if k.path == failpoint.Mail {
		first.to, first.main = nil, w.peer.name
	} else if first.to == nil {
		first.to = w.target(k)
	}
	switch {
	case launches(k.path):
		w.spawn(ctx, k, cmp.Or(first.profile, profileAide))
	case k.path == failpoint.Spread:
		w.broadcast(ctx, k, first)
	case k.path == failpoint.End, upgrades(k): // is all that it needs
	default:
		w.send(ctx, k, first.by, 0, first)
	}
	w.send(ctx, k, 1, later(), wish{to: w.b.workers[1], wait: wait(), retries: coin()})
	if k.path == failpoint.Mail || k.path == failpoint.Local {
		w.send(ctx, k, 0, later(), wish{to: w.b.workers[0], wait: wait(), retries: coin()})
	}
	w.send(ctx, k, 2, later(), wish{main: w.peer.name, retries: coin()})
	if k.path == failpoint.Forward || k.path == failpoint.Mail {
		w.send(ctx, k, 3, later(), wish{to: w.a.workers[0], wait: wait(), retries: coin()})
	}
	if k.path == failpoint.Local || k.path == failpoint.Spread || asks(k.path) {
		w.send(ctx, k, 3, later(), wish{main: w.mains[1].name, retries: coin()})
	}
}

func (w *world) ordinary(ctx context.Context, k kase) (bool, error) {
	switch k.path {
	case failpoint.End:
		return w.ending(ctx, k)
	case failpoint.Upgrade:
		return w.upgrading(ctx, k)
	}
	if err := w.arm(ctx, k); err != nil {
		return false, err
	}
	w.traffic(ctx, k, wish{})
	return w.strike(ctx, k)
}

func asks(p failpoint.Path) bool { return p == failpoint.Question || p == failpoint.QuestionHere }

// unheard: the question comes when the main that could answer it does not wait.
func (w *world) unheard(ctx context.Context, k kase) (bool, error) {
	if err := w.arm(ctx, k); err != nil {
		return false, err
	}
	w.traffic(ctx, k, wish{by: mainsOf - 1})
	return w.strike(ctx, k)
}

// late: the main answers when the worker has given up.
func (w *world) late(ctx context.Context, k kase) (bool, error) {
	if err := w.arm(ctx, k); err != nil {
		return false, err
	}
	w.traffic(ctx, k, wish{to: w.hasty, delay: hasty + time.Second})
	return w.strike(ctx, k)
}

// expired: the worker works until the brief's life is over.
func (w *world) expired(ctx context.Context, k kase) (hit bool, err error) {
	return w.whileBusy(ctx, w.target(k), func() (bool, error) {
		if err := w.arm(ctx, k); err != nil {
			return false, err
		}
		w.traffic(ctx, k, wish{life: shortLife})
		return w.strike(ctx, k)
	})
}

func (w *world) whileBusy(ctx context.Context, t *worker, do func() (bool, error)) (hit bool, err error) {
	if err := t.Control("busy"); err != nil {
		return false, err
	}
	if err := w.status(ctx, t, "working"); err != nil {
		return false, err
	}
	if hit, err = do(); err != nil {
		return hit, err
	}
	return hit, t.Control("idle")
}

// waiting: the worker works for a while, and the brief waits for it.
func (w *world) waiting(ctx context.Context, k kase) (hit bool, err error) {
	return w.whileBusy(ctx, w.target(k), func() (bool, error) { return w.ordinary(ctx, k) })
}

// away: the gateway of the recipient has been stopped, and comes back later.
func (w *world) away(ctx context.Context, k kase) (hit bool, err error) {
	return w.withoutB(ctx, k, wish{queue: true})
}

// dead: the same, and the message's life is over by then.
func (w *world) dead(ctx context.Context, k kase) (hit bool, err error) {
	return w.withoutB(ctx, k, wish{queue: true, life: shortLife})
}

func (w *world) withoutB(ctx context.Context, k kase, first wish) (hit bool, err error) {
	if err := w.b.host.Stop(); err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, w.b.host.Start(ctx)) }()
	if err := w.a.misses(ctx, w.b); err != nil {
		return false, err
	}
	if err := w.arm(ctx, k); err != nil {
		return false, err
	}
	w.rec.broken(history.Fault{Host: w.b.host.Name})
	w.traffic(ctx, k, first)
	return w.strike(ctx, k)
}

// repeated: the message was accepted, and the same call comes again.
func (w *world) repeated(ctx context.Context, k kase) (bool, error) {
	armed := make(chan error, 1)
	w.traffic(ctx, k, wish{again: func() { armed <- w.arm(ctx, k) }})
	select {
	case err := <-armed:
		if err != nil {
			return false, err
		}
	case <-time.After(hitBound):
		return false, errors.New("the first call did not return")
	}
	return w.strike(ctx, k)
}

// untold: the report that a brief expired is committed, and its signal lost.
func (w *world) untold(ctx context.Context, k kase) (hit bool, err error) {
	return w.whileBusy(ctx, w.target(k), func() (bool, error) {
		if err := w.arm(ctx, k); err != nil {
			return false, err
		}
		if err := w.fell(ctx, w.b, "outbox.final.after", func() { w.traffic(ctx, k, wish{life: shortLife}) }); err != nil {
			return false, err
		}
		if err := w.b.host.Start(ctx); err != nil {
			return false, err
		}
		return w.strike(ctx, k)
	})
}

// held: the brief waits, unacked, when the connection breaks.
func (w *world) held(ctx context.Context, k kase) (hit bool, err error) {
	return w.whileBusy(ctx, w.target(k), func() (bool, error) {
		if err := w.hold(ctx, w.b, "inbox.accept.held", func() { w.traffic(ctx, k, wish{}) }); err != nil {
			return false, err
		}
		if err := w.b.control.release(); err != nil {
			return false, err
		}
		if err := w.arm(ctx, k); err != nil {
			return false, err
		}
		w.cut(w.b)
		return w.strike(ctx, k)
	})
}

// unseen: the message is committed and never leaves. Its sender's gateway says
// so a minute after its life is over.
func (w *world) unseen(ctx context.Context, k kase) (hit bool, err error) {
	if err := w.fell(ctx, w.a, "outbox.publish.before", func() { w.traffic(ctx, k, wish{life: shortLife}) }); err != nil {
		return false, err
	}
	if err := w.arm(ctx, k); err != nil {
		return false, err
	}
	if err := w.a.host.Start(ctx); err != nil {
		return false, err
	}
	return w.strike(ctx, k)
}

// status waits until herdr sees the agent in that state.
func (w *world) status(ctx context.Context, t *worker, want string) error {
	for end := time.Now().Add(upBound); ; {
		_, is, err := t.Host.Herdr.Status(t.Pane)
		if err != nil || is == want {
			return err
		}
		if ctx.Err() != nil || time.Now().After(end) {
			return fmt.Errorf("herdr sees %s as %s, not %s", t.address, is, want)
		}
		pause(ctx, 50*time.Millisecond)
	}
}

// doubtful: a dialog opens over the paste.
func (w *world) doubtful(ctx context.Context, k kase) (hit bool, err error) {
	w.rec.broken(history.Fault{Worker: w.target(k).address})
	if err := w.target(k).Control("dialog-after-paste"); err != nil {
		return false, err
	}
	if err := w.arm(ctx, k); err != nil {
		return false, err
	}
	w.traffic(ctx, k, wish{})
	if hit, err = w.strike(ctx, k); err != nil {
		return hit, err
	}
	return hit, w.target(k).tidy()
}

// refused: herdr does not take the paste at first.
func (w *world) refused(ctx context.Context, k kase) (bool, error) {
	t := w.target(k)
	if err := t.Host.Herdr.QueueFull(t.Pane, 1); err != nil {
		return false, err
	}
	if err := w.arm(ctx, k); err != nil {
		return false, err
	}
	w.traffic(ctx, k, wish{})
	return w.strike(ctx, k)
}

// gone: the worker has a brief open, and ends.
func (w *world) gone(ctx context.Context, k kase) (bool, error) {
	if k.path == failpoint.End {
		return w.ending(ctx, k)
	}
	s := w.site(k)
	w.doomed++
	t, err := w.addWorker(ctx, s, fmt.Sprintf("doomed-%d", w.doomed), "--replies", "-1")
	if err != nil {
		return false, err
	}
	if err := w.seen(ctx, t); err != nil {
		return false, err
	}
	w.traffic(ctx, k, wish{to: t, silent: true})
	if err := w.prompted(ctx, t, time.Time{}); err != nil {
		return false, err
	}
	if err := w.arm(ctx, k); err != nil {
		return false, err
	}
	w.rec.broken(history.Fault{Worker: t.address})
	w.sends.Go(func() {
		for end := time.Now().Add(upBound); ctx.Err() == nil && time.Now().Before(end); pause(ctx, againAfter) {
			_, err := s.host.API("").Unregister(ctx, mcp.UnregisterArgs{Name: t.Name})
			if err == nil || fault.Is(err, fault.UnknownRecipient) {
				return
			}
		}
	})
	return w.strike(ctx, k)
}

// seen waits until hosta knows t.
func (w *world) seen(ctx context.Context, t *worker) error {
	for end := time.Now().Add(upBound); ; {
		r, err := w.a.host.API("").Roster(ctx, mcp.RosterArgs{})
		if err != nil {
			return err
		}
		for _, e := range r.Entities {
			if e.Name+"@"+e.Host == t.address {
				return nil
			}
		}
		if ctx.Err() != nil || time.Now().After(end) {
			return fmt.Errorf("%s is not seen", t.address)
		}
		pause(ctx, 50*time.Millisecond)
	}
}

// prompted waits until the model of t was given something after since.
func (w *world) prompted(ctx context.Context, t *worker, since time.Time) error {
	for end := time.Now().Add(upBound); ; {
		prompts, _, err := t.model()
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // it may not have begun
			return err
		}
		if len(prompts) > 0 && prompts[len(prompts)-1].At.After(since) {
			return nil
		}
		if ctx.Err() != nil || time.Now().After(end) {
			return fmt.Errorf("%s was given nothing", t.address)
		}
		pause(ctx, 50*time.Millisecond)
	}
}

// again: a message is on the wire when the connection breaks.
func (w *world) again(ctx context.Context, k kase) (bool, error) {
	s := w.a
	if k.path == failpoint.Reply {
		s = w.b
	}
	if err := w.orphan(ctx, s, func() { w.traffic(ctx, k, wish{}) }, func() error { return w.arm(ctx, k) }); err != nil {
		return false, err
	}
	return w.strike(ctx, k)
}

// asked: the same with a brief, and its worker is busy, so that no word on it
// comes by itself.
func (w *world) asked(ctx context.Context, k kase) (bool, error) {
	return w.whileBusy(ctx, w.target(k), func() (bool, error) { return w.again(ctx, k) })
}

// duplicate: what became of a message is recorded, and the connection breaks
// before the broker is told.
func (w *world) duplicate(ctx context.Context, k kase) (bool, error) {
	s, last := w.b, "inbox.pull.drained"
	switch k.path {
	case failpoint.Forward:
		last = "inbox.injecting.after"
	case failpoint.Reply:
		s = w.a
	}
	if err := w.hold(ctx, s, last, func() { w.traffic(ctx, k, wish{}) }); err != nil {
		return false, err
	}
	if err := w.arm(ctx, k); err != nil {
		return false, err
	}
	s.proxy.Set(faultproxy.Down)
	w.cut(s)
	defer s.proxy.Set(faultproxy.Pass)
	given := time.Now()
	if err := s.control.release(); err != nil {
		return false, err
	}
	if k.path == failpoint.Forward { // until it is injected the copy meets the message itself
		if err := w.prompted(ctx, w.target(k), given); err != nil {
			return false, err
		}
		pause(ctx, time.Second)
	}
	s.proxy.Set(faultproxy.Pass)
	return w.strike(ctx, k)
}

// booted: the gateway is killed with a message under way, and again when it
// comes back.
func (w *world) booted(ctx context.Context, k kase) (bool, error) {
	s, last := w.site(k), "inbox.injecting.acked"
	if k.point.Side == failpoint.Sender {
		last = "outbox.publish.after"
	}
	if err := w.fell(ctx, s, last, func() { w.traffic(ctx, k, wish{}) }); err != nil {
		return false, err
	}
	if err := w.arm(ctx, k); err != nil {
		return false, err
	}
	started := make(chan error, 1)
	go func() { started <- s.host.Start(ctx) }() // at some points it stands until it is struck
	hit, err := w.strike(ctx, k)
	if first := <-started; k.damage != kill {
		err = errors.Join(err, first)
	}
	return hit, err
}
