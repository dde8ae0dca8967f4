package mcp

import (
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

// unconfirmedAfter is how long a send waits to hear what became of it before
// it says that it does not know (design §5).
const unconfirmedAfter = 10 * time.Second

// Send sends and waits as long as the caller wants for the answer.
func (c *Conversation) Send(ctx context.Context, a SendArgs) (SendResult, error) {
	who, err := caller(ctx)
	if err != nil {
		return SendResult{}, err
	}
	w := sendWait{c: c, who: who, wait: time.Duration(a.WaitSeconds) * time.Second, started: time.Now()}
	defer w.close()
	trace, hops, err := c.because(who)
	if err != nil {
		return SendResult{}, err
	}
	w.sent, err = c.Sender.Send(ctx, outbox.Request{
		TraceID: trace, Hops: hops,
		From: who.GID, To: a.To, Content: []byte(a.Content), Life: time.Duration(a.ExpiresInSeconds) * time.Second,
		Key: a.IdempotencyKey, QueueIfOffline: a.QueueIfOffline, Leaving: w.register,
	})
	if err != nil {
		return SendResult{}, err
	}
	failpoint.Hit("mcp.send.accepted")
	if w.err != nil {
		return SendResult{}, w.err
	}
	if _, waits := c.Mailbox.AskedBy(who.GID, w.sent.To.GID); waits {
		w.wait = 0 // who waits for an answer of the caller does not reply meanwhile
	}
	r, err := w.outcome(ctx)
	failpoint.Hit("mcp.send.answered")
	return r, err
}

// because is the flow that a worker's message continues: that of the brief it
// works on, where there is one and no other (design §4). With several open, as a
// worker has that never answers, with none, as one has that answers first, and of
// a main it begins a flow of its own, but counts on from the brief of the last
// hour that the sender had to do with last, so that those who write because of
// each other are stopped. What answers a message of its own does not count: who
// hands out one task after the other is no loop.
func (c *Conversation) because(who Caller) (trace string, hops int, err error) {
	if who.Kind != store.Worker {
		if last, found := c.Mailbox.GivenLast(who.GID); found {
			return "", last.Hops + 1, nil
		}
		return "", 0, nil
	}
	last, found, err := c.Mailbox.BriefLast(who.GID)
	if err != nil || !found {
		return "", 0, err
	}
	open, err := c.Mailbox.OpenBriefs(who.GID)
	if len(open) == 1 {
		trace = open[0].TraceID
	}
	return trace, last.Hops + 1, err
}

// sendWait is one open send: its waiter among the caller's mail, and its watch
// over the message's progress.
type sendWait struct {
	c       *Conversation
	who     Caller
	wait    time.Duration
	started time.Time
	sent    outbox.Sent
	mail    *inbox.Waiter
	ears    *inbox.Ears // nil: no question is taken
	watch   *outbox.Watch
	last    outbox.Progress
	err     error
}

// register is called before the message leaves, so that no answer is too early.
// Only the one whom it goes to can answer it: others may have seen its id.
func (w *sendWait) register(msgID, to string) {
	// Who does not wait for the answer does not get it here, but as mail.
	filter := inbox.Filter{From: to, InReplyTo: msgID, Reports: w.wait == 0}
	w.mail, w.err = w.c.Mailbox.Wait(w.who.GID, filter, inbox.Limit{Max: 1})
	w.watch = w.c.Sender.Watch(msgID)
	if w.wait > 0 && w.ears == nil {
		w.ears = w.c.Mailbox.Listen(w.who.GID, msgID, to)
	}
}

func (w *sendWait) close() {
	if w.mail != nil {
		w.mail.Close()
	}
	if w.watch != nil {
		w.watch.Close()
	}
	if w.ears != nil {
		w.ears.Close()
	}
}

// outcome waits until there is something to tell.
func (w *sendWait) outcome(ctx context.Context) (SendResult, error) {
	toMain := w.sent.To.Kind != store.Worker
	away := w.sent.To.HostState == roster.Offline || w.sent.To.HostState == roster.Unknown
	if w.sent.Repeated {
		if r, answered := w.answered(); answered {
			return r, nil
		}
		w.seen()
	}
	known := w.sent.Outcome == store.Failed // under its key, by an earlier call
	if known || w.wait == 0 && (toMain || away && !w.sent.To.Local || w.last.Kind != "") {
		return w.now(ctx)
	}
	silence := time.NewTimer(unconfirmedAfter - time.Since(w.started))
	defer silence.Stop()
	patience := time.NewTimer(w.wait - time.Since(w.started))
	defer patience.Stop()
	var look <-chan time.Time // an answer is being handed to an earlier call
	if w.sent.Repeated {
		t := time.NewTicker(lookAgain)
		defer t.Stop()
		look = t.C
	}
	quiet := false // nobody will tell more soon
	for {
		select {
		case batch := <-w.mail.C():
			return w.mailed(ctx, batch)
		case q := <-w.questions():
			return w.asked(ctx, q)
		case p := <-w.watch.C():
			if w.last.Kind != envelope.Injected { // words may come out of order
				w.last = p
			}
			if time.Since(w.started) >= w.wait {
				return w.now(ctx)
			}
		case <-look:
			if r, answered := w.answered(); answered {
				return r, nil
			}
		case <-silence.C:
			quiet = true
			if time.Since(w.started) >= w.wait {
				return w.now(ctx)
			}
		case <-patience.C:
			if quiet || w.last.Kind != "" || toMain || away {
				return w.now(ctx)
			}
		case <-Draining(ctx):
			return SendResult{}, Stopping()
		case <-ctx.Done():
			return SendResult{}, ctx.Err()
		}
	}
}

// seen sets what is known of a message that a repeated call finds sent.
func (w *sendWait) seen() {
	switch {
	case w.sent.Outcome.Arrived():
		w.last = outbox.Progress{Kind: envelope.Injected}
	case w.sent.Outcome == store.Waiting:
		w.last = outbox.Progress{Kind: envelope.Deferred, Reason: w.sent.Reason}
	}
}

// now tells how things stand.
func (w *sendWait) now(ctx context.Context) (SendResult, error) {
	left := w.watch.Close()
	if left.Kind != "" && w.last.Kind != envelope.Injected {
		w.last = left
	}
	w.watch = nil
	select { // the answer may have come this very moment
	case batch := <-w.mail.C():
		return w.mailed(ctx, batch)
	case q := <-w.questions():
		return w.asked(ctx, q)
	default:
	}
	if w.sent.Repeated {
		if r, answered := w.answered(); answered {
			return r, nil
		}
	}
	r := w.result()
	until := w.sent.ExpiresAt.UTC().Format(time.RFC3339)
	switch {
	case w.sent.Outcome == store.Failed:
		return SendResult{}, fault.New(fault.Code(w.sent.Reason), "the message %s was sent before under this key, and failed; use a new key to send it anew", w.sent.MsgID)
	case w.sent.To.Kind != store.Worker && w.sent.Outcome.Arrived():
		r.State, r.Note = StateInjected, r.To+" has fetched it. An answer will come as mail: fetch it with bridge_poll."
	case w.sent.To.Kind != store.Worker:
		r.State, r.Note = StateQueued, "It lies in the inbox of "+r.To+", who has to fetch it."
		if w.wait > 0 {
			r.State, r.Note = StatePending, "No answer yet. It will come as mail: fetch it with bridge_poll. Do not send again."
		}
	case w.last.Kind == envelope.Injected && w.wait > 0:
		r.State, r.Note = StatePending, "The agent has it and has not answered yet. The answer will come as mail: fetch it with bridge_poll. Do not send again."
	case w.last.Kind == envelope.Injected:
		r.State, r.Note = StateInjected, "The agent has it. Its answer will come as mail: fetch it with bridge_poll."
	case w.last.Kind == envelope.Deferred:
		r.State, r.Reason, r.Expires = StateDeferred, w.last.Reason, until
		r.Note = "Accepted; it goes in as soon as the agent can take it, until " + until + ". Do not send again."
	case w.sent.To.HostState == roster.Offline || w.sent.To.HostState == roster.Unknown && !w.sent.To.Local:
		r.State, r.Expires = StateQueued, until
		r.Note = "Its host is away; it lies in the inbox until " + until + "."
	default:
		return SendResult{}, fault.New(fault.Unconfirmed, "the message %s was accepted, and nothing was heard of it yet; it may still arrive until %s. "+
			"Do not send it again: you will be told what became of it, or look with bridge_trace %s", w.sent.MsgID, until, w.sent.TraceID)
	}
	if r.State == StatePending {
		if _, r.WindowFull = w.c.Mailbox.More(w.who.GID); r.WindowFull {
			r.Note += " It may hide behind the mail that is held for you: fetch that, too."
		}
	}
	w.remind(&r)
	return r, nil
}

// answered is the result for a call that repeats one whose answer was handed
// over within the last hour.
func (w *sendWait) answered() (SendResult, bool) {
	for _, got := range w.c.Mailbox.Recently(w.who.GID) {
		if got.Kind == envelope.Reply && got.InReplyTo == w.sent.MsgID && got.From == w.sent.To.GID {
			reply := message(inbox.Mail{Envelope: got.Envelope, FromName: got.FromName, Redelivered: true})
			r := w.result()
			r.State, r.Reply = StateReplied, &reply
			r.Note = "It was answered before, and the answer handed over; this is it again."
			return r, true
		}
	}
	return SendResult{}, false
}

func (w *sendWait) result() SendResult {
	return SendResult{
		MsgID: w.sent.MsgID, TraceID: w.sent.TraceID, To: w.sent.To.Address(), Held: w.c.Mailbox.Held(w.who.GID),
	}
}

// mailed ends the wait with a piece of mail: the answer, or what became of the
// message instead. It is drained once the result is written.
func (w *sendWait) mailed(ctx context.Context, batch *inbox.Batch) (SendResult, error) {
	mails, err := batch.Messages()
	if err != nil {
		batch.Settle(false)
		return SendResult{}, err
	}
	OnWritten(ctx, batch.Settle)
	m := mails[0]
	r := w.result()
	switch m.Kind {
	case envelope.Reply, envelope.Send:
		reply := message(m)
		r.State, r.Reply = StateReplied, &reply
		return r, nil
	case envelope.Injected:
		w.last = outbox.Progress{Kind: envelope.Injected}
		r.State, r.Note = StateInjected, inbox.Sentence(m.Envelope, m.FromName)
		return r, nil
	case envelope.Abandoned:
		return r, fault.New(fault.Abandoned, "%s", inbox.Sentence(m.Envelope, m.FromName))
	}
	return r, fault.New(fault.Code(m.Reason), "%s", inbox.Sentence(m.Envelope, m.FromName))
}
