package main

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/hashicorp/go-hclog"
	oklog "github.com/oklog/run"

	"fleetd/cmd/bridged/config"
)

// stopBound is how long the end of one actor is waited for.
const stopBound = 10 * time.Second

// serve runs the daemon until ctx ends:
//
//	clients ⇄ mcp.Server ─ Conversation ─┬─ outbox ─┬─ fabric ⇄ broker
//	panes   ⇄ herdr ── inbox ────────────┘  roster ─┘
//	                     └──────── store (one writer) ────────┘
//
// Actors are added in the order in which they stop: first nobody asks any
// more, then nothing arrives, then nothing leaves, and the store's writer is
// the last, so that everything that was accepted is on disk.
func serve(ctx context.Context, version string, cfg config.Config, log hclog.Logger) error {
	st, err := openStore(ctx, cfg, log)
	if err != nil {
		return err
	}
	writer := begin(st.Run)
	g, err := assemble(ctx, version, cfg, st, log)
	if err == nil {
		err = g.server.Bind()
	}
	if err != nil {
		if g != nil {
			err = errors.Join(err, g.audit.Close())
		}
		return errors.Join(err, writer.end(), st.Close())
	}
	g.talk.URL = "http://" + g.server.Addr().String() + "/mcp"

	var group oklog.Group
	actor := func(run func(context.Context) error) {
		a := prepare(run)
		group.Add(a.run, func(error) { a.stop() })
	}
	group.Add(func() error { <-ctx.Done(); return nil }, func(error) {})
	actor(g.server.Run)
	actor(g.control.Run)
	actor(g.inbox.Run)
	actor(g.reap)
	actor(g.monitor.Run)
	actor(g.outbox.Run)
	actor(g.roster.Run)
	if g.fabric != nil {
		actor(g.fabric.Run)
		actor(g.oldMail)
	}
	actor(g.janitor)
	group.Add(writer.wait, func(error) { g.endsWell(); writer.stop() })

	broker := cmp.Or(cfg.Broker.URI.String(), "none: this host alone")
	log.Info("serving", "host", g.cfg.Host, "boot", g.boot, "listen", g.server.Addr(), "socket", cfg.Socket, "broker", broker)
	if _, err := daemon.SdNotify(false, daemon.SdNotifyReady); err != nil {
		log.Warn("the service manager could not be told that we are ready", "error", err)
	}
	err = group.Run()
	return errors.Join(err, writer.end(), st.Close(), g.audit.Close())
}

// actorRun is one goroutine of the daemon with its own end.
type actorRun struct {
	fn     func(context.Context) error
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

func prepare(fn func(context.Context) error) *actorRun {
	ctx, cancel := context.WithCancel(context.Background())
	return &actorRun{fn: fn, ctx: ctx, cancel: cancel, done: make(chan struct{})}
}

// begin runs fn at once: what is assembled needs it already.
func begin(fn func(context.Context) error) *actorRun {
	a := prepare(fn)
	go func() { _ = a.run() }() // its error is returned by wait
	return a
}

func (a *actorRun) run() error {
	a.err = a.fn(a.ctx)
	close(a.done)
	return a.err
}

func (a *actorRun) wait() error {
	<-a.done
	return a.err
}

// stop ends the actor and waits, so that the run group stops its actors one
// after the other.
func (a *actorRun) stop() {
	a.cancel()
	select {
	case <-a.done:
	case <-time.After(stopBound):
	}
}

func (a *actorRun) end() error {
	a.stop()
	select {
	case <-a.done:
		return a.err
	default:
		return errors.New("a part of the daemon did not end in time")
	}
}
