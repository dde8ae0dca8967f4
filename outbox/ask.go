package outbox

import (
	"context"
	"sync"
	"time"

	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/fabric/roster"
	"fleetd/fault"
	"fleetd/store"
	"fleetd/test/failpoint"
)

// turns are the questions that entities of this host have put, and the answers
// that they are giving to others (design §7). Memory only: after a restart
// nobody waits for an answer, and one that comes is too late.
type turns struct {
	mu      sync.Mutex
	asks    map[string]*Turn      // by turnId
	answers map[string]*answering // by msgId of the ANSWER
}

// Turn is one question, from asking to answer or expiry.
type Turn struct {
	Ask *envelope.Envelope
	To  roster.Target

	out   *Outbox
	until time.Time // of the monotonic clock, where Now has one
	c     chan *envelope.Envelope
}

// answering is an ANSWER whose effect is not known yet.
type answering struct {
	env  *envelope.Envelope
	host string // of the asker
	c    chan envelope.Kind
}

// Question is what an entity wants to ask.
type Question struct {
	From    string      // gid
	To      string      // an address; "": whoever sent Brief
	Brief   store.Brief // what it is about; zero: nothing
	Content []byte
	Timeout time.Duration
	// Doubt is committed before the question leaves: the brief that it is about
	// was in doubt, and is not any more.
	Doubt func(*store.Tx) error
}

// Ask puts a question and returns the turn that its answer will meet. The turn
// must be closed. Nothing is stored: what does not get through now never does.
func (o *Outbox) Ask(ctx context.Context, q Question) (*Turn, error) {
	if err := o.check(Request{Content: q.Content, Hops: q.Brief.Hops + 1}); err != nil {
		return nil, err
	}
	if len(q.Content) > envelope.AskBytes {
		return nil, fault.New(fault.TooLarge, "the question has %d bytes, the limit is %d; ask briefly, and put what it is about into a file and name its path", len(q.Content), envelope.AskBytes)
	}
	target, err := o.asked(q)
	switch {
	case err != nil:
		return nil, err
	case target.GID == q.From:
		return nil, fault.New(fault.BadRequest, "you cannot ask yourself; name somebody else in to")
	case target.Gone:
		return nil, gone(&target)
	}
	if err := o.pace.allow(o.cfg.Now(), q.From, target.GID, target.Address()); err != nil {
		return nil, err
	}
	if q.Doubt != nil {
		if err := o.cfg.Store.Write(ctx, q.Doubt); err != nil {
			return nil, err
		}
		o.Progress(envelope.Report{
			Kind: envelope.Injected, MsgID: q.Brief.MsgID, TraceID: q.Brief.TraceID, Sender: q.Brief.Sender,
			SenderHost: q.Brief.SenderHost, Recipient: q.From, Hops: q.Brief.Hops,
		})
	}
	t := o.turn(q, target)
	failpoint.Hit("outbox.ask.before")
	if target.Local {
		o.traceEnv("sent", t.Ask, "local", "")
		err = o.Asked(ctx, t.Ask, o.local.Ask(t.Ask))
	} else {
		err = o.askAway(ctx, t)
	}
	if err != nil {
		t.Close()
		return nil, err
	}
	failpoint.Hit("outbox.ask.after")
	return t, nil
}

// asked finds whom a question is for.
func (o *Outbox) asked(q Question) (roster.Target, error) {
	if q.To != "" {
		return o.resolve(Request{To: q.To})
	}
	target := roster.Target{GID: q.Brief.Sender, Host: q.Brief.SenderHost, Name: q.Brief.SenderName, HostState: roster.Unknown}
	if found, err := o.cfg.Directory.Resolve(q.Brief.Sender); err == nil {
		target = found
	}
	target.Local = o.local.Owns(q.Brief.Sender)
	return target, nil
}

// turn registers a question before it leaves, so that no answer is too early.
func (o *Outbox) turn(q Question, target roster.Target) *Turn {
	now := o.cfg.Now()
	t := &Turn{
		out: o, To: target, until: now.Add(q.Timeout), c: make(chan *envelope.Envelope, 1),
		Ask: &envelope.Envelope{
			V: envelope.Version, Kind: envelope.Ask, MsgID: o.cfg.NewID(), TraceID: q.Brief.TraceID, TurnID: o.cfg.NewID(),
			From: q.From, To: target.GID, Signer: o.cfg.Host, InReplyTo: q.Brief.MsgID,
			TS: now.UnixMilli(), ExpiresAt: now.Add(envelope.Life(envelope.Ask, q.Timeout)).UnixMilli(), Body: q.Content,
		},
	}
	if q.Brief.MsgID != "" {
		t.Ask.Hops = q.Brief.Hops + 1
	}
	if t.Ask.TraceID == "" {
		t.Ask.TraceID = o.cfg.NewTrace()
	}
	o.turns.mu.Lock()
	defer o.turns.mu.Unlock()
	if o.turns.asks == nil {
		o.turns.asks = map[string]*Turn{}
	}
	o.turns.asks[t.Ask.TurnID] = t
	return t
}

// askAway publishes a question for another host.
func (o *Outbox) askAway(ctx context.Context, t *Turn) error {
	to := t.To.Address()
	if o.cfg.Broker == nil {
		return fault.New(fault.BrokerDown, "%s lives on %s, and this gateway has no broker; nothing was asked", to, t.To.Host)
	}
	if ok, reason := o.cfg.Broker.Connected(); !ok {
		return fault.New(fault.BrokerDown, "other hosts cannot be reached now (%s); nothing was asked. Go on without an answer, or answer your brief with what you would need to know", reason)
	}
	if t.To.HostState != roster.Online {
		return fault.New(fault.HostOffline, "the host of %s is %s; nothing was asked. Go on without an answer, or answer your brief with what you would need to know", to, t.To.HostState)
	}
	outcome, err := o.send(ctx, envelope.LaneSignal, t.Ask, nil)
	o.traceEnv("published", t.Ask, outcome.String(), "")
	switch outcome {
	case fabric.Confirmed, fabric.InDoubt:
		return nil // what became of it is heard, or the time runs out
	case fabric.Returned:
		return fault.New(fault.HostOffline, "the gateway of %s is not connected; nothing was asked. Go on without an answer, or answer your brief with what you would need to know", to)
	case fabric.NotSent:
		return err
	}
	return fault.Wrap(err, fault.BrokerRefused, "the broker refused the question; nothing was asked")
}

// C yields what the turn came to: an ANSWER, NO_WAITER, FAILED or ABANDONED.
func (t *Turn) C() <-chan *envelope.Envelope { return t.c }

// Left is how long the turn goes on.
func (t *Turn) Left() time.Duration { return t.until.Sub(t.out.cfg.Now()) }

// Close ends the turn. An answer that came and was not taken is too late.
func (t *Turn) Close() {
	t.out.turns.mu.Lock()
	delete(t.out.turns.asks, t.Ask.TurnID)
	t.out.turns.mu.Unlock()
	select {
	case env := <-t.c:
		if env.Kind == envelope.Answer {
			t.out.met(env, false)
		}
	default:
	}
}

// Met says whether an answer that C yielded reached the one who asked.
func (t *Turn) Met(answer *envelope.Envelope, written bool) { t.out.met(answer, written) }

// met tells the one who answered that his answer met its turn, or came too late.
func (o *Outbox) met(answer *envelope.Envelope, intime bool) {
	kind := envelope.TooLate
	if intime {
		kind = envelope.Injected
	}
	o.traceEnv("answered", answer, string(kind), "")
	o.turnSignal(answer, kind, "")
	failpoint.Hit("outbox.met.after")
}

// Asked takes the news in a question about a brief from here: it is in, whatever
// was reported before (design §5). Where a call took the question, that tells
// it; else it is told as any outcome is.
func (o *Outbox) Asked(ctx context.Context, ask *envelope.Envelope, taken bool) error {
	r := envelope.Report{
		Kind: envelope.Injected, MsgID: ask.InReplyTo, TraceID: ask.TraceID, Sender: ask.To, Recipient: ask.From, Hops: ask.Hops,
	}
	switch {
	case r.MsgID == "":
		return nil
	case !taken:
		return o.settle(ctx, r)
	case ask.Signer == o.cfg.Host:
		o.answered(r.MsgID, ask.From)
		return nil
	}
	lock := o.stripe(r.MsgID)
	lock.Lock()
	defer lock.Unlock()
	in, found, err := o.intentFor(r.MsgID, ask.From)
	if err != nil || !found || in.To != ask.From || in.Outcome.Injected() {
		return err
	}
	o.tell(r.MsgID, Progress{Kind: envelope.Injected})
	o.trace("resolved", r.MsgID, in.TraceID, in.Kind, in.From, in.To, string(store.EndInjected), string(envelope.Ask))
	o.conclude(in, store.EndInjected, "")
	return nil
}

// TurnOver tells the asker of a question that it will not be answered.
func (o *Outbox) TurnOver(ask *envelope.Envelope, kind envelope.Kind, reason string) {
	o.turnSignal(ask, kind, reason)
}

// turnSignal answers an ASK or ANSWER of this host or another.
func (o *Outbox) turnSignal(about *envelope.Envelope, kind envelope.Kind, reason string) {
	now := o.cfg.Now()
	env := &envelope.Envelope{
		V: envelope.Version, Kind: kind, MsgID: o.cfg.NewID(), TraceID: about.TraceID, TurnID: about.TurnID,
		From: about.To, To: about.From, Signer: o.cfg.Host, InReplyTo: about.MsgID, Reason: reason,
		Hops: hopsOfAnswer(about.Hops), TS: now.UnixMilli(), ExpiresAt: now.Add(envelope.SignalLife).UnixMilli(),
	}
	if about.Signer == o.cfg.Host {
		o.Turn(env)
		return
	}
	o.signal(env)
}

// Turn takes a word on a turn, and reports whether it is one that this host
// waits for. It never blocks.
func (o *Outbox) Turn(env *envelope.Envelope) bool {
	switch env.Kind {
	case envelope.Answer:
		failpoint.Hit("outbox.answer.arrived")
		if !o.reach(env) {
			failpoint.Hit("outbox.late.before")
			o.met(env, false)
		}
		return true
	case envelope.NoWaiter, envelope.Failed, envelope.Abandoned:
		return env.TurnID != "" && o.reach(env)
	case envelope.Injected, envelope.TooLate:
		o.turns.mu.Lock()
		defer o.turns.mu.Unlock()
		a := o.turns.answers[env.InReplyTo]
		if a == nil || a.env.To != env.From {
			return false
		}
		select {
		case a.c <- env.Kind:
		default: // the first word counts
		}
		return true
	}
	return false
}

// reach hands a word to the call that waits in its turn. A turn takes one word,
// from the one who was asked, within its life.
func (o *Outbox) reach(env *envelope.Envelope) bool {
	o.turns.mu.Lock()
	defer o.turns.mu.Unlock()
	t := o.turns.asks[env.TurnID]
	if t == nil || t.Ask.To != env.From || t.Ask.From != env.To || o.cfg.Now().After(t.until) {
		return false
	}
	delete(o.turns.asks, env.TurnID)
	t.c <- env
	return true
}

// EndTurns tells everybody whom an entity that has ended had asked.
func (o *Outbox) EndTurns(gid string) {
	var over []*Turn
	o.turns.mu.Lock()
	for _, t := range o.turns.asks {
		if t.Ask.From == gid {
			over = append(over, t)
		}
	}
	o.turns.mu.Unlock()
	for _, t := range over {
		env := *t.Ask
		env.Kind, env.MsgID, env.InReplyTo, env.Body = envelope.Abandoned, o.cfg.NewID(), t.Ask.MsgID, nil
		env.Reason, env.TS = string(fault.PaneGone), o.cfg.Now().UnixMilli()
		env.ExpiresAt = env.TS + envelope.SignalLife.Milliseconds()
		if t.To.Local {
			o.local.Withdrawn(&env)
		} else {
			o.signal(&env)
		}
		t.abandon()
	}
}

// abandon wakes the call of an asker that has ended.
func (t *Turn) abandon() {
	t.out.turns.mu.Lock()
	defer t.out.turns.mu.Unlock()
	if t.out.turns.asks[t.Ask.TurnID] == t {
		delete(t.out.turns.asks, t.Ask.TurnID)
		t.c <- &envelope.Envelope{Kind: envelope.Abandoned, TurnID: t.Ask.TurnID, From: t.Ask.From, Reason: string(fault.PaneGone)}
	}
}

// TurnAnswer is an answer to a question.
type TurnAnswer struct {
	Ask     *envelope.Envelope
	Left    time.Duration // of the question's life, as known here
	Content []byte
}

// AnswerTurn answers a question and waits until its asker has the answer.
// TOO_LATE: he does not wait any more. UNCONFIRMED: no word came within 10 s.
// With any other error nothing has left.
func (o *Outbox) AnswerTurn(ctx context.Context, a TurnAnswer) (Sent, error) {
	if err := o.check(Request{Content: a.Content}); err != nil {
		return Sent{}, err
	}
	now := o.cfg.Now()
	life := max(a.Left, 0) + envelope.Skew
	env := &envelope.Envelope{
		V: envelope.Version, Kind: envelope.Answer, MsgID: o.cfg.NewID(), TraceID: a.Ask.TraceID, TurnID: a.Ask.TurnID,
		From: a.Ask.To, To: a.Ask.From, Signer: o.cfg.Host, InReplyTo: a.Ask.MsgID, Hops: hopsOfAnswer(a.Ask.Hops),
		TS: now.UnixMilli(), ExpiresAt: now.Add(life).UnixMilli(), Body: a.Content,
	}
	sent := Sent{MsgID: env.MsgID, TraceID: env.TraceID, To: o.asker(a.Ask)}
	word := o.expectWord(env, a.Ask.Signer)
	defer o.forgetWord(env)
	failpoint.Hit("outbox.answer.before")
	if a.Ask.Signer == o.cfg.Host {
		o.Turn(env)
	} else if err := o.answerAway(ctx, env, a.Ask); err != nil {
		return sent, err
	}
	failpoint.Hit("outbox.answer.after")
	late := time.NewTimer(answerWait)
	defer late.Stop()
	select {
	case kind := <-word:
		failpoint.Hit("outbox.answer.word")
		o.traceEnv("resolved", env, string(kind), "")
		if kind == envelope.Injected {
			return sent, nil
		}
		return sent, fault.New(fault.TooLate, "%s had stopped waiting; your answer was not delivered. Write to it with bridge_send if it still matters", sent.To.Address())
	case <-late.C:
	case <-ctx.Done():
	}
	return sent, fault.Wrap(ctx.Err(), fault.Unconfirmed, "the answer was sent and nothing was heard of it yet; it may have arrived. Do not send it again: wait for the reply with bridge_poll")
}

// asker is the one who asked, as an address.
func (o *Outbox) asker(ask *envelope.Envelope) roster.Target {
	if t, err := o.cfg.Directory.Resolve(ask.From); err == nil {
		return t
	}
	return roster.Target{GID: ask.From, Name: ask.From, Host: ask.Signer, Kind: store.Worker}
}

func (o *Outbox) answerAway(ctx context.Context, env, ask *envelope.Envelope) error {
	if ok, reason := o.cfg.Broker.Connected(); !ok {
		return brokerDown(reason)
	}
	outcome, err := o.send(ctx, envelope.LaneSignal, env, nil)
	o.traceEnv("published", env, outcome.String(), "")
	switch outcome {
	case fabric.Confirmed, fabric.InDoubt:
		return nil
	case fabric.Returned: // its gateway is away, or it has ended and takes no signals any more
		to := o.asker(ask)
		if to.Gone {
			return fault.New(fault.TooLate, "%s has ended; your answer was not delivered", to.Address())
		}
		return fault.New(fault.HostOffline, "the gateway of %s is not connected, or the agent has just ended; the answer was not sent. Try again in some seconds", to.Address())
	case fabric.NotSent:
		return err
	}
	return fault.Wrap(err, fault.BrokerRefused, "the broker refused the answer; it was not sent. Try again in some seconds")
}

func (o *Outbox) expectWord(env *envelope.Envelope, host string) <-chan envelope.Kind {
	a := &answering{env: env, host: host, c: make(chan envelope.Kind, 1)}
	o.turns.mu.Lock()
	defer o.turns.mu.Unlock()
	if o.turns.answers == nil {
		o.turns.answers = map[string]*answering{}
	}
	o.turns.answers[env.MsgID] = a
	return a.c
}

func (o *Outbox) forgetWord(env *envelope.Envelope) {
	o.turns.mu.Lock()
	defer o.turns.mu.Unlock()
	delete(o.turns.answers, env.MsgID)
}

// turnHost is the host that a question or an answer of this host went to.
func (o *Outbox) turnHost(msgID, gid string) (string, bool) {
	o.turns.mu.Lock()
	defer o.turns.mu.Unlock()
	if a := o.turns.answers[msgID]; a != nil {
		return a.host, a.env.To == gid
	}
	for _, t := range o.turns.asks {
		if t.Ask.MsgID == msgID {
			return t.To.Host, t.Ask.To == gid
		}
	}
	return "", false
}
