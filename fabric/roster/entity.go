package roster

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"time"
	"unicode"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
)

// What one entity may say of itself. A trusted host that runs wild must not
// fill our memory, and its words end up in terminals.
const (
	maxCapabilities = 32
	maxWord         = 64  // bytes of a pane id, a capability or a state
	maxReason       = 256 // bytes of Refusing
)

// Entity is something with an inbox (design §1).
type Entity struct {
	GID          string
	Name         string
	Kind         store.EntityKind
	Groups       []string
	Pane         string // for people; addresses an entity on its own host only
	Capabilities []string
	Status       Status
}

// State is what an entity is doing, in one word: one of these, or a host's
// state (Unknown, Offline) where that is not online.
type State string

// The states that an entity is announced with. Other hosts may have more.
const (
	Reachable State = Online // a main, or an orchestrator

	// What herdr says of the agent in the pane of a worker.
	Idle    State = "idle"
	Done    State = "done" // as idle, but nobody has looked at it yet
	Working State = "working"

	// It gets nothing meanwhile.
	NoPane      State = "no pane" // none is registered yet
	PaneChanged State = "pane changed"
	HerdrDown   State = "herdr down"
	Contested   State = "contested"  // another program consumes its inbox
	Mismatched  State = "mismatched" // its inbox is on the broker with other arguments

	Withdrawn State = "gone"
)

// Status is what an entity is doing. Times are by the clock of its own host;
// a zero one is unknown.
type Status struct {
	State         State
	Since         time.Time
	Progress      time.Time // last sign of progress
	Refusing      string    // why its gate stays closed
	RefusingSince time.Time
}

// sameButProgress reports whether nothing needs an announcement of its own:
// progress changes all the time and rides with heartbeats, so that steady
// traffic does not grow with agents.
func (s Status) sameButProgress(other Status) bool {
	return s.State == other.State && s.Since.Equal(other.Since) &&
		s.Refusing == other.Refusing && s.RefusingSince.Equal(other.RefusingSince)
}

// tidy brings e into the one form in which it is kept, announced and digested.
// It shares nothing with the caller.
func (e Entity) tidy() Entity {
	e.Groups = slices.Compact(slices.Sorted(slices.Values(e.Groups)))
	e.Capabilities = slices.Compact(slices.Sorted(slices.Values(e.Capabilities)))
	e.Pane = printable(e.Pane, maxWord)
	e.Status.State = State(printable(string(e.Status.State), maxWord))
	e.Status.Refusing = printable(e.Status.Refusing, maxReason)
	return e
}

// check says what keeps e from being announced.
func (e Entity) check() *fault.Error {
	switch {
	case !envelope.ValidGID(e.GID):
		return fault.New(fault.BadRequest, "%.80q is no global id; it should be a UUID in lower-case text", e.GID)
	case !envelope.ValidName(string(e.Kind)):
		return fault.New(fault.BadRequest, "%.80q is no kind of entity; it should be worker, main or orchestrator", e.Kind)
	case len(e.Capabilities) > maxCapabilities:
		return fault.New(fault.TooLarge, "%.80q has %d capabilities; at most %d are possible", e.Name, len(e.Capabilities), maxCapabilities)
	}
	for _, capability := range e.Capabilities {
		if capability == "" || printable(capability, maxWord) != capability {
			return fault.New(fault.BadRequest, "%.80q is no capability; it should be a short printable word", capability)
		}
	}
	return envelope.CheckMember(e.Name, e.Groups)
}

// printable cuts s to at most limit bytes, at a character boundary, and shows
// what could steer a terminal as a question mark.
func printable(s string, limit int) string {
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "")
	}
	return strings.Map(func(c rune) rune {
		if unicode.IsPrint(c) {
			return c
		}
		return '?'
	}, s)
}

// record is an entity as its host announced it.
type record struct {
	Entity
	gone    bool
	goneAt  time.Time         // ours only: when it was withdrawn, monotonic
	refused bool              // we believe nothing of it, but it counts in the digest
	line    [sha256.Size]byte // its share of the digest
	round   uint64            // the full announcement that last named it
}

// same reports whether other says nothing new, status apart.
func (r *record) same(other *record) bool {
	return r.line == other.line && r.Pane == other.Pane && slices.Equal(r.Capabilities, other.Capabilities)
}

// lineOf is an entity's share of the digest: what identifies it, so that a
// status never makes two digests differ.
func lineOf(e Entity, gone bool) [sha256.Size]byte {
	groups := e.Groups
	if groups == nil {
		groups = []string{}
	}
	// Strings, slices of them and a bool can always be marshalled.
	text, _ := json.Marshal([]any{e.GID, e.Name, e.Kind, groups, gone})
	return sha256.Sum256(text)
}

// digestOf is the digest over a host's entities, refused and withdrawn ones
// included, in order of their gids (design §8).
func digestOf(records map[string]*record) string {
	hash := sha256.New()
	for _, gid := range sortedKeys(records) {
		hash.Write(records[gid].line[:])
	}
	return hex.EncodeToString(hash.Sum(nil)[:16])
}
