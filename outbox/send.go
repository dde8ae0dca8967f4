package outbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"time"
	"unicode/utf8"

	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/fabric/roster"
	"fleetd/fault"
	"fleetd/store"
)

// Request is one message that an entity wants to send.
type Request struct {
	From           string // gid of the local sender
	To             string // an address (design §1)
	Content        []byte
	Life           time.Duration // 0: 15 min
	Key            string        // idempotency key, may be empty
	QueueIfOffline bool
	// Leaving is called with the message's id before it leaves, so that its
	// answer finds a waiter.
	Leaving func(msgID string)

	kind    envelope.Kind // SEND unless answering
	answers store.Brief
	also    func(*store.Tx) error // committed together with the intent
	target  *roster.Target
}

// Sent says what is known when a send returns: the message is accepted, and
// how far a repeated one has come.
type Sent struct {
	MsgID     string
	TraceID   string
	To        roster.Target
	ExpiresAt time.Time
	Repeated  bool   // its idempotency key was used before: nothing new was sent
	Outcome   string // of a repeated one, "" if none is known yet
	Reason    string
}

// Send accepts one message, or says why not. Without an error it is in a
// durable place: the store of this host for an entity here, else the broker.
func (o *Outbox) Send(ctx context.Context, r Request) (Sent, error) {
	if r.kind == "" {
		r.kind = envelope.Send
	}
	if err := o.check(r); err != nil {
		return Sent{}, err
	}
	target, err := o.resolve(r)
	if err != nil {
		return Sent{}, err
	}
	if target.Gone && r.kind == envelope.Send {
		return Sent{}, fault.New(fault.PaneGone, "%s has ended and will not come back; nothing was sent. Ask bridge_roster who is there", target.Address())
	}
	r.target = &target
	if r.Key == "" {
		return o.dispatch(ctx, r, o.cfg.NewID())
	}
	return o.once(ctx, r)
}

// check refuses what no recipient could take. Nothing has happened yet.
func (o *Outbox) check(r Request) error {
	switch {
	case len(bytes.TrimSpace(r.Content)) == 0:
		return fault.New(fault.BadContent, "the content is empty; write what you want to say")
	case len(r.Content) > o.cfg.ContentBytes:
		return fault.New(fault.TooLarge, "the content has %d bytes, the limit is %d; put it into a file and send its path, or split it", len(r.Content), o.cfg.ContentBytes)
	case !utf8.Valid(r.Content):
		return fault.New(fault.BadContent, "the content is not valid UTF-8; send text, and binary data as a file path")
	case r.Life < 0 || r.Life > o.cfg.MaxLife:
		return fault.New(fault.BadRequest, "a message lives for 1 second to %s; choose expires_in_seconds within that", o.cfg.MaxLife)
	case r.answers.Hops+1 > maxHops && r.kind == envelope.Reply:
		return fault.New(fault.Loop, "this exchange went back and forth %d times; it was stopped, ask a person whether to go on", maxHops)
	}
	return nil
}

const maxHops = 32

// resolve finds the recipient. Without a connection nobody but an entity of
// this host can be told not to exist.
func (o *Outbox) resolve(r Request) (roster.Target, error) {
	if r.target != nil {
		return *r.target, nil
	}
	target, err := o.cfg.Directory.Resolve(r.To)
	if err != nil {
		if fault.Is(err, fault.UnknownRecipient) && o.cfg.Broker != nil && !o.cfg.Directory.Current() {
			if ok, reason := o.cfg.Broker.Connected(); !ok {
				return target, brokerDown(reason)
			}
		}
		return target, err
	}
	return target, nil
}

func brokerDown(reason string) error {
	return fault.New(fault.BrokerDown, "other hosts cannot be reached now (%s); nothing was sent. Entities of this host can be, try the others again later", reason)
}

// dispatch is the fork.
func (o *Outbox) dispatch(ctx context.Context, r Request, msgID string) (Sent, error) {
	env := o.envelope(r, msgID)
	sent := Sent{MsgID: msgID, TraceID: env.TraceID, To: *r.target, ExpiresAt: env.Expiry()}
	also := func(tx *store.Tx) error {
		if r.Key != "" {
			if err := tx.PutKey(r.From, r.Key, o.key(r, env)); err != nil {
				return err
			}
		}
		if r.also != nil {
			return r.also(tx)
		}
		return nil
	}
	if r.target.Local {
		if r.Leaving != nil {
			r.Leaving(msgID)
		}
		o.traceEnv("sent", env, "local", "")
		return sent, o.local.Deliver(ctx, env, also)
	}
	return sent, o.remote(ctx, r, env, also)
}

func (o *Outbox) envelope(r Request, msgID string) *envelope.Envelope {
	now := o.cfg.Now()
	env := &envelope.Envelope{
		V: envelope.Version, Kind: r.kind, MsgID: msgID, TraceID: r.answers.TraceID,
		From: r.From, To: r.target.GID, Signer: o.cfg.Host, InReplyTo: r.answers.MsgID,
		TS: now.UnixMilli(), ExpiresAt: now.Add(envelope.Life(r.kind, r.Life)).UnixMilli(), Body: r.Content,
	}
	if env.TraceID == "" {
		env.TraceID = o.cfg.NewTrace()
	} else {
		env.Hops = r.answers.Hops + 1
	}
	return env
}

// remote takes the way over the broker, in the order of design §5.
func (o *Outbox) remote(ctx context.Context, r Request, env *envelope.Envelope, also func(*store.Tx) error) error {
	if o.cfg.Broker == nil {
		return fault.New(fault.BrokerDown, "%s lives on %s, and this gateway has no broker; set broker.uri to reach other hosts", r.target.Name, r.target.Host)
	}
	if ok, reason := o.cfg.Broker.Connected(); !ok {
		return brokerDown(reason)
	}
	away := r.target.HostState != roster.Online
	if away && r.kind == envelope.Send && !r.QueueIfOffline {
		return fault.New(fault.HostOffline, "the host of %s is %s; nothing was sent. Say queue_if_offline to leave it in its inbox, or send to somebody else", r.target.Address(), r.target.HostState)
	}
	if err := o.cfg.Broker.Reachable(ctx, r.From); err != nil {
		return err
	}
	if err := o.afterResent(ctx); err != nil {
		return err
	}
	in := store.Intent{
		MsgID: env.MsgID, TraceID: env.TraceID, Kind: string(env.Kind), From: env.From, To: env.To,
		ToHost: r.target.Host, ToName: r.target.Address(), ToKind: r.target.Kind, InReplyTo: env.InReplyTo,
		Hops: env.Hops, TS: env.TS, ExpiresAt: env.ExpiresAt, State: store.IntentIntended, Body: env.Body, Key: r.Key,
		Recipients: []store.Recipient{{GID: env.To, Host: r.target.Host, Name: r.target.Address()}},
	}
	if err := o.commit(ctx, &in, also); err != nil {
		return err
	}
	if r.Leaving != nil {
		r.Leaving(env.MsgID)
	}
	o.traceEnv("sent", env, "intended", "")
	return o.publish(ctx, env, r.target.Address(), away)
}

// commit makes the intent durable before anything leaves.
func (o *Outbox) commit(ctx context.Context, in *store.Intent, also func(*store.Tx) error) error {
	err := o.cfg.Store.Write(ctx, func(tx *store.Tx) error {
		if err := tx.PutIntent(*in); err != nil {
			return err
		}
		return also(tx)
	})
	if err != nil {
		return err
	}
	kept := *in
	kept.Body = nil
	o.mu.Lock()
	o.keepOpen(kept)
	o.mu.Unlock()
	return nil
}

// publish sends an intent's envelope and turns the broker's word into the
// intent's state and the caller's answer.
func (o *Outbox) publish(ctx context.Context, env *envelope.Envelope, to string, away bool) error {
	outcome, err := o.send(ctx, envelope.LaneMail, env, func(word fabric.Outcome) { o.word(env, word) })
	o.traceEnv("published", env, outcome.String(), "")
	switch outcome {
	case fabric.NotSent:
		o.word(env, fabric.Refused) // nothing left: the same key may try again
		return err
	case fabric.Confirmed:
		if away {
			return o.renew(ctx, env, to)
		}
		return nil
	case fabric.Returned:
		return fault.New(fault.Unroutable, "%s has no inbox on the broker any more; nothing was delivered. Ask bridge_roster who is there", to)
	case fabric.Nacked:
		if full, ferr := o.cfg.Broker.InboxFull(ctx, env.To); ferr == nil && full {
			return fault.New(fault.InboxFull, "the inbox of %s is full; nothing was delivered. Wait until it has been read, then send again", to)
		}
		return fault.New(fault.BrokerRefused, "the broker refused the message; nothing was delivered. Try again later, and tell whoever runs the broker if it goes on")
	case fabric.Refused:
		return fault.Wrap(err, fault.BrokerRefused, "the broker refused the message; nothing was delivered. Its log and ours say why")
	}
	if env.Kind == envelope.Send {
		return fault.Wrap(err, fault.InDoubt, "the connection broke while the message was on its way; it may arrive until %s. Do not send it again: you will be told what became of it", env.Expiry().UTC().Format(time.RFC3339))
	}
	return fault.Wrap(err, fault.InDoubt, "the connection broke while the message was on its way; the gateway publishes it again by itself. Do not send it again")
}

// send signs and publishes.
func (o *Outbox) send(ctx context.Context, lane envelope.Lane, env *envelope.Envelope, settled func(fabric.Outcome)) (fabric.Outcome, error) {
	if err := o.cfg.Sign(env); err != nil {
		return fabric.NotSent, err
	}
	return o.cfg.Broker.Publish(ctx, lane, env, settled)
}

// word applies the broker's word to the intent. It may come late, and an
// outcome from the recipient may have overtaken it.
func (o *Outbox) word(env *envelope.Envelope, outcome fabric.Outcome) {
	o.change(env.MsgID, func(op *open) {
		in := &op.intent
		switch outcome {
		case fabric.Confirmed:
			if in.State == store.IntentIntended || in.State == store.IntentInDoubt {
				in.State = store.IntentAccepted
			}
			// Only a brief to a worker has an outcome to wait for.
			if !watched(*in) {
				in.State, in.Outcome = store.IntentEnded, outcomeAccepted
			}
		case fabric.Returned:
			in.State, in.Outcome, in.OutcomeReason = store.IntentEnded, outcomeRefused, string(fault.Unroutable)
		case fabric.Nacked, fabric.Refused:
			in.State, in.Outcome, in.OutcomeReason = store.IntentEnded, outcomeRefused, string(fault.BrokerRefused)
		case fabric.InDoubt:
			if in.State == store.IntentIntended {
				in.State = store.IntentInDoubt
			}
		}
	})
}

// watched reports whether the recipient's gateway will tell an outcome.
func watched(in store.Intent) bool {
	return envelope.Kind(in.Kind).Brief() && in.ToKind == "worker"
}

// renew follows mail to a host that is not seen alive with a passive declare
// of its inbox, which renews the lease that publishing does not (design §3).
func (o *Outbox) renew(ctx context.Context, env *envelope.Envelope, to string) error {
	exists, err := o.cfg.Broker.Renew(ctx, env.To)
	if err != nil {
		o.log.Warn("the lease of an inbox could not be renewed", "to", to, "error", err)
		return nil
	}
	if exists {
		return nil
	}
	o.change(env.MsgID, func(op *open) {
		op.intent.State, op.intent.Outcome, op.intent.OutcomeReason = store.IntentEnded, outcomeRefused, string(fault.Unroutable)
	})
	return fault.New(fault.Unroutable, "%s has no inbox on the broker any more; nothing was delivered. Ask bridge_roster who is there", to)
}

// Answer is a reply to one brief.
type Answer struct {
	From    string // gid of the one who answers
	Brief   store.Brief
	Content []byte
	Key     string
	Also    func(*store.Tx) error // committed together with the answer
	Undo    func(*store.Tx) error // committed when nothing can have arrived
}

// Reply answers a brief. It is always tried: the inbox of the one who asked is
// durable, whether he or his host is there or not.
func (o *Outbox) Reply(ctx context.Context, a Answer) (Sent, error) {
	target := roster.Target{GID: a.Brief.Sender, Host: a.Brief.SenderHost, Name: a.Brief.SenderName, HostState: roster.Unknown}
	if found, err := o.cfg.Directory.Resolve(a.Brief.Sender); err == nil {
		target = found
	}
	target.Local = o.local.Owns(a.Brief.Sender)
	sent, err := o.Send(ctx, Request{
		From: a.From, Content: a.Content, Key: a.Key, QueueIfOffline: true,
		kind: envelope.Reply, answers: a.Brief, also: a.Also, target: &target,
	})
	if err != nil && a.Undo != nil && !fault.Is(err, fault.InDoubt) {
		o.cfg.Store.Later(a.Undo)
	}
	return sent, err
}

// hash tells whether two calls with one idempotency key ask for the same.
func (r Request) hash() [32]byte {
	h := sha256.New()
	h.Write([]byte(string(r.kind) + "\n" + r.target.GID + "\n" + r.answers.MsgID + "\n"))
	h.Write(r.Content)
	return [32]byte(h.Sum(nil))
}
