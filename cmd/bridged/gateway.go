package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"

	"fleetd/cmd/bridged/audit"
	"fleetd/cmd/bridged/config"
	"fleetd/fabric"
	"fleetd/fabric/control"
	"fleetd/fabric/envelope"
	"fleetd/fabric/keys"
	"fleetd/fabric/roster"
	"fleetd/fault"
	"fleetd/herdr"
	"fleetd/inbox"
	"fleetd/mcp"
	"fleetd/migrations"
	"fleetd/outbox"
	"fleetd/store"
)

// How many messages an entity holds unacked (design §6).
const (
	workerWindow = 64
	mainWindow   = 256
)

// gateway is the daemon, put together and not yet running.
type gateway struct {
	cfg     config.Config
	log     hclog.Logger
	boot    uint64
	public  ed25519.PublicKey // of the key that it signs with
	store   *store.Store
	trust   *keys.Trust
	roster  *roster.Roster
	outbox  *outbox.Outbox
	inbox   *inbox.Inbox
	fabric  *fabric.Fabric // nil without a broker
	control *control.Control
	tracker herdr.Tracker
	monitor *herdr.Monitor
	talk    *mcp.Conversation
	server  *mcp.Server
	status  *statuses
	audit   *audit.Log

	attached sync.Map // gids whose inboxes the fabric consumes, with the groups that it was given; nil if a change of them failed
}

func openStore(ctx context.Context, cfg config.Config, log hclog.Logger) (*store.Store, error) {
	return store.Open(ctx, store.Options{Dir: cfg.DataDir, Steps: migrations.Steps, Logger: log.Named("store")})
}

// assemble builds the parts from the bottom up. Nothing is dialled and nobody
// is served before serve runs them; st is running.
func assemble(ctx context.Context, version string, cfg config.Config, st *store.Store, log hclog.Logger) (*gateway, error) {
	host, warning, err := settleHost(ctx, st, cfg)
	if err != nil {
		return nil, err
	}
	if warning != "" {
		log.Warn(warning)
	}
	cfg.Host = host
	g := &gateway{cfg: cfg, log: log, store: st}
	key, created, err := keys.LoadOrCreate(cfg.KeyPath(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if created {
		log.Info("made the key of this gateway; show it with `bridged keys show`, and have other hosts trust it", "file", cfg.KeyPath())
	}
	g.public = publicKey(key)
	if err := keys.CheckDir(cfg.TrustDir); err != nil {
		return nil, err
	}
	if g.trust, err = keys.OpenTrust(cfg.TrustDir, cfg.Host, g.public); err != nil {
		return nil, err
	}
	for _, p := range g.trust.Problems() {
		log.Warn("a file in the trust folder is not used", "error", p)
	}
	if g.audit, err = audit.Open(audit.Path(cfg.DataDir), time.Now); err != nil {
		return nil, err
	}
	if g.boot, err = nextBoot(ctx, st); err != nil {
		return nil, err
	}
	sign := func(env *envelope.Envelope) error { return env.Sign(key) }

	g.roster, err = roster.New(roster.Config{
		Host: cfg.Host, Boot: g.boot, Homes: homes{st}, Logger: log.Named("roster"),
		Profiles: offered(cfg.Profiles), Publish: g.presence(sign), Serving: g.serving, KeepBoot: g.keepBoot,
	})
	if err != nil {
		return nil, err
	}
	g.status = newStatuses(g.roster)
	g.outbox = outbox.New(outbox.Config{
		Host: cfg.Host, Store: st, Directory: directory{g.roster}, Broker: g.broker(), Sign: sign,
		ContentBytes: cfg.Limits.ContentBytes, MaxLife: cfg.Limits.MaxTTL, PerPair: cfg.Limits.PerPair,
		NewID: newID, NewTrace: newTrace, Logger: log.Named("outbox"),
	})
	crashed, err := crashed(ctx, st)
	if err != nil {
		return nil, err
	}
	client := &herdr.Client{Socket: cfg.Herdr.Socket}
	g.tracker.Client = client
	g.monitor = &herdr.Monitor{Client: client, Logger: log.Named("herdr"), Changed: g.status.seen}
	injector := herdr.NewInjector(client, g.monitor, log.Named("herdr"))
	g.inbox = inbox.New(inbox.Config{
		Host: cfg.Host, Boot: g.boot, Crashed: crashed, Store: st, Injector: panes{injector, client, cfg.Inject.PasteBytes},
		Reports: g.outbox, Names: directory{g.roster}, Window: g.window(), Panes: panes{injector, client, 0},
		Changed: g.entityChanged, Gate: g.status.gate, Nudge: herdr.Nudge, Hints: hints{g},
		Allowed: func(host string) bool { return cfg.Control.Allows(host, config.VerbSend) }, NotAllowed: g.sendRefused,
		NewID: newID, Secret: newSecret, Logger: log.Named("inbox"),
	})
	g.outbox.Use(g.inbox)
	g.control = g.newControl(client, injector, sign)
	if err := g.outbox.Load(); err != nil {
		return nil, err
	}
	if cfg.Broker.URI != "" {
		if g.fabric, err = g.newFabric(key); err != nil {
			return nil, err
		}
	}
	if err := g.openEntities(); err != nil {
		return nil, err
	}
	g.server = g.newServer(version)
	return g, nil
}

// fabricConfig is what the configuration says of the broker.
func fabricConfig(cfg config.Config) fabric.Config {
	return fabric.Config{
		Host: cfg.Host, URI: cfg.Broker.URI.Secret(), Heartbeat: cfg.Broker.Heartbeat, Prefix: cfg.Broker.Prefix,
		TLS:    fabric.TLS{CA: cfg.Broker.TLS.CA, Cert: cfg.Broker.TLS.Cert, Key: cfg.Broker.TLS.Key},
		Limits: envelope.Limits{BodyBytes: cfg.Limits.ContentBytes}, PerPair: cfg.Limits.PerPair,
	}
}

// newFabric wires the broker: what arrives goes to the inbox, the outbox and
// the roster.
func (g *gateway) newFabric(key ed25519.PrivateKey) (*fabric.Fabric, error) {
	cfg := g.cfg
	f, err := fabric.New(fabricConfig(cfg), fabric.Deps{
		Log: g.log.Named("fabric"), Key: key, Trust: g.trust, Homes: g.roster, Noted: g.outbox, Owner: g.inbox,
		Known: g.inbox.Known, Steady: g.inbox.Steady, Sync: g.roster.Sync,
		OnSignal: g.onSignal, OnPresence: g.onPresence, OnControl: g.onControl,
		OnDeadLetter: func(env *envelope.Envelope, _, reason string) error { return g.outbox.DeadLetter(env, reason) },
		RefusedBrief: g.onRefused, OnInbox: g.status.inbox,
	})
	if err != nil {
		return nil, err
	}
	f.OnState(func(s fabric.State) {
		switch s.Phase {
		case fabric.Connected:
			g.outbox.Connected()
		case fabric.Connecting: // blocked, we still hear the others
			g.roster.Disconnected()
		}
		g.roster.Pulse() // whether we serve may have changed: say so now
	})
	return f, nil
}

func (g *gateway) onSignal(env *envelope.Envelope) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if env.SpawnID != "" {
		g.control.Signal(env)
		return
	}
	switch env.Kind {
	case envelope.Query:
		if report, ok := g.inbox.Answer(env); ok {
			g.outbox.Answer(report)
		}
	case envelope.Ask:
		if err := g.outbox.Asked(ctx, env, g.inbox.Ask(env)); err != nil {
			g.log.Error("that a brief was asked about is not recorded; its outcome will be asked for", "trace", env.TraceID, "error", err)
		}
	case envelope.Traced:
		g.control.Signal(env)
	case envelope.Answer, envelope.NoWaiter, envelope.TooLate:
		g.outbox.Turn(env)
	case envelope.Injected, envelope.Deferred, envelope.Failed, envelope.Abandoned:
		if env.Kind == envelope.Abandoned && env.TurnID != "" {
			if !g.outbox.Turn(env) {
				g.inbox.Withdrawn(env)
			}
			return
		}
		if err := g.outbox.Signal(ctx, env); err != nil {
			g.log.Error("an outcome was not recorded; it will be asked for", "trace", env.TraceID, "error", err)
		}
	default:
		g.log.Debug("a signal that this version does not serve", "kind", env.Kind, "trace", env.TraceID)
	}
}

func (g *gateway) onControl(env *envelope.Envelope) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return g.control.Handle(ctx, env)
}

func (g *gateway) onPresence(env *envelope.Envelope) error {
	before := g.roster.FullCount(env.Signer)
	if err := g.roster.Handle(env); err != nil {
		return err
	}
	g.fabric.Heard(env.Signer, g.roster.FullCount(env.Signer) != before)
	return nil
}

// onRefused tells the sender of a brief that was refused although it is his.
func (g *gateway) onRefused(env *envelope.Envelope, code fault.Code) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := g.outbox.Final(ctx, envelope.Report{
		Kind: envelope.Failed, Reason: string(code), MsgID: env.MsgID, TraceID: env.TraceID,
		Sender: env.From, SenderHost: env.Signer, Recipient: env.To, Hops: env.Hops,
	})
	if err != nil {
		g.log.Error("the sender of a refused brief could not be told", "trace", env.TraceID, "error", err)
	}
}

// openEntities gives every entity of the store its inbox again.
func (g *gateway) openEntities() error {
	all, err := store.Read(g.store, (*store.Tx).Entities)
	if err != nil {
		return err
	}
	for _, e := range all {
		if err := g.inbox.Open(e); err != nil {
			return err
		}
		g.entityChanged(e)
	}
	return nil
}

// entityChanged brings an entity that was made, changed or ended to the roster
// and to the broker. Whoever is announced can be written to: its inbox is on
// the broker before, where that can be reached.
func (g *gateway) entityChanged(e store.Entity) {
	if e.State == store.EntityLaunching { // nobody is told of it before it is ready
		return
	}
	ended := e.Ended()
	if ended {
		g.roster.RemoveLocal(e.GID)
		g.status.forget(e.GID)
	}
	if g.fabric != nil {
		if err := g.attach(e); err != nil {
			g.log.Error("an inbox cannot be attached", "name", e.Name, "error", err)
		}
	}
	if ended {
		return
	}
	err := g.roster.SetLocal(roster.Entity{GID: e.GID, Name: e.Name, Kind: e.Kind, Groups: e.Groups, Pane: e.Pane})
	if err != nil {
		g.log.Error("an entity cannot be announced", "name", e.Name, "error", err)
	}
	g.status.follow(e)
}

// attach consumes an entity's inbox until it is gone; where that is done
// already only its groups can have changed, and what it holds stays with it.
// The broker is only asked if they did: whatever else is told of the entity
// waits for this.
func (g *gateway) attach(e store.Entity) error {
	if e.State == store.EntityGone {
		g.attached.Delete(e.GID)
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), attachWait)
	defer cancel()
	groups, attached := g.attached.LoadOrStore(e.GID, e.Groups)
	switch {
	case attached && e.Ended():
		return nil // the inbox has it unbound
	case attached:
		if known, ok := groups.([]string); ok && slices.Equal(known, e.Groups) {
			return nil
		}
		if err := g.fabric.SetGroups(ctx, e.GID, e.Groups); err != nil {
			g.attached.Store(e.GID, nil) // some of it may be done
			return err
		}
		g.attached.Store(e.GID, e.Groups)
		return nil
	}
	prefetch := mainWindow
	if e.Kind == store.Worker {
		prefetch = workerWindow
	}
	err := g.fabric.Attach(fabric.Inbox{
		GID: e.GID, Worker: e.Kind == store.Worker, Groups: e.Groups, Prefetch: prefetch, Ending: e.Ended(),
		Handler: func(ctx context.Context, d envelope.Delivery) { g.inbox.Accept(ctx, e.GID, d) },
		InHand:  func(msgID string) bool { return g.inbox.InHand(e.GID, msgID) },

		PushedOut: func() { g.inbox.Forget(e.GID) },
	})
	if connected, _ := (link{g}).Connected(); err != nil || !connected {
		return err
	}
	return link{g}.Reachable(ctx, e.GID)
}

// serving is whether presence may say that this host takes messages.
func (g *gateway) serving() bool { return g.fabric == nil || g.fabric.Serving() }

// trustEvery is how soon a key that was added or taken away counts.
const trustEvery = 5 * time.Second

// janitor rereads the trusted keys, and prunes what only the store knows of.
func (g *gateway) janitor(ctx context.Context) error {
	trust, hour := time.NewTicker(trustEvery), time.NewTicker(time.Hour)
	defer trust.Stop()
	defer hour.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-trust.C:
			g.trust.Reload()
			continue
		case <-hour.C:
		}
		g.store.Later(func(tx *store.Tx) error {
			if err := tx.PruneSpawns(time.Now()); err != nil {
				return err
			}
			if err := tx.PruneHomes(time.Now()); err != nil {
				return err
			}
			return tx.PruneTrace(time.Now())
		})
	}
}

func nextBoot(ctx context.Context, st *store.Store) (boot uint64, err error) {
	err = st.Write(ctx, func(tx *store.Tx) (err error) {
		boot, err = tx.NextBoot(time.Now())
		return err
	})
	return boot, err
}

// keepBoot has the next start take a boot epoch above boot.
func (g *gateway) keepBoot(boot uint64) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return g.store.Write(ctx, func(tx *store.Tx) error { return tx.RaiseBoot(boot) })
}

func newID() string { return uuid.Must(uuid.NewV7()).String() }

func newTrace() string { return strings.ReplaceAll(uuid.NewString(), "-", "") }

// newSecret is a token: 130 bits, in letters that survive any configuration.
func newSecret() string { return "br_" + strings.ToLower(rand.Text()) }
