package mcp

import (
	"context"

	"fleetd/fault"
)

// DeadLetters is what the host's own user may ask about the dead letters of the
// fleet, over the local socket (design §3, §6). They lie on the broker, so every
// host sees the same; none is lost or moved by being looked at.
type DeadLetters interface {
	ListDeadLetters(ctx context.Context, a ListDeadLettersArgs) (ListDeadLettersResult, error)
	ShowDeadLetter(ctx context.Context, a ShowDeadLetterArgs) (ShowDeadLetterResult, error)
	RedeliverDeadLetters(ctx context.Context, a RedeliverDeadLettersArgs) (RedeliverDeadLettersResult, error)
	PurgeDeadLetters(ctx context.Context, a PurgeDeadLettersArgs) (PurgeDeadLettersResult, error)
}

// DeadLettersSeconds bounds one call: what is left to do then is said in its
// result.
const DeadLettersSeconds = 60

// ListDeadLettersArgs pick what is listed; empty ones pick all.
type ListDeadLettersArgs struct {
	Reason           string `json:"reason,omitempty"` // of the newest death: expired, rejected, maxlen …
	Queue            string `json:"queue,omitempty"`  // it died in: the whole name, or the gid of an inbox
	OlderThanSeconds int    `json:"older_than_seconds,omitempty"`
	Limit            int    `json:"limit,omitempty"` // letters; 0: 100
}

// ListDeadLettersResult is the head of the queue, the oldest first.
type ListDeadLettersResult struct {
	Letters []DeadLetter `json:"letters"`
	Total   int          `json:"total"`          // in the queue, whatever was asked for
	Note    string       `json:"note,omitempty"` // that there is more
}

// DeadLetter is one message that died unread. From, to and all else it says of
// itself is only true of a verified one.
type DeadLetter struct {
	MsgID     string `json:"msg_id"`
	TraceID   string `json:"trace_id"`
	Kind      string `json:"kind"`
	From      string `json:"from"` // name@host, or the gid where no name is known
	FromID    string `json:"from_id"`
	To        string `json:"to"`
	ToID      string `json:"to_id"`
	Signer    string `json:"signer"`
	Reason    string `json:"reason"` // the broker's word or a forger's: a hint
	Queue     string `json:"queue"`  // likewise
	DiedAt    string `json:"died_at,omitempty"`
	SentAt    string `json:"sent_at,omitempty"`
	ExpiresAt string `json:"expires_at,omitempty"`
	Expired   bool   `json:"expired"`
	Bytes     int    `json:"bytes"`
	Own       bool   `json:"own"`               // signed by this host
	Verified  bool   `json:"verified"`          // its signature and its sender's home are good
	Problem   string `json:"problem,omitempty"` // why not, in one word
}

// ShowDeadLetterArgs name one message.
type ShowDeadLetterArgs struct {
	MsgID string `json:"msg_id"`
	Body  bool   `json:"body,omitempty"` // show what it says, too
}

// ShowDeadLetterResult holds every letter with that id: a message may have died
// more than once, and anyone can put a forged one there.
type ShowDeadLetterResult struct {
	Letters []DeadLetterDetail `json:"letters"`
}

// DeadLetterDetail is everything about one letter.
type DeadLetterDetail struct {
	Letter       DeadLetter        `json:"letter"`
	RoutingKey   string            `json:"routing_key"`
	Headers      map[string]string `json:"headers"`                 // those of design §4, without the signature
	OtherHeaders []string          `json:"other_headers,omitempty"` // names alone
	Deaths       []Death           `json:"deaths,omitempty"`        // the newest first
	Detail       string            `json:"detail,omitempty"`        // why it is not verified, in words
	Body         string            `json:"body,omitempty"`
	BodyBase64   []byte            `json:"body_base64,omitempty"` // of one that is no text
	BodyCut      bool              `json:"body_cut,omitempty"`    // it is longer than what is shown
}

// Death is one time that a letter died, by the broker's word.
type Death struct {
	Queue  string `json:"queue"`
	Reason string `json:"reason"`
	Count  int    `json:"count"`
	At     string `json:"at,omitempty"`
}

// RedeliverDeadLettersArgs name one message, or pick several; several only with
// All or at least one of the others.
type RedeliverDeadLettersArgs struct {
	MsgID            string `json:"msg_id,omitempty"`
	Reason           string `json:"reason,omitempty"`
	Queue            string `json:"queue,omitempty"`
	OlderThanSeconds int    `json:"older_than_seconds,omitempty"`
	All              bool   `json:"all,omitempty"`
	Anew             bool   `json:"anew,omitempty"` // expired briefs of our own, as new messages
	QueueIfOffline   bool   `json:"queue_if_offline,omitempty"`
}

// The states of a Redelivery.
const (
	StateRedelivered = "redelivered" // in its recipient's inbox, as it was
	StateSentAnew    = "sent_anew"
	StateStays       = "stays"
)

// RedeliverDeadLettersResult tells of each letter that was picked.
type RedeliverDeadLettersResult struct {
	Letters     []Redelivery `json:"letters"`
	Redelivered int          `json:"redelivered"`    // as they were or anew; no longer dead
	Stay        int          `json:"stay"`           // refused: see each
	Note        string       `json:"note,omitempty"` // that the work is not done, and why
}

// Redelivery is what became of one letter.
type Redelivery struct {
	MsgID    string     `json:"msg_id"`
	TraceID  string     `json:"trace_id"`
	To       string     `json:"to"`
	State    string     `json:"state"`
	NewMsgID string     `json:"new_msg_id,omitempty"`
	Code     fault.Code `json:"code,omitempty"`   // why it stays
	Detail   string     `json:"detail,omitempty"` // the same in words
}

// PurgeDeadLettersArgs name one message, or pick several as redelivering does.
type PurgeDeadLettersArgs struct {
	MsgID            string `json:"msg_id,omitempty"`
	Reason           string `json:"reason,omitempty"`
	Queue            string `json:"queue,omitempty"`
	OlderThanSeconds int    `json:"older_than_seconds,omitempty"`
	All              bool   `json:"all,omitempty"`
}

// PurgeDeadLettersResult says how many letters are gone for good.
type PurgeDeadLettersResult struct {
	Purged int    `json:"purged"`
	Stay   int    `json:"stay"` // looked at and not picked
	Note   string `json:"note,omitempty"`
}

// deadLetterVerbs are no tools, as the other admin verbs.
func deadLetterVerbs(d DeadLetters) []verb {
	age := argument{bounded: true, max: 365 * 24 * 3600}
	several := map[string]argument{"older_than_seconds": age}
	return []verb{
		newVerb(verb{name: "dlq_list", args: map[string]argument{
			"older_than_seconds": age, "limit": {bounded: true, max: 10_000},
		}}, d.ListDeadLetters),
		newVerb(verb{name: "dlq_show"}, d.ShowDeadLetter),
		newVerb(verb{name: "dlq_redeliver", args: several}, func(ctx context.Context, a RedeliverDeadLettersArgs) (RedeliverDeadLettersResult, error) {
			if err := picked("redeliver", a.MsgID, a.Reason, a.Queue, a.OlderThanSeconds, a.All); err != nil {
				return RedeliverDeadLettersResult{}, err
			}
			return d.RedeliverDeadLetters(ctx, a)
		}),
		newVerb(verb{name: "dlq_purge", args: several}, func(ctx context.Context, a PurgeDeadLettersArgs) (PurgeDeadLettersResult, error) {
			if err := picked("purge", a.MsgID, a.Reason, a.Queue, a.OlderThanSeconds, a.All); err != nil {
				return PurgeDeadLettersResult{}, err
			}
			return d.PurgeDeadLetters(ctx, a)
		}),
	}
}

// picked insists that somebody said which letters he means.
func picked(what, msgID, reason, queue string, age int, all bool) error {
	several := reason != "" || queue != "" || age != 0 || all
	switch {
	case msgID == "" && !several:
		return fault.New(fault.BadRequest, "say which letters to %s: the id of one, a reason, a queue, an age, or all.", what)
	case msgID != "" && several:
		return fault.New(fault.BadRequest, "give either the id of one letter to %s, or what picks several.", what)
	}
	return nil
}
