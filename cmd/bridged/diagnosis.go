package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/fabric/keys"
	"fleetd/fabric/roster"
	"fleetd/fault"
	"fleetd/mcp"
	"fleetd/migrations"
)

// diagnosis is what the daemon says of itself to `bridged doctor`.
type diagnosis struct {
	g       *gateway
	version string
}

const (
	// reachWait is how long other hosts have to answer; they do at once, where
	// they can.
	reachWait = 10 * time.Second
	lookWait  = 5 * time.Second
	// strangeWithin is how long ago a stranger was heard last: each gateway
	// announces itself every 5 s.
	strangeWithin = 30 * time.Second
)

// Diagnose implements mcp.Doctor.
func (d diagnosis) Diagnose(ctx context.Context) (mcp.Diagnosis, error) {
	g := d.g
	out := mcp.Diagnosis{
		Version: d.version, Host: g.cfg.Host, Config: g.cfg.File, Key: keys.Fingerprint(g.public), URL: g.talk.URL,
		NotReady: []string{}, Peers: []mcp.Peer{}, Strangers: []mcp.Stranger{}, OldQueues: []mcp.OldQueue{}, Notes: []string{},
	}
	if err := g.store.Healthy(); err != nil {
		out.Store = fault.From(err).Sentence
	}
	_, why := health{g}.Ready(ctx)
	out.NotReady = append(out.NotReady, why...)
	if out.Broker, out.Reason = g.brokerState(); g.fabric == nil {
		return out, nil
	}
	out.Brand = g.fabric.Brand()
	d.peers(ctx, &out)
	for _, s := range g.fabric.Strangers(strangeWithin) {
		trusted := g.trust.Keys(s.Host) != nil
		if trusted && s.Reason == envelope.UnknownSigner {
			continue // it was refused before its host was trusted
		}
		out.Strangers = append(out.Strangers, mcp.Stranger{Host: s.Host, Trusted: trusted})
	}
	if out.Broker == string(fabric.Connected) {
		d.queues(ctx, &out)
	}
	return out, nil
}

// peers asks every trusted host that is heard whether it believes us.
func (d diagnosis) peers(ctx context.Context, out *mcp.Diagnosis) {
	g := d.g
	seen := map[string]roster.HostView{}
	for _, h := range g.roster.Hosts() {
		seen[h.Host] = h
	}
	var ask []string
	for _, host := range g.trust.Hosts() {
		if host == g.cfg.Host {
			continue
		}
		h, known := seen[host]
		p := mcp.Peer{Host: host, State: h.State, ClockOffset: h.Offset.Seconds()}
		if !known {
			p.State = string(roster.Never)
		}
		if p.Asked = h.State == roster.Online && out.Broker == string(fabric.Connected); p.Asked {
			ask = append(ask, host)
		}
		out.Peers = append(out.Peers, p)
	}
	ctx, cancel := context.WithTimeout(ctx, reachWait)
	defer cancel()
	for host, so := range g.fabric.Reach(ctx, ask) {
		i := slices.IndexFunc(out.Peers, func(p mcp.Peer) bool { return p.Host == host })
		out.Peers[i].Answered, out.Peers[i].Unreached = so == fabric.Answered, so == fabric.Unreached
	}
}

// queues looks at what waits on the broker for a person.
func (d diagnosis) queues(ctx context.Context, out *mcp.Diagnosis) {
	ctx, cancel := context.WithTimeout(ctx, lookWait)
	defer cancel()
	var err error
	if out.DeadLetters, err = d.g.fabric.DeadCount(ctx); err != nil {
		out.Notes = append(out.Notes, fmt.Sprintf("the dead letters could not be counted (%v)", err))
	}
	old, _ := d.g.oldQueues(ctx)
	if ctx.Err() != nil {
		out.Notes = append(out.Notes, "the broker did not answer in time which queues of the old daemon hold mail")
	}
	for _, pane := range slices.Sorted(maps.Keys(old)) {
		if q := old[pane]; q.Ready > 0 {
			out.OldQueues = append(out.OldQueues, mcp.OldQueue{Queue: migrations.QueueOf(pane), Messages: q.Ready, Consumers: q.Consumers})
		}
	}
}
