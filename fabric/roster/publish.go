package roster

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/wait"
)

const (
	publishWait   = 5 * time.Second  // for one message
	farewellWait  = 2 * time.Second  // for the last ones, when Run ends
	progressEvery = 30 * time.Second // between two heartbeats that carry signs of progress
)

// out is what this gateway has to say. Only the speaker goroutine takes from
// it, so that sequence numbers leave in their order. Instants are monotonic;
// a zero one is not due.
type out struct {
	seq      uint64
	joined   bool                 // a Sync was asked for: before that, nothing may be announced (design §3)
	dirty    map[string]time.Time // gid → when it is to be announced
	beat     time.Time
	lastBeat time.Time
	full     time.Time
	lastFull time.Time

	progress   map[string]struct{} // gids
	progressAt time.Time

	leaving bool // Run ends
}

// outgoing is one message and what to do again should it not get out.
type outgoing struct {
	subject string // of its key
	body    []byte
	gid     string
	full    bool
	targets []string
	sync    *syncing
}

// speak publishes what is due until ctx ends.
func (r *Roster) speak(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.kick:
		case <-timer.C:
		}
		r.publishDue(ctx)
		timer.Reset(r.nextDue())
	}
}

func (r *Roster) publishDue(ctx context.Context) {
	serving := r.cfg.Serving()
	if serving {
		r.outrank(r.moment())
	}
	list := r.takeDue(r.cfg.Mono(), serving)
	for i, m := range list {
		err := r.publish(ctx, m)
		if err != nil {
			r.log.Debug("presence could not be published; it is due again with a later heartbeat", "error", err)
			r.restore(list[i:], err)
			return
		}
	}
}

func (r *Roster) publish(ctx context.Context, m outgoing) error {
	e, err := r.wrap(m)
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, publishWait)
		defer cancel()
		err = r.cfg.Publish(ctx, e)
	}
	r.mu.Lock()
	defer r.unlock()
	if err != nil {
		r.stats.PublishFailed++
		return err
	}
	r.stats.Published++
	return nil
}

func (r *Roster) wrap(m outgoing) (*envelope.Envelope, error) {
	id, err := uuid.NewV7FromReader(r.cfg.Rand)
	if err != nil {
		return nil, fault.Wrap(err, fault.Internal, "the system's random source failed")
	}
	trace, err := envelope.NewTraceID(r.cfg.Rand)
	if err != nil {
		return nil, err
	}
	now := r.cfg.Now()
	return &envelope.Envelope{
		V: envelope.Version, Kind: envelope.Presence, MsgID: id.String(), TraceID: trace,
		From: envelope.GatewayAddress(r.cfg.Host), To: envelope.RosterKey(r.cfg.Host, m.subject), Signer: r.cfg.Host,
		TS: now.UnixMilli(), ExpiresAt: now.Add(envelope.PresenceLife).UnixMilli(), Body: m.body,
	}, nil
}

// takeDue takes what is to be said now, in the order in which it is to be
// said: changes before the heartbeat whose digest covers them.
func (r *Roster) takeDue(now time.Time, serving bool) (list []outgoing) {
	r.mu.Lock()
	defer r.unlock()
	o := &r.out
	if r.cfg.Publish == nil || !o.joined {
		return nil
	}
	beat := o.leaving || due(o.beat, now)
	if due(o.full, now) && !o.leaving {
		list, beat = r.fullParts(serving), false
		clear(o.dirty)
		o.full, o.lastFull = time.Time{}, now
		o.lastBeat, o.beat = now, now.Add(r.cfg.Interval)
	}
	for _, gid := range sortedKeys(o.dirty) {
		if beat || due(o.dirty[gid], now) {
			delete(o.dirty, gid)
			list = append(list, r.announcement(gid)...)
		}
	}
	if beat {
		list = append(list, r.heartbeat(now, serving))
	}
	if !o.leaving {
		list = append(list, r.solicitations(now)...)
	}
	return list
}

func due(at, now time.Time) bool { return !at.IsZero() && !now.Before(at) }

func (r *Roster) nextStamp() stamp {
	r.out.seq++
	return stamp{Boot: r.self.boot, Seq: r.out.seq}
}

func (r *Roster) announcement(gid string) []outgoing {
	rec := r.self.records[gid]
	if rec == nil {
		return nil // pruned meanwhile
	}
	return []outgoing{{subject: gid, gid: gid, body: encode(announceBody{r.nextStamp(), rec.body()})}}
}

func (r *Roster) gatewayBody(serving bool) gatewayBody {
	return gatewayBody{
		stamp: r.nextStamp(), IntervalMS: r.cfg.Interval.Milliseconds(), Profiles: r.cfg.Profiles,
		Count: len(r.self.records), Digest: r.self.sum(), Serving: serving && !r.out.leaving, Leaving: r.out.leaving,
	}
}

func (r *Roster) heartbeat(now time.Time, serving bool) outgoing {
	r.out.lastBeat, r.out.beat = now, now.Add(r.cfg.Interval)
	b := r.gatewayBody(serving)
	if now.Sub(r.out.progressAt) >= progressEvery && len(r.out.progress) > 0 {
		b.Progress = r.takeProgress()
		r.out.progressAt = now
	}
	return outgoing{subject: envelope.RosterGateway, body: encode(b)}
}

// takeProgress takes as many signs of progress as one heartbeat may carry.
func (r *Roster) takeProgress() map[string]int64 {
	taken := map[string]int64{}
	for gid := range r.out.progress {
		if len(taken) == maxProgress {
			break
		}
		delete(r.out.progress, gid)
		if rec := r.self.records[gid]; rec != nil && !rec.gone {
			taken[gid] = millis(rec.Status.Progress)
		}
	}
	return taken
}

// fullParts is the full announcement: everyone who lives here, and those
// withdrawn in the last 8 days.
func (r *Roster) fullParts(serving bool) []outgoing {
	entities := make([]entityBody, 0, len(r.self.records))
	for _, gid := range sortedKeys(r.self.records) {
		entities = append(entities, r.self.records[gid].body())
	}
	parts := split(entities)
	list := make([]outgoing, 0, len(parts))
	for i, part := range parts {
		b := r.gatewayBody(serving)
		b.Part, b.Parts, b.Entities = i+1, len(parts), part
		list = append(list, outgoing{subject: envelope.RosterGateway, full: true, body: encode(b)})
	}
	return list
}

func (r *Roster) solicitations(now time.Time) []outgoing {
	var list []outgoing
	if s := r.sync; s != nil && s.seq == 0 {
		b := solicitBody{stamp: r.nextStamp()}
		s.seq, r.askedAll = b.Seq, now
		list = append(list, outgoing{subject: envelope.RosterSolicit, sync: s, body: encode(b)})
	}
	if targets := r.dueAsks(now); len(targets) > 0 {
		b := solicitBody{stamp: r.nextStamp(), Targets: targets}
		list = append(list, outgoing{subject: envelope.RosterSolicit, targets: targets, body: encode(b)})
	}
	r.stats.Solicited += uint64(len(list))
	return list
}

// encode marshals strings, numbers and lists of them, which can't fail.
func encode(body any) []byte {
	text, _ := json.Marshal(body)
	return text
}

// restore has what did not get out said again with a later heartbeat.
func (r *Roster) restore(list []outgoing, err error) {
	r.mu.Lock()
	defer r.unlock()
	again := r.out.beat
	for _, m := range list {
		if m.gid != "" {
			r.out.dirty[m.gid] = again
		}
		if m.full {
			r.out.full, r.out.lastFull = again, time.Time{} // nobody got it
		}
		if m.sync != nil {
			m.sync.err = err
			r.changed()
		}
		for _, id := range m.targets {
			h := r.hosts[id]
			if h == nil {
				continue
			}
			h.ask.open, h.ask.demand = false, true // nobody was asked, and it is due still
			if h.ask.at.IsZero() {
				h.ask.at = again
			}
		}
	}
}

// nextDue is how long the speaker may sleep.
func (r *Roster) nextDue() time.Duration {
	now := r.cfg.Mono()
	r.mu.Lock()
	defer r.unlock()
	if !r.out.joined {
		return time.Hour // a kick comes first
	}
	next := r.out.beat
	soonest := func(at time.Time) {
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	soonest(r.out.full)
	for _, at := range r.out.dirty {
		soonest(at)
	}
	for _, h := range r.hosts {
		soonest(h.ask.at)
	}
	return max(0, next.Sub(now))
}

// Pulse sends a heartbeat at once: call it when what Serving reports changed.
func (r *Roster) Pulse() {
	now := r.cfg.Mono()
	r.mu.Lock()
	defer r.unlock()
	r.out.beat = now
	wait.Poke(r.kick)
}
