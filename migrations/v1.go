package migrations

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
)

// The old daemon's queues, and the two ends of the name around the pane.
const (
	v1Prefix = "agent."
	v1Suffix = ".inbox"
)

var v1Name = regexp.MustCompile(`^agent\.(.+)\.inbox$`)

// QueueOf is the queue in which the old daemon kept the replies that the worker
// in pane sent to the one primary.
func QueueOf(pane string) string { return v1Prefix + pane + v1Suffix }

// PaneOf is the pane of the worker that sent what lies in queue; false: that is
// no queue of the old daemon.
func PaneOf(queue string) (pane string, ok bool) {
	m := v1Name.FindStringSubmatch(queue)
	if m == nil {
		return "", false
	}
	return m[1], true
}

// Old is a message of the old daemon, taken and not yet settled. Of its headers
// none is known here, so none is kept.
type Old struct {
	MessageID     string // "" where it has none
	CorrelationID string // "" where it has none
	Expiration    string // milliseconds, or ""
	Body          []byte
	Tag           uint64 // by which it is acked
}

// Letter is what becomes of an old message, or of one part of it: a REPLY.
type Letter struct {
	MsgID     string
	TraceID   string
	From      string // gid of the worker
	To        string // gid of the main
	InReplyTo string // a UUID, or ""
	TS        int64  // Unix milliseconds, the same at every try
	Body      []byte // UTF-8
}

// Queue is what the broker says of a queue.
type Queue struct {
	Ready     int // messages that nobody holds
	Consumers int
}

// ErrNoQueue is returned for a queue that is not there, or no more.
var ErrNoQueue = errors.New("there is no such queue")

// Broker is what a move needs of the broker. Its errors are faults.
type Broker interface {
	// Look changes nothing; ErrNoQueue.
	Look(ctx context.Context, queue string) (Queue, error)
	// Replicated reports whether a queue that is there is of a type that does
	// not give back in order what was taken: a quorum queue or a stream. ErrNoQueue.
	Replicated(ctx context.Context, queue string) (bool, error)
	// Lock has no other connection move mail of queue until Release, or until the
	// broker notices that this one is gone. False: another one is at it, or the
	// broker does not know yet that it no longer is. Who has the lock may ask again.
	// NOT_ALLOWED.
	Lock(ctx context.Context, queue string) (bool, error)
	// Take takes the oldest message; it goes back to its place unless it is
	// acked. False: there is none. ErrNoQueue; NOT_ALLOWED if this login may
	// not read the queue.
	Take(ctx context.Context, queue string) (Old, bool, error)
	// Deliver signs and publishes, and returns nil once the broker has stored
	// the letter in its recipient's inbox.
	Deliver(ctx context.Context, l Letter) error
	// GiveBack puts back into its place what was taken under last and before,
	// and not acked: what is taken next is the oldest again.
	GiveBack(ctx context.Context, last uint64) error
	// Mark puts a message with this id and text at the end of the queue, and
	// returns nil once the broker has stored it; ErrNoQueue.
	Mark(ctx context.Context, queue, id, text string) error
	// Ack removes what was taken under tag; that it did is only sure after
	// Settled.
	Ack(tag uint64) error
	// Settled returns nil once the broker has dealt with every Ack before it.
	Settled(ctx context.Context) error
	// Release gives everything back that was taken and not acked, and then the
	// lock.
	Release()
	// Delete removes the queue if it is empty and nobody consumes it; false:
	// it is in use, of a type that stays, or not there.
	Delete(ctx context.Context, queue string) (bool, error)
}

// hash tells one message from another of the same queue.
func (o Old) hash() string {
	h := sha256.New()
	for _, s := range []string{o.MessageID, o.CorrelationID, o.Expiration} {
		fmt.Fprintf(h, "%d\n%s\n", len(s), s)
	}
	h.Write(o.Body)
	return hex.EncodeToString(h.Sum(nil))
}

// namespace of derived ids, drawn once for this project.
var namespace = uuid.MustParse("0b9d5b0e-53b7-4f0c-8f53-0a2c1c6d7a11")

// derive is an id that follows from words (design §12).
func derive(words ...any) string {
	return uuid.NewSHA1(namespace, []byte(fmt.Sprintln(words...))).String()
}

// ownID is the message's own id, if it is a UUID.
func (o Old) ownID() (string, bool) { return asUUID(o.MessageID) }

func asUUID(s string) (string, bool) {
	if len(s) != 36 { // the parser takes other spellings too
		return "", false
	}
	id, err := uuid.Parse(s)
	return id.String(), err == nil && id != uuid.Nil
}

// letters are what an old message becomes: one letter, or several where it has
// more bytes than h allows.
func letters(h head, o Old) []Letter {
	trace := sha256.Sum256([]byte("trace\n" + h.ID))
	l := Letter{MsgID: h.ID, TraceID: hex.EncodeToString(trace[:16]), From: h.From, To: h.To, TS: h.TS}
	l.InReplyTo, _ = asUUID(o.CorrelationID)
	parts := split(asText(o.Body), h.Limit)
	all := make([]Letter, len(parts))
	for i, part := range parts {
		all[i] = l
		all[i].Body = []byte(part)
		if i > 0 {
			all[i].MsgID = derive(h.ID, "part", i+1)
		}
	}
	return all
}

// asText is body with every byte that is no UTF-8 written as \xNN.
func asText(body []byte) string {
	if utf8.Valid(body) {
		return string(body)
	}
	var b strings.Builder
	for len(body) > 0 {
		r, n := utf8.DecodeRune(body)
		if r == utf8.RuneError && n == 1 {
			fmt.Fprintf(&b, `\x%02x`, body[0])
		} else {
			b.Write(body[:n])
		}
		body = body[n:]
	}
	return b.String()
}

// headRoom is for the line that says which part of how many this is.
const headRoom = 64

// split cuts text into parts of at most limit bytes, each with a line that says
// which it is; what fits stays as it is.
func split(text string, limit int) []string {
	if len(text) <= limit {
		return []string{text}
	}
	var cuts []string
	for room := max(limit-headRoom, utf8.UTFMax); text != ""; {
		end := min(room, len(text))
		for end < len(text) && !utf8.RuneStart(text[end]) {
			end--
		}
		cuts, text = append(cuts, text[:end]), text[end:]
	}
	for i, cut := range cuts {
		cuts[i] = fmt.Sprintf("[part %d of %d of one message]\n%s", i+1, len(cuts), cut)
	}
	return cuts
}
