package inbox

import (
	"context"
	"crypto/sha256"
	"slices"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
)

// Panes finds the pane that a worker is registered with.
type Panes interface {
	// Identify returns the pane with its terminal and agent kind pinned, or an
	// error that says which panes there are.
	Identify(ctx context.Context, id string) (Pane, error)
}

// Registration makes or changes an entity.
type Registration struct {
	Name     string
	Kind     string
	Pane     string // of a worker; empty: none yet, or as it was
	Groups   []string
	NewToken bool // replace the tokens of an entity that exists
}

// Register makes an entity, or changes the live one of that name and kind. The
// token is returned once, when the entity is new or a new one is asked for; the
// store keeps only its hash.
func (in *Inbox) Register(ctx context.Context, r Registration) (e store.Entity, token string, created bool, err error) {
	if err := checkRegistration(r); err != nil {
		return e, "", false, err
	}
	e, created, err = in.named(r)
	if err != nil {
		return e, "", false, err
	}
	if r.Pane != "" {
		if err := in.pin(ctx, &e, r.Pane); err != nil {
			return e, "", false, err
		}
	}
	if len(r.Groups) > 0 || created {
		e.Groups = r.Groups
	}
	if created || r.NewToken {
		token = in.cfg.Secret()
	}
	err = in.cfg.Store.Write(ctx, func(tx *store.Tx) error {
		if token != "" {
			if err := tx.DeleteTokens(e.GID); err != nil {
				return err
			}
			if err := tx.PutToken(sha256.Sum256([]byte(token)), e.GID); err != nil {
				return err
			}
		}
		return tx.PutEntity(e)
	})
	if err != nil {
		return e, "", false, err
	}
	if created {
		err = in.Open(e)
	} else if b := in.box(e.GID); b != nil {
		b.mu.Lock()
		b.entity = e
		b.mu.Unlock()
		b.poke()
	}
	in.cfg.Changed(e)
	return e, token, created, err
}

func checkRegistration(r Registration) error {
	switch {
	case !envelope.ValidName(r.Name):
		return fault.New(fault.BadRequest, "%q is no name: use lower-case letters, digits and dashes, a letter first, at most 63", r.Name)
	case r.Kind != Worker && r.Kind != Main && r.Kind != Orchestrator:
		return fault.New(fault.BadRequest, "%q is no kind: it is worker (an agent in a pane), main or orchestrator (an MCP client)", r.Kind)
	case r.Pane != "" && r.Kind != Worker:
		return fault.New(fault.BadRequest, "only a worker lives in a pane; leave the pane out, or register a worker")
	}
	for _, g := range r.Groups {
		if !envelope.ValidName(g) {
			return fault.New(fault.BadRequest, "%q is no group name: use lower-case letters, digits and dashes, a letter first; all is taken", g)
		}
	}
	return nil
}

// named finds the live entity of that name, or makes a new one.
func (in *Inbox) named(r Registration) (store.Entity, bool, error) {
	for _, e := range in.Entities() {
		if e.Name != r.Name || e.State == Gone {
			continue
		}
		if e.Kind != r.Kind {
			return e, false, fault.New(fault.Conflict, "%s is registered as %s here; unregister it first, or take another name", r.Name, e.Kind)
		}
		return e, false, nil
	}
	return store.Entity{
		GID: in.cfg.NewID(), Kind: r.Kind, Name: r.Name, State: Live, CreatedAt: in.cfg.Now().UnixMilli(),
	}, true, nil
}

// pin binds the worker to the pane as it is now.
func (in *Inbox) pin(ctx context.Context, e *store.Entity, id string) error {
	if in.cfg.Panes == nil {
		return fault.New(fault.HerdrDown, "this gateway has no herdr to look for pane %s; set herdr.socket", id)
	}
	for _, other := range in.Entities() {
		if other.Pane == id && other.GID != e.GID && other.State != Gone {
			return fault.New(fault.Conflict, "pane %s belongs to %s already: one pane, one worker; unregister that one first", id, other.Name)
		}
	}
	pane, err := in.cfg.Panes.Identify(ctx, id)
	if err != nil {
		return err
	}
	e.Pane, e.Terminal, e.AgentKind = pane.ID, pane.Terminal, pane.Kind
	return nil
}

// Unregister ends the live entity of that name.
func (in *Inbox) Unregister(ctx context.Context, name string) (store.Entity, error) {
	for _, b := range in.all() {
		if e := b.snapshot(); e.State != Gone && (e.Name == name || e.GID == name) {
			in.end(ctx, b, string(fault.PaneGone))
			return b.snapshot(), nil
		}
	}
	return store.Entity{}, fault.New(fault.UnknownRecipient, "nobody here is called %q; `bridged roster` lists who is", name)
}

// end makes an entity gone for good: whoever waits for it is told, and so is
// whoever sends to it from now on.
func (in *Inbox) end(ctx context.Context, b *box, reason string) {
	b.mu.Lock()
	if b.entity.State == Gone {
		b.mu.Unlock()
		return
	}
	b.entity.State, b.entity.GoneAt = Gone, in.cfg.Now().UnixMilli()
	e := b.entity
	waitingItems := slices.Clone(b.items)
	b.mu.Unlock()
	err := in.untilStored(ctx, func() error {
		return in.cfg.Store.Write(ctx, func(tx *store.Tx) error {
			if err := tx.DeleteTokens(e.GID); err != nil {
				return err
			}
			return tx.PutEntity(e)
		})
	})
	if err != nil {
		in.log.Error("the end of an entity could not be recorded", "name", e.Name, "error", err)
	}
	in.cfg.Changed(e)
	for _, it := range waitingItems {
		in.drop(ctx, b, it, reason, func(s envelope.Settler) error { return s.Ack() })
	}
	in.abandon(ctx, e)
	in.log.Info("an entity has ended", "name", e.Name, "gid", e.GID)
}

// abandon tells everyone whose brief the entity had and did not answer.
func (in *Inbox) abandon(ctx context.Context, e store.Entity) {
	open, err := in.OpenBriefs(e.GID)
	if err != nil {
		in.log.Error("open briefs of an entity that ended could not be read", "name", e.Name, "error", err)
		return
	}
	for _, b := range open {
		report := envelope.Report{
			Kind: envelope.Abandoned, Reason: string(fault.PaneGone), MsgID: b.MsgID, TraceID: b.TraceID,
			Sender: b.Sender, SenderHost: b.SenderHost, Recipient: b.GID, Hops: b.Hops,
		}
		if err := in.untilStored(ctx, func() error { return in.cfg.Reports.Final(ctx, report) }); err != nil {
			in.log.Error("an abandoned brief could not be reported", "msg", b.MsgID, "trace", b.TraceID, "error", err)
			continue
		}
		in.cfg.Store.Later(func(tx *store.Tx) error {
			seen, _, err := tx.SeenOf(b.TS, b.MsgID, b.GID)
			if err != nil {
				return err
			}
			seen.Outcome, seen.Reason = outcomeFailed, string(fault.Abandoned)
			if err := tx.PutSeen(b.TS, b.MsgID, b.GID, seen); err != nil {
				return err
			}
			return tx.DeleteBrief(b.GID, b.Seq)
		})
	}
}

// Entities lists everyone who has an inbox here, also those that have ended.
func (in *Inbox) Entities() []store.Entity {
	var all []store.Entity
	for _, b := range in.all() {
		all = append(all, b.snapshot())
	}
	slices.SortFunc(all, func(a, b store.Entity) int { return int(a.CreatedAt - b.CreatedAt) })
	return all
}

// ByToken returns the live entity whose token this is.
func (in *Inbox) ByToken(token string) (store.Entity, bool) {
	var gid string
	var found bool
	err := in.cfg.Store.View(func(tx *store.Tx) (err error) {
		gid, found, err = tx.TokenOwner(sha256.Sum256([]byte(token)))
		return err
	})
	if err != nil {
		in.log.Error("a token could not be looked up", "error", err)
	}
	if !found {
		return store.Entity{}, false
	}
	return in.ByName(gid)
}

// ByName returns the live entity of that name or gid.
func (in *Inbox) ByName(name string) (store.Entity, bool) {
	for _, e := range in.Entities() {
		if e.State != Gone && (e.Name == name || e.GID == name) {
			return e, true
		}
	}
	return store.Entity{}, false
}
