package mcp

import (
	"cmp"
	"context"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fabric/roster"
	"fleetd/fault"
	"fleetd/inbox"
	"fleetd/outbox"
	"fleetd/store"
	"fleetd/test/failpoint"
)

// Sender is what leaves.
type Sender interface {
	Send(ctx context.Context, r outbox.Request) (outbox.Sent, error)
	Reply(ctx context.Context, a outbox.Answer) (outbox.Sent, error)
	AnsweredUnder(gid, key string) (brief store.Brief, found bool, err error)
	Watch(msgID string) *outbox.Watch
	Ask(ctx context.Context, q outbox.Question) (*outbox.Turn, error)
	Broadcast(ctx context.Context, b outbox.Broadcast) (outbox.Spread, error)
	Shares(s outbox.Spread) ([]outbox.Share, error)
	AnswerTurn(ctx context.Context, a outbox.TurnAnswer) (outbox.Sent, error)
}

// Mailbox is what arrives.
type Mailbox interface {
	Wait(gid string, f inbox.Filter, l inbox.Limit) (*inbox.Waiter, error)
	More(gid string) (taken, bound bool)
	Held(gid string) int
	Read(gid, msgID string) (inbox.Mail, error)
	Recently(gid string) []inbox.Recent
	GivenLast(gid string) (*envelope.Envelope, bool)
	OpenBriefs(gid string) ([]store.Brief, error)
	BriefLast(gid string) (store.Brief, bool, error)
	BriefToAnswer(gid, msgID string) (store.Brief, error)
	Register(ctx context.Context, r inbox.Registration) (store.Entity, string, bool, error)
	Unregister(ctx context.Context, name string) (store.Entity, error)
	AwaitEnd(ctx context.Context, gid string) store.Entity
	ChangeGroups(ctx context.Context, name string, add, remove []string) (store.Entity, error)
	ByName(name string) (store.Entity, bool)
	Listen(gid, about, from string) *inbox.Ears
	Questions(gid string) []*envelope.Envelope
	AskedBy(gid, asker string) (*envelope.Envelope, bool)
	TurnToAnswer(gid, turnID string) (*envelope.Envelope, time.Duration, error)
	Answered(turnID, why string)
	Keep(gid string, env *envelope.Envelope)
}

// Fleet is who is where.
type Fleet interface {
	Resolve(address string) (roster.Target, error)
	Hosts() []roster.HostView
	Age() time.Duration
	Entities(f roster.Filter) []roster.EntityView
}

// Traces is the log of what happened to a flow on this host.
type Traces interface {
	TraceOf(traceID string) ([]store.Event, error)
}

// Conversation is the daemon's own Gateway and Admin: it joins what leaves and
// what arrives into the calls of one client, and owns their waits.
type Conversation struct {
	Host    string
	URL     string // of the MCP endpoint
	Sender  Sender
	Mailbox Mailbox
	Fleet   Fleet
	Traces  Traces
	Control Control
	// Broker says none, connected, connecting or blocked, and why.
	Broker func() (state, reason string)
	// About says what the running daemon goes by.
	About func() InfoResult
	Now   func() time.Time
}

// moreArrives is how long a poll whose time is up waits on for mail that the
// broker was just asked for. There are 15 further windows at most.
const moreArrives = time.Second

// resultMail bounds the messages of one result so that it fits its reader
// together with what is around them (design §11).
const resultMail = 6 << 10

func caller(ctx context.Context) (Caller, error) {
	c, ok := CallerFrom(ctx)
	if !ok {
		return c, fault.New(fault.NotAuthenticated, "it is not known who asks; register with `bridged register NAME --kind main` and connect with the token it prints, or name an entity with --as")
	}
	return c, nil
}

// Poll hands over mail.
func (c *Conversation) Poll(ctx context.Context, a PollArgs) (PollResult, error) {
	who, err := caller(ctx)
	if err != nil {
		return PollResult{}, err
	}
	filter := inbox.Filter{}
	if a.From != "" {
		target, err := c.Fleet.Resolve(a.From)
		if err != nil {
			return PollResult{}, err
		}
		filter.From = target.GID
	}
	limit := inbox.Limit{Max: a.Max, Bytes: resultMail}
	limit.Max = cmp.Or(limit.Max, 20)
	w, err := c.Mailbox.Wait(who.GID, filter, limit)
	if err != nil {
		return PollResult{}, err
	}
	defer w.Close()
	wait := time.Duration(a.WaitSeconds) * time.Second
	var questions <-chan *inbox.Question
	if wait > 0 {
		ears := c.Mailbox.Listen(who.GID, "", filter.From)
		defer ears.Close()
		questions = ears.C()
	}
	select {
	case batch := <-w.C():
		return c.polled(ctx, who, batch)
	default:
	}
	patience := time.NewTimer(wait)
	defer patience.Stop()
	for {
		select {
		case batch := <-w.C():
			return c.polled(ctx, who, batch)
		case q := <-questions:
			OnWritten(ctx, q.Settle)
			held := c.Mailbox.Held(who.GID)
			return PollResult{Messages: []Message{question(q)}, Remaining: held, Held: held}, nil
		case <-patience.C:
			full := false
			if filter.From != "" {
				var taken bool
				if taken, full = c.Mailbox.More(who.GID); taken { // it may be among what comes now
					patience.Reset(moreArrives)
					continue
				}
			}
			held := c.Mailbox.Held(who.GID)
			return PollResult{Messages: []Message{}, Remaining: held, Held: held, WindowFull: full}, nil
		case <-Draining(ctx):
			return PollResult{}, Stopping()
		case <-ctx.Done():
			return PollResult{}, ctx.Err()
		}
	}
}

func (c *Conversation) polled(ctx context.Context, who Caller, batch *inbox.Batch) (PollResult, error) {
	mails, err := batch.Messages()
	if err != nil {
		batch.Settle(false)
		return PollResult{}, err
	}
	OnWritten(ctx, batch.Settle)
	r := PollResult{}
	for _, m := range mails {
		r.Messages = append(r.Messages, message(m))
	}
	r.Held = c.Mailbox.Held(who.GID)
	r.Remaining = r.Held
	return r, nil
}

func message(m inbox.Mail) Message {
	msg := Message{
		MsgID: m.MsgID, TraceID: m.TraceID, Kind: string(m.Kind), From: m.FromName, FromID: m.From,
		Content: string(m.Body), InReplyTo: m.InReplyTo, Reason: m.Reason,
		SentAt: m.Sent().UTC().Format(time.RFC3339), Redelivered: m.Redelivered,
	}
	if len(m.Body) == 0 {
		msg.Note = inbox.Sentence(m.Envelope, m.FromName)
	}
	return msg
}

// Read gives one part of a message.
func (c *Conversation) Read(ctx context.Context, a ReadArgs) (ReadResult, error) {
	who, err := caller(ctx)
	if err != nil {
		return ReadResult{}, err
	}
	m, err := c.Mailbox.Read(who.GID, a.MsgID)
	if err != nil {
		return ReadResult{}, err
	}
	if a.Offset < 0 || a.Offset > len(m.Body) {
		return ReadResult{}, fault.New(fault.BadRequest, "offset %d is not within the message: it has %d bytes", a.Offset, len(m.Body))
	}
	part := string(m.Body[a.Offset:])
	r := ReadResult{
		MsgID: m.MsgID, TraceID: m.TraceID, From: m.FromName, Kind: string(m.Kind),
		Content: part, Offset: a.Offset, Total: len(m.Body), Held: c.Mailbox.Held(who.GID),
	}
	if len(part) > resultMail {
		r.Content = cutText(part, len(part)-resultMail)
		r.NextOffset = a.Offset + len(r.Content)
	}
	return r, nil
}

// Reply answers a brief.
func (c *Conversation) Reply(ctx context.Context, a ReplyArgs) (ReplyResult, error) {
	who, err := caller(ctx)
	if err != nil {
		return ReplyResult{}, err
	}
	brief, err := c.answered(who.GID, a)
	if err != nil {
		return ReplyResult{}, err
	}
	sent, err := c.Sender.Reply(ctx, outbox.Answer{
		From: who.GID, Brief: brief, Content: []byte(a.Content), Key: a.IdempotencyKey,
		Also: inbox.MarkReplied(brief, c.Now()), Undo: inbox.Reopen(brief),
	})
	if err != nil {
		return ReplyResult{}, err
	}
	failpoint.Hit("mcp.reply.accepted")
	return ReplyResult{
		State: StateQueued, MsgID: sent.MsgID, TraceID: sent.TraceID, InReplyTo: brief.MsgID,
		To: sent.To.Address(), Held: c.Mailbox.Held(who.GID),
	}, nil
}

// answered is the brief that a reply is for. One repeated under its key means
// the brief that it meant the first time, whatever is open by now. The key is
// looked at last: it is on record as soon as the brief is answered.
func (c *Conversation) answered(gid string, a ReplyArgs) (store.Brief, error) {
	brief, err := c.Mailbox.BriefToAnswer(gid, a.InReplyTo)
	if a.IdempotencyKey == "" {
		return brief, err
	}
	first, found, keyErr := c.Sender.AnsweredUnder(gid, a.IdempotencyKey)
	switch {
	case keyErr != nil:
		return brief, keyErr
	case !found || a.InReplyTo != "" && a.InReplyTo != first.MsgID || brief.MsgID == first.MsgID:
		return brief, err
	}
	if brief, err = c.Mailbox.BriefToAnswer(gid, first.MsgID); fault.Is(err, fault.BadRequest) {
		return first, nil // its record is gone
	}
	return brief, err
}
