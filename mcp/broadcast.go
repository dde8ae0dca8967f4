package mcp

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"fleetd/fault"
	"fleetd/inbox"
	"fleetd/outbox"
	"fleetd/store"
)

// BroadcastArgs are the arguments of bridge_broadcast.
type BroadcastArgs struct {
	Content          string `json:"content" jsonschema:"required"`
	Group            string `json:"group,omitempty"` // "": all
	WaitSeconds      int    `json:"wait_seconds,omitempty"`
	ExpiresInSeconds int    `json:"expires_in_seconds,omitempty"` // 0: 900
	IdempotencyKey   string `json:"idempotency_key,omitempty"`
}

func (a BroadcastArgs) waitFor() time.Duration { return time.Duration(a.WaitSeconds) * time.Second }

// BroadcastResult is the answer of bridge_broadcast: how the message stands at
// each recipient, those that it did not reach first.
type BroadcastResult struct {
	MsgID      string      `json:"msg_id"`
	TraceID    string      `json:"trace_id"`
	Group      string      `json:"group"`
	Recipients []Recipient `json:"recipients"`
	Summary    string      `json:"summary"`         // how many are in which state
	Expires    string      `json:"expires"`         // RFC 3339: until when it may still be injected
	Note       string      `json:"note,omitempty"`  // what to do next
	Error      *Trouble    `json:"error,omitempty"` // why members on other hosts were not reached
	Held       int         `json:"held"`
}

// Recipient is one recipient of a broadcast.
type Recipient struct {
	To     string `json:"to"` // name@host
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"` // error code, or why it is deferred
}

// Trouble is a failure of a part of a call.
type Trouble struct {
	Code    fault.Code `json:"code"`
	Message string     `json:"message"`
}

// The states that a recipient of a broadcast can be in besides those of a send.
const (
	StateFailed      = "failed"      // it will not get it; Reason says why
	StateInDoubt     = "in_doubt"    // it may have got it
	StateNotSent     = "not_sent"    // nothing was sent to it; Reason says why
	StateUnconfirmed = "unconfirmed" // it was sent, and nothing was heard yet
)

func (r *BroadcastResult) fit(over func() int) {
	cutList(&r.Recipients, &r.Note, "recipients", over)
}

var broadcastVerb = verb{
	name:  "broadcast",
	title: "Send a message to a group",
	doc: `Send one message to all members of a group, on all hosts; group "all" is every worker. You get no copy yourself. Members that are not workers find it in their mail. Use it only for what everybody has to know: each worker that gets it takes it as a task.

"recipients" says for each member how it stands: injected (the agent has it), deferred (it waits until the agent is free), queued (it lies in the inbox), failed or not_sent with the reason, in_doubt or unconfirmed (it may have arrived). Answers come one by one as ordinary replies: fetch them with bridge_poll. What becomes of the deferred ones you are told by mail.

With wait_seconds it waits until all have it. If some are not_sent, repeat the call with the same idempotency_key before it expires: it reaches only those that were not reached; without the key everybody would get it twice. UNKNOWN_RECIPIENT means that nobody is in the group.`,
	args: map[string]argument{
		"content":            {doc: "The message, plain text."},
		"group":              {doc: "The group, as bridge_roster shows it. Absent: all workers.", def: "all"},
		"wait_seconds":       {doc: waitDoc, bounded: true, max: MaxWaitSeconds, def: 0},
		"expires_in_seconds": {doc: "After so many seconds it is given up where it was not delivered, and you are told. At most 7 days.", bounded: true, max: maxTTLSeconds, def: 900},
		"idempotency_key":    {doc: keyDoc},
	},
	openWorld: true,
}

// Broadcast sends to a group and waits as the caller wants for it to arrive.
func (c *Conversation) Broadcast(ctx context.Context, a BroadcastArgs) (BroadcastResult, error) {
	who, err := caller(ctx)
	if err != nil {
		return BroadcastResult{}, err
	}
	trace, hops, err := c.because(who)
	if err != nil {
		return BroadcastResult{}, err
	}
	a.Group = cmp.Or(a.Group, "all")
	w := spreadWait{c: c, who: who, args: a, started: time.Now()}
	defer w.close()
	w.spread, err = c.Sender.Broadcast(ctx, outbox.Broadcast{
		From: who.GID, Group: a.Group, Content: []byte(a.Content), Life: time.Duration(a.ExpiresInSeconds) * time.Second,
		Key: a.IdempotencyKey, Hops: hops, TraceID: trace, Leaving: w.register,
	})
	if err != nil {
		return BroadcastResult{}, err
	}
	return w.outcome(ctx)
}

// spreadWait is one open broadcast.
type spreadWait struct {
	c       *Conversation
	who     Caller
	args    BroadcastArgs
	started time.Time
	spread  outbox.Spread
	mail    *inbox.Waiter // takes what became of it; answers are left for polls
	watch   *outbox.Watch
	err     error
}

func (w *spreadWait) register(msgID string) {
	w.watch = w.c.Sender.Watch(msgID)
	w.listen(msgID)
}

// reportsAtOnce bounds the reports that one look takes.
const reportsAtOnce = 256

func (w *spreadWait) listen(msgID string) {
	w.mail, w.err = w.c.Mailbox.Wait(w.who.GID, inbox.Filter{InReplyTo: msgID, Reports: true}, inbox.Limit{Max: reportsAtOnce})
}

func (w *spreadWait) close() {
	if w.mail != nil {
		w.mail.Close()
	}
	if w.watch != nil {
		w.watch.Close()
	}
}

// outcome waits until every recipient has it or never will, as long as the
// caller wants; without wait_seconds until something is known of every one.
func (w *spreadWait) outcome(ctx context.Context) (BroadcastResult, error) {
	wait := cmp.Or(w.args.waitFor(), unconfirmedAfter)
	patience := time.NewTimer(wait - time.Since(w.started))
	defer patience.Stop()
	look := time.NewTicker(lookAgain)
	defer look.Stop()
	for {
		if w.err != nil {
			return BroadcastResult{}, w.err
		}
		to, err := w.c.Sender.Shares(w.spread)
		if err != nil {
			return BroadcastResult{}, err
		}
		if w.enough(to) {
			return w.result(to), nil
		}
		select {
		case batch := <-w.mail.C():
			if _, err := batch.Messages(); err != nil {
				batch.Settle(false)
				return BroadcastResult{}, err
			}
			OnWritten(ctx, batch.Settle) // the result says the same
			w.listen(w.spread.MsgID)
		case <-w.watch.C():
		case <-look.C: // a main that fetches its mail tells nobody
		case <-patience.C:
			return w.result(to), nil
		case <-Draining(ctx):
			return BroadcastResult{}, Stopping()
		case <-ctx.Done():
			return BroadcastResult{}, ctx.Err()
		}
	}
}

// lookAgain is how often a waiting broadcast looks for what nobody tells.
const lookAgain = time.Second

func (w *spreadWait) enough(to []outbox.Share) bool {
	for _, s := range to {
		switch s.Outcome {
		case "", outbox.ShareInDoubt:
			return false
		case store.Waiting:
			if w.args.WaitSeconds > 0 {
				return false
			}
		}
	}
	return true
}

// stateOf is how a share is told.
func stateOf(s outbox.Share) string {
	switch s.Outcome {
	case store.Injected:
		return StateInjected
	case store.Waiting:
		return StateDeferred
	case outbox.ShareQueued:
		return StateQueued
	case outbox.ShareInDoubt:
		return StateInDoubt
	case outbox.ShareNotSent:
		return StateNotSent
	case store.Failed:
		return StateFailed
	}
	return StateUnconfirmed
}

// sayFirst orders recipients: what a reader has to act on comes first, and is
// not cut from a long list.
var sayFirst = []string{StateNotSent, StateFailed, StateInDoubt, StateUnconfirmed, StateDeferred, StateQueued, StateInjected}

func (w *spreadWait) result(to []outbox.Share) BroadcastResult {
	r := BroadcastResult{
		MsgID: w.spread.MsgID, TraceID: w.spread.TraceID, Group: w.args.Group, Recipients: []Recipient{},
		Expires: stamp(w.spread.ExpiresAt), Held: w.c.Mailbox.Held(w.who.GID),
	}
	count := map[string]int{}
	for _, s := range to {
		one := Recipient{To: s.Address(), State: stateOf(s), Reason: s.Reason}
		count[one.State]++
		r.Recipients = append(r.Recipients, one)
	}
	slices.SortStableFunc(r.Recipients, func(a, b Recipient) int {
		return slices.Index(sayFirst, a.State) - slices.Index(sayFirst, b.State)
	})
	var parts []string
	for _, state := range sayFirst {
		if n := count[state]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, state))
		}
	}
	r.Summary = fmt.Sprintf("%d recipients: %s", len(to), strings.Join(parts, ", "))
	if w.spread.Away != nil {
		f := fault.From(w.spread.Away)
		r.Error = &Trouble{Code: f.Code, Message: f.Sentence}
	}
	switch {
	case count[StateNotSent] > 0 && w.c.Now().After(w.spread.ExpiresAt):
		r.Note = "The message has expired, and its idempotency_key reaches nobody any more. If it still matters, send it to the missing ones with bridge_send, or broadcast it under a new key: then everybody gets it."
	case count[StateNotSent] > 0 && w.args.IdempotencyKey != "":
		r.Note = "Not everybody was reached. Repeat the call with the same idempotency_key later: it goes only to those that were not."
	case count[StateNotSent] > 0:
		r.Note = "Not everybody was reached. Do not repeat the broadcast, or the others get it twice: send to the missing ones with bridge_send."
	}
	return r
}
