package roster

import (
	"time"

	"golang.org/x/time/rate"
)

// The states of a host, as HostState returns them (design §8).
const (
	Online  = "online"
	Unknown = "unknown" // three heartbeats missed, or known from before our start only
	Offline = "offline" // stopped cleanly, or says that it is not serving
	Never   = "never"   // nothing was ever heard of it
)

const (
	missed = 3 // heartbeats, after which a host is unknown

	// A host's own word on its interval decides when it is missed, within
	// these bounds.
	minInterval = 50 * time.Millisecond
	maxInterval = time.Minute

	maxEntities = 10_000 // of one host, withdrawn ones included

	// What is logged about one host: a line may come of each of its messages.
	linesBurst  = 50
	linesPerSec = 0.2
)

// host is all we know of one gateway; ours is one too. Instants are
// monotonic.
type host struct {
	id       string
	boot     uint64
	seq      uint64    // the newest of this boot
	heard    time.Time // zero: never
	interval time.Duration
	serving  bool
	left     bool          // stopped cleanly
	reported string        // the state that was last logged
	lines    *rate.Limiter // of the log about it
	unsaid   int           // lines since the last
	profiles []string
	offset   offset
	hostView
}

// hostView is what a host announced, and whether that is all of it.
type hostView struct {
	records  map[string]*record // by gid
	digest   string             // of records; "" when it has to be computed anew
	claimed  string             // the digest of its last heartbeat
	complete bool               // a full announcement of this boot came and nothing was lost since
	full     round
	fulls    uint64    // full announcements that came whole
	fullAt   time.Time // the last of them
	overflow bool      // more than maxEntities: the view can't be complete
	ask      ask
}

// round is a full announcement under way.
type round struct {
	id   uint64 // the seq of its first part; 0: none
	next int    // the part that comes next
}

// ask is when a host is to be solicited.
type ask struct {
	at     time.Time // zero: not wanted
	last   time.Time
	pause  time.Duration // what has to lie between two that come of a mismatch
	demand bool          // somebody waits for it: asked whatever the digest says
	open   bool          // one is out that no full announcement followed yet
	vain   int           // those in a row that none had followed when the next was due
}

// silentAfter is how many solicitations in vain make a host one that does not
// answer us, though we hear it: it refuses what we sign.
const silentAfter = 3

func newHost(id string, interval time.Duration) *host {
	return &host{id: id, lines: rate.NewLimiter(linesPerSec, linesBurst), interval: interval, serving: true, reported: Never, hostView: hostView{records: map[string]*record{}}}
}

// admit decides whether a message under stamp s is news. A newer boot replaces
// the old one; what the old one announced stays listed until the new one's
// full announcement is here.
func (h *host) admit(s stamp) (fresh, reborn bool) {
	switch {
	case s.Boot < h.boot || s.Boot == h.boot && s.Seq <= h.seq:
		return false, false
	case s.Boot > h.boot:
		reborn = h.boot != 0
		h.boot, h.left, h.complete, h.claimed, h.full, h.ask.open, h.ask.vain = s.Boot, false, false, "", round{}, false, 0
	case s.Seq != h.seq+1:
		h.complete, h.full = false, round{}
	}
	h.seq = s.Seq
	return true, reborn
}

// state judges by arrival alone. A host that left stays offline; one that is
// silent is unknown, whatever it said before.
func (h *host) state(now time.Time) string {
	switch {
	case h.heard.IsZero():
		return Never
	case h.left:
		return Offline
	case now.Sub(h.heard) >= missed*h.interval:
		return Unknown
	case !h.serving:
		return Offline
	}
	return Online
}

// sum is the digest over what the host announced.
func (v *hostView) sum() string {
	if v.digest == "" {
		v.digest = digestOf(v.records)
	}
	return v.digest
}

// silent reports whether the host is asked for its entities in vain.
func (v *hostView) silent() bool { return !v.settled() && v.ask.vain >= silentAfter }

// settled reports whether all that the host announced is here.
func (v *hostView) settled() bool {
	return v.complete && (v.claimed == "" || v.claimed == v.sum())
}

func clampInterval(ms int64, otherwise time.Duration) time.Duration {
	if ms <= 0 {
		return otherwise
	}
	return min(max(time.Duration(min(ms, maxInterval.Milliseconds()))*time.Millisecond, minInterval), maxInterval)
}
