package control

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"fleetd/fabric/envelope"
	"fleetd/fabric/roster"
	"fleetd/fault"
	"fleetd/store"
)

// TraceWait is how long other hosts have to tell what they saw of a flow.
const TraceWait = 4 * time.Second

const (
	tracedBytes = 64 << 10 // of the body of a TRACED at most
	tracedText  = 300      // bytes of each text in a step that another host tells
)

// Traced is what another host told of a flow, or why it did not.
type Traced struct {
	Host    string
	Events  []store.Event // oldest first, by its clock
	Cut     int           // older ones that it left out
	Missing string        // why it told nothing; "": it answered
	Offset  time.Duration // how far its clock is ahead of ours
}

// traceBody is what a TRACE asks for, beside its trace id.
type traceBody struct {
	Bytes int `json:"bytes,omitempty"` // the longest body that the asker takes; 0: tracedBytes
}

// tracedBody is the answer. Which host it is of, the signature says.
type tracedBody struct {
	Events []tracedEvent `json:"events"`
	Cut    int           `json:"cut,omitempty"`
}

// tracedEvent is a store.Event on the wire.
type tracedEvent struct {
	At      int64  `json:"at"` // Unix ms
	Step    string `json:"step"`
	MsgID   string `json:"msg"`
	Kind    string `json:"kind"`
	Entity  string `json:"entity,omitempty"`
	Peer    string `json:"peer,omitempty"`
	Outcome string `json:"outcome,omitempty"`
	Reason  string `json:"reason,omitempty"`
}

// word is what came of asking one host.
type word struct {
	host string
	env  *envelope.Envelope
	err  error // it could not be asked
}

// tracing is a TRACE that waits for its answer. A host has room for two words.
type tracing struct {
	host  string
	words chan<- word
}

// Trace asks every other host that is online what it saw of a flow, all at
// once, and waits for their answers for TraceWait. It returns every known host,
// by id. Without a broker there is none to ask.
func (c *Control) Trace(ctx context.Context, traceID string) ([]Traced, error) {
	if c.cfg.Broker == nil {
		return nil, nil
	}
	connected, reason := c.cfg.Broker.Connected()
	var all []Traced
	var ask []int // which of all
	for _, h := range c.cfg.Fleet.Hosts() {
		if h.Local {
			continue
		}
		t := Traced{Host: h.Host, Offset: h.Offset}
		switch {
		case !connected:
			t.Missing = fmt.Sprintf("not asked: the broker cannot be reached (%s)", reason)
		case h.State == roster.Unknown:
			t.Missing = "not asked: it was not heard lately"
		case h.State != roster.Online:
			t.Missing = "not asked: it is " + h.State
		default:
			t.Missing = "no answer in time"
			ask = append(ask, len(all))
		}
		all = append(all, t)
	}
	open := map[string]*Traced{}
	for _, i := range ask {
		open[all[i].Host] = &all[i]
	}
	return all, c.askTraces(ctx, traceID, open)
}

// askTraces asks the hosts of open, and fills in what they say.
func (c *Control) askTraces(ctx context.Context, traceID string, open map[string]*Traced) error {
	if len(open) == 0 {
		return nil
	}
	body, err := json.Marshal(traceBody{Bytes: c.cfg.BodyBytes})
	if err != nil {
		return fault.From(err)
	}
	var asks sync.WaitGroup
	defer asks.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	words := make(chan word, 2*len(open))
	expires := c.cfg.Now().Add(envelope.Life(envelope.Trace, 0))
	late := c.cfg.After(TraceWait)
	for host := range open {
		env := c.request(envelope.Trace, envelope.GatewayAddress(c.cfg.Host), host, "", traceID, expires, body)
		c.mu.Lock()
		c.traces[env.MsgID] = tracing{host, words}
		c.mu.Unlock()
		defer c.forgetTrace(env.MsgID)
		asks.Go(func() {
			err := c.cfg.Broker.Publish(ctx, envelope.LaneControl, env)
			if err != nil {
				words <- word{host: host, err: err}
				return
			}
			c.audit(Act{Verb: verbTrace, Who: env.From, From: c.cfg.Host, Host: host, Outcome: actAsked, TraceID: traceID})
		})
	}
	hear := func(w word) {
		if t := open[w.host]; t != nil {
			t.hear(w)
			delete(open, w.host)
		}
	}
	for len(open) > 0 {
		select {
		case w := <-words:
			hear(w)
		case <-late:
			for len(words) > 0 { // what came in time counts
				hear(<-words)
			}
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (c *Control) forgetTrace(msgID string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.traces, msgID)
}

// onTraced takes an answer; c.mu is held. Only the host that was asked counts,
// and only once.
func (c *Control) onTraced(env *envelope.Envelope) {
	if t, ok := c.traces[env.InReplyTo]; ok && t.host == env.Signer {
		delete(c.traces, env.InReplyTo)
		t.words <- word{host: t.host, env: env}
	}
}

func (t *Traced) hear(w word) {
	var body tracedBody
	switch {
	case w.err != nil:
		t.Missing = fmt.Sprintf("it could not be asked (%s)", fault.CodeOf(w.err))
		return
	case w.env.Reason != "":
		t.Missing = fmt.Sprintf("it could not tell (%s)", w.env.Reason)
		return
	case json.Unmarshal(w.env.Body, &body) != nil:
		t.Missing = "its answer cannot be read by this version"
		return
	}
	t.Missing, t.Cut = "", max(body.Cut, 0)
	for _, e := range body.Events {
		t.Events = append(t.Events, store.Event{
			TraceID: w.env.TraceID, Host: t.Host, At: e.At, Step: short(e.Step), MsgID: short(e.MsgID), Kind: short(e.Kind),
			Entity: short(e.Entity), Peer: short(e.Peer), Outcome: short(e.Outcome), Reason: short(e.Reason),
		})
	}
}

// short keeps one host's word from crowding out all others', and from looking
// like lines of theirs.
func short(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, strings.ToValidUTF8(s[:min(len(s), tracedText)], ""))
}

// onTrace answers a TRACE in the background: any host that is trusted is told
// what happened to a flow here. It never holds a body.
func (c *Control) onTrace(env *envelope.Envelope) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begin(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, TraceWait) // nobody waits longer
		defer cancel()
		now := c.cfg.Now()
		out := &envelope.Envelope{
			V: envelope.Version, Kind: envelope.Traced, MsgID: c.cfg.NewID(), TraceID: env.TraceID, InReplyTo: env.MsgID,
			From: envelope.GatewayAddress(c.cfg.Host), To: env.From, Signer: c.cfg.Host,
			TS: now.UnixMilli(), ExpiresAt: now.Add(envelope.Life(envelope.Traced, 0)).UnixMilli(),
		}
		body, err := c.traced(env)
		if err != nil {
			c.log.Warn("a trace that another host asked for cannot be told", "host", env.Signer, "trace", env.TraceID, "error", err)
			out.Reason = string(fault.CodeOf(err))
			c.auditAsked(verbTrace, env, actFailed, fault.CodeOf(err))
		} else {
			c.auditAsked(verbTrace, env, actTold, "")
		}
		out.Body = body
		if err := c.cfg.Broker.Publish(ctx, envelope.LaneSignal, out); err != nil {
			c.log.Debug("an answer was not taken; who asked says so", "kind", out.Kind, "trace", out.TraceID, "error", err)
		}
	})
}

// traced is the body of the answer: as many steps as fit, the newest.
func (c *Control) traced(env *envelope.Envelope) ([]byte, error) {
	var ask traceBody
	if err := json.Unmarshal(env.Body, &ask); err != nil {
		return nil, fault.Wrap(err, fault.BadRequest, "the body of a TRACE is no JSON object")
	}
	room := tracedBytes
	if ask.Bytes > 0 {
		room = min(room, ask.Bytes)
	}
	events, err := store.Read(c.cfg.Store, func(tx *store.Tx) ([]store.Event, error) { return tx.TraceOf(env.TraceID) })
	if err != nil {
		return nil, err
	}
	room -= len(`{"events":[],"cut":9999999999}`)
	body := struct {
		Events []json.RawMessage `json:"events"`
		Cut    int               `json:"cut,omitempty"`
	}{Events: []json.RawMessage{}}
	for i, e := range slices.Backward(events) {
		step, err := json.Marshal(tracedEvent{
			At: e.At, Step: e.Step, MsgID: e.MsgID, Kind: e.Kind, Entity: e.Entity, Peer: e.Peer, Outcome: e.Outcome, Reason: e.Reason,
		})
		if err != nil {
			return nil, fault.From(err)
		}
		if room -= len(step) + 1; room < 0 {
			body.Cut = i + 1
			break
		}
		body.Events = append(body.Events, step)
	}
	slices.Reverse(body.Events)
	text, err := json.Marshal(body)
	if err != nil {
		return nil, fault.From(err)
	}
	return text, nil
}
