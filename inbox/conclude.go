package inbox

import (
	"context"
	"errors"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
	"fleetd/test/failpoint"
)

// conclude acts on how an attempt went and reports whether the box changed by
// it. What follows a point of no return is not undone by a daemon that stops.
func (in *Inbox) conclude(ctx context.Context, t *try, got Injection) bool {
	b := t.box
	if got.Result != AgentGone {
		b.mu.Lock()
		b.missing = absence{}
		b.mu.Unlock()
	}
	switch got.Result {
	case Injected:
		in.gate(b, t.item, "")
		in.injected(ctx, t)
		return true
	case InDoubt:
		in.inDoubt(ctx, t, got)
		return true
	case PaneGone:
		return in.paneGone(ctx, t)
	case AgentGone:
		return in.agentGone(ctx, t)
	default:
		return in.notSent(ctx, t, got)
	}
}

func (in *Inbox) injected(ctx context.Context, t *try) {
	b, it, env, gid := t.box, t.item, t.env, t.box.gid
	failpoint.Hit("inbox.injected.before")
	in.progress(env, gid, envelope.Injected, "")
	failpoint.Hit("inbox.injected.signalled")
	if env.Kind.Brief() {
		in.trace("injected", env, gid, store.Injected, "")
		in.cfg.Store.Later(func(tx *store.Tx) error {
			return tx.PutSeen(env.TS, env.MsgID, gid, in.seen(it, store.Injected, ""))
		})
		in.finish(b, it, env)
		return
	}
	in.trace("injected", env, gid, store.Drained, "")
	again := false
	err := in.persist(ctx, func(ctx context.Context) error {
		attempted := again
		again = true
		return in.cfg.Store.Write(ctx, func(tx *store.Tx) error {
			if t.announced { // the pane has only a line about it
				if err := putBrief(tx, in.announcedMail(gid, env), attempted); err != nil {
					return err
				}
			}
			if err := tx.PutSeen(env.TS, env.MsgID, gid, in.seen(it, store.Drained, "")); err != nil {
				return err
			}
			return tx.DeleteHeld(gid, it.seq)
		})
	})
	if err != nil {
		// Not acked: it comes again after the restart.
		in.log.Error("mail that is in its pane could not be recorded", "msg", env.MsgID, "trace", env.TraceID, "error", err)
		return
	}
	in.finish(b, it, env)
}

// finish takes an item whose end is recorded out of its box.
func (in *Inbox) finish(b *box, it *item, env *envelope.Envelope) {
	b.keep(in.cfg.Now(), env)
	for _, hold := range b.finish(it) {
		in.settled("ack", env, hold.Ack())
	}
}

// inDoubt ends a brief of which nobody can say whether the pane has it. Other
// mail is left to its reader's polls.
func (in *Inbox) inDoubt(ctx context.Context, t *try, got Injection) {
	b, it := t.box, t.item
	in.log.Warn("an injection is in doubt: look at the pane", "pane", b.snapshot().Pane, "msg", t.env.MsgID,
		"trace", t.env.TraceID, "reason", got.Reason, "error", got.Err)
	in.trace("in_doubt", t.env, b.gid, store.Failed, string(fault.InDoubt))
	if t.env.Kind.Brief() {
		in.failBrief(ctx, t, string(fault.InDoubt), briefInDoubt)
		return
	}
	b.noteOffered(it)
	b.mu.Lock()
	it.pollOnly, it.redelivered = true, true
	b.mu.Unlock()
	b.release(it)
}

// failBrief reports the end of a brief past its point of no return, and
// records it; in state "" nobody can answer it. The report is durable before
// the record forgets: a crash in between makes it twice, and twice is once (it
// has a derived id).
func (in *Inbox) failBrief(ctx context.Context, t *try, reason, state string) {
	it, env, gid := t.item, t.env, t.box.gid
	failpoint.Hit("inbox.fail.before")
	err := in.persist(ctx, func(ctx context.Context) error {
		return in.final(ctx, env, gid, envelope.Failed, reason)
	})
	if err != nil {
		// The record still says injecting: the next start reports it.
		in.log.Error("a failed brief could not be reported yet", "msg", env.MsgID, "trace", env.TraceID, "error", err)
		in.finish(t.box, it, env)
		return
	}
	failpoint.Hit("inbox.fail.reported")
	in.cfg.Store.Later(func(tx *store.Tx) error {
		if err := tx.PutSeen(env.TS, env.MsgID, gid, in.seen(it, store.Failed, reason)); err != nil {
			return err
		}
		if state == "" {
			return dropBrief(tx, gid, env.MsgID)
		}
		return in.changeBrief(tx, gid, env.MsgID, briefInjecting, state)
	})
	in.finish(t.box, it, env)
}

// notSent deals with an attempt that wrote nothing.
func (in *Inbox) notSent(ctx context.Context, t *try, got Injection) bool {
	b, it, reason := t.box, t.item, fault.Code(got.Reason)
	unfit := reason == fault.BadContent || reason == fault.TooLarge
	switch {
	case errors.Is(got.Err, errTaken):
		return true
	case errors.Is(got.Err, errSeen):
		in.dropCopy(b, it)
		return true
	case t.committed:
		if !in.putBack(ctx, t) {
			return true
		}
		if unfit {
			in.expel(ctx, b, it, string(got.Reason))
			return true
		}
		in.gate(b, it, got.Reason)
		return false
	case unfit:
		in.expel(ctx, b, it, string(got.Reason))
		return true
	case reason == fault.Expired:
		return in.Steady() && in.expel(ctx, b, it, string(got.Reason)) == nil
	case ctx.Err() == nil:
		in.gate(b, it, got.Reason)
	}
	return false
}

// dropCopy ends an item whose message another copy brought in.
func (in *Inbox) dropCopy(b *box, it *item) {
	if !b.move(it, waiting, injecting) {
		return
	}
	in.cfg.Store.Later(func(tx *store.Tx) error { return tx.DeleteHeld(b.gid, it.seq) })
	for _, hold := range b.finish(it) {
		in.settled("ack", it.env, hold.Ack())
	}
}

// putBack returns a brief that herdr refused before a byte was written: it
// waits on as local mail, its body stored first, since the broker was told.
func (in *Inbox) putBack(ctx context.Context, t *try) bool {
	b, it, env, gid := t.box, t.item, t.env, t.box.gid
	if !env.Kind.Brief() {
		b.release(it)
		return true
	}
	b.mu.Lock()
	record := heldOf(gid, it)
	b.mu.Unlock()
	record.Local, record.Body = true, env.Body
	failpoint.Hit("inbox.putback.before")
	err := in.persist(ctx, func(ctx context.Context) error {
		return in.cfg.Store.Write(ctx, func(tx *store.Tx) error {
			if err := tx.PutHeld(record); err != nil {
				return err
			}
			if err := tx.PutSeen(env.TS, env.MsgID, gid, in.seen(it, store.Waiting, "")); err != nil {
				return err
			}
			return dropBrief(tx, gid, env.MsgID)
		})
	})
	if err != nil {
		// The record still says injecting: the next start reports it.
		in.log.Error("a brief could not be put back; it will be reported in doubt", "msg", env.MsgID, "trace", env.TraceID, "error", err)
		in.finish(b, it, env)
		return false
	}
	failpoint.Hit("inbox.putback.after")
	b.mu.Lock()
	if !it.local {
		it.local = true
		b.locals++
	}
	b.mu.Unlock()
	b.release(it)
	return true
}

// paneGone ends the entity whose pane is gone, with all that waits for it.
func (in *Inbox) paneGone(ctx context.Context, t *try) bool {
	switch {
	case t.committed && t.env.Kind.Brief():
		in.failBrief(ctx, t, string(fault.PaneGone), "")
	case t.committed:
		t.box.release(t.item)
	}
	err := in.retire(ctx, t.box, &t.pane)
	if t.box.fails(t.box.gid, err) { // it is tried at each look at the pane
		in.log.Error("the end of a worker could not be recorded yet", "name", t.box.snapshot().Name, "error", err)
	}
	return err == nil
}

// absence is how long a pane shows no agent.
type absence struct{ since, last time.Time }

// note returns how long, with this look. Looks that lie far apart say nothing
// of the time between.
func (a *absence) note(now time.Time, grace time.Duration) time.Duration {
	if a.since.IsZero() || now.Sub(a.last) > grace {
		a.since = now
	}
	a.last = now
	return now.Sub(a.since)
}

// agentGone gives an agent that is not seen in its pane some time to come
// back: a child in the foreground hides it (herdr reference §8).
func (in *Inbox) agentGone(ctx context.Context, t *try) bool {
	b := t.box
	b.mu.Lock()
	over := b.missing.note(in.cfg.Now(), in.cfg.AgentGrace) >= in.cfg.AgentGrace
	b.mu.Unlock()
	if over {
		return in.paneGone(ctx, t)
	}
	if t.committed && !in.putBack(ctx, t) {
		return true
	}
	in.gate(b, t.item, envelope.AgentGone)
	return false
}
