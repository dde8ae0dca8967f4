package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/herdr"
	"fleetd/mcp"
	"fleetd/store"
	"fleetd/test/crash/history"
	"fleetd/test/failpoint"
	"fleetd/test/fleet"
)

// What can be spawned: an agent that answers its task, one that does not, and
// one that never takes input.
const (
	profileAide   = "aide"
	profileSilent = "silent"
	profileNever  = "never"
)

// profiles is the environment of a host where agents can be spawned by the
// other one. All of them write one log.
func profiles(f *fleet.Fleet, log string) []string {
	agent := func(flags string) string {
		return fmt.Sprintf("{argv: [%s, --log, %s, %s], remote: true, ready_timeout: %%s}", f.Agent(), log, flags)
	}
	all := []string{
		profileAide + ": " + fmt.Sprintf(agent("--echo, --work, 10ms, --keyed"), "1m"),
		profileSilent + ": " + fmt.Sprintf(agent("--replies, '-1'"), "1m"),
		profileNever + ": " + fmt.Sprintf(agent("--trust"), "1s"),
	}
	return []string{
		"BRIDGED_PROFILES={" + strings.Join(all, ", ") + "}",
		"BRIDGED_CONTROL_ALLOW={hosta: [send, spawn, stop], hostb: [send]}",
	}
}

// spawning is one Spawn and the message that is its task.
type spawning struct {
	history.Spawn
	by   *client
	task *sending
}

func launches(p failpoint.Path) bool { return p == failpoint.Launch || p == failpoint.LaunchHere }

// where is the host on which the agent of k is to live.
func (w *world) where(k kase) *site {
	if k.path == failpoint.LaunchHere {
		return w.a
	}
	return w.b
}

// spawn has main 0 ask for one agent in the background.
func (w *world) spawn(ctx context.Context, k kase, profile string) *spawning {
	s := w.wanted(k, profile, w.rng.IntN(2) > 0)
	w.sends.Go(func() { s.by.spawn(ctx, s, profile) })
	return s
}

func (w *world) wanted(k kase, profile string, asks bool) *spawning {
	w.tokens++
	token, by, at := fmt.Sprintf("tok%04dx%05d", k.n, w.tokens), w.mains[0], w.where(k)
	s := &spawning{
		Spawn: history.Spawn{Case: k.n, Token: token, From: by.name, Host: at.host.Name, Asks: asks || w.ask}, by: by,
		task: &sending{
			Send:   history.Send{Case: k.n, Token: token, From: by.name, To: at.spawned.address, Worker: true},
			target: at.spawned, life: ordinaryLife, began: time.Now(), task: true, running: true, expected: profile == profileAide,
		},
	}
	w.rec.wants(s)
	w.rec.add(s.task)
	return s
}

// spawnFor is how long one call of a spawn waits, in seconds.
const spawnFor = 20

// spawn asks for an agent, and again until it knows what became of it.
func (c *client) spawn(ctx context.Context, s *spawning, profile string) {
	defer c.rec.over(s.task)
	ses := c.session()
	defer ses.drop()
	args := map[string]any{
		"profile": profile, "host": s.Host, "task": "please look at " + s.Token,
		"timeout_seconds": spawnFor, "idempotency_key": s.Token,
	}
	for again := true; again && ctx.Err() == nil && time.Since(s.task.began) < sendFor; {
		if err := ses.connect(ctx); err != nil {
			pause(ctx, againAfter)
			continue
		}
		call := history.SpawnCall{Call: history.Call{Began: time.Now()}}
		r, err := ses.main.Spawn(ctx, args)
		call.Ended = time.Now()
		switch f, failed := errors.AsType[*fault.Error](err); {
		case err == nil:
			call.State, call.Text, call.GID = r.State, r.Note, r.GID
		case failed:
			call.Code, call.Text, call.GID = string(f.Code), f.Sentence, wouldBe(f.Sentence)
			if strings.Contains(f.Sentence, "lives, but its task was not sent") {
				call.Code = taskOwed
			}
		default:
			call.Text = err.Error()
			ses.drop()
		}
		c.rec.spawned(s, call, r.MsgID)
		again = s.Asks && (call.Broken() || slices.Contains(askAgain, fault.Code(call.Code)))
		if again {
			pause(ctx, againAfter)
		}
	}
}

// taskOwed stands for whatever code says that an agent lives without its task.
const taskOwed = "TASK_OWED"

// askAgain are the codes after which what became of a spawn is not known, or
// nothing was begun.
var askAgain = []fault.Code{taskOwed, fault.SpawnTimeout, fault.BrokerDown, fault.HostOffline, fault.UnknownRecipient, fault.Unroutable, fault.BrokerRefused, fault.Internal, fault.InDoubt, fault.Unconfirmed}

var wouldBeID = regexp.MustCompile(`whose id would be ([0-9a-f-]{36})`)

func wouldBe(text string) string {
	if m := wouldBeID.FindStringSubmatch(text); m != nil {
		return m[1]
	}
	return ""
}

// stop has c end an agent, and asks again until it knows that it has.
func (c *client) stop(ctx context.Context, n int, gid string) {
	s := &history.Stop{Case: n, GID: gid, From: c.name}
	c.rec.stops(s)
	ses := c.session()
	defer ses.drop()
	for began := time.Now(); ctx.Err() == nil && time.Since(began) < sendFor; pause(ctx, againAfter) {
		if err := ses.connect(ctx); err != nil {
			continue
		}
		call := history.Call{Began: time.Now()}
		r, err := ses.main.Stop(ctx, gid)
		call.Ended = time.Now()
		switch f, failed := errors.AsType[*fault.Error](err); {
		case err == nil:
			call.State, call.Text = r.State, r.Note
		case failed:
			call.Code, call.Text = string(f.Code), f.Sentence
		default:
			call.Text = err.Error()
			ses.drop()
		}
		c.rec.stopped(s, call)
		if call.State == mcp.StateStopped || call.Code == string(fault.UnknownRecipient) {
			return
		}
	}
}

// launched lists the agents of host that are known by now.
func (r *recorder) launched(host string) (gids []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.spawns {
		if s.Host == host {
			gids = append(gids, s.GIDs...)
		}
	}
	return gids
}

// retired ends the agents of k that live: each is told to once its task is
// settled.
func (w *world) retired(ctx context.Context, k kase) {
	for _, s := range w.rec.living(k.n) {
		w.mains[0].stop(ctx, k.n, s)
	}
}

// failing: the agent never takes input, and its launch is undone.
func (w *world) failing(ctx context.Context, k kase) (bool, error) {
	if err := w.arm(ctx, k); err != nil {
		return false, err
	}
	w.traffic(ctx, k, wish{profile: profileNever})
	return w.strike(ctx, k)
}

// lives spawns an agent that has a brief open.
func (w *world) lives(ctx context.Context, k kase) (gid string, err error) {
	s := w.wanted(k, profileSilent, true)
	s.by.spawn(ctx, s, profileSilent)
	if gid = w.rec.gid(s); gid == "" {
		return "", fmt.Errorf("no agent was spawned: %s", w.rec.story(s.Token))
	}
	for end := time.Now().Add(upBound); ; pause(ctx, look) {
		prompts, _, err := s.task.target.model()
		switch {
		case err != nil:
			return "", err
		case slices.ContainsFunc(prompts, func(p history.Prompt) bool { return strings.Contains(p.Text, s.Token) }):
			return gid, nil
		case ctx.Err() != nil || time.Now().After(end):
			return "", errors.New("the spawned agent was not given its task")
		}
	}
}

// ending: an agent of the other host that has a brief open is stopped.
func (w *world) ending(ctx context.Context, k kase) (bool, error) {
	gid, err := w.lives(ctx, k)
	if err != nil {
		return false, err
	}
	if err := w.arm(ctx, k); err != nil {
		return false, err
	}
	w.traffic(ctx, k, wish{})
	w.sends.Go(func() { w.mains[0].stop(ctx, k.n, gid) })
	return w.strike(ctx, k)
}

// agents lists the panes of launched agents on s, and what they were given.
func (w *world) agents(ctx context.Context, s *site, h *history.History) error {
	now, err := (&herdr.Client{Socket: s.host.Herdr.SocketPath()}).PaneList(ctx)
	if err != nil {
		return err
	}
	opened, err := s.host.Herdr.Opened()
	if err != nil {
		return err
	}
	for _, p := range opened {
		gid := p.Label[strings.LastIndex(p.Label, " ")+1:]
		if !envelope.ValidGID(gid) {
			continue // of a worker that was there before
		}
		open := slices.ContainsFunc(now, func(n herdr.PaneInfo) bool { return n.Label == p.Label && n.PaneID == p.PaneID })
		h.Panes = append(h.Panes, history.Pane{Host: s.host.Name, GID: gid, At: p.At, Open: open})
		writes, err := s.host.Herdr.Input(p.PaneID)
		if err != nil {
			return err
		}
		for _, one := range writes {
			if !one.Dropped {
				h.Pastes = append(h.Pastes, history.Paste{At: one.At, Worker: s.spawned.address, Text: string(one.Bytes), GID: gid})
			}
		}
	}
	return nil
}

// entities lists the launched workers of a host whose store this is, and says
// which rosters have them. Spawns whose callers heard nothing get their ids.
func (w *world) entities(tx *store.Tx, s *site, seen map[string][]string, h *history.History) error {
	all, err := tx.Entities()
	if err != nil {
		return err
	}
	for _, e := range all {
		if e.Launched {
			h.Entities = append(h.Entities, history.Entity{Host: s.host.Name, GID: e.GID, State: string(e.State), Seen: seen[e.GID]})
		}
	}
	spawns, err := tx.Spawns()
	if err != nil {
		return err
	}
	for _, rec := range spawns {
		if rec.State == store.SpawnLaunching {
			h.Left = append(h.Left, history.Left{Where: "the store of " + s.host.Name, MsgID: rec.SpawnID, What: "a spawn that is " + rec.State})
		}
		w.rec.recorded(rec)
	}
	return nil
}

// rosters says by gid which hosts list it, once they agree or do not come to.
func (w *world) rosters(ctx context.Context) (seen map[string][]string, err error) {
	sites := []*site{w.a, w.b}
	for end := time.Now().Add(emptyBound); ; pause(ctx, look) {
		seen = map[string][]string{}
		for _, s := range sites {
			r, err := s.host.API("").Roster(ctx, mcp.RosterArgs{})
			if err != nil {
				return nil, err
			}
			for _, e := range r.Entities {
				seen[e.GID] = append(seen[e.GID], s.host.Name)
			}
		}
		agreed := true
		for _, hosts := range seen {
			agreed = agreed && len(hosts) == len(sites)
		}
		if agreed || ctx.Err() != nil || time.Now().After(end) {
			return seen, nil
		}
	}
}
