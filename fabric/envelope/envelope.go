// Package envelope is the wire format of the fleet (design §4): what a message
// says of itself, how it is written into AMQP headers, signed and verified.
//
// It knows nothing of brokers, stores or entities, so that both halves of the
// gateway, inbox and outbox, can share it. Whether a good signature may also
// say what it says (lane, home, expiry) is decided in fabric.
package envelope

import (
	"strings"
	"time"
)

// Version is the envelope version that this build writes. A newer major
// version is refused, a newer minor one is read (design §4).
const Version = "1"

// Kind says what a message is for (design §3).
type Kind string

// The kinds of design §3.
const (
	Send      Kind = "SEND"
	Reply     Kind = "REPLY"
	Broadcast Kind = "BROADCAST"
	Ask       Kind = "ASK"
	Answer    Kind = "ANSWER"
	NoWaiter  Kind = "NO_WAITER"
	TooLate   Kind = "TOO_LATE"
	Injected  Kind = "INJECTED"
	Deferred  Kind = "DEFERRED"
	Query     Kind = "QUERY"
	Spawned   Kind = "SPAWNED"
	Stopped   Kind = "STOPPED"
	Traced    Kind = "TRACED"
	Failed    Kind = "FAILED"
	Abandoned Kind = "ABANDONED"
	Spawn     Kind = "SPAWN"
	Stop      Kind = "STOP"
	Trace     Kind = "TRACE"
	Presence  Kind = "PRESENCE"
)

// Lane is one of the four ways a message can travel (design §3).
type Lane string

// The lanes of design §3.
const (
	LaneMail     Lane = "mail"
	LaneSignal   Lane = "signal"
	LaneControl  Lane = "control"
	LanePresence Lane = "presence"
)

var lanes = map[Kind][]Lane{
	Send: {LaneMail}, Reply: {LaneMail}, Broadcast: {LaneMail},
	Ask: {LaneSignal}, Answer: {LaneSignal}, NoWaiter: {LaneSignal}, TooLate: {LaneSignal},
	Injected: {LaneSignal}, Deferred: {LaneSignal}, Query: {LaneSignal},
	Spawned: {LaneSignal}, Stopped: {LaneSignal}, Traced: {LaneSignal},
	Failed: {LaneMail, LaneSignal}, Abandoned: {LaneMail, LaneSignal},
	Spawn: {LaneControl}, Stop: {LaneControl}, Trace: {LaneControl},
	Presence: {LanePresence},
}

// Known reports whether this build knows the kind.
func (k Kind) Known() bool { return lanes[k] != nil }

// Travels reports whether kind may be carried by lane.
func (k Kind) Travels(lane Lane) bool {
	for _, l := range lanes[k] {
		if l == lane {
			return true
		}
	}
	return false
}

// Brief reports whether the kind is a brief: something a worker is to act on,
// which is injected at most once and whose failure is reported to its sender.
func (k Kind) Brief() bool { return k == Send || k == Broadcast }

// Envelope is one message. The typed fields mirror the headers of design §4;
// an empty string or zero is an absent header.
type Envelope struct {
	V         string
	Kind      Kind
	MsgID     string // UUID, the dedup key
	TraceID   string // 32 lower-case hex digits
	From      string // gid, or _gateway@<host>
	To        string // gid, _gateway@<host>, broadcast key, host id or presence key
	Signer    string // host id of the publishing gateway
	InReplyTo string
	TurnID    string
	SpawnID   string
	TS        int64 // Unix milliseconds
	ExpiresAt int64 // Unix milliseconds
	Reason    string
	Hops      int
	Body      []byte

	// Headers holds every string header as received or as signed, sig
	// included, but not the broker's own (x-…). The signature covers these,
	// not the typed fields, so that headers of a later minor version are
	// covered too.
	Headers map[string]string
}

// Expired reports whether the envelope's life was over before now, with grace
// for the skew between two hosts' clocks.
func (e *Envelope) Expired(now time.Time, grace time.Duration) bool {
	return e.ExpiresAt != 0 && now.Add(-grace).UnixMilli() > e.ExpiresAt
}

// Sent is the publish time as the sender stated it.
func (e *Envelope) Sent() time.Time { return time.UnixMilli(e.TS) }

// Expiry is the end of the message's life.
func (e *Envelope) Expiry() time.Time { return time.UnixMilli(e.ExpiresAt) }

const gatewayPrefix = "_gateway@"

// GatewayAddress is the address of the gateway of host itself (design §3).
func GatewayAddress(host string) string { return gatewayPrefix + host }

// GatewayHost returns the host of a gateway address, and false for a gid.
func GatewayHost(address string) (string, bool) { return strings.CutPrefix(address, gatewayPrefix) }

// Settler ends the broker's hold on one delivery. All three are safe to call
// once the delivery's channel is gone: they then return an error, and the
// broker delivers the message anew.
type Settler interface {
	// Held reports whether the broker waits for this to be settled: it was not
	// yet, and its channel is there.
	Held() bool
	Ack() error
	Reject() error  // without requeue: to the dead-letter exchange
	Requeue() error // back to its old place in the queue
}

// Delivery is a verified message that the broker holds until it is settled.
type Delivery struct {
	*Envelope
	Redelivered bool // a hint, never a fact (broker facts §6)
	Settler
}
