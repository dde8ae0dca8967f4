// Package history says whether what happened to a fleet kept its promise: it
// reads everything that clients were told, that panes received and that stores
// and brokers hold at the end, and finds what contradicts it (design §5, §6).
//
// It knows neither how the history was made nor which faults were in it.
package history

import (
	"strings"
	"time"
)

// History is all that is known of one run. Times are of one clock.
type History struct {
	Sends   []Send
	Shown   []Shown
	Pastes  []Paste
	Prompts []Prompt
	Answers []Answer

	Questions []Question
	Told      []Told

	Moves []Moved

	Hosts    []string
	Spawns   []Spawn
	Stops    []Stop
	Panes    []Pane
	Entities []Entity

	Kills  []Kill
	Faults []Fault
	Astray []Astray
	Left   []Left
}

// Send is one message that a client wanted to be sent, once, however often it
// called.
type Send struct {
	Case     int
	Token    string // a word of its content that is in no other
	From, To string // name@host
	Worker   bool   // To is a worker: the message goes into its pane
	Cast     bool   // it is To's part in a message to several, which has one id and one token
	MsgIDs   []string
	Stored   bool // the sender's store says that it was accepted
	Forgot   bool // the store of the host of a worker has no record of it
	Calls    []Call
}

// Call is one call that asked to send it, and what the caller was told.
type Call struct {
	Began, Ended time.Time
	State        string // queued, deferred, injected, pending, replied, ask; "" if it failed
	Code         string // of the error
	Report       bool   // the error is the message's own end, not the call's
	NotSent      bool   // it says so itself, whatever the code
	Text         string
}

// nothingSent reports whether the caller was told that this call sent nothing.
func (c Call) nothingSent() bool { return !c.Report && (c.NotSent || nothingSent[c.Code]) }

// Broken reports whether the caller was told nothing.
func (c Call) Broken() bool { return c.State == "" && c.Code == "" }

// Shown is one message in a response that reached a client.
type Shown struct {
	Began, At   time.Time // of the call, and when its response was noted
	Reader      string    // name@host
	MsgID       string
	Kind        string // SEND, BROADCAST, REPLY, FAILED, ABANDONED, INJECTED, ASK
	From        string // name@host of whoever it is from or, a report, about
	InReplyTo   string
	Reason      string
	Content     string
	TurnID      string // of a question
	Redelivered bool
	Asked       bool // its reader asked for it again, by repeating a call
	Forgot      bool // the store of its reader's host has no record of it
}

// Question is one bridge_ask of a worker in the middle of a brief, and what it
// came to.
type Question struct {
	Began, Ended time.Time // Ended is zero of one that never came back
	Worker       string
	Brief        string // the id of what it is about
	Answer       string
	Error        string // instead of an answer
}

// Told is one bridge_answer, and what the one who answered was told.
type Told struct {
	Call
	By    string // name@host
	Turn  string
	Token string // a word of its content that is in no other answer
}

// Spawn is one agent that a client wanted, once, however often it called.
type Spawn struct {
	Case  int
	Token string // names it
	From  string // name@host
	Host  string // where it is to live
	GIDs  []string
	Calls []SpawnCall
	Asks  bool // who wants it calls until he knows
	Owes  bool // its gateway still has to send its task in the end
}

// SpawnCall is one call of a Spawn; its State is spawned, or it failed.
type SpawnCall struct {
	Call
	GID string
}

// Stop is the wish of a client that one agent ends; the State of a call is
// stopped or stopping.
type Stop struct {
	Case  int
	GID   string
	From  string // name@host
	Calls []Call
	// Before says that the first call found it ended.
	Before bool
}

// Pane is one pane of an agent that a gateway launched.
type Pane struct {
	Host string
	GID  string // that it was made for
	At   time.Time
	Open bool // in the end
}

// Entity is a launched worker as its gateway has it in the end.
type Entity struct {
	Host  string
	GID   string
	State string   // launching, live, stopping, gone
	Seen  []string // hosts whose rosters list it
}

// Moved is an old daemon's queue whose mail is moved to a main, in one run or
// several. Its messages begin with its name, so that they are known.
type Moved struct {
	Case  int
	Queue string
	From  string // name@host of the worker whose mail it is
	To    string // name@host of the main
	Want  []string
	Runs  []Run
}

// Run is what one run said that came to its end without an error.
type Run struct{ Found, Arrived, Moved, Copies, Left, Vanished int }

// Kill is the end of a gateway that had no time for anything.
type Kill struct {
	At   time.Time
	Host string
}

// Fault is anything else that was broken on purpose and that may leave a message
// in doubt.
type Fault struct {
	At     time.Time
	Host   string // that lost its link to the broker or was stopped; "" of the broker itself
	Worker string // name@host of an agent that did not take its input, or ended, instead
}

// Paste is one write of text to a pane.
type Paste struct {
	At     time.Time
	Worker string
	Text   string
	GID    string // that the pane was made for; "" if it was there before
}

// Prompt is one text that an agent's model was given.
type Prompt struct {
	At     time.Time
	Worker string
	Text   string
}

// Answer is one bridge_reply of a worker, and what it was told.
type Answer struct {
	At     time.Time
	Worker string
	To     string // the brief's id
	Keyed  bool   // with an idempotency key, so that all its calls are one
	Error  string // "" if it was accepted
}

// Astray is a message that a gateway took off the broker and was killed before
// it had a record of it.
type Astray struct {
	Case int
	Host string
}

// Left is what a store or a broker holds in the end and should not.
type Left struct {
	Where string
	MsgID string
	What  string
	Dead  bool // a dead letter: allowed where its sender was told
}

// Verdict is how a promise was broken.
type Verdict string

// The verdicts.
const (
	Lost       Verdict = "lost"       // accepted, and neither arrived nor reported
	Doubled    Verdict = "doubled"    // arrived twice, or shown twice without a mark
	Unreported Verdict = "unreported" // its sender was left without a last word
	Untrue     Verdict = "untrue"     // a client was told what did not happen
)

// Verdicts lists them in the order of the table.
var Verdicts = []Verdict{Lost, Doubled, Unreported, Untrue}

// Finding is one broken promise.
type Finding struct {
	Verdict Verdict
	Case    int // 0: of none
	Token   string
	Why     string
}

// Codes after which a caller knows that nothing was sent, and may try again
// (design §5).
var nothingSent = map[string]bool{
	"BROKER_DOWN": true, "HOST_OFFLINE": true, "UNROUTABLE": true, "INBOX_FULL": true, "BROKER_REFUSED": true,
	"STORE_UNAVAILABLE": true, "UNKNOWN_RECIPIENT": true, "PANE_GONE": true, "BAD_REQUEST": true, "NOT_SENT": true,
}

// Codes that say accepted, and not what became of it.
var openEnd = map[string]bool{"IN_DOUBT": true, "UNCONFIRMED": true}

func holds(text, token string) bool { return token != "" && strings.Contains(text, token) }
