package main

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"fleetd/cmd/bridged/audit"
	"fleetd/cmd/bridged/config"
	"fleetd/fabric"
	"fleetd/fabric/control"
	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/herdr"
	"fleetd/inbox"
	"fleetd/outbox"
	"fleetd/store"
)

// newControl joins what starts and ends agents.
func (g *gateway) newControl(client *herdr.Client, injector *herdr.Injector, sign func(*envelope.Envelope) error) *control.Control {
	cfg := control.Config{
		Host: g.cfg.Host, Boot: g.boot, Store: g.store, Entities: workers{g}, Fleet: g.roster,
		Launcher: launcher{g, &herdr.Launcher{Client: client, Injector: injector}},
		Profiles: profiles(g.cfg.Profiles), Allows: g.cfg.Control.Allows, Brief: g.brief, CheckTask: g.outbox.CheckContent,
		NewID: newID, NewTrace: newTrace, Now: time.Now, Logger: g.log.Named("control"), BodyBytes: g.cfg.Limits.ContentBytes,
		Audit: g.controlled,
	}
	if g.cfg.Broker.URI != "" {
		cfg.Broker = controlLink{link{g}, sign}
	}
	return control.New(cfg)
}

// controlled writes an act of control into the audit log.
func (g *gateway) controlled(a control.Act) {
	g.audited(audit.Act{
		Verb: a.Verb, Who: a.Who, From: a.From, Host: a.Host, Profile: a.Profile, GID: a.GID, Outcome: a.Outcome,
		Code: string(a.Code), TraceID: a.TraceID,
	})
}

// sendRefused writes of mail that control.allow leaves out.
func (g *gateway) sendRefused(e *envelope.Envelope) {
	g.audited(audit.Act{
		Verb: config.VerbSend, Who: e.From, From: e.Signer, Host: g.cfg.Host, GID: e.To, Outcome: audit.Refused,
		Code: string(fault.NotAllowed), TraceID: e.TraceID,
	})
}

// audited: what cannot be written, for want of disk or rights, goes on all the
// same, and says so.
func (g *gateway) audited(a audit.Act) {
	if err := g.audit.Write(a); err != nil {
		g.log.Error("trouble with the audit log, which may miss an act", "verb", a.Verb, "from", a.From, "who", a.Who, "outcome", a.Outcome, "trace", a.TraceID, "error", err)
	}
}

func profiles(all map[string]config.Profile) map[string]control.Profile {
	out := map[string]control.Profile{}
	for name, p := range all {
		out[name] = control.Profile{
			Argv: p.Argv, Cwd: p.Cwd, Env: p.Env, Groups: p.Groups, ReadyTimeout: p.ReadyTimeout, Remote: p.Remote,
		}
	}
	return out
}

// offered are the profiles that other hosts may ask for.
func offered(all map[string]config.Profile) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(all)), func(name string) bool { return !all[name].Remote })
}

// controlLink is the fabric as control sees it.
type controlLink struct {
	link
	sign func(*envelope.Envelope) error
}

func (l controlLink) Publish(ctx context.Context, lane envelope.Lane, env *envelope.Envelope) error {
	if err := l.sign(env); err != nil {
		return err
	}
	switch out, err := l.link.Publish(ctx, lane, env, nil); out {
	case fabric.Confirmed, fabric.InDoubt: // what is in doubt is asked again
		return nil
	case fabric.NotSent:
		return err
	case fabric.Returned:
		return fault.New(fault.Unroutable, "host %s takes no requests on this broker; nothing was started or stopped", env.To)
	default:
		return fault.Wrap(err, fault.BrokerRefused, "the broker refused the request; nothing was started or stopped. Try again later")
	}
}

// brief sends the task of a spawned worker. Its id is derived, and its key the
// same for good: it goes out once.
func (g *gateway) brief(ctx context.Context, s store.Spawn) (string, error) {
	sent, err := g.outbox.Send(ctx, outbox.Request{
		From: s.From, To: s.SpawnID, Content: []byte(s.Task), TraceID: s.TraceID,
		ID: envelope.ReportID(s.SpawnID, s.From, envelope.Send), Key: "task of " + s.SpawnID, QueueIfOffline: true,
	})
	if err != nil && !fault.Is(err, fault.InDoubt) {
		return "", err
	}
	return sent.MsgID, nil
}

// launcher is herdr as control sees it.
type launcher struct {
	g     *gateway
	herdr *herdr.Launcher
}

// Open gives the agent its identity in the environment of its pane; of the same
// name in the profile nothing is left.
func (l launcher) Open(ctx context.Context, what control.Launch) (control.Pane, error) {
	cwd := what.Profile.Cwd
	if cwd == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return control.Pane{}, &control.Failure{Code: fault.SpawnFailed, Detail: control.NoDirectory, Cause: err}
		}
		cwd = home
	}
	if info, err := os.Stat(cwd); err != nil || !info.IsDir() || !filepath.IsAbs(cwd) {
		return control.Pane{}, &control.Failure{Code: fault.SpawnFailed, Detail: control.NoDirectory, Cause: err}
	}
	env := maps.Clone(what.Profile.Env)
	if env == nil {
		env = map[string]string{}
	}
	env["BRIDGED_TOKEN"], env["BRIDGED_URL"], env["BRIDGED_SOCKET"] = what.Token, l.g.talk.URL, l.g.cfg.Socket
	p, err := l.herdr.Open(ctx, herdr.Launch{GID: what.GID, Name: what.Name, Argv: what.Profile.Argv, Cwd: cwd, Env: env})
	return control.Pane(p), launchFailure(err)
}

func (l launcher) Ready(ctx context.Context, _ string, p control.Pane) (control.Pane, error) {
	got, err := l.herdr.Ready(ctx, herdr.Pane(p))
	return control.Pane(got), launchFailure(err)
}

func (l launcher) Close(ctx context.Context, gid string) error {
	return l.herdr.Client.CloseLabelled(ctx, gid)
}

func launchFailure(err error) error {
	if f, ok := errors.AsType[*herdr.LaunchError](err); ok {
		detail := f.Why
		if f.Reason != "" {
			detail += " " + string(f.Reason)
		}
		return &control.Failure{Code: fault.SpawnFailed, Detail: detail, Cause: f}
	}
	return err
}

// workers is the inbox as control sees it.
type workers struct{ g *gateway }

func (w workers) Reserve(ctx context.Context, gid, name, base string, groups []string, also func(*store.Tx, string) error) (string, error) {
	_, token, err := w.g.inbox.Reserve(ctx, inbox.Reservation{GID: gid, Name: name, Base: base, Groups: groups},
		func(tx *store.Tx, e store.Entity) error { return also(tx, e.Name) })
	return token, err
}

func (w workers) Launched(ctx context.Context, gid string, p control.Pane, also func(*store.Tx) error) error {
	_, err := w.g.inbox.Launched(ctx, gid, inbox.Pane(p), also)
	return err
}

func (w workers) Discard(ctx context.Context, gid string, also func(*store.Tx) error) error {
	return w.g.inbox.Discard(ctx, gid, also)
}

func (w workers) Find(gid string) (kind store.EntityKind, ended, found bool) {
	e, found := w.g.inbox.Entity(gid)
	return e.Kind, e.Ended(), found
}

func (w workers) Stop(ctx context.Context, gid string) error {
	_, err := w.g.inbox.Unregister(ctx, gid)
	return err
}

func (w workers) AwaitEnd(ctx context.Context, gid string) bool {
	return w.g.inbox.AwaitEnd(ctx, gid).State == store.EntityGone
}
