package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"

	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/fabric/roster"
	"fleetd/herdr"
	"fleetd/inbox"
	"fleetd/migrations"
	"fleetd/outbox"
	"fleetd/store"
)

// The windows of cmd/bridged.
const (
	workerWindow = 64
	mainWindow   = 256
)

// trust is who signs with which key.
type trust map[string][]ed25519.PublicKey

func (t trust) Keys(host string) []ed25519.PublicKey { return t[host] }

// gateway is one daemon without its listener, put together from the real parts
// as cmd/bridged does.
type gateway struct {
	host    string
	key     ed25519.PrivateKey
	store   *store.Store
	roster  *roster.Roster
	outbox  *outbox.Outbox
	inbox   *inbox.Inbox
	fabric  *fabric.Fabric
	monitor *herdr.Monitor
	panes   *panes
	trip    *trip

	stops []func()
}

// setting says what differs between gateways.
type setting struct {
	host, dir      string
	broker, prefix string
	herdr          string // socket
	keys           map[string]ed25519.PrivateKey
	trip           *trip
}

func newKeys(hosts ...string) (map[string]ed25519.PrivateKey, error) {
	all := map[string]ed25519.PrivateKey{}
	for _, h := range hosts {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return nil, err
		}
		all[h] = key
	}
	return all, nil
}

// startGateway assembles and runs one; close it.
func startGateway(ctx context.Context, s setting) (*gateway, error) {
	g := &gateway{host: s.host, key: s.keys[s.host], trip: s.trip}
	log := hclog.NewNullLogger()
	var err error
	if g.store, err = store.Open(ctx, store.Options{Dir: s.dir, Steps: migrations.Steps}); err != nil {
		return nil, err
	}
	g.actor(g.store.Run)
	boot, err := nextBoot(ctx, g.store, s.host)
	if err == nil {
		err = g.assemble(s, boot, log)
	}
	if err != nil {
		g.close()
		return nil, err
	}
	g.actor(g.fabric.Run)
	g.actor(g.roster.Run)
	g.actor(g.outbox.Run)
	g.actor(g.monitor.Run)
	g.actor(g.inbox.Run)
	return g, nil
}

func (g *gateway) assemble(s setting, boot uint64, log hclog.Logger) (err error) {
	sign := func(env *envelope.Envelope) error { return env.Sign(g.key) }
	g.roster, err = roster.New(roster.Config{
		Host: s.host, Boot: boot, Homes: homes{g.store}, Publish: g.presence(sign),
		Serving: func() bool { return g.fabric.Serving() },
	})
	if err != nil {
		return err
	}
	g.outbox = outbox.New(outbox.Config{
		Host: s.host, Store: g.store, Directory: directory{g.roster}, Broker: link{g}, Sign: sign,
		NewID: newID, NewTrace: newTrace, Logger: log,
	})
	client := &herdr.Client{Socket: s.herdr}
	g.monitor = &herdr.Monitor{Client: client, Changed: g.seen}
	g.panes = &panes{client: client, monitor: g.monitor, trip: s.trip, each: map[string]*typist{}}
	g.inbox = inbox.New(inbox.Config{
		Host: s.host, Boot: boot, Store: g.store, Injector: g.panes, Reports: g.outbox, Names: directory{g.roster},
		Window: link{g}, Panes: g.panes, Changed: g.changed, NewID: newID, Secret: rand.Text, Logger: log,
	})
	g.outbox.Use(g.inbox)
	if err := g.outbox.Load(); err != nil {
		return err
	}
	known := trust{}
	for host, key := range s.keys {
		known[host] = []ed25519.PublicKey{key.Public().(ed25519.PublicKey)}
	}
	g.fabric, err = fabric.New(fabric.Config{Host: s.host, URI: s.broker, Prefix: s.prefix}, fabric.Deps{
		Log: log, Key: g.key, Trust: known, Homes: g.roster, Noted: g.outbox, Owner: g.inbox, Known: g.inbox.Known,
		Sync: g.roster.Sync, OnSignal: g.onSignal, OnPresence: g.onPresence,
		OnDeadLetter: func(env *envelope.Envelope, _, reason string) error { return g.outbox.DeadLetter(env, reason) },
	})
	if err != nil {
		return err
	}
	g.fabric.OnState(func(st fabric.State) {
		switch st.Phase {
		case fabric.Connected:
			g.outbox.Connected()
		case fabric.Connecting:
			g.roster.Disconnected()
		}
		g.roster.Pulse()
	})
	return nil
}

func (g *gateway) onSignal(env *envelope.Envelope) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	switch env.Kind {
	case envelope.Query:
		if report, ok := g.inbox.Answer(env); ok {
			g.outbox.Answer(report)
		}
	case envelope.Injected, envelope.Deferred, envelope.Failed, envelope.Abandoned:
		_ = g.outbox.Signal(ctx, env) // what is lost shows as a trip that never ends
	}
}

func (g *gateway) onPresence(env *envelope.Envelope) error {
	before := g.roster.FullCount(env.Signer)
	if err := g.roster.Handle(env); err != nil {
		return err
	}
	g.fabric.Heard(env.Signer, g.roster.FullCount(env.Signer) != before)
	return nil
}

// changed brings an entity to the roster and to the broker.
func (g *gateway) changed(e store.Entity) {
	_ = g.roster.SetLocal(roster.Entity{GID: e.GID, Name: e.Name, Kind: e.Kind, Pane: e.Pane})
	prefetch := mainWindow
	if e.Kind == store.Worker {
		prefetch = workerWindow
	}
	_ = g.fabric.Attach(fabric.Inbox{
		GID: e.GID, Worker: e.Kind == store.Worker, Prefetch: prefetch,
		Handler: func(ctx context.Context, d envelope.Delivery) {
			g.trip.mark(&g.trip.arrived)
			g.inbox.Accept(ctx, e.GID, d)
		},
	})
}

// seen brings what herdr shows to the roster.
func (g *gateway) seen(v herdr.View) {
	for _, e := range g.inbox.Entities() {
		if p, ok := v.Panes[e.Pane]; ok {
			g.roster.SetStatus(e.GID, roster.Status{State: roster.State(p.Status), Since: p.Since, Progress: p.Since})
		}
	}
}

// actor runs fn until close, which ends actors in the opposite order.
func (g *gateway) actor(fn func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { _ = fn(ctx) }) // an actor that ended early shows as a line that failed
	g.stops = append(g.stops, func() { cancel(); done.Wait() })
}

func (g *gateway) close() error {
	for i := len(g.stops) - 1; i >= 0; i-- {
		g.stops[i]()
	}
	return g.store.Close()
}

// sees waits until the gateway is connected and knows address elsewhere.
func (g *gateway) sees(ctx context.Context, address string) error {
	return until(ctx, func() error {
		if ok, why := (link{g}).Connected(); !ok {
			return errors.New(why)
		}
		t, err := g.roster.Resolve(address)
		if err == nil && t.HostState != roster.Online {
			err = fmt.Errorf("%s is %s", address, t.HostState)
		}
		return err
	})
}

// attached waits until the inbox of a local entity is on the broker.
func (g *gateway) attached(ctx context.Context, gid string) error {
	return until(ctx, func() error {
		if in := g.fabric.InboxState(gid); in.Status != fabric.InboxAttached {
			return fmt.Errorf("the inbox of %s, it is %s", gid, in.Status)
		}
		return nil
	})
}

// until polls fn until it returns nil.
func until(ctx context.Context, fn func() error) error {
	return untilEvery(ctx, 2*time.Millisecond, fn)
}

func untilEvery(ctx context.Context, pause time.Duration, fn func() error) (err error) {
	for {
		now := fn()
		if now == nil {
			return nil
		}
		if ctx.Err() == nil {
			err = now // what fn says once it is cut off says nothing
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; waited for: %w", ctx.Err(), err)
		case <-time.After(pause):
		}
	}
}

func nextBoot(ctx context.Context, st *store.Store, host string) (boot uint64, err error) {
	err = st.Write(ctx, func(tx *store.Tx) (err error) {
		if err := tx.PutHostID(host); err != nil {
			return err
		}
		boot, err = tx.NextBoot(time.Now())
		return err
	})
	return boot, err
}

func newID() string { return uuid.Must(uuid.NewV7()).String() }

func newTrace() string { return strings.ReplaceAll(uuid.NewString(), "-", "") }
