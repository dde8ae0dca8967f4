package inbox

import (
	"context"
	"errors"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
)

// States of a brief's record. A brief stays on record after it was answered so
// that a worker can add a second answer.
const (
	briefInjecting = "injecting"
	briefOpen      = "open"
	briefInDoubt   = "in_doubt" // it may be in the pane; an answer to it proves that it was
	briefReplied   = "replied"
)

var (
	errTaken = errors.New("a client took the message while the gate was closed")
	errSeen  = errors.New("the message has been here before")
)

// pace is how long the loop rests after an attempt that changed nothing.
const pace = 500 * time.Millisecond

// forward is the loop of one worker: its mail goes into its pane one after the
// other, in order of arrival.
func (in *Inbox) forward(ctx context.Context, b *box) {
	for ctx.Err() == nil {
		it := b.head()
		if it == nil {
			select {
			case <-ctx.Done():
			case <-b.wake:
			}
			continue
		}
		if in.inject(ctx, b, it) {
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(pace):
		}
	}
}

// inject tries to bring one item into the pane and reports whether the box
// changed by it.
//
// The order is the whole promise (design §6): the gate is waited for, then
// injecting is recorded, then the broker is told, then text is written. What
// happens before the record leaves the brief on the broker; what happens after
// it is reported, and never written again.
func (in *Inbox) inject(ctx context.Context, b *box, it *item) bool {
	e := b.snapshot()
	switch {
	case e.State == Gone:
		return false
	case e.Pane == "":
		in.gate(b, it, ReasonNoPane)
		return false
	}
	text, announced := in.cfg.Injector.Frame(e.AgentKind, Piece{
		MsgID: it.env.MsgID, Kind: it.env.Kind, From: in.cfg.Names.Name(it.env.From),
		InReplyTo: it.env.InReplyTo, Content: in.content(it.env),
	})
	committed := false
	got := in.cfg.Injector.Inject(ctx, Pane{ID: e.Pane, Terminal: e.Terminal, Kind: e.AgentKind}, text, Hooks{
		Closed:  func(reason string) { in.gate(b, it, reason) },
		Expires: it.env.Expiry(),
		Commit: func() error {
			err := in.recordInjecting(ctx, b, it, announced)
			committed = err == nil
			return err
		},
	})
	// What follows is past a point of no return or harmless: it is not undone
	// by a daemon that stops, only bounded.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	if got.Result != AgentGone {
		b.mu.Lock()
		b.noAgent = time.Time{}
		b.mu.Unlock()
	}
	switch got.Result {
	case Injected:
		in.gate(b, it, "")
		in.injected(b, it)
		return true
	case InDoubt:
		in.inDoubt(ctx, b, it, got)
		return true
	case PaneGone:
		in.endPane(ctx, b, it, committed)
		return true
	case AgentGone:
		return in.agentGone(ctx, b, it, committed)
	default:
		return in.notSent(ctx, b, it, got, committed)
	}
}

// recordInjecting is the point of no return. A put-if-absent: whoever finds an
// entry of that message drops his copy.
func (in *Inbox) recordInjecting(ctx context.Context, b *box, it *item, announced bool) error {
	if !b.move(it, waiting, injecting) {
		return errTaken
	}
	gid := b.gid
	if !it.env.Kind.Brief() {
		return nil // other mail is at least once: its record goes when it is in
	}
	err := in.cfg.Store.Write(ctx, func(tx *store.Tx) error {
		seen, found, err := tx.SeenOf(it.env.TS, it.env.MsgID, gid)
		if err != nil {
			return err
		}
		if found && seen.Outcome != outcomeWaiting {
			return errSeen
		}
		if err := tx.PutSeen(it.env.TS, it.env.MsgID, gid, in.seen(it, outcomeInjecting, "")); err != nil {
			return err
		}
		brief := in.brief(gid, it, briefInjecting)
		if announced {
			brief.Announced, brief.Body = true, it.env.Body
		}
		if err := tx.PutBrief(brief); err != nil {
			return err
		}
		return dropHeld(tx, gid, it)
	})
	if err != nil {
		b.move(it, injecting, waiting)
		return err
	}
	in.trace("injecting", it.env, gid, outcomeInjecting, "")
	if !it.local() {
		in.settled("ack", it.env, it.settle.Ack())
	}
	return nil
}

func (in *Inbox) injected(b *box, it *item) {
	gid := b.gid
	in.progress(it.env, gid, envelope.Injected, "")
	in.trace("injected", it.env, gid, outcomeInjected, "")
	outcome := outcomeInjected
	if !it.env.Kind.Brief() {
		outcome = outcomeDrained
	}
	in.cfg.Store.Later(func(tx *store.Tx) error {
		if err := tx.PutSeen(it.env.TS, it.env.MsgID, gid, in.seen(it, outcome, "")); err != nil {
			return err
		}
		if outcome == outcomeDrained {
			return dropHeld(tx, gid, it)
		}
		return changeBrief(tx, gid, it.env.MsgID, briefInjecting, briefOpen)
	})
	in.finish(b, it)
}

// finish takes an item whose end is known out of its box. Mail that is no
// brief is acked only now.
func (in *Inbox) finish(b *box, it *item) {
	if !it.env.Kind.Brief() && !it.local() {
		in.settled("ack", it.env, it.settle.Ack())
	}
	b.keep(it.env, in.cfg.Now())
	b.remove(it)
}

// inDoubt ends an item of which nobody can say whether the pane has it.
func (in *Inbox) inDoubt(ctx context.Context, b *box, it *item, got Injection) {
	gid := b.gid
	in.log.Warn("an injection is in doubt: look at the pane", "pane", b.snapshot().Pane, "msg", it.env.MsgID,
		"trace", it.env.TraceID, "reason", got.Reason, "error", got.Err)
	in.trace("in_doubt", it.env, gid, outcomeFailed, string(fault.InDoubt))
	in.failBrief(ctx, b, it, string(fault.InDoubt), briefInDoubt)
}

// failBrief reports the end of an item past its point of no return, and
// records it. The report is durable before the record forgets: a crash in
// between makes it twice, and twice is once (it has a derived id).
func (in *Inbox) failBrief(ctx context.Context, b *box, it *item, reason, state string) {
	gid := b.gid
	err := in.untilStored(ctx, func() error { return in.final(ctx, it.env, gid, envelope.Failed, reason) })
	if err != nil {
		// The record still says injecting: the next start reports it.
		in.log.Error("a failed brief could not be reported yet", "msg", it.env.MsgID, "trace", it.env.TraceID, "error", err)
		in.finish(b, it)
		return
	}
	in.cfg.Store.Later(func(tx *store.Tx) error {
		if err := tx.PutSeen(it.env.TS, it.env.MsgID, gid, in.seen(it, outcomeFailed, reason)); err != nil {
			return err
		}
		if err := dropHeld(tx, gid, it); err != nil {
			return err
		}
		if state == "" {
			return dropBrief(tx, gid, it.env.MsgID)
		}
		return changeBrief(tx, gid, it.env.MsgID, briefInjecting, state)
	})
	in.finish(b, it)
}

// notSent deals with an attempt that wrote nothing.
func (in *Inbox) notSent(ctx context.Context, b *box, it *item, got Injection, committed bool) bool {
	switch {
	case errors.Is(got.Err, errSeen):
		if !b.move(it, waiting, injecting) {
			return true
		}
		in.cfg.Store.Later(func(tx *store.Tx) error { return dropHeld(tx, b.gid, it) })
		if !it.local() {
			in.settled("ack", it.env, it.settle.Ack())
		}
		b.remove(it)
		return true
	case errors.Is(got.Err, errTaken):
		return true
	case committed:
		in.putBack(ctx, b, it)
		return false
	case got.Reason == string(fault.Expired):
		in.expire(ctx, b, it)
		return true
	default:
		return false
	}
}

// putBack returns a brief that herdr refused before a byte was written: it
// waits on as local mail, its body stored first, since the broker was told.
func (in *Inbox) putBack(ctx context.Context, b *box, it *item) {
	gid := b.gid
	if it.env.Kind.Brief() {
		record := heldOf(gid, it)
		record.Local, record.Body = true, it.env.Body
		err := in.untilStored(ctx, func() error {
			return in.cfg.Store.Write(ctx, func(tx *store.Tx) error {
				if err := tx.PutHeld(record); err != nil {
					return err
				}
				if err := tx.PutSeen(it.env.TS, it.env.MsgID, gid, in.seen(it, outcomeWaiting, "")); err != nil {
					return err
				}
				return dropBrief(tx, gid, it.env.MsgID)
			})
		})
		if err != nil {
			in.log.Error("a brief could not be put back; it will be reported in doubt", "msg", it.env.MsgID, "error", err)
			in.finish(b, it)
			return
		}
		b.mu.Lock()
		if it.settle != nil {
			it.settle = nil
			b.locals++
		}
		b.mu.Unlock()
	}
	b.move(it, injecting, waiting)
}

// agentGone gives an agent that is not seen in its pane some time to come
// back: a child in the foreground hides it (herdr reference §8).
func (in *Inbox) agentGone(ctx context.Context, b *box, it *item, committed bool) bool {
	now := in.cfg.Now()
	b.mu.Lock()
	if b.noAgent.IsZero() {
		b.noAgent = now
	}
	over := now.Sub(b.noAgent) >= in.cfg.AgentGrace
	b.mu.Unlock()
	if over {
		in.endPane(ctx, b, it, committed)
		return true
	}
	if committed {
		in.putBack(ctx, b, it)
	}
	in.gate(b, it, "AGENT_GONE")
	return false
}

// endPane ends the entity whose pane is gone, with all that waits for it.
func (in *Inbox) endPane(ctx context.Context, b *box, it *item, committed bool) {
	if committed {
		b.move(it, injecting, waiting) // nothing was written; it fails with the others
	}
	in.end(ctx, b, string(fault.PaneGone))
}

// gate notes whether a worker's gate is open, and tells the sender of the item
// that waits for it. Settling is no closed gate: it is over in seconds, and
// the sweeper tells if it is not.
func (in *Inbox) gate(b *box, it *item, reason string) {
	now := in.cfg.Now()
	b.mu.Lock()
	changed := b.reason != reason
	if changed {
		b.reason, b.since = reason, now
	}
	tell := reason != "" && reason != "SETTLING" && it.state == waiting && it.told != reason
	if tell {
		it.told = reason
	}
	gid := b.gid
	b.mu.Unlock()
	if changed {
		in.cfg.Gate(gid, reason, now)
	}
	if tell {
		in.progress(it.env, gid, envelope.Deferred, reason)
		in.trace("deferred", it.env, gid, outcomeWaiting, reason)
	}
}

func (in *Inbox) seen(it *item, outcome, reason string) store.Seen {
	return store.Seen{Outcome: outcome, Reason: reason, BodyHash: it.hash, Boot: in.cfg.Boot, Host: it.env.Signer}
}

func (in *Inbox) brief(gid string, it *item, state string) store.Brief {
	e := it.env
	return store.Brief{
		GID: gid, MsgID: e.MsgID, TraceID: e.TraceID, Sender: e.From, SenderHost: e.Signer,
		SenderName: in.cfg.Names.Name(e.From), Kind: string(e.Kind), Hops: e.Hops, TS: e.TS,
		ExpiresAt: e.ExpiresAt, At: in.cfg.Now().UnixMilli(), State: state, Boot: in.cfg.Boot,
	}
}

// dropHeld removes the held record of an item that has one.
func dropHeld(tx *store.Tx, gid string, it *item) error {
	if it.seq == 0 {
		return nil
	}
	return tx.DeleteHeld(gid, it.seq)
}

func dropBrief(tx *store.Tx, gid, msgID string) error {
	brief, found, err := tx.BriefByMsg(gid, msgID)
	if err != nil || !found {
		return err
	}
	return tx.DeleteBrief(gid, brief.Seq)
}

// changeBrief moves a brief's record from one state to another; a record in
// any other state has been moved by somebody who knew more.
func changeBrief(tx *store.Tx, gid, msgID, from, to string) error {
	brief, found, err := tx.BriefByMsg(gid, msgID)
	if err != nil || !found || brief.State != from {
		return err
	}
	brief.State = to
	return tx.PutBrief(brief)
}
