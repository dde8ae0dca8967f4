package roster

import (
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleetd/fabric/envelope"
	"fleetd/fault"
)

// Handle takes presence whose signature was verified, our own included: that
// it comes back is how we know that our view is current. nil means that the
// message is done with, news or not. An error is an *envelope.Refusal: the
// message is not what its key promises or speaks for another host; nothing
// changed.
func (r *Roster) Handle(e *envelope.Envelope) error {
	m, err := read(e, r.cfg.Host)
	at := r.moment()
	r.mu.Lock()
	defer r.unlock()
	if err != nil {
		r.stats.Malformed++
		return err
	}
	switch {
	case m.toUs:
		r.wantFull(at.mono)
	case m.host == r.cfg.Host:
		r.echo(m, at)
	default:
		r.hear(r.known(m.host), m, at)
	}
	return nil
}

// echo takes a message of our own that came back through the broker. One of a
// boot that never was ours is somebody else with our host id and our key.
func (r *Roster) echo(m message, at moment) {
	if !slices.Contains(r.boots, m.Boot) {
		r.clone(m)
		return
	}
	r.echoAt = at.mono
	switch {
	case r.sync == nil:
		r.synced = r.connected
	case m.Seq == r.sync.seq:
		r.sync.echo = at.mono
	}
	r.changed()
}

// hear takes a message of another host.
func (r *Roster) hear(h *host, m message, at moment) {
	fresh, reborn := h.admit(m.stamp)
	if !fresh {
		r.stats.Old++
		return
	}
	if reborn {
		r.noteOf(h, hclog.Info, "a gateway was started anew", "host", h.id, "boot", h.boot)
	}
	r.stats.Handled++
	h.heard = at.mono
	fulls := h.fulls
	switch {
	case m.gateway != nil:
		r.hearGateway(h, m, at)
	case m.announce != nil:
		h.claimed = "" // the digest that we know is of before
		r.believe(h, m.announce.Entity, at)
	case asksUs(m.solicit, r.cfg.Host):
		r.wantFull(at.mono)
	}
	switch {
	case !h.settled():
		r.askLater(h, at.mono)
	case h.fulls > fulls || !h.ask.demand:
		h.ask = ask{last: h.ask.last}
	default: // somebody still waits for a full announcement
		h.ask.pause = 0
	}
	r.report(h, at.mono)
	r.changed()
}

func (r *Roster) hearGateway(h *host, m message, at moment) {
	g := m.gateway
	h.interval = clampInterval(g.IntervalMS, r.cfg.Interval)
	h.serving, h.left, h.claimed = g.Serving, g.Leaving, printable(g.Digest, maxWord)
	h.profiles = profileNames(g.Profiles)
	if h.offset.add(m.sent.Sub(at.wall)) {
		r.noteOf(h, hclog.Warn, "the clocks of two hosts differ; set them by NTP, or messages expire early or late", "host", h.id, "ahead", h.offset.estimate().Round(time.Millisecond))
	}
	for gid, ms := range g.Progress {
		if rec := h.records[gid]; rec != nil && !rec.refused {
			rec.Status.Progress = instant(ms)
		}
	}
	switch {
	case g.Parts > 0:
		r.hearPart(h, g, m.Seq, at)
	case len(h.records) == 0 && h.claimed == h.sum():
		h.complete = true // nobody lives there: nothing to ask for
	}
}

// hearPart takes one part of a full announcement. Parts come back to back; if
// one is missing, nothing is dropped and the host is asked again.
func (r *Roster) hearPart(h *host, g *gatewayBody, seq uint64, at moment) {
	if g.Part == 1 {
		h.full, h.overflow = round{id: seq, next: 1}, false
	}
	if h.full.id == 0 || g.Part != h.full.next {
		h.full = round{}
		return
	}
	for _, b := range g.Entities {
		r.believe(h, b, at)
	}
	if h.full.next++; g.Part < g.Parts {
		h.claimed = "" // to be compared once all of it is here
		return
	}
	for gid, rec := range h.records {
		if rec.round != h.full.id {
			delete(h.records, gid)
		}
	}
	h.digest, h.full, h.complete = "", round{}, true
	h.fulls++
	h.fullAt = at.mono
	h.ask.open, h.ask.vain = false, 0
	if !h.overflow {
		r.vanish(h.id, h.records)
	}
}

// believe takes what h says of one entity, as far as it is h's to say. What is
// refused still counts in the digest over what h announced; else one refused
// claim would solicit for ever (design §8).
func (r *Roster) believe(h *host, b entityBody, at moment) {
	old := h.records[b.GID]
	if old == nil && len(h.records) >= maxEntities {
		r.stats.Overflow++
		if !h.overflow {
			r.noteOf(h, hclog.Error, "a host announces more entities than one host can have; the rest is ignored", "host", h.id, "limit", maxEntities)
		}
		h.overflow = true
		return
	}
	e := b.entity().tidy()
	rec := &record{Entity: e, gone: b.Gone, line: lineOf(e, b.Gone), round: h.full.id}
	if refusal := r.refuses(h, e); refusal != nil {
		rec.Entity, rec.refused = Entity{}, true
		if old == nil || !old.refused {
			r.stats.Refused++
			r.noteOf(h, hclog.Error, "an announced entity is refused", "host", h.id, "gid", printable(e.GID, maxWord), "reason", refusal.Sentence)
		}
		if !envelope.ValidGID(e.GID) {
			return // not even a key under which to keep it
		}
	} else {
		r.remember(e, h.id, b.Gone, at)
	}
	h.records[b.GID], h.digest = rec, ""
}

func (r *Roster) refuses(h *host, e Entity) *fault.Error {
	if err := e.check(); err != nil {
		return err
	}
	switch home := r.homes[e.GID]; {
	case home != nil && home.Host != h.id:
		return fault.New(fault.NotAllowed, "%s is at home on host %s and stays there", e.GID, home.Host)
	case home == nil && len(r.homesOf[h.id]) >= maxHomes:
		return fault.New(fault.TooLarge, "host %s had %d entities in 15 days; no more are remembered", h.id, maxHomes)
	}
	return nil
}

// report notes a change of h's state once.
func (r *Roster) report(h *host, now time.Time) {
	state := h.state(now)
	if h == r.self || state == h.reported {
		return
	}
	level := hclog.Info
	if state == Unknown {
		level = hclog.Warn
	}
	r.noteOf(h, level, "a host changed its state", "host", h.id, "from", h.reported, "to", state)
	h.reported = state
}
