package control

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"fleetd/fabric/envelope"
	"fleetd/fabric/roster"
	"fleetd/fault"
	"fleetd/migrations"
	"fleetd/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hang bounds every wait: it only says that something will never come.
const hang = 90 * time.Second

// longestTask is what a played host sends as a task, in bytes.
const longestTask = 20

func newID() string { return uuid.Must(uuid.NewV7()).String() }

// world is two hosts, the wire between them, and who is seen where.
type world struct {
	t *testing.T

	mu      sync.Mutex
	drop    func(env *envelope.Envelope) bool // what the wire loses
	sent    []*envelope.Envelope
	present map[string]string // gid → host
	gone    map[string]bool
	change  chan struct{}
	hosts   map[string]*host
	others  []roster.HostView    // that are not played
	heard   []*envelope.Envelope // signals that were handed over

	still atomic.Pointer[time.Time] // if set, all clocks stand
}

func (w *world) now() time.Time {
	if at := w.still.Load(); at != nil {
		return *at
	}
	return time.Now()
}

// host is one Control with its panes and its workers played.
type host struct {
	*Control
	w      *world
	name   string
	store  *store.Store
	cancel context.CancelFunc
	ended  chan error

	mu       sync.Mutex
	reserved map[string]string // gid → state
	opened   int
	open     map[string]bool // panes by gid
	fails    error           // what opening a pane comes to
	blocked  chan struct{}   // if set, readiness waits for it
	stuck    error           // closing fails
	briefs   []string
	acts     []Act // what the audit log was told
	allows   bool
	mute     error          // what sending a task comes to
	late     chan time.Time // closed: the patience with other hosts is over
	takes    int            // bytes of a body
	down     error          // what publishing comes to
}

// seat is the roster as one host sees it.
type seat struct {
	*world
	host string
}

func (s seat) Hosts() []roster.HostView {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Clone(s.others)
	for name := range s.hosts {
		all = append(all, roster.HostView{Host: name, State: roster.Online, Local: name == s.host})
	}
	slices.SortFunc(all, func(a, b roster.HostView) int { return strings.Compare(a.Host, b.Host) })
	return all
}

func (s seat) Resolve(address string) (roster.Target, error) {
	t, err := s.world.Resolve(address)
	t.Local = t.Host == s.host
	return t, err
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, present: map[string]string{}, gone: map[string]bool{}, change: make(chan struct{}), hosts: map[string]*host{}}
	for _, name := range []string{"hosta", "hostb"} {
		h := &host{w: w, name: name, store: openStore(t), allows: true, late: make(chan time.Time)}
		w.hosts[name] = h
		h.begin(1)
		t.Cleanup(h.end)
	}
	return w
}

func openStore(t *testing.T) *store.Store {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	st, err := store.Open(t.Context(), store.Options{Dir: dir, Steps: migrations.Steps})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- st.Run(context.Background()) }()
	t.Cleanup(func() {
		if err := errors.Join(st.Close(), <-done); err != nil {
			t.Errorf("store: %v", err)
		}
	})
	// Closed before it runs, its start is an error.
	if err := st.Write(t.Context(), func(*store.Tx) error { return nil }); err != nil {
		t.Fatal(err)
	}
	return st
}

// begin starts the host's gateway in a boot of its own; end ends it.
func (h *host) begin(boot uint64) {
	h.mu.Lock()
	if h.reserved == nil {
		h.reserved, h.open = map[string]string{}, map[string]bool{}
	}
	h.mu.Unlock()
	next := New(Config{
		Host: h.name, Boot: boot, Store: h.store, Entities: h, Launcher: h, Fleet: seat{h.w, h.name}, Broker: h,
		Profiles: map[string]Profile{"aide": {ReadyTimeout: hang, Remote: true}, "private": {ReadyTimeout: hang}, "social": {ReadyTimeout: hang, Groups: []string{"crew"}, Remote: true}},
		Allows: func(string, string) bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.allows
		},
		Brief: func(_ context.Context, s store.Spawn) (string, error) {
			h.mu.Lock()
			defer h.mu.Unlock()
			if h.mute != nil {
				return "", h.mute
			}
			h.briefs = append(h.briefs, s.SpawnID+" "+s.Task)
			return newID(), nil
		},
		Audit: func(a Act) { h.set(func() { h.acts = append(h.acts, a) }) },
		CheckTask: func(text []byte) error {
			if len(text) > longestTask {
				return fault.New(fault.TooLarge, "it is too long")
			}
			return nil
		},
		Now: h.w.now, NewID: newID, NewTrace: func() string { return strings.ReplaceAll(newID(), "-", "") }, Repeat: 10 * time.Millisecond,
		After: func(time.Duration) <-chan time.Time { return h.late }, BodyBytes: h.takes,
	})
	h.set(func() { h.Control = next })
	ctx, cancel := context.WithCancel(context.Background())
	h.cancel, h.ended = cancel, make(chan error, 1)
	go func() { h.ended <- next.Run(ctx) }()
}

func (h *host) present() *Control {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.Control
}

func (h *host) end() {
	h.cancel()
	if err := <-h.ended; err != nil {
		h.w.t.Errorf("run: %v", err)
	}
	h.ended <- nil
}

func (h *host) set(fn func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	fn()
}

func (h *host) count(of *int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return *of
}

// The wire.

func (h *host) Connected() (bool, string) { return true, "" }

func (h *host) Publish(ctx context.Context, lane envelope.Lane, env *envelope.Envelope) error {
	w := h.w
	w.mu.Lock()
	w.sent = append(w.sent, env)
	lost := w.drop != nil && w.drop(env)
	w.mu.Unlock()
	h.mu.Lock()
	down := h.down
	h.mu.Unlock()
	if down != nil {
		return down
	}
	if lost {
		return nil
	}
	w.bring(lane, env)
	return nil
}

func (w *world) bring(lane envelope.Lane, env *envelope.Envelope) {
	if lane == envelope.LaneControl {
		if err := w.hosts[env.To].present().Handle(context.Background(), env); err != nil {
			w.t.Errorf("handle: %v", err)
		}
		return
	}
	for _, h := range w.hosts {
		if h.name != env.Signer {
			h.present().Signal(env)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.heard = append(w.heard, env)
}

func (w *world) lose(which func(env *envelope.Envelope) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drop = which
}

// last is the last message of that kind on the wire.
func (w *world) last(kind envelope.Kind) *envelope.Envelope {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := len(w.sent) - 1; i >= 0; i-- {
		if w.sent[i].Kind == kind {
			return w.sent[i]
		}
	}
	return nil
}

// The roster.

func (w *world) Resolve(address string) (roster.Target, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	host, ok := w.present[address]
	if !ok {
		return roster.Target{}, fault.New(fault.UnknownRecipient, "nobody")
	}
	return roster.Target{GID: address, Name: "aide", Host: host, Kind: store.Worker, Gone: w.gone[address]}, nil
}

func (w *world) HostState(name string) string {
	if w.hosts[name] == nil {
		return roster.Never
	}
	return roster.Online
}

func (w *world) Changed() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.change
}

func (w *world) see(gid, host string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.present[gid] = host
	close(w.change)
	w.change = make(chan struct{})
}

// The workers.

func (h *host) Reserve(ctx context.Context, gid, name, base string, groups []string, also func(*store.Tx, string) error) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if name == "" {
		name = base
	}
	if name == "taken" {
		return "", fault.New(fault.Conflict, "taken")
	}
	if err := envelope.CheckMember(name, groups); err != nil {
		return "", err
	}
	h.reserved[gid] = "launching"
	return "token", h.store.Write(ctx, func(tx *store.Tx) error { return also(tx, name) })
}

func (h *host) Launched(ctx context.Context, gid string, _ Pane, also func(*store.Tx) error) error {
	if err := h.store.Write(ctx, also); err != nil {
		return err
	}
	h.set(func() { h.reserved[gid] = "live" })
	h.w.see(gid, h.name)
	return nil
}

func (h *host) Discard(ctx context.Context, gid string, also func(*store.Tx) error) error {
	h.set(func() { delete(h.reserved, gid) })
	return h.store.Write(ctx, also)
}

func (h *host) Find(gid string) (kind store.EntityKind, ended, found bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	state, found := h.reserved[gid]
	return store.Worker, state == "gone", found
}

// The panes.

func (h *host) Open(_ context.Context, what Launch) (Pane, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.opened++
	h.open[what.GID] = true
	return Pane{ID: "p"}, h.fails
}

func (h *host) Ready(ctx context.Context, _ string, p Pane) (Pane, error) {
	h.mu.Lock()
	blocked := h.blocked
	h.mu.Unlock()
	if blocked != nil {
		select {
		case <-blocked:
		case <-ctx.Done():
			return p, &Failure{Code: fault.SpawnFailed, Detail: NeverReady}
		}
	}
	return p, nil
}

func (h *host) Close(_ context.Context, gid string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stuck != nil {
		return h.stuck
	}
	delete(h.open, gid)
	return nil
}

func (h *host) record(gid string) (s store.Spawn) {
	h.w.t.Helper()
	err := h.store.View(func(tx *store.Tx) (err error) {
		s, _, err = tx.Spawn(gid)
		return err
	})
	if err != nil {
		h.w.t.Fatal(err)
	}
	return s
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(hang); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never happened: %s", what)
		}
	}
}

func (h *host) Stop(_ context.Context, gid string) error {
	h.set(func() { h.reserved[gid] = "gone" })
	return nil
}

func (h *host) AwaitEnd(context.Context, string) bool { return true }
