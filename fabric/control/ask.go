package control

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fabric/roster"
	"fleetd/fault"
	"fleetd/store"
	"fleetd/test/failpoint"
	"fleetd/wait"
)

// Request is one agent that an entity of this host asks for.
type Request struct {
	From    string // gid
	Profile string
	Host    string // "": this one
	Name    string // "": the profile's, with a number where that is taken
	Groups  []string
	Task    string        // its first brief; "": none
	Timeout time.Duration // how long the caller waits; nothing is launched after it
	Key     string        // idempotency key; "": one is made
}

// Spawned is the new worker.
type Spawned struct {
	Target  roster.Target
	TraceID string
	TaskID  string // the brief that was sent to it
}

// spawnBody is what a SPAWN asks for.
type spawnBody struct {
	Profile string   `json:"profile"`
	Name    string   `json:"name,omitempty"`
	Groups  []string `json:"groups,omitempty"`
}

// spawning is one spawn under way on the side that asks. Control.mu guards it
// but for over and done.
type spawning struct {
	rec     store.Spawn
	known   bool          // it may have been asked for before, and have been started
	callers int           // who wait for it
	expires time.Time     // of what is asked for at present
	again   chan struct{} // capacity 1: somebody asks again
	heard   chan outcome  // capacity 1
	over    chan struct{} // closed when done is set
	done    outcome
	err     error // it could not be asked for at all
}

func (s *spawning) hear(o outcome) {
	select {
	case s.heard <- o:
	default: // it has an outcome already, and there is only one
	}
}

// Spawn asks for an agent and waits for it as long as the caller does. Once per
// key: a repeated call joins the first one, or gets its outcome.
func (c *Control) Spawn(ctx context.Context, r Request) (Spawned, error) {
	r.Host = cmp.Or(r.Host, c.cfg.Host)
	if err := c.check(r); err != nil {
		return Spawned{}, err
	}
	s, err := c.asked(ctx, r)
	if err != nil {
		return Spawned{}, err
	}
	c.waits(s, 1)
	defer c.waits(s, -1)
	patience := time.NewTimer(r.Timeout)
	defer patience.Stop()
	select {
	case <-s.over:
	case <-patience.C:
		c.mu.Lock()
		defer c.mu.Unlock()
		return Spawned{}, fault.New(fault.SpawnTimeout, "no word yet of %s, whose id would be %s; a launch under way goes on. Ask again with idempotency_key %q: that starts nothing twice", s.rec.Profile+"@"+s.rec.Host, s.rec.SpawnID, s.rec.Key)
	case <-ctx.Done():
		return Spawned{}, ctx.Err()
	}
	switch {
	case s.err != nil:
		return Spawned{}, s.err
	case s.done.failure != nil:
		return Spawned{}, sentence(s.rec, s.done.failure)
	}
	t, err := c.cfg.Fleet.Resolve(s.rec.SpawnID)
	if err != nil {
		return Spawned{}, err
	}
	return Spawned{Target: t, TraceID: s.rec.TraceID, TaskID: s.rec.TaskID}, nil
}

// check refuses what cannot come to be. Nothing is recorded yet.
func (c *Control) check(r Request) error {
	switch {
	case !envelope.ValidName(r.Profile):
		return fault.New(fault.BadRequest, "%q is no name of a profile; profiles are named in bridged.yaml of the host where the agent is to live", r.Profile)
	case !envelope.ValidHost(r.Host):
		return fault.New(fault.BadRequest, "%q is no host id; bridge_roster lists the hosts", r.Host)
	}
	if err := envelope.CheckMember(cmp.Or(r.Name, r.Profile), r.Groups); err != nil {
		return err
	}
	if r.Task == "" {
		return nil
	}
	if err := c.cfg.CheckTask([]byte(r.Task)); err != nil {
		return fault.Wrap(err, fault.CodeOf(err), "nothing was started, its task could not be sent: %s", fault.From(err).Sentence)
	}
	return nil
}

func (r Request) hash() [32]byte {
	text, _ := json.Marshal([]any{"spawn", r.Profile, r.Host, r.Name, r.Groups, r.Task}) // strings can always be marshalled
	return sha256.Sum256(text)
}

// asked finds or begins what r asks for.
func (c *Control) asked(ctx context.Context, r Request) (*spawning, error) {
	c.mu.Lock()
	defer c.mu.Unlock() // one at a time: two calls with one key are one spawn
	rec, known, err := c.recorded(r)
	if err != nil {
		return nil, err
	}
	if s := c.spawns[rec.SpawnID]; known && s != nil {
		s.expires = c.cfg.Now().Add(r.Timeout)
		wait.Poke(s.again)
		return s, nil
	}
	switch {
	case known && rec.State == store.SpawnSpawned && rec.Task == "":
		return finished(rec, outcome{spawned: true}), nil
	case known && rec.State == store.SpawnLaunching: // by an earlier run: it is being undone
		return finished(rec, outcome{failure: &Failure{Code: fault.SpawnFailed, Detail: Interrupted}}), nil
	case known && rec.State == store.SpawnFailed:
		return finished(rec, outcome{failure: &Failure{Code: fault.Code(rec.Code), Detail: rec.Detail}}), nil
	}
	if !known || c.cfg.Broker == nil { // what was asked for before may have been started
		if err := c.reachable(r.Host); err != nil {
			return nil, err
		}
	}
	s := newSpawning(rec, c.cfg.Now().Add(r.Timeout))
	s.known = known
	s.rec.ExpiresAt = s.expires.UnixMilli()
	if !known {
		if err := c.record(ctx, r, s.rec); err != nil {
			return nil, err
		}
	}
	c.follow(s)
	return s, nil
}

func newSpawning(rec store.Spawn, expires time.Time) *spawning {
	return &spawning{rec: rec, expires: expires, again: make(chan struct{}, 1), heard: make(chan outcome, 1), over: make(chan struct{})}
}

func finished(rec store.Spawn, o outcome) *spawning {
	s := &spawning{rec: rec, over: make(chan struct{}), done: o}
	close(s.over)
	return s
}

// recorded returns what the key stands for, or a new record.
func (c *Control) recorded(r Request) (rec store.Spawn, known bool, err error) {
	id := c.cfg.NewID()
	r.Key = cmp.Or(r.Key, id)
	now := c.cfg.Now()
	rec = store.Spawn{
		SpawnID: id, State: store.SpawnAsked, From: r.From, FromHost: c.cfg.Host, Host: r.Host, Profile: r.Profile,
		Name: r.Name, Groups: slices.Clone(r.Groups), TraceID: c.cfg.NewTrace(), At: now.UnixMilli(), Key: r.Key, Task: r.Task,
	}
	err = c.cfg.Store.View(func(tx *store.Tx) error {
		k, found, err := tx.KeyOf(r.From, r.Key)
		if err != nil || !found || now.Sub(time.UnixMilli(k.At)) >= store.KeyLife {
			return err
		}
		if k.Hash != r.hash() {
			return fault.New(fault.Conflict, "the idempotency key %q stands for something else already; use a new key for a new agent", r.Key)
		}
		old, found, err := tx.Spawn(k.MsgID)
		if found {
			rec, known = old, true
		}
		return err
	})
	return rec, known, err
}

// record commits the key, and for another host what is asked for. Here the
// launch commits it, together with the worker.
func (c *Control) record(ctx context.Context, r Request, rec store.Spawn) error {
	failpoint.Hit("control.asked.before")
	err := c.cfg.Store.Write(ctx, func(tx *store.Tx) error {
		err := tx.PutKey(r.From, rec.Key, store.Key{
			MsgID: rec.SpawnID, TraceID: rec.TraceID, ExpiresAt: rec.ExpiresAt, Call: verbSpawn, Hash: r.hash(), At: rec.At,
		})
		if err != nil {
			return err
		}
		return tx.PutSpawn(rec)
	})
	failpoint.Hit("control.asked.after")
	return err
}

// reachable refuses what cannot be asked for now. Nothing has happened yet.
func (c *Control) reachable(host string) error {
	if host == c.cfg.Host {
		return nil
	}
	if c.cfg.Broker == nil {
		return fault.New(fault.BrokerDown, "%s is another host, and this gateway has no broker; set broker.uri to reach other hosts", host)
	}
	if ok, reason := c.cfg.Broker.Connected(); !ok {
		return fault.New(fault.BrokerDown, "other hosts cannot be reached now (%s); nothing was started. Try again later", reason)
	}
	switch state := c.cfg.Fleet.HostState(host); state {
	case roster.Online:
		return nil
	case roster.Never:
		return fault.New(fault.UnknownRecipient, "no host %s was ever heard; bridge_roster lists the hosts", host)
	default:
		return fault.New(fault.HostOffline, "host %s is %s; nothing was started. Try again once it is back, or spawn on another host", host, state)
	}
}

// follow brings a spawn to its end on the side that asks; c.mu is held.
func (c *Control) follow(s *spawning) {
	c.spawns[s.rec.SpawnID] = s
	c.begin(func(ctx context.Context) {
		o, err := c.bring(ctx, s)
		if ctx.Err() != nil && err == nil && o == (outcome{}) {
			err = fault.New(fault.Internal, "the gateway is being stopped; a launch under way is undone or goes on. Ask again with idempotency_key %q", s.rec.Key)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.spawns, s.rec.SpawnID)
		s.done, s.err = o, err
		close(s.over)
	})
}

// longestLaunch bounds how long after the last request an outcome may come.
const longestLaunch = time.Hour + time.Minute

func (c *Control) bring(ctx context.Context, s *spawning) (o outcome, err error) {
	switch {
	case s.rec.State == store.SpawnSpawned:
		o.spawned = true // only its task is owed
	case s.rec.Host == c.cfg.Host:
		o = c.launchOnce(ctx, s.rec)
	default:
		o, err = c.ask(ctx, s)
	}
	if err != nil || o == (outcome{}) {
		return o, err
	}
	for {
		err = c.conclude(ctx, s, o)
		if err == nil || !c.goesOn(s) || wait.Pause(ctx, c.cfg.Repeat) != nil {
			return o, err
		}
		c.log.Debug("the task of an agent cannot be sent yet", "spawn", s.rec.SpawnID, "error", err)
	}
}

// goesOn reports whether a task that could not be sent is tried again by itself:
// if nobody waits, to be told that it was not and to repeat the call.
func (c *Control) goesOn(s *spawning) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return s.callers == 0 && c.cfg.Now().Sub(s.expires) <= longestLaunch
}

// waits counts a caller of s in, or out.
func (c *Control) waits(s *spawning, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.callers += n
}

// ask repeats the request until there is an outcome.
func (c *Control) ask(ctx context.Context, s *spawning) (outcome, error) {
	tick := time.NewTicker(c.cfg.Repeat)
	defer tick.Stop()
	body, err := json.Marshal(spawnBody{Profile: s.rec.Profile, Name: s.rec.Name, Groups: s.rec.Groups})
	if err != nil {
		return outcome{}, fault.From(err)
	}
	for sent := s.known; ; {
		changed := c.cfg.Fleet.Changed()
		if c.present(s.rec) {
			return outcome{spawned: true}, nil
		}
		c.mu.Lock()
		expires := s.expires
		c.mu.Unlock()
		now := c.cfg.Now()
		if now.Sub(expires) > longestLaunch {
			return outcome{}, nil // a repeated call asks again
		}
		if now.Before(expires) {
			env := c.request(envelope.Spawn, s.rec.From, s.rec.Host, s.rec.SpawnID, s.rec.TraceID, expires, body)
			err := c.cfg.Broker.Publish(ctx, envelope.LaneControl, env)
			if err != nil && !sent {
				c.forget(ctx, s.rec)
				return outcome{}, err // nothing can come of it
			}
			if !sent {
				c.trace("asked", s.rec, "", "")
				c.auditSpawn(s.rec, actAsked, "")
			}
			sent = true
			failpoint.Hit("control.spawn.published")
		}
		if o, ok := c.listen(ctx, s, tick.C, changed); ok {
			return o, nil
		}
	}
}

// listen waits until there is an outcome, or a reason to ask again; the end of
// ctx is an empty outcome.
func (c *Control) listen(ctx context.Context, s *spawning, tick <-chan time.Time, changed <-chan struct{}) (outcome, bool) {
	for {
		select {
		case o := <-s.heard:
			return o, true
		case <-ctx.Done():
			return outcome{}, true
		case <-tick:
			return outcome{}, false
		case <-s.again:
			return outcome{}, false
		case <-changed:
			if c.present(s.rec) {
				return outcome{spawned: true}, true
			}
			changed = c.cfg.Fleet.Changed()
		}
	}
}

// present reports whether signed presence has the gid: that counts as SPAWNED.
func (c *Control) present(s store.Spawn) bool {
	t, err := c.cfg.Fleet.Resolve(s.SpawnID)
	return err == nil && t.Host == s.Host
}

// seenWait is how long presence may come behind the word that a worker is there.
const seenWait = 10 * time.Second

// conclude records the outcome and sends the task that is owed.
func (c *Control) conclude(ctx context.Context, s *spawning, o outcome) error {
	failpoint.Hit("control.conclude.before")
	rec := s.rec
	rec.State = store.SpawnSpawned
	if o.failure != nil {
		rec.State, rec.Code, rec.Detail, rec.Task = store.SpawnFailed, string(o.failure.Code), o.failure.Detail, ""
	} else {
		c.await(ctx, rec)
		if t, err := c.cfg.Fleet.Resolve(rec.SpawnID); err == nil {
			rec.Name = t.Name
		}
	}
	rec.Groups = nil // nobody asks again
	var owed error
	if rec.Task != "" && o.spawned {
		id, err := c.cfg.Brief(ctx, rec)
		if id != "" {
			rec.TaskID, rec.Task = id, ""
		}
		owed = err
		failpoint.Hit("control.task.sent")
	}
	if s.rec.State == store.SpawnAsked { // else only its task was owed still
		c.trace("concluded", rec, rec.State, strings.TrimSpace(rec.Code+" "+rec.Detail))
		if rec.Host != c.cfg.Host { // else the launch said it
			c.auditSpawn(rec, spawnAct(o), fault.Code(rec.Code))
		}
	}
	err := c.cfg.Store.Write(ctx, func(tx *store.Tx) error {
		if rec.Key == rec.SpawnID && o.failure != nil && o.failure.refused() {
			return unasked(tx, rec)
		}
		return tx.PutSpawn(rec)
	})
	failpoint.Hit("control.conclude.after")
	c.mu.Lock()
	s.rec = rec
	c.mu.Unlock()
	switch {
	case owed != nil:
		return fault.Wrap(owed, fault.CodeOf(owed), "%s lives, but its task was not sent: %s. Repeat the call with idempotency_key %q", cmp.Or(rec.Name, rec.Profile)+"@"+rec.Host, strings.TrimSuffix(fault.From(owed).Sentence, "."), rec.Key)
	case err != nil:
		c.log.Error("the outcome of a spawn was not recorded; it will be asked for again", "spawn", rec.SpawnID, "error", err)
	}
	return nil
}

// forget takes back the record of a request that never left, so that its key can
// be used again. A record that cannot be taken back is asked for again.
func (c *Control) forget(ctx context.Context, rec store.Spawn) {
	err := c.cfg.Store.Write(context.WithoutCancel(ctx), func(tx *store.Tx) error { return unasked(tx, rec) })
	if err != nil {
		c.log.Error("a spawn that was not asked for stays on record", "spawn", rec.SpawnID, "error", err)
	}
}

func unasked(tx *store.Tx, rec store.Spawn) error {
	return errors.Join(tx.DeleteKey(rec.From, rec.Key), tx.DeleteSpawn(rec.SpawnID))
}

func spawnAct(o outcome) string {
	switch {
	case o.failure == nil:
		return actSpawned
	case o.failure.refused():
		return actRefused
	}
	return actFailed
}

// await waits until the roster knows the new worker.
func (c *Control) await(ctx context.Context, s store.Spawn) {
	ctx, cancel := context.WithTimeout(ctx, seenWait)
	defer cancel()
	for {
		changed := c.cfg.Fleet.Changed()
		if c.present(s) {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}
