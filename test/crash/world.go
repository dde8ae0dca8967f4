package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"fleetd/mcp"
	"fleetd/test/faultproxy"
	"fleetd/test/fleet"
	"fleetd/test/rabbit"
)

// site is one host with what breaks it.
type site struct {
	host    *fleet.Host
	proxy   *faultproxy.Proxy // between it and the broker
	control *control
	workers []*worker
	spawned *worker // all agents that were launched here
}

// world is one fleet that goes through many cases, one after the other: hosta
// with mains and a worker, hostb with workers and a main.
type world struct {
	dir   string
	rng   *rand.Rand
	say   func(format string, args ...any)
	ask   bool // clients whose calls broke always ask again
	node  *rabbit.Node
	fleet *fleet.Fleet
	a, b  *site
	mains []*client // of hosta
	peer  *client   // of hostb

	heir  *client  // gets the old daemon's mail
	mover *control // of bridged migrate

	crew                    []member
	asker, nearAsker, hasty *worker // who ask in the middle of their work
	rec                     *recorder

	tokens  int
	doomed  int // workers made only to end
	pulls   sync.WaitGroup
	sends   sync.WaitGroup
	stopped chan struct{} // closed when no more is pulled
	stop    func()        // closes it
}

const mainsOf = 5 // on hosta; the last one never waits for its mail

// How long a worker waits for what it asked, and one that has no time.
const (
	askFor = 5 * time.Second
	hasty  = 2 * time.Second
)

// upBound is the patience of every wait for the fleet to be well again.
const upBound = 90 * time.Second

func newWorld(ctx context.Context, rng *rand.Rand, say func(string, ...any)) (*world, error) {
	dir, err := os.MkdirTemp("", "crash")
	if err != nil {
		return nil, err
	}
	w := &world{dir: dir, rng: rng, say: say, rec: &recorder{}, stopped: make(chan struct{})}
	w.stop = sync.OnceFunc(func() { close(w.stopped) })
	if err := w.build(ctx); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

func (w *world) build(ctx context.Context) (err error) {
	if w.node, err = rabbit.Start(ctx); err != nil {
		return err
	}
	if w.fleet, err = fleet.New(ctx, w.dir, w.node.URI, "", "failpoints"); err != nil {
		return err
	}
	if w.mover, err = listen(filepath.Join(w.dir, "mover.fail")); err != nil {
		return err
	}
	if w.a, err = w.addSite(ctx, "hosta"); err != nil {
		return err
	}
	if w.b, err = w.addSite(ctx, "hostb"); err != nil {
		return err
	}
	if err := w.fleet.TrustEachOther(); err != nil {
		return err
	}
	if err := w.people(ctx); err != nil {
		return err
	}
	if err := w.node.Sync(ctx); err != nil {
		return err
	}
	return w.well(ctx)
}

func (w *world) addSite(ctx context.Context, name string) (*site, error) {
	s := &site{}
	log := filepath.Join(w.dir, name, "spawned.jsonl")
	var err error
	if s.control, err = listen(filepath.Join(w.dir, name+".fail")); err != nil {
		return nil, err
	}
	address := strings.TrimSuffix(strings.SplitAfter(w.node.URI, "@")[1], "/")
	if s.proxy, err = faultproxy.Start(address); err != nil {
		return s, err
	}
	uri := strings.Replace(w.node.URI, address, s.proxy.Addr(), 1)
	env := append(profiles(w.fleet, log), "BRIDGED_BROKER_URI="+uri, s.control.environ())
	if s.host, err = w.fleet.AddHost(ctx, name, env...); err != nil {
		return s, err
	}
	s.spawned = &worker{Worker: &fleet.Worker{Name: "spawned", Host: s.host}, address: "spawned@" + name, keyed: true}
	return s, s.host.Start(ctx)
}

func (w *world) people(ctx context.Context) error {
	for i := range mainsOf {
		m, err := w.addMain(ctx, w.a, fmt.Sprintf("lead-%d", i), i == mainsOf-1)
		if err != nil {
			return err
		}
		w.mains = append(w.mains, m)
	}
	var err error
	if w.peer, err = w.addMain(ctx, w.b, "peer", false); err != nil {
		return err
	}
	if _, err = w.addWorker(ctx, w.a, "near", "--keyed"); err != nil {
		return err
	}
	// The one whose messages are struck thinks for a moment, so that its answer
	// comes behind the word that it was injected; the other is faster, and when
	// its call breaks it answers anew.
	if _, err = w.addWorker(ctx, w.b, "far-0", "--work", "700ms", "--keyed"); err != nil {
		return err
	}
	if _, err = w.addWorker(ctx, w.b, "far-1"); err != nil {
		return err
	}
	asks := func(wait time.Duration) []string {
		return []string{"--ask", "which way for {content}?", "--ask-for", wait.String(), "--ask-sender", "--keyed"}
	}
	if w.nearAsker, err = w.addWorker(ctx, w.a, "near-asker", asks(askFor)...); err != nil {
		return err
	}
	if w.asker, err = w.addWorker(ctx, w.b, "asker", asks(askFor)...); err != nil {
		return err
	}
	if w.hasty, err = w.addWorker(ctx, w.b, "hasty", asks(hasty)...); err != nil {
		return err
	}
	if err := w.archive(ctx); err != nil {
		return err
	}
	return w.enlist(ctx)
}

func (w *world) addMain(ctx context.Context, s *site, name string, deaf bool) (*client, error) {
	m, err := s.host.AddMain(ctx, name)
	if err != nil {
		return nil, err
	}
	c := &client{name: name + "@" + s.host.Name, main: *m, rec: w.rec, deaf: deaf}
	w.pulls.Go(func() { c.pull(ctx, w.stopped) })
	return c, m.Disconnect()
}

func (w *world) addWorker(ctx context.Context, s *site, name string, flags ...string) (*worker, error) {
	got, err := s.host.AddWorker(ctx, name, append([]string{"--echo", "--work", "10ms"}, flags...)...)
	if err != nil {
		return nil, err
	}
	one := &worker{Worker: got, address: name + "@" + s.host.Name, keyed: slices.Contains(flags, "--keyed")}
	s.workers = append(s.workers, one)
	return one, nil
}

// well returns when both gateways are ready and see each other's workers.
func (w *world) well(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, upBound)
	defer cancel()
	for _, s := range []*site{w.a, w.b} {
		if err := s.host.Ready(ctx); err != nil {
			return err
		}
	}
	var last error
	for ctx.Err() == nil {
		if last = errors.Join(w.a.sees(ctx, w.b), w.b.sees(ctx, w.a)); last == nil {
			return nil
		}
		pause(ctx, 50*time.Millisecond)
	}
	return fmt.Errorf("the fleet did not come back: %w", last)
}

// misses waits until s does not see the host of other any more.
func (s *site) misses(ctx context.Context, other *site) error {
	for end := time.Now().Add(upBound); ; pause(ctx, 50*time.Millisecond) {
		r, err := s.host.API("").Roster(ctx, mcp.RosterArgs{Host: other.host.Name})
		if err != nil {
			return err
		}
		online := slices.ContainsFunc(r.Hosts, func(h mcp.RosterHost) bool { return h.Host == other.host.Name && h.State == "online" })
		if !online {
			return nil
		}
		if ctx.Err() != nil || time.Now().After(end) {
			return fmt.Errorf("%s still sees %s", s.host.Name, other.host.Name)
		}
	}
}

// sees reports what s misses of other.
func (s *site) sees(ctx context.Context, other *site) error {
	r, err := s.host.API("").Roster(ctx, mcp.RosterArgs{})
	if err != nil {
		return err
	}
	if r.Broker != "connected" {
		return fmt.Errorf("%s is %s: %s", s.host.Name, r.Broker, r.Reason)
	}
	for _, h := range r.Hosts {
		if h.Host == other.host.Name && h.State == "online" {
			return nil
		}
	}
	return fmt.Errorf("%s does not see %s", s.host.Name, other.host.Name)
}

// close ends all that was started and removes its files.
func (w *world) close() error {
	w.stop()
	var errs []error
	for _, s := range []*site{w.a, w.b} {
		if s == nil {
			continue
		}
		if s.host != nil {
			errs = append(errs, s.host.Close())
		}
		if s.proxy != nil {
			errs = append(errs, s.proxy.Close())
		}
		errs = append(errs, s.control.close())
	}
	if w.mover != nil {
		errs = append(errs, w.mover.close())
	}
	if w.node != nil {
		errs = append(errs, w.node.Stop())
	}
	return errors.Join(append(errs, os.RemoveAll(w.dir))...)
}
