package roster

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleetd/fabric/envelope"
	"fleetd/fault"
)

// DefaultInterval lies between two heartbeats (design §8).
const DefaultInterval = 5 * time.Second

// Config is what a Roster needs; only Host and Boot have no default.
type Config struct {
	Host     string
	Boot     uint64        // boot epoch of this gateway (design §1)
	Interval time.Duration // between heartbeats; 0: DefaultInterval
	Profiles []string      // named profiles that this host offers; the first 128 are announced

	// Serving reports whether the claim on the host id is held and the signal
	// and control queues are consumed; nil: always.
	Serving func() bool

	// Publish signs and publishes a presence message and returns an error
	// while that can't be done. nil: there is no broker. It is called by one
	// goroutine at a time, with a context of at most 5 s.
	Publish func(context.Context, *envelope.Envelope) error

	Homes HomeStore // nil: homes are not kept over a restart

	// KeepBoot stores a boot epoch that was taken after the start, so that the
	// next start's is above it; it is called again until it succeeds. nil: it
	// is not kept.
	KeepBoot func(boot uint64) error

	Now    func() time.Time // wall clock: stamps and clock offsets; nil: time.Now
	Mono   func() time.Time // monotonic: liveness, order and ages; nil: time.Now
	Rand   io.Reader        // nil: crypto/rand
	Logger hclog.Logger     // nil: silence
}

// Roster is the view of the fleet. All methods may be called at any time by
// any goroutine; Run has to be running for anything to be published or saved.
type Roster struct {
	cfg     Config
	log     hclog.Logger
	started time.Time
	kick    chan struct{} // wakes the speaker
	saveNow chan struct{} // wakes the keeper

	saveFailed bool // the keeper's own

	mu        sync.Mutex // guards what follows; nothing is called out to under it
	hosts     map[string]*host
	self      *host // also in hosts
	homes     map[string]*home
	homesOf   map[string]map[string]*home // host → gid
	out       out
	sync      *syncing // the Sync that is under way
	synced    bool
	connected bool      // between a Sync and Disconnected
	askedAll  time.Time // when the last Sync solicited everyone
	echoAt    time.Time // when the last message of our own came back
	boots     []uint64  // ours, the present one last
	clones    map[uint64]struct{}
	rival     uint64 // the newest boot of another gateway with our host id; 0: none
	unkept    uint64 // a boot of ours that KeepBoot has not stored yet; 0: none
	change    chan struct{}
	notes     []note
	stats     Stats
	jitter    *mathrand.Rand
}

// Stats counts what a metric should show; all only grow.
type Stats struct {
	Published     uint64 // presence messages handed to the broker
	PublishFailed uint64
	Handled       uint64 // presence messages of other hosts that were news
	Old           uint64 // ignored, of an older boot or sequence
	Malformed     uint64 // refused by Handle
	Refused       uint64 // entities of which nothing is believed, claims of a foreign gid among them
	Overflow      uint64 // entities beyond 10 000 of one host
	Solicited     uint64 // solicitations sent
	Clones        uint64 // messages that another gateway signed with our host id
}

// moment is one instant on both clocks: liveness, order and ages live on the
// monotonic one, the wall clock is for what is written down.
type moment struct{ mono, wall time.Time }

// New loads the homes and returns a roster that knows only them.
func New(cfg Config) (*Roster, error) {
	if !envelope.ValidHost(cfg.Host) || cfg.Boot == 0 {
		return nil, fault.New(fault.BadRequest, "a roster needs a host id and a boot epoch; it got %.80q and %d", cfg.Host, cfg.Boot)
	}
	cfg = cfg.withDefaults()
	var seed [16]byte
	if _, err := io.ReadFull(cfg.Rand, seed[:]); err != nil {
		return nil, fault.Wrap(err, fault.Internal, "the system's random source failed")
	}
	r := &Roster{
		cfg: cfg, log: cfg.Logger, started: cfg.Mono(),
		kick: make(chan struct{}, 1), saveNow: make(chan struct{}, 1),
		hosts: map[string]*host{}, homes: map[string]*home{}, homesOf: map[string]map[string]*home{},
		clones: map[uint64]struct{}{}, change: make(chan struct{}),
		jitter: mathrand.New(mathrand.NewPCG(binary.NativeEndian.Uint64(seed[:8]), binary.NativeEndian.Uint64(seed[8:]))),
		out:    out{dirty: map[string]time.Time{}, progress: map[string]struct{}{}},
	}
	r.self = r.known(cfg.Host)
	r.boots = []uint64{cfg.Boot}
	r.self.boot, r.self.interval, r.self.profiles, r.self.complete = cfg.Boot, cfg.Interval, cfg.Profiles, true
	if err := r.loadHomes(); err != nil {
		return nil, fault.Wrap(err, fault.StoreUnavailable, "could not read where entities live; check the store with `bridged store check`")
	}
	return r, nil
}

func (cfg Config) withDefaults() Config {
	if cfg.Interval <= 0 {
		cfg.Interval = DefaultInterval
	}
	if cfg.Serving == nil {
		cfg.Serving = func() bool { return true }
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Mono == nil {
		cfg.Mono = time.Now
	}
	if cfg.Rand == nil {
		cfg.Rand = rand.Reader
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	cfg.Profiles = profileNames(cfg.Profiles)
	return cfg
}

// profileNames keeps what may name a profile, in a list of our own.
func profileNames(names []string) []string {
	valid := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !envelope.ValidName(name) })
	return valid[:min(len(valid), maxProfiles)]
}

func (r *Roster) moment() moment { return moment{mono: r.cfg.Mono(), wall: r.cfg.Now()} }

// known returns the host of that id, made where it is new. Ids come from
// trusted signers and from Solicit, so there are few.
func (r *Roster) known(id string) *host {
	h := r.hosts[id]
	if h == nil {
		h = newHost(id, r.cfg.Interval)
		r.hosts[id] = h
	}
	return h
}

// Changed returns a channel that is closed at the next change: a host was
// heard or lost, an entity or its home changed. Take it before looking at the
// state that is waited for.
func (r *Roster) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.change
}

func (r *Roster) changed() {
	close(r.change)
	r.change = make(chan struct{})
}

// Stats returns the counters.
func (r *Roster) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats
}

// Home returns the host on which gid lives, or lived within 15 days.
func (r *Roster) Home(gid string) (host string, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.homes[gid]
	if h == nil {
		return "", false
	}
	return h.Host, true
}

// Live reports whether host is online; our own always is.
func (r *Roster) Live(host string) bool { return r.HostState(host) == Online }

// HostState returns Online, Unknown, Offline or Never.
func (r *Roster) HostState(host string) string {
	now := r.cfg.Mono()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stateOf(host, now)
}

func (r *Roster) stateOf(id string, now time.Time) string {
	if id == r.cfg.Host {
		return Online
	}
	state := Never
	if h := r.hosts[id]; h != nil {
		state = h.state(now)
	}
	if state == Never && len(r.homesOf[id]) > 0 {
		return Unknown
	}
	return state
}

// A note is a log line made under the lock and written after it.
type note struct {
	level hclog.Level
	text  string
	args  []any
}

func (r *Roster) note(level hclog.Level, text string, args ...any) {
	r.notes = append(r.notes, note{level, text, args})
}

// noteOf is note for what a host has us say by what it sends, which it could do
// with every message.
func (r *Roster) noteOf(h *host, level hclog.Level, text string, args ...any) {
	if !h.lines.AllowN(r.cfg.Mono(), 1) {
		h.unsaid++
		return
	}
	if h.unsaid > 0 {
		args = append(args, "unsaid", h.unsaid)
	}
	h.unsaid = 0
	r.note(level, text, args...)
}

// unlock ends a change: it writes the notes once the lock is free. One message
// of a host that runs wild must not flood the log.
func (r *Roster) unlock() {
	const most = 10
	notes := r.notes
	r.notes = nil
	r.mu.Unlock()
	for _, n := range notes[:min(most, len(notes))] {
		r.log.Log(n.level, n.text, n.args...)
	}
	if more := len(notes) - most; more > 0 {
		r.log.Warn(fmt.Sprintf("%d more lines like these were left out", more))
	}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
