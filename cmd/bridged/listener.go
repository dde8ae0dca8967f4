package main

import (
	"context"
	"time"

	"fleetd/fabric/keys"
	"fleetd/mcp"
	"fleetd/store"
)

// newServer joins the parts into what clients talk to.
func (g *gateway) newServer(version string) *mcp.Server {
	g.talk = &mcp.Conversation{
		Host: g.cfg.Host, Sender: g.outbox, Mailbox: g.inbox,
		Fleet: g.roster, Traces: traces{g.store}, Control: g.control, Broker: g.brokerState, Now: time.Now,
		About: g.about,
	}
	return &mcp.Server{
		Listen: g.cfg.Listen, Socket: g.cfg.Socket, Gateway: g.talk, Admin: g.talk, Identities: identities{g},
		Health: health{g}, Metrics: g.metrics(), Log: g.log.Named("mcp"), Version: version,
		BodyLimit:   bodyLimit(g.cfg.Limits.ContentBytes),
		DeadLetters: deadLetters{g}, Doctor: diagnosis{g, version},
	}
}

// bodyLimit has room for the largest content with every byte escaped in JSON.
func bodyLimit(content int) int64 { return 6*int64(content) + 64<<10 }

// about is what is believed and taken here now: a key that was put in the trust
// folder counts from this moment on.
func (g *gateway) about() mcp.InfoResult {
	g.trust.Reload()
	r := mcp.InfoResult{Host: g.cfg.Host, Keys: []string{}, ContentBytes: g.cfg.Limits.ContentBytes}
	for _, k := range g.trust.Keys(g.cfg.Host) {
		r.Keys = append(r.Keys, keys.Fingerprint(k))
	}
	return r
}

func (g *gateway) brokerState() (state, reason string) {
	if g.fabric == nil {
		return "none", ""
	}
	s := g.fabric.State()
	return string(s.Phase), s.Reason
}

// health says whether this gateway does its work.
type health struct{ g *gateway }

func (h health) Ready(context.Context) (bool, []string) {
	var reasons []string
	if err := h.g.store.Healthy(); err != nil {
		reasons = append(reasons, err.Error())
	}
	if h.g.fabric != nil {
		if ok, why := h.g.fabric.Ready(); !ok {
			reasons = append(reasons, why)
		}
	}
	for _, e := range h.g.inbox.Entities() {
		if e.Kind == store.Worker && !e.Ended() && e.Pane != "" && !h.g.monitor.View().Up {
			reasons = append(reasons, "herdr does not answer at "+h.g.cfg.Herdr.Socket)
			break
		}
	}
	return len(reasons) == 0, reasons
}
