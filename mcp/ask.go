package mcp

import (
	"cmp"
	"context"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/inbox"
	"fleetd/outbox"
	"fleetd/store"
	"fleetd/test/failpoint"
)

// AskArgs are the arguments of bridge_ask.
type AskArgs struct {
	Question       string `json:"question" jsonschema:"required"`
	To             string `json:"to,omitempty"`
	TimeoutSeconds int    `json:"timeout_seconds,omitempty"` // 0: 120
}

// askSeconds is how long a question waits for its answer, unless asked otherwise.
const askSeconds = 120

func (a AskArgs) waitFor() time.Duration {
	if a.TimeoutSeconds == 0 {
		return askSeconds * time.Second
	}
	return time.Duration(a.TimeoutSeconds) * time.Second
}

// AskResult is the answer to bridge_ask.
type AskResult struct {
	State   string `json:"state"` // answered
	Answer  string `json:"answer"`
	From    string `json:"from"`   // name@host of the one who answered
	MsgID   string `json:"msg_id"` // of the answer
	TraceID string `json:"trace_id"`
	TurnID  string `json:"turn_id"`
	// NextOffset is set when Answer is only the beginning: fetch the rest with
	// bridge_read from there.
	NextOffset int `json:"next_offset,omitempty"`
	Total      int `json:"total,omitempty"` // bytes in all, where cut
	Held       int `json:"held"`
}

// StateAnswered is the one state of a question whose call returns without an
// error.
const StateAnswered = "answered"

func (r *AskResult) fit(over func() int) {
	for excess := over(); excess > 0 && r.Answer != ""; excess = over() {
		r.Total = cmp.Or(r.Total, len(r.Answer))
		r.Answer = cutText(r.Answer, bite(r.Answer, excess))
		r.NextOffset = len(r.Answer)
	}
}

// AnswerArgs are the arguments of bridge_answer.
type AnswerArgs struct {
	TurnID      string `json:"turn_id" jsonschema:"required"`
	Content     string `json:"content" jsonschema:"required"`
	WaitSeconds int    `json:"wait_seconds,omitempty"`
}

func (a AnswerArgs) waitFor() time.Duration { return time.Duration(a.WaitSeconds) * time.Second }

var askVerb = verb{
	name:  "ask",
	title: "Ask the one who gave you the task",
	doc: `Ask one short question in the middle of your work and wait for the answer. It goes to whoever sent the brief that you have open; with several open briefs, or none, say with "to" whom you ask. Ask only what you cannot decide by yourself.

It only works while the other side is listening, and nothing is stored. After the error NO_WAITER nobody listens now: do not ask again at once; decide yourself and say in your reply what you assumed, or answer the brief with your question. After EXPIRED no answer came in time: go on in the same way. An answer that comes later is not delivered.`,
	args: map[string]argument{
		"question":        {doc: "The question, plain text, at most 64 KiB. Say what the choices are; the other side does not see your screen."},
		"to":              {doc: "Whom to ask: name, name@host or entity id. Absent: the sender of your one open brief."},
		"timeout_seconds": {doc: "How long to wait for the answer, in seconds, at most 240.", bounded: true, min: 1, max: MaxWaitSeconds, def: askSeconds},
	},
	alias:     map[string]string{"target": "to"},
	openWorld: true,
}

var answerVerb = verb{
	name:  "answer",
	title: "Answer a question",
	doc: `Answer a question that an agent asked you while it works: bridge_send or bridge_poll returned it with a "turn_id". The agent is blocked until you answer, so do it at once. An ordinary bridge_send does not answer it.

With wait_seconds it then goes on waiting for the agent's reply, as bridge_send does, and the states are the same: "injected" means the agent has your answer and you wait for nothing more, "pending" that it has not replied yet, "replied" and "ask" (the next question) as usual. After the error TOO_LATE the agent had stopped waiting and nothing was delivered: write to it with bridge_send if it still matters. After UNCONFIRMED do not answer again.`,
	args: map[string]argument{
		"turn_id":      {doc: "The turn_id that came with the question; bridge_whoami lists the open ones."},
		"content":      {doc: "The answer, plain text."},
		"wait_seconds": {doc: waitDoc, bounded: true, max: MaxWaitSeconds, def: 0},
	},
	openWorld: true,
}

// Ask puts a question and waits for its answer.
func (c *Conversation) Ask(ctx context.Context, a AskArgs) (AskResult, error) {
	who, err := caller(ctx)
	if err != nil {
		return AskResult{}, err
	}
	brief, err := c.askedAbout(who, a.To)
	if err != nil {
		return AskResult{}, err
	}
	turn, err := c.Sender.Ask(ctx, outbox.Question{
		From: who.GID, To: a.To, Brief: brief, Content: []byte(a.Question), Timeout: a.waitFor(),
		Doubt: inbox.MarkAsked(brief, c.Now()),
	})
	if err != nil {
		return AskResult{}, err
	}
	defer turn.Close()
	patience := time.NewTimer(turn.Left())
	defer patience.Stop()
	select {
	case word := <-turn.C():
		if word.Kind != envelope.Answer {
			return AskResult{}, unanswered(word, turn.To.Address())
		}
		OnWritten(ctx, func(written bool) {
			failpoint.Hit("mcp.ask.written")
			if written {
				c.Mailbox.Keep(who.GID, word) // a long one is read on
			}
			turn.Met(word, written)
		})
		failpoint.Hit("mcp.ask.answered")
		return AskResult{
			State: StateAnswered, Answer: string(word.Body), From: turn.To.Address(), MsgID: word.MsgID,
			TraceID: word.TraceID, TurnID: word.TurnID, Held: c.Mailbox.Held(who.GID),
		}, nil
	case <-patience.C:
		return AskResult{}, fault.New(fault.Expired, "%s did not answer within %d seconds; an answer that comes later is not delivered. "+
			"Decide by yourself and say in your reply what you assumed", turn.To.Address(), int(a.waitFor().Seconds()))
	case <-Draining(ctx):
		return AskResult{}, fault.Wrap(errStopping, fault.Internal, "bridged is stopping, and the question ends with it. Ask again in some seconds")
	case <-ctx.Done():
		return AskResult{}, ctx.Err()
	}
}

// askedAbout is the brief that a question is about: the one open, or of several
// the newest of the one who is asked; none if somebody else is.
func (c *Conversation) askedAbout(who Caller, to string) (store.Brief, error) {
	if to == "" {
		brief, err := c.Mailbox.BriefToAnswer(who.GID, "")
		if fault.Is(err, fault.BadRequest) {
			return brief, fault.New(fault.BadRequest, "it is not clear whom you ask: you have no brief open, or several. Say in \"to\" who it is; bridge_whoami lists your open briefs with their senders")
		}
		return brief, err
	}
	target, err := c.Fleet.Resolve(to)
	if err != nil {
		return store.Brief{}, nil // Ask says it better: it knows whether others can be reached
	}
	open, err := c.Mailbox.OpenBriefs(who.GID)
	if err != nil {
		return store.Brief{}, err
	}
	var about store.Brief
	for _, b := range open {
		if b.Sender == target.GID {
			about = b
		}
	}
	return about, nil
}

// unanswered says what a question came to without an answer.
func unanswered(word *envelope.Envelope, to string) error {
	switch {
	case word.Kind == envelope.NoWaiter:
		return fault.New(fault.NoWaiter, "%s is not listening now, so nobody was asked. Do not ask again at once: decide by yourself and say in your reply what you assumed, or answer your brief with the question", to)
	case word.Kind == envelope.Abandoned:
		return fault.New(fault.Abandoned, "the question will not be answered: %s has ended, or you have. Go on without it", to)
	case fault.Code(word.Reason) == fault.NotAllowed:
		return fault.New(fault.NotAllowed, "the host of %s takes no questions from yours; go on without an answer", to)
	case fault.Code(word.Reason) == fault.RateLimited:
		return fault.New(fault.RateLimited, "too many questions wait for an answer of %s, of yours or of others, so nobody was asked; decide by yourself and say in your reply what you assumed", to)
	}
	return fault.New(fault.Code(word.Reason), "%s could not be asked; go on without an answer", to)
}

// Answer answers a question and waits as long as the caller wants for the reply
// to the brief that it was about.
func (c *Conversation) Answer(ctx context.Context, a AnswerArgs) (SendResult, error) {
	who, err := caller(ctx)
	if err != nil {
		return SendResult{}, err
	}
	ask, left, err := c.Mailbox.TurnToAnswer(who.GID, a.TurnID)
	if err != nil {
		return SendResult{}, err
	}
	w := sendWait{c: c, who: who, wait: a.waitFor(), started: time.Now()}
	defer w.close()
	if ask.InReplyTo == "" {
		w.wait = 0 // it was asked about nothing that could be replied to
	}
	if w.wait > 0 {
		w.register(ask.InReplyTo, ask.From)
	}
	if w.err != nil {
		c.Mailbox.Answered(a.TurnID, "")
		return SendResult{}, w.err
	}
	w.sent, err = c.Sender.AnswerTurn(ctx, outbox.TurnAnswer{Ask: ask, Left: left, Content: []byte(a.Content)})
	switch {
	case err == nil || fault.Is(err, fault.Unconfirmed):
		c.Mailbox.Answered(a.TurnID, "it was answered")
	case fault.Is(err, fault.TooLate):
		c.Mailbox.Answered(a.TurnID, "the agent had stopped waiting")
	default:
		c.Mailbox.Answered(a.TurnID, "") // nothing has left
	}
	if err != nil {
		return SendResult{}, err
	}
	if w.wait == 0 {
		r := w.result()
		r.State, r.TurnID = StateInjected, a.TurnID
		r.Note = "The agent has your answer and goes on. Its reply will come as mail: fetch it with bridge_poll."
		return r, nil
	}
	w.last = outbox.Progress{Kind: envelope.Injected}
	return w.outcome(ctx)
}

// questions is where a wait takes questions from; nil, and so never ready, of
// one that takes none.
func (w *sendWait) questions() <-chan *inbox.Question {
	if w.ears == nil {
		return nil
	}
	return w.ears.C()
}

// asked ends the wait with a question of the one who works on the message.
func (w *sendWait) asked(ctx context.Context, q *inbox.Question) (SendResult, error) {
	OnWritten(ctx, q.Settle)
	m := question(q)
	r := w.result()
	r.State, r.TurnID, r.Question = StateAsk, q.Ask.TurnID, &m
	r.Note = urge(q.Ask)
	return r, nil
}

// question is an ASK as its reader gets it.
func question(q *inbox.Question) Message {
	m := message(inbox.Mail{Envelope: q.Ask, FromName: q.FromName})
	m.TurnID, m.Note = q.Ask.TurnID, urge(q.Ask)
	failpoint.Hit("mcp.question.offered")
	return m
}

// urge says how a question is answered, and for how long it can be.
func urge(ask *envelope.Envelope) string {
	return "The agent is blocked until you answer: call bridge_answer with turn_id " + ask.TurnID + ". It waits until " +
		stamp(ask.Expiry()) + "; a bridge_send does not answer it."
}

// remind tells a caller who sends something to an agent that waits for his
// answer: the message will not be read before.
func (w *sendWait) remind(r *SendResult) {
	ask, found := w.c.Mailbox.AskedBy(w.who.GID, w.sent.To.GID)
	if !found {
		return
	}
	r.TurnID = ask.TurnID
	r.Note = r.To + " waits for your answer to its question (turn_id " + ask.TurnID + ") and reads this message only after that: " +
		"answer with bridge_answer, which is something else than this message. " + r.Note
}
