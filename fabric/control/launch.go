package control

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
	"fleetd/test/failpoint"
	"fleetd/wait"
)

// onSpawn takes a request of another host. The same spawnId has one outcome:
// a request that comes again joins the launch or gets that.
func (c *Control) onSpawn(ctx context.Context, env *envelope.Envelope) error {
	failpoint.Hit("control.spawn.before")
	rec, found, err := store.Find(c.cfg.Store, func(tx *store.Tx) (store.Spawn, bool, error) { return tx.Spawn(env.SpawnID) })
	switch {
	case err != nil:
		return err
	case found && rec.FromHost != env.Signer:
		c.auditAsked(verbSpawn, env, actRefused, fault.NotAllowed)
		c.later(env, envelope.Failed, &Failure{Code: fault.NotAllowed})
		return nil
	case found && rec.State == store.SpawnSpawned:
		c.later(env, envelope.Spawned, nil)
		return nil
	case found && rec.State == store.SpawnFailed:
		c.later(env, envelope.Failed, &Failure{Code: fault.Code(rec.Code), Detail: rec.Detail})
		return nil
	case found: // it is under way, or being undone
		return nil
	case !c.cfg.Now().Before(env.Expiry()):
		c.log.Info("a spawn that came after its time is not launched", "spawn", env.SpawnID, "trace", env.TraceID)
		c.auditAsked(verbSpawn, env, actRefused, fault.Expired)
		return nil
	}
	rec, p, f := c.permitted(env)
	if f != nil {
		c.log.Warn("a spawn was refused", "from", env.From, "host", env.Signer, "code", f.Code, "trace", env.TraceID)
		c.trace("refused", rec, store.SpawnFailed, string(f.Code))
		c.auditSpawn(rec, actRefused, f.Code)
		c.later(env, envelope.Failed, f)
		return nil
	}
	token, rec, err := c.reserve(ctx, rec, p)
	if fault.Is(err, fault.StoreUnavailable) {
		return err
	}
	if err != nil {
		f := failureOf(err)
		c.auditSpawn(rec, actRefused, f.Code)
		c.later(env, envelope.Failed, f)
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begin(func(ctx context.Context) {
		switch o := c.launch(ctx, rec, p, token); {
		case o.failure != nil:
			c.answer(ctx, env, envelope.Failed, o.failure)
		case o.spawned:
			c.answer(ctx, env, envelope.Spawned, nil)
		}
	})
	return nil
}

// later answers in the background: who handles a message returns soon.
func (c *Control) later(ask *envelope.Envelope, kind envelope.Kind, f *Failure) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begin(func(ctx context.Context) { c.answer(ctx, ask, kind, f) })
}

// permitted says what a request asks for, and whether it may: only named
// profiles that are open to others, and only for those hosts that are let.
func (c *Control) permitted(env *envelope.Envelope) (store.Spawn, Profile, *Failure) {
	rec := store.Spawn{
		SpawnID: env.SpawnID, From: env.From, FromHost: env.Signer, Host: c.cfg.Host, TraceID: env.TraceID,
		At: c.cfg.Now().UnixMilli(), ExpiresAt: env.ExpiresAt,
	}
	if !c.cfg.Allows(env.Signer, verbSpawn) {
		return rec, Profile{}, &Failure{Code: fault.NotAllowed}
	}
	var body spawnBody
	if err := json.Unmarshal(env.Body, &body); err != nil || !envelope.ValidGID(env.SpawnID) {
		return rec, Profile{}, &Failure{Code: fault.BadRequest, Cause: err}
	}
	p, known := c.cfg.Profiles[body.Profile]
	if known || envelope.ValidName(body.Profile) { // else it is any text, of any length, and would stand in the audit log
		rec.Profile = body.Profile
	}
	rec.Name, rec.Groups = body.Name, body.Groups
	if !known || !p.Remote {
		return rec, Profile{}, &Failure{Code: fault.ProfileUnknown}
	}
	if _, _, taken := c.cfg.Entities.Find(env.SpawnID); taken {
		return rec, Profile{}, &Failure{Code: fault.Conflict}
	}
	return rec, p, nil
}

// launchOnce launches what this host asks of itself.
func (c *Control) launchOnce(ctx context.Context, rec store.Spawn) outcome {
	p, known := c.cfg.Profiles[rec.Profile]
	if !known {
		c.auditSpawn(rec, actRefused, fault.ProfileUnknown)
		return outcome{failure: &Failure{Code: fault.ProfileUnknown}}
	}
	token, rec, err := c.reserve(ctx, rec, p)
	if err != nil {
		f := failureOf(err)
		c.auditSpawn(rec, actRefused, f.Code)
		return outcome{failure: f}
	}
	return c.launch(ctx, rec, p, token)
}

// reserve commits that rec is being launched by this run, together with the
// worker that it will be, before herdr hears of it.
func (c *Control) reserve(ctx context.Context, rec store.Spawn, p Profile) (token string, _ store.Spawn, err error) {
	rec.State, rec.Boot = store.SpawnLaunching, c.cfg.Boot
	groups := slices.Clone(p.Groups)
	for _, g := range rec.Groups {
		if !slices.Contains(groups, g) {
			groups = append(groups, g)
		}
	}
	rec.Groups = nil // the worker has them
	token, err = c.cfg.Entities.Reserve(ctx, rec.SpawnID, rec.Name, rec.Profile, groups, func(tx *store.Tx, name string) error {
		rec.Name = name
		return tx.PutSpawn(rec)
	})
	failpoint.Hit("control.launching.after")
	return token, rec, err
}

// launch starts the agent, waits until it takes input, and only then has it
// announced. A launch that fails is undone: no pane, no token, no inbox and no
// presence stays. One that the end of the daemon meets has no outcome: the next
// start undoes it.
func (c *Control) launch(ctx context.Context, rec store.Spawn, p Profile, token string) outcome {
	c.trace("launching", rec, store.SpawnLaunching, "")
	c.auditSpawn(rec, actBegun, "")
	pane, err := c.cfg.Launcher.Open(ctx, Launch{GID: rec.SpawnID, Name: rec.Name, Token: token, Profile: p})
	failpoint.Hit("control.opened")
	if err == nil {
		ready, cancel := context.WithTimeout(ctx, p.ReadyTimeout)
		pane, err = c.cfg.Launcher.Ready(ready, rec.SpawnID, pane)
		cancel()
	}
	if err == nil {
		failpoint.Hit("control.spawned.before")
		rec.State = store.SpawnSpawned
		err = c.untilStored(ctx, func(ctx context.Context) error {
			return c.cfg.Entities.Launched(ctx, rec.SpawnID, pane, func(tx *store.Tx) error { return tx.PutSpawn(rec) })
		})
	}
	switch {
	case ctx.Err() != nil:
		return outcome{}
	case err == nil:
		failpoint.Hit("control.spawned.after")
		c.trace("spawned", rec, store.SpawnSpawned, "")
		c.auditSpawn(rec, actSpawned, "")
		c.log.Info("an agent was spawned", "name", rec.Name, "profile", rec.Profile, "pane", pane.ID, "gid", rec.SpawnID)
		return outcome{spawned: true}
	}
	f := failureOf(err)
	if fault.Is(err, fault.SpawnFailed) && f.Detail == "" {
		f.Detail = stoppedEarly
	}
	c.log.Warn("a launch failed and is undone", "profile", rec.Profile, "gid", rec.SpawnID, "error", f)
	if !c.undo(ctx, rec, f) {
		return outcome{}
	}
	return outcome{failure: f}
}

// undo takes back what a launch did, until it is done; false: ctx ended first,
// and the next start goes on.
func (c *Control) undo(ctx context.Context, rec store.Spawn, f *Failure) bool {
	rec.State, rec.Code, rec.Detail = store.SpawnFailed, string(f.Code), f.Detail
	for {
		failpoint.Hit("control.undo.before")
		err := c.cfg.Launcher.Close(ctx, rec.SpawnID)
		if err == nil {
			failpoint.Hit("control.undo.closed")
			err = c.cfg.Entities.Discard(ctx, rec.SpawnID, func(tx *store.Tx) error { return tx.PutSpawn(rec) })
		}
		if err == nil {
			failpoint.Hit("control.undo.after")
			c.trace("undone", rec, store.SpawnFailed, f.Detail)
			c.auditSpawn(rec, actFailed, f.Code)
			return true
		}
		c.log.Debug("a launch cannot be undone yet", "gid", rec.SpawnID, "error", err)
		if wait.Pause(ctx, retryEvery) != nil {
			return false
		}
	}
}

// retryEvery is the pace of what waits for herdr or for the store.
const retryEvery = 500 * time.Millisecond

func (c *Control) untilStored(ctx context.Context, fn func(context.Context) error) error {
	for {
		err := fn(ctx)
		if !fault.Is(err, fault.StoreUnavailable) || wait.Pause(ctx, retryEvery) != nil {
			return err
		}
	}
}

// resume takes up what an earlier run left: launches are undone, and what this
// host asked for and still owes a task to is followed to its end.
func (c *Control) resume() error {
	all, err := store.Read(c.cfg.Store, (*store.Tx).Spawns)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rec := range all {
		switch {
		case c.spawns[rec.SpawnID] != nil || rec.Boot == c.cfg.Boot: // somebody was faster
		case rec.State == store.SpawnLaunching:
			c.begin(func(ctx context.Context) {
				c.undo(ctx, rec, &Failure{Code: fault.SpawnFailed, Detail: Interrupted})
			})
		case rec.Task != "" && (rec.State == store.SpawnSpawned || rec.State == store.SpawnAsked && rec.Host != c.cfg.Host):
			s := newSpawning(rec, time.UnixMilli(rec.ExpiresAt))
			s.known = true
			c.follow(s)
		}
	}
	return nil
}
