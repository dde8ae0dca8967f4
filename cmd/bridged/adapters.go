package main

import (
	"context"
	"crypto/ed25519"
	"time"

	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/fabric/roster"
	"fleetd/fault"
	"fleetd/herdr"
	"fleetd/inbox"
	"fleetd/mcp"
	"fleetd/outbox"
	"fleetd/store"
	"fleetd/wait"
)

// directory is the roster as inbox and outbox ask it.
type directory struct{ *roster.Roster }

func (d directory) Name(gid string) string {
	if t, err := d.Resolve(gid); err == nil {
		return t.Address()
	}
	return gid
}

// homes keeps the roster's homes in the store.
type homes struct{ *store.Store }

func (h homes) LoadHomes() ([]roster.Home, error) {
	stored, err := store.Read(h, (*store.Tx).Homes)
	all := make([]roster.Home, len(stored))
	for i, s := range stored {
		all[i] = roster.Home(s)
	}
	return all, err
}

func (h homes) SaveHomes(all []roster.Home) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return h.Write(ctx, func(tx *store.Tx) error {
		for _, one := range all {
			if err := tx.PutHome(store.Home(one)); err != nil {
				return err
			}
		}
		return nil
	})
}

// link is the fabric as the outbox and the inbox see it. It is asked through
// the gateway, since the fabric is made after them.
type link struct{ g *gateway }

func (g *gateway) broker() outbox.Broker {
	if g.cfg.Broker.URI == "" {
		return nil
	}
	return link{g}
}

func (g *gateway) window() inbox.Window {
	if g.cfg.Broker.URI == "" {
		return nil
	}
	return link{g}
}

func (l link) Connected() (bool, string) {
	s := l.g.fabric.State()
	return s.Phase == fabric.Connected, string(s.Phase) + ": " + s.Reason
}

// attachWait bounds the wait for an inbox that is being declared.
const attachWait = 5 * time.Second

func (l link) Reachable(ctx context.Context, gid string) error {
	ctx, cancel := context.WithTimeout(ctx, attachWait)
	defer cancel()
	for l.g.fabric.InboxState(gid).Status == fabric.InboxDetached {
		if wait.Pause(ctx, 10*time.Millisecond) != nil {
			return fault.New(fault.BrokerDown, "your own inbox is not on the broker yet, so an answer could not reach you; nothing was sent. Try again in some seconds")
		}
	}
	return nil
}

func (l link) Publish(ctx context.Context, lane envelope.Lane, env *envelope.Envelope, settled func(fabric.Outcome)) (fabric.Outcome, error) {
	return l.g.fabric.Publish(ctx, lane, env, settled)
}

func (l link) InboxFull(ctx context.Context, gid string) (bool, error) {
	return l.g.fabric.InboxFull(ctx, gid)
}

func (l link) Renew(ctx context.Context, gid string) (bool, error) {
	return l.g.fabric.Renew(ctx, gid)
}

func (l link) More(gid string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	more, err := l.g.fabric.More(ctx, gid)
	if err != nil {
		l.g.log.Debug("no further window", "gid", gid, "error", err)
	}
	return more || err != nil
}

func (l link) Full(gid string) bool { return l.g.fabric.Full(gid) }

func (l link) Ready(gid string) int {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	n, err := l.g.fabric.ReadyCount(ctx, gid)
	if err != nil {
		l.g.log.Debug("the broker's part of an inbox is not known", "gid", gid, "error", err)
	}
	return n
}

// endWait bounds one step of the end of an inbox; it is tried again.
const endWait = 5 * time.Second

func (l link) Unbind(ctx context.Context, gid string) error {
	ctx, cancel := context.WithTimeout(ctx, endWait)
	defer cancel()
	return l.g.fabric.Unbind(ctx, gid)
}

func (l link) Remove(ctx context.Context, gid string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, endWait)
	defer cancel()
	return l.g.fabric.Remove(ctx, gid)
}

// presence publishes what the roster says; nil without a broker.
func (g *gateway) presence(sign func(*envelope.Envelope) error) func(context.Context, *envelope.Envelope) error {
	if g.cfg.Broker.URI == "" {
		return nil
	}
	return func(ctx context.Context, env *envelope.Envelope) error {
		if err := sign(env); err != nil {
			return err
		}
		out, err := g.fabric.Publish(ctx, envelope.LanePresence, env, nil)
		if err == nil && out != fabric.Confirmed {
			err = fault.New(fault.BrokerDown, "presence was not confirmed: %s", out)
		}
		return err
	}
}

// panes is herdr as the inbox sees it.
type panes struct {
	*herdr.Injector
	client *herdr.Client
	limit  int // bytes of a paste; 0: what the kind takes
}

func (p panes) Frame(kind string, m inbox.Piece) (string, bool) {
	limit := herdr.PasteLimit(kind)
	if p.limit > 0 {
		limit = min(limit, p.limit)
	}
	return herdr.Frame(herdr.Message{
		ID: m.MsgID, Kind: string(m.Kind), From: m.From, Content: m.Content, InReplyTo: m.InReplyTo,
		ExpectsReply: m.Kind.Brief(), Limit: limit,
	})
}

func (p panes) Inject(ctx context.Context, at inbox.Pane, text string, h inbox.Hooks) inbox.Injection {
	out := p.Injector.Inject(ctx, herdr.Pane(at), text, herdr.Hooks{Closed: h.Closed, Commit: h.Commit, Expires: h.Expires})
	got := inbox.Injection{Reason: out.Reason, Err: out.Err}
	switch out.Result {
	case herdr.Injected:
		got.Result = inbox.Injected
	case herdr.InDoubt:
		got.Result = inbox.InDoubt
	case herdr.Gone:
		got.Result = inbox.PaneGone
		if _, err := p.client.PaneGet(ctx, at.ID); err == nil {
			got.Result = inbox.AgentGone
		}
	default:
		got.Result = inbox.NotSent
	}
	return got
}

func (p panes) Identify(ctx context.Context, id string) (inbox.Pane, error) {
	pane, err := p.client.Identify(ctx, id)
	return inbox.Pane(pane), err
}

func (p panes) Close(ctx context.Context, gid string, at inbox.Pane) error {
	if at.ID != "" {
		if err := p.client.Close(ctx, herdr.Pane(at)); err != nil {
			return err
		}
	}
	return p.client.CloseLabelled(ctx, gid)
}

// identities is the inbox as the listener asks it.
type identities struct{ g *gateway }

func (i identities) ByToken(token string) (mcp.Caller, bool) {
	e, lease, ok := i.g.inbox.ByToken(token)
	return asCaller(e, lease), ok
}

func (i identities) ByName(name string) (mcp.Caller, bool) {
	e, ok := i.g.inbox.ByName(name)
	return asCaller(e, i.g.inbox.Life(e.GID)), ok
}

// DefaultMain is nobody where the name is a worker's: whoever shows no token
// would take the mail of an agent in a pane.
func (i identities) DefaultMain() (mcp.Caller, bool) {
	if i.g.cfg.MCP.DefaultMain == "" {
		return mcp.Caller{}, false
	}
	c, ok := i.ByName(i.g.cfg.MCP.DefaultMain)
	return c, ok && c.Kind != store.Worker
}

func asCaller(e store.Entity, lease context.Context) mcp.Caller {
	return mcp.Caller{GID: e.GID, Name: e.Name, Kind: e.Kind, Lease: lease}
}

// hints is the listener as the inbox asks it, which is made before it.
type hints struct{ g *gateway }

func (h hints) Listening(gid string) bool { return h.g.server.Listening(gid) }

func (h hints) Hint(gid string, held int, from string) { h.g.server.Hint(gid, held, from) }

// traces reads the store's log of flows.
type traces struct{ *store.Store }

func (t traces) TraceOf(id string) ([]store.Event, error) {
	return store.Read(t, func(tx *store.Tx) ([]store.Event, error) { return tx.TraceOf(id) })
}

func publicKey(key ed25519.PrivateKey) ed25519.PublicKey { return key.Public().(ed25519.PublicKey) }
