package inbox

import (
	"cmp"
	"context"
	"crypto/sha256"
	"slices"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
)

// Panes finds and closes the pane that a worker is registered with.
type Panes interface {
	// Identify returns the pane with its terminal and agent kind pinned, or an
	// error that says which panes there are.
	Identify(ctx context.Context, id string) (Pane, error)
	// Close closes the pane of an ending worker, if it still has that terminal,
	// and whatever pane the gateway opened for that gid. What is gone already
	// is closed.
	Close(ctx context.Context, gid string, pane Pane) error
}

// Registration makes or changes an entity.
type Registration struct {
	Name     string
	Kind     store.EntityKind
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
	var pane Pane
	if r.Pane != "" {
		if pane, err = in.identify(ctx, r.Pane); err != nil {
			return e, "", false, err
		}
	}
	e, token, created, err = in.enter(ctx, r, pane)
	if err == nil {
		in.tell(e.GID)
	}
	return e, token, created, err
}

// tell hands an entity as it is now to Config.Changed, which may ask the broker
// and take its time: only who tells of the same entity waits for it, so the
// registry is not held.
func (in *Inbox) tell(gid string) {
	b := in.box(gid)
	if b == nil {
		return // forgotten already
	}
	b.telling.Lock()
	defer b.telling.Unlock()
	in.cfg.Changed(b.snapshot())
}

// enter records an entity that is registered, new or known.
func (in *Inbox) enter(ctx context.Context, r Registration, pane Pane) (e store.Entity, token string, created bool, err error) {
	in.registry.Lock()
	defer in.registry.Unlock()
	if e, created, err = in.named(r); err != nil {
		return e, "", false, err
	}
	if r.Pane != "" {
		if err := in.free(pane, e.GID); err != nil {
			return e, "", false, err
		}
		e.Pane, e.Terminal, e.AgentKind, e.Leader = pane.ID, pane.Terminal, pane.Kind, pane.Leader
	}
	if len(r.Groups) > 0 || created {
		e.Groups = slices.Clone(r.Groups)
	}
	if created || r.NewToken {
		token = in.cfg.Secret()
	}
	if err := in.record(ctx, e, token, nil); err != nil {
		return e, "", false, err
	}
	if created {
		in.insert(newBox(e, in.cfg.Store.Later))
	} else {
		b := in.box(e.GID)
		b.become(e)
		if token != "" {
			b.renew()
		}
	}
	return e, token, created, nil
}

// record stores an entity, with a new token in place of all others if there is
// one, together with also.
func (in *Inbox) record(ctx context.Context, e store.Entity, token string, also func(*store.Tx) error) error {
	return in.cfg.Store.Write(ctx, func(tx *store.Tx) error {
		if token != "" {
			if err := tx.DeleteTokens(e.GID); err != nil {
				return err
			}
			if err := tx.PutToken(sha256.Sum256([]byte(token)), e.GID); err != nil {
				return err
			}
		}
		if also != nil {
			if err := also(tx); err != nil {
				return err
			}
		}
		return tx.PutEntity(e)
	})
}

func checkRegistration(r Registration) error {
	if err := envelope.CheckMember(r.Name, r.Groups); err != nil {
		return err
	}
	return CheckKind(r.Kind)
}

// CheckKind refuses what is no kind of entity.
func CheckKind(kind store.EntityKind) error {
	if !kind.Known() {
		return fault.New(fault.BadRequest, "%.80q is no kind: it is worker (an agent in a pane), main or orchestrator (an MCP client)", kind)
	}
	return nil
}

// named finds the live entity of that name, or makes a new one.
func (in *Inbox) named(r Registration) (store.Entity, bool, error) {
	for _, e := range in.Entities() {
		if e.Name != r.Name || e.Ended() {
			continue
		}
		if e.State == store.EntityLaunching {
			return e, false, fault.New(fault.Conflict, "%s is being launched; wait until it is ready, or take another name", r.Name)
		}
		if e.Kind != r.Kind {
			return e, false, fault.New(fault.Conflict, "%s is registered as %s here; unregister it first, or take another name", r.Name, e.Kind)
		}
		return e, false, nil
	}
	return store.Entity{
		GID: in.cfg.NewID(), Kind: r.Kind, Name: r.Name, State: store.EntityLive, CreatedAt: in.cfg.Now().UnixMilli(),
	}, true, nil
}

func (in *Inbox) identify(ctx context.Context, id string) (Pane, error) {
	if in.cfg.Panes == nil {
		return Pane{}, fault.New(fault.HerdrDown, "this gateway has no herdr to look for pane %s; set herdr.socket", id)
	}
	return in.cfg.Panes.Identify(ctx, id)
}

// free refuses a pane that another worker lives in.
func (in *Inbox) free(pane Pane, gid string) error {
	for _, other := range in.Entities() {
		if other.GID != gid && !other.Ended() && (other.Pane == pane.ID || other.Terminal != "" && other.Terminal == pane.Terminal) {
			return fault.New(fault.Conflict, "pane %s belongs to %s already: one pane, one worker; unregister that one first", pane.ID, other.Name)
		}
	}
	return nil
}

// Entities lists everyone who has an inbox here, also those that ended within
// the last 15 days.
func (in *Inbox) Entities() []store.Entity {
	var all []store.Entity
	for _, b := range in.all() {
		all = append(all, b.snapshot())
	}
	slices.SortFunc(all, func(a, b store.Entity) int {
		return cmp.Or(cmp.Compare(a.CreatedAt, b.CreatedAt), cmp.Compare(a.GID, b.GID))
	})
	return all
}

// Entity returns the entity of that gid, also one that has ended.
func (in *Inbox) Entity(gid string) (store.Entity, bool) {
	b := in.box(gid)
	if b == nil {
		return store.Entity{}, false
	}
	return b.snapshot(), true
}

// ByToken returns the live entity whose token this is. The lease ends when the
// token is replaced or the entity's end begins.
func (in *Inbox) ByToken(token string) (e store.Entity, lease context.Context, ok bool) {
	if e, ok = in.owner(token); !ok {
		return store.Entity{}, nil, false
	}
	b := in.box(e.GID)
	if b == nil {
		return store.Entity{}, nil, false
	}
	lease = b.lease()
	e, ok = in.owner(token) // the lease may be that of the token after
	return e, lease, ok
}

// Life ends when the end of the entity begins; nil if nobody has that gid.
func (in *Inbox) Life(gid string) context.Context {
	if b := in.box(gid); b != nil {
		return b.life
	}
	return nil
}

func (in *Inbox) owner(token string) (store.Entity, bool) {
	gid, found, err := store.Find(in.cfg.Store, func(tx *store.Tx) (string, bool, error) {
		return tx.TokenOwner(sha256.Sum256([]byte(token)))
	})
	if err != nil {
		in.log.Error("a token could not be looked up", "error", err)
	}
	b := in.box(gid)
	if !found || b == nil {
		return store.Entity{}, false
	}
	e := b.snapshot()
	return e, !e.Ended()
}

// ByName returns the live entity of that name or gid.
func (in *Inbox) ByName(name string) (store.Entity, bool) {
	for _, e := range in.Entities() {
		if !e.Ended() && (e.Name == name || e.GID == name) {
			return e, true
		}
	}
	return store.Entity{}, false
}
