package outbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"strings"
	"time"
	"unicode/utf8"

	"fleetd/fabric/envelope"
	"fleetd/fabric/roster"
	"fleetd/fault"
	"fleetd/store"
	"fleetd/test/failpoint"
)

// Request is one message that an entity wants to send.
type Request struct {
	From           string // gid of the local sender
	To             string // an address (design §1)
	Content        []byte
	Life           time.Duration // 0: 15 min
	Key            string        // idempotency key, may be empty
	QueueIfOffline bool
	// Hops of this message: one more than those of the one because of which it
	// is sent; 0 if there is none (design §4).
	Hops int
	// ID of the message, where it is derived; "" draws one.
	ID string
	// TraceID of the flow that this message continues; "" begins a new one.
	TraceID string
	// Leaving is called once with the message's id and its recipient's gid before
	// it leaves, so that his answer finds a waiter; not at all if nothing leaves.
	Leaving func(msgID, to string)

	kind    envelope.Kind // SEND unless answering
	answers store.Brief
	also    func(*store.Tx) error // committed together with the intent
	undo    func(*store.Tx) error // committed together with its end, if it is refused
	target  *roster.Target
}

// Sent says what is known when a send returns: the message is accepted, and
// how far a repeated one has come.
type Sent struct {
	MsgID     string
	TraceID   string
	To        roster.Target
	ExpiresAt time.Time
	Repeated  bool          // its idempotency key was used before: nothing new was sent
	Outcome   store.Outcome // of a repeated one; "" if none is known
	Reason    string        // an error code of a failure, or why it waits
}

const maxHops = 32

// hopsOfAnswer to a message of hops. An answer begins nothing, so that it passes
// where an exchange is stopped: who was written to can always say so.
func hopsOfAnswer(hops int) int { return min(hops+1, maxHops) }

// Send accepts one message, or says why not. Without an error it is in a
// durable place: the store of this host for an entity here, else the broker.
// IN_DOUBT says that it may be; what becomes of it is then told by mail.
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
	r.target = &target
	if r.Key == "" {
		return o.dispatch(ctx, r, o.id(r))
	}
	return o.once(ctx, r)
}

func (o *Outbox) id(r Request) string {
	if r.ID != "" {
		return r.ID
	}
	return o.cfg.NewID()
}

// check refuses what no recipient could take. Nothing has happened yet.
func (o *Outbox) check(r Request) error {
	if err := o.CheckContent(r.Content); err != nil {
		return err
	}
	switch {
	case r.Life < 0 || r.Life > o.cfg.MaxLife:
		return fault.New(fault.BadRequest, "a message lives for 1 second to %s; choose expires_in_seconds within that", o.cfg.MaxLife)
	case r.hops() > maxHops:
		return fault.New(fault.Loop, "this exchange went back and forth %d times; it was stopped, ask a person whether to go on", maxHops)
	}
	return nil
}

// CheckContent says why no message could have that content.
func (o *Outbox) CheckContent(content []byte) error {
	switch {
	case len(bytes.TrimSpace(content)) == 0:
		return fault.New(fault.BadContent, "the content is empty; write what you want to say")
	case len(content) > o.cfg.ContentBytes:
		return fault.New(fault.TooLarge, "the content has %d bytes, the limit is %d; put it into a file and send its path, or split it", len(content), o.cfg.ContentBytes)
	case !utf8.Valid(content):
		return fault.New(fault.BadContent, "the content is not valid UTF-8; send text, and binary data as a file path")
	}
	return nil
}

func (r Request) hops() int {
	if r.kind == envelope.Reply {
		return hopsOfAnswer(r.answers.Hops)
	}
	return r.Hops
}

// resolve finds the recipient. That somebody of another host does not exist is
// only said from a current view over a link that is up (design §5, §8).
func (o *Outbox) resolve(r Request) (roster.Target, error) {
	if r.target != nil {
		return *r.target, nil
	}
	if group, free := anyOf(r.To); free {
		return o.choose(r, group)
	}
	target, err := o.cfg.Directory.Resolve(r.To)
	if !fault.Is(err, fault.UnknownRecipient) || o.cfg.Broker == nil || o.here(r.To) {
		return target, err
	}
	if ok, reason := o.cfg.Broker.Connected(); !ok {
		return target, brokerDown(reason)
	}
	if !o.cfg.Directory.Current() {
		return target, fault.Wrap(err, fault.BrokerDown, "nobody is known as %.120q, but what this host knows of the others is old, and nothing was sent. Try again in some seconds", r.To)
	}
	return target, err
}

// here reports whether address could only mean an entity of this host: a pane,
// or a name at this host.
func (o *Outbox) here(address string) bool {
	_, host, qualified := strings.Cut(strings.TrimSpace(address), "@")
	return qualified && host == o.cfg.Host || strings.Contains(address, ":")
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
	if !r.target.Local {
		return sent, o.remote(ctx, r, env, also)
	}
	if r.target.Gone && r.kind == envelope.Send {
		return sent, gone(r.target)
	}
	if err := o.paced(r); err != nil {
		return sent, err
	}
	r.leaving(msgID)
	o.traceEnv("sent", env, "local", "")
	failpoint.Hit("outbox.local.before")
	return sent, o.local.Deliver(ctx, env, also)
}

// paced holds a brief to the pace of its pair. An answer is never held back:
// there are as many as there were briefs.
func (o *Outbox) paced(r Request) error {
	if r.kind != envelope.Send {
		return nil
	}
	err := o.pace.allow(o.cfg.Now(), r.From, r.target.GID, r.target.Address())
	if err != nil {
		o.log.Warn("one entity sends too much to another; it was stopped", "from", r.From, "to", r.target.Address())
	}
	return err
}

func (r Request) leaving(msgID string) {
	if r.Leaving != nil {
		r.Leaving(msgID, r.target.GID)
	}
}

func gone(t *roster.Target) error {
	return fault.New(fault.PaneGone, "%s has ended and will not come back; nothing was sent. Ask bridge_roster who is there", t.Address())
}

func (o *Outbox) envelope(r Request, msgID string) *envelope.Envelope {
	now := o.cfg.Now()
	env := &envelope.Envelope{
		V: envelope.Version, Kind: r.kind, MsgID: msgID, TraceID: r.answers.TraceID,
		From: r.From, To: r.target.GID, Signer: o.cfg.Host, InReplyTo: r.answers.MsgID, Hops: r.hops(),
		TS: now.UnixMilli(), ExpiresAt: now.Add(envelope.Life(r.kind, r.Life)).UnixMilli(), Body: r.Content,
	}
	if env.TraceID == "" {
		env.TraceID = r.TraceID
	}
	if env.TraceID == "" {
		env.TraceID = o.cfg.NewTrace()
	}
	return env
}

// remote takes the way over the broker, in the order of design §5.
func (o *Outbox) remote(ctx context.Context, r Request, env *envelope.Envelope, also func(*store.Tx) error) error {
	to := r.target.Address()
	if o.cfg.Broker == nil {
		return fault.New(fault.BrokerDown, "%s lives on %s, and this gateway has no broker; set broker.uri to reach other hosts", r.target.Name, r.target.Host)
	}
	if ok, reason := o.cfg.Broker.Connected(); !ok {
		return brokerDown(reason)
	}
	away := r.target.HostState != roster.Online
	if r.kind == envelope.Send && r.target.Gone {
		return gone(r.target)
	}
	if away && r.kind == envelope.Send && !r.QueueIfOffline {
		return fault.New(fault.HostOffline, "the host of %s is %s; nothing was sent. Say queue_if_offline to leave it in its inbox, or send to somebody else", to, r.target.HostState)
	}
	if err := o.cfg.Broker.Reachable(ctx, env.From); err != nil {
		return err
	}
	if err := o.behindOlder(ctx, env.From); err != nil {
		return err
	}
	if err := o.paced(r); err != nil {
		return err
	}
	op := &open{flight: true, pinned: true, away: away, silent: away, undo: r.undo, intent: store.Intent{
		MsgID: env.MsgID, TraceID: env.TraceID, Kind: string(env.Kind), From: env.From, To: env.To,
		ToHost: r.target.Host, ToName: to, ToKind: r.target.Kind, InReplyTo: env.InReplyTo,
		Hops: env.Hops, TS: env.TS, ExpiresAt: env.ExpiresAt, State: store.IntentIntended, Body: env.Body, Key: r.Key,
	}}
	failpoint.Hit("outbox.intent.before")
	if err := o.commit(ctx, op, also); err != nil {
		return err
	}
	failpoint.Hit("outbox.intent.after")
	r.leaving(env.MsgID)
	o.traceEnv("sent", env, string(store.IntentIntended), "")
	return o.publish(ctx, op, env, to)
}

// Answer is a reply to one brief.
type Answer struct {
	From    string // gid of the one who answers
	Brief   store.Brief
	Content []byte
	Key     string
	Also    func(*store.Tx) error // committed together with the answer
	Undo    func(*store.Tx) error // committed if what Also went with is refused: nothing can have arrived
}

// Reply answers a brief. It is always tried: the inbox of the one who asked is
// durable, whether he or his host is there or not.
func (o *Outbox) Reply(ctx context.Context, a Answer) (Sent, error) {
	target := roster.Target{GID: a.Brief.Sender, Host: a.Brief.SenderHost, Name: a.Brief.SenderName, HostState: roster.Unknown}
	if found, err := o.cfg.Directory.Resolve(a.Brief.Sender); err == nil {
		target = found
	}
	target.Local = o.local.Owns(a.Brief.Sender)
	return o.Send(ctx, Request{
		From: a.From, Content: a.Content, Key: a.Key, QueueIfOffline: true,
		kind: envelope.Reply, answers: a.Brief, also: a.Also, undo: a.Undo, target: &target,
	})
}

// hash tells whether two calls with one idempotency key ask for the same.
func (r Request) hash() [32]byte {
	h := sha256.New()
	to := r.target.GID
	if group, free := anyOf(r.To); free {
		to = anyPrefix + group
	}
	h.Write([]byte(string(r.kind) + "\n" + to + "\n" + r.answers.MsgID + "\n"))
	h.Write(r.Content)
	return [32]byte(h.Sum(nil))
}
