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

var (
	errTaken = errors.New("a client took the message while the gate was closed")
	errSeen  = errors.New("the message has been here before")
)

// How long the loop rests after an attempt that changed nothing.
const (
	paceFirst = 500 * time.Millisecond
	paceLast  = 4 * time.Second
)

// forward is the loop of one worker: its mail goes into its pane one after the
// other, in order of arrival, until the worker has ended.
func (in *Inbox) forward(ctx context.Context, b *box) {
	pace := paceFirst
	for ctx.Err() == nil {
		it, gone := b.head()
		if gone {
			in.windUp(ctx, b)
			return
		}
		if it == nil {
			in.idle(b)
			select {
			case <-ctx.Done():
			case <-b.wake:
			}
			continue
		}
		if in.inject(ctx, b, it) {
			pace = paceFirst
			continue
		}
		select {
		case <-ctx.Done():
		case <-b.changed:
			pace = paceFirst
		case <-time.After(pace):
			pace = min(2*pace, paceLast)
		}
	}
}

// inject tries to bring one item into the pane and reports whether the box
// changed by it.
//
// The order is the whole promise (design §6): the gate is waited for, then
// injecting is recorded, then the broker is told, then text is written. What
// happens before the record leaves the brief on the broker; what happens after
// it is reported, and never written again. Of local mail the gate is waited for
// while it is being stored; nothing is recorded before that is done.
func (in *Inbox) inject(ctx context.Context, b *box, it *item) bool {
	env, err := in.whole(b, it)
	if err != nil {
		if !errors.Is(err, errGone) {
			in.log.Error("the body of a message could not be read", "msg", it.env.MsgID, "trace", it.env.TraceID, "error", err)
		}
		return errors.Is(err, errGone)
	}
	wait, cancel := context.WithCancel(ctx)
	defer cancel()
	e, ok := b.begin(it, cancel)
	switch {
	case !ok:
		return true
	case e.Pane == "":
		in.gate(b, it, envelope.NoPane)
		return false
	}
	text, announced := in.cfg.Injector.Frame(e.AgentKind, Piece{
		MsgID: env.MsgID, Kind: env.Kind, From: in.cfg.Names.Name(env.From),
		InReplyTo: env.InReplyTo, Content: in.content(env),
	})
	try := &try{box: b, item: it, pane: paneOf(e), env: env, announced: announced}
	hooks := Hooks{
		Closed: func(reason envelope.Reason) { in.gate(b, it, reason) },
		Commit: func() error { return in.recordInjecting(ctx, try) },
	}
	if env.ExpiresAt != 0 {
		hooks.Expires = env.Expiry()
	}
	got := in.cfg.Injector.Inject(wait, try.pane, text, hooks)
	it.untilStored(ctx)
	b.end(it)
	if wait.Err() != nil && ctx.Err() == nil && !try.committed {
		return true // somebody else took the item, or the worker moved
	}
	return in.conclude(ctx, try, got)
}

// begin notes that item it waits for the gate, so that the wait can end when
// it is for nothing; false: it is already.
func (b *box) begin(it *item, cancel context.CancelFunc) (store.Entity, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !it.waits() || b.entity.Ended() {
		return b.entity, false
	}
	b.attempt = &attempt{item: it, cancel: cancel}
	select {
	case <-b.changed: // this attempt knows
	default:
	}
	return b.entity, true
}

func (b *box) end(it *item) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.attempt != nil && b.attempt.item == it {
		b.attempt = nil
	}
}

// try is one attempt to inject one item.
type try struct {
	box       *box
	item      *item
	pane      Pane
	env       *envelope.Envelope // whole
	announced bool               // only a line about it goes in
	committed bool               // past the point of no return
}

// recordInjecting is the point of no return. A put-if-absent: whoever finds an
// entry of that message drops his copy.
func (in *Inbox) recordInjecting(ctx context.Context, t *try) error {
	b, it, env := t.box, t.item, t.env
	if env.ExpiresAt != 0 && !in.cfg.Now().Before(env.Expiry()) {
		return fault.New(fault.Expired, "the message expired before it could go in")
	}
	it.untilStored(ctx)
	b.end(it)
	if !b.move(it, waiting, injecting) {
		return errTaken
	}
	if !env.Kind.Brief() {
		t.committed = true
		return nil // other mail is at least once: its record goes when it is in
	}
	failpoint.Hit("inbox.injecting.before")
	err := in.cfg.Store.Write(ctx, func(tx *store.Tx) error { return in.putInjecting(tx, t) })
	if err != nil {
		if !errors.Is(err, errSeen) {
			// It may stand all the same; then the next attempt finds its own.
			it.attempted = true
		}
		b.release(it)
		return err
	}
	t.committed = true
	failpoint.Hit("inbox.injecting.after")
	in.trace("injecting", env, b.gid, store.Injecting, "")
	b.mu.Lock()
	hold := b.letGo(it)
	b.mu.Unlock()
	if hold != nil {
		in.settled("ack", env, hold.Ack())
	}
	failpoint.Hit("inbox.injecting.acked")
	return nil
}

func (in *Inbox) putInjecting(tx *store.Tx, t *try) error {
	it, env, gid := t.item, t.env, t.box.gid
	seen, found, err := tx.FindSeen(env.MsgID, gid)
	if err != nil {
		return err
	}
	own := it.attempted && seen.Outcome == store.Injecting && seen.Boot == in.cfg.Boot
	if found && seen.Outcome != store.Waiting && !own {
		return errSeen
	}
	if err := tx.PutSeen(env.TS, env.MsgID, gid, in.seen(it, store.Injecting, "")); err != nil {
		return err
	}
	brief := in.brief(gid, env, briefInjecting)
	if t.announced {
		brief.Announced, brief.Body = true, env.Body
	}
	if it.attempted { // that attempt's record, if it stands, is of this brief
		if err := dropBrief(tx, gid, env.MsgID); err != nil {
			return err
		}
	}
	if err := tx.PutBrief(brief); err != nil {
		return err
	}
	return tx.DeleteHeld(gid, it.seq)
}

func (in *Inbox) seen(it *item, outcome store.Outcome, reason string) store.Seen {
	return store.Seen{Outcome: outcome, Reason: reason, BodyHash: it.hash, Boot: in.cfg.Boot, Host: it.env.Signer}
}
