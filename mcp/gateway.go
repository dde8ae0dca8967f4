package mcp

import (
	"context"

	"fleetd/store"
)

// Gateway is what the tools, the REST paths and the command line ask of the
// daemon: one method a verb. Two things fulfil it: the daemon's own
// Conversation, and api.Client, which asks a running daemon over its local
// socket (so that `bridged mcp` offers the same tools over stdio).
//
// The caller is in the context (WithCaller); it is never an argument
// (design §11). Every error is a *fault.Error.
type Gateway interface {
	Send(ctx context.Context, a SendArgs) (SendResult, error)
	Read(ctx context.Context, a ReadArgs) (ReadResult, error)
	Poll(ctx context.Context, a PollArgs) (PollResult, error)
	Reply(ctx context.Context, a ReplyArgs) (ReplyResult, error)
	Ask(ctx context.Context, a AskArgs) (AskResult, error)
	Answer(ctx context.Context, a AnswerArgs) (SendResult, error)
	Broadcast(ctx context.Context, a BroadcastArgs) (BroadcastResult, error)
	Spawn(ctx context.Context, a SpawnArgs) (SpawnResult, error)
	Stop(ctx context.Context, a StopArgs) (StopResult, error)
	Roster(ctx context.Context, a RosterArgs) (RosterResult, error)
	Trace(ctx context.Context, a TraceArgs) (TraceResult, error)
	Whoami(ctx context.Context) (WhoamiResult, error)
}

// Admin is what only the host's own user may ask, over the local socket.
type Admin interface {
	Register(ctx context.Context, a RegisterArgs) (RegisterResult, error)
	Unregister(ctx context.Context, a UnregisterArgs) (UnregisterResult, error)
	Groups(ctx context.Context, a GroupsArgs) (GroupsResult, error)
	Info(ctx context.Context) (InfoResult, error)
}

// SendArgs are the arguments of bridge_send.
type SendArgs struct {
	To               string `json:"to" jsonschema:"required"`
	Content          string `json:"content" jsonschema:"required"`
	WaitSeconds      int    `json:"wait_seconds,omitempty"`
	ExpiresInSeconds int    `json:"expires_in_seconds,omitempty"` // 0: 900
	IdempotencyKey   string `json:"idempotency_key,omitempty"`
	QueueIfOffline   bool   `json:"queue_if_offline,omitempty"`
}

// The states a send can be in (design §11). A state never claims more than was
// observed.
const (
	StateInjected = "injected"
	StateDeferred = "deferred"
	StateQueued   = "queued"
	StatePending  = "pending"
	StateReplied  = "replied"
	StateAsk      = "ask"
)

// The states of an end.
const (
	StateStopped  = "stopped"  // nothing is left of it
	StateStopping = "stopping" // on record, and going on by itself
)

// SendResult is the answer of bridge_send.
type SendResult struct {
	State   string   `json:"state"`
	MsgID   string   `json:"msg_id"`
	TraceID string   `json:"trace_id"`
	To      string   `json:"to"`                // name@host the address resolved to
	Reason  string   `json:"reason,omitempty"`  // why it is deferred
	Note    string   `json:"note,omitempty"`    // one sentence: what the state means and what to do next
	Expires string   `json:"expires,omitempty"` // RFC 3339: until when it may still be injected
	Reply   *Message `json:"reply,omitempty"`
	// Question of the agent, in state ask, and the turn in which bridge_answer
	// answers it. TurnID alone: that question is still to be answered.
	Question *Message `json:"question,omitempty"`
	TurnID   string   `json:"turn_id,omitempty"`
	Held     int      `json:"held"` // mail waiting for the caller
	// WindowFull: the answer may hide behind what is held.
	WindowFull bool `json:"window_full,omitempty"`
}

// ReadArgs are the arguments of bridge_read.
type ReadArgs struct {
	MsgID  string `json:"msg_id" jsonschema:"required"`
	Offset int    `json:"offset,omitempty"` // bytes, as next_offset of the part before
}

// ReadResult is one part of a message's content.
type ReadResult struct {
	MsgID      string `json:"msg_id"`
	TraceID    string `json:"trace_id"`
	From       string `json:"from"`
	Kind       string `json:"kind"`
	Content    string `json:"content"` // cut at a character boundary
	Offset     int    `json:"offset"`
	Total      int    `json:"total"`                 // bytes in all
	NextOffset int    `json:"next_offset,omitempty"` // absent: this was the last part
	Held       int    `json:"held"`
}

// PollArgs are the arguments of bridge_poll.
type PollArgs struct {
	From        string `json:"from,omitempty"`
	WaitSeconds int    `json:"wait_seconds,omitempty"`
	Max         int    `json:"max,omitempty"` // 0: 20
}

// PollResult is a batch of mail. It counts as drained once the response that
// carries it was written to the client without error (design §6).
type PollResult struct {
	Messages   []Message `json:"messages"`
	Remaining  int       `json:"remaining"`             // held here and ready on the broker
	WindowFull bool      `json:"window_full,omitempty"` // more may hide behind what is held
	Held       int       `json:"held"`
	Note       string    `json:"note,omitempty"`
}

// Message is one piece of mail as its reader gets it.
type Message struct {
	MsgID       string `json:"msg_id"`
	TraceID     string `json:"trace_id"`
	Kind        string `json:"kind"` // SEND, REPLY, ASK, FAILED, ABANDONED, INJECTED …
	From        string `json:"from"` // name@host, or the gid where no name is known
	FromID      string `json:"from_id"`
	Content     string `json:"content,omitempty"`
	InReplyTo   string `json:"in_reply_to,omitempty"`
	TurnID      string `json:"turn_id,omitempty"` // of an ASK: answer it with bridge_answer
	Reason      string `json:"reason,omitempty"`  // error code of a notice
	Note        string `json:"note,omitempty"`    // a notice in words
	SentAt      string `json:"sent_at"`           // RFC 3339, by the sender's clock
	Redelivered bool   `json:"redelivered,omitempty"`
	// NextOffset is set when Content is only the beginning: fetch the rest with
	// bridge_read from there.
	NextOffset int `json:"next_offset,omitempty"`
	Total      int `json:"total,omitempty"` // bytes in all, where cut
}

// ReplyArgs are the arguments of bridge_reply.
type ReplyArgs struct {
	Content        string `json:"content" jsonschema:"required"`
	InReplyTo      string `json:"in_reply_to,omitempty"`
	IdempotencyKey string `json:"idempotency_key,omitempty"`
}

// ReplyResult is the answer of bridge_reply.
type ReplyResult struct {
	State     string `json:"state"` // queued: it lies in the durable inbox of the one who asked
	MsgID     string `json:"msg_id"`
	TraceID   string `json:"trace_id"`
	InReplyTo string `json:"in_reply_to"`
	To        string `json:"to"`
	Held      int    `json:"held"`
}

// RosterArgs filter bridge_roster; an empty one filters nothing.
type RosterArgs struct {
	Host   string           `json:"host,omitempty"`
	Kind   store.EntityKind `json:"kind,omitempty"`
	Group  string           `json:"group,omitempty"`
	Status string           `json:"status,omitempty"`
}

// RosterResult is the fleet as this host sees it.
type RosterResult struct {
	Self     string         `json:"self"`   // this host
	Broker   string         `json:"broker"` // none, connected, connecting, blocked
	Reason   string         `json:"reason,omitempty"`
	ViewAge  float64        `json:"view_age_seconds"` // how old what is said of other hosts may be
	Hosts    []RosterHost   `json:"hosts"`
	Entities []RosterEntity `json:"entities"`
	Held     int            `json:"held"`
	Note     string         `json:"note,omitempty"` // what was left out, and how to see it
}

// RosterHost is one gateway. State is online, unknown or offline.
type RosterHost struct {
	Host       string  `json:"host"`
	State      string  `json:"state"`
	AgeSeconds float64 `json:"age_seconds"` // since its last sign of life, by our clock
	Entities   int     `json:"entities"`
	// Profiles are those that other hosts may ask bridge_spawn for.
	Profiles    []string `json:"profiles,omitempty"`
	ClockOffset float64  `json:"clock_offset_seconds,omitempty"`
	Note        string   `json:"note,omitempty"`
}

// RosterEntity is one agent or main.
type RosterEntity struct {
	GID      string           `json:"gid"`
	Name     string           `json:"name"`
	Host     string           `json:"host"`
	Kind     store.EntityKind `json:"kind"`
	Groups   []string         `json:"groups,omitempty"`
	Pane     string           `json:"pane,omitempty"`
	Status   string           `json:"status"` // idle, working, blocked, …; unknown or offline with its host
	Since    string           `json:"since,omitempty"`
	Progress string           `json:"progress,omitempty"` // RFC 3339: last sign of progress
	Refusing string           `json:"refusing,omitempty"` // why the gate is closed, and since when
}

// TraceArgs are the arguments of bridge_trace.
type TraceArgs struct {
	TraceID string `json:"trace_id" jsonschema:"required"`
	Fleet   bool   `json:"fleet,omitempty"` // ask the other hosts, too
}

// TraceResult is what this host, or every host that answered, saw of one flow,
// oldest first by the clock of each host.
type TraceResult struct {
	TraceID string `json:"trace_id"`
	Hops    []Hop  `json:"hops"`
	// Hosts are the other ones that are known, where the fleet was asked.
	Hosts []TraceHost `json:"hosts,omitempty"`
	Note  string      `json:"note,omitempty"` // what was left out, and who did not answer
}

// TraceHost is whether another host told of a flow.
type TraceHost struct {
	Host        string  `json:"host"`
	Answered    bool    `json:"answered"`
	Steps       int     `json:"steps"`              // that it told
	LeftOut     int     `json:"left_out,omitempty"` // older ones of its own
	Reason      string  `json:"reason,omitempty"`   // why it did not answer
	ClockOffset float64 `json:"clock_offset_seconds,omitempty"`
}

// Hop is one step of a message on one host; it never holds content.
type Hop struct {
	At      string `json:"at"` // RFC 3339 with milliseconds
	Host    string `json:"host"`
	Step    string `json:"step"`
	MsgID   string `json:"msg_id"`
	Kind    string `json:"kind"`
	Entity  string `json:"entity,omitempty"`
	Peer    string `json:"peer,omitempty"`
	Outcome string `json:"outcome,omitempty"`
	Reason  string `json:"reason,omitempty"`
}

// WhoamiResult is the caller's own identity and what waits for it.
type WhoamiResult struct {
	GID        string           `json:"gid"`
	Name       string           `json:"name"`
	Host       string           `json:"host"`
	Kind       store.EntityKind `json:"kind"`
	Groups     []string         `json:"groups,omitempty"`
	Pane       string           `json:"pane,omitempty"`
	OpenBriefs []OpenBrief      `json:"open_briefs"`
	Questions  []OpenTurn       `json:"open_questions"`
	Drained    []Drained        `json:"recently_drained"` // readable again with bridge_read for an hour
	Held       int              `json:"held"`
	Note       string           `json:"note,omitempty"` // what was left out
}

// OpenBrief is a brief the caller has been given and not answered.
type OpenBrief struct {
	MsgID string `json:"msg_id"`
	From  string `json:"from"`
	At    string `json:"at"`
	Bytes int    `json:"bytes,omitempty"` // set when it was announced and is read with bridge_read
}

// OpenTurn is a question that the caller was asked and has not answered.
type OpenTurn struct {
	TurnID string `json:"turn_id"` // answer it with bridge_answer
	MsgID  string `json:"msg_id"`  // read it again with bridge_read
	From   string `json:"from"`
	Until  string `json:"until"` // RFC 3339: the agent stops waiting then
}

// Drained is a message that was handed over lately.
type Drained struct {
	MsgID string `json:"msg_id"`
	From  string `json:"from"`
	At    string `json:"at"`
}

// RegisterArgs make or change a local entity.
type RegisterArgs struct {
	Name   string           `json:"name"`
	Kind   store.EntityKind `json:"kind"`
	Pane   string           `json:"pane,omitempty"`
	Groups []string         `json:"groups,omitempty"`
	// NewToken replaces the token of an entity that exists.
	NewToken bool `json:"new_token,omitempty"`
}

// RegisterResult carries the only copy of the token; the store keeps its hash.
type RegisterResult struct {
	GID     string           `json:"gid"`
	Name    string           `json:"name"`
	Host    string           `json:"host"`
	Kind    store.EntityKind `json:"kind"`
	Pane    string           `json:"pane,omitempty"`
	Token   string           `json:"token,omitempty"`
	Created bool             `json:"created"`
	URL     string           `json:"url"` // the MCP endpoint
}

// GroupsArgs change the groups of a local entity; all empty they show them.
type GroupsArgs struct {
	Name   string   `json:"name"`
	Add    []string `json:"add,omitempty"`
	Remove []string `json:"remove,omitempty"`
}

// GroupsResult is what an entity belongs to.
type GroupsResult struct {
	GID    string   `json:"gid"`
	Name   string   `json:"name"`
	Groups []string `json:"groups"`
}

// UnregisterArgs name a local entity.
type UnregisterArgs struct {
	Name string `json:"name"`
}

// UnregisterResult tells what became of it.
type UnregisterResult struct {
	GID   string `json:"gid"`
	State string `json:"state"`          // stopped or stopping
	Note  string `json:"note,omitempty"` // what is waited for
}

// InfoResult is what a process beside the daemon has to agree with it about.
type InfoResult struct {
	Host string `json:"host"`
	// Keys are the fingerprints of those with which a message is signed as this
	// host's, the daemon's own first.
	Keys         []string `json:"keys"`
	ContentBytes int      `json:"content_bytes"` // the longest content that is taken
}

// Caller is the identity behind a request.
type Caller struct {
	GID  string
	Name string
	Kind store.EntityKind
	// Lease ends when this identity stops being good: its token was replaced,
	// or its entity ends. nil: never.
	Lease context.Context
}

type callerKey struct{}

// WithCaller puts the identity of the connection into ctx.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerFrom returns the identity of the connection, and false for a request
// that was not authenticated.
func CallerFrom(ctx context.Context) (Caller, bool) {
	c, ok := ctx.Value(callerKey{}).(Caller)
	return c, ok
}
