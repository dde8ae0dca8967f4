package roster

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"fleetd/fabric/envelope"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A fleet is some rosters around one bus that signs, encodes, decodes and
// verifies as the fabric does, and hands every message to every connected
// member, its sender included.
type fleet struct {
	t       *testing.T
	mu      sync.Mutex
	members map[string]*member
	sent    []*envelope.Envelope
	refused []error
	lose    func(to string, e *envelope.Envelope) bool // nil: nothing is lost
	quick   bool                                       // no signatures: for tests that take hours or weeks
}

type member struct {
	*Roster
	host    string
	homes   *memory
	log     *safeBuffer
	cut     bool // from the broker
	serving bool
	ahead   time.Duration // of its wall clock
	stop    func()
	boot    uint64
	fleet   *fleet
}

func keyOf(host string) ed25519.PrivateKey {
	seed := sha256.Sum256([]byte(host))
	return ed25519.NewKeyFromSeed(seed[:])
}

type trustAll struct{}

func (trustAll) Keys(host string) []ed25519.PublicKey {
	return []ed25519.PublicKey{keyOf(host).Public().(ed25519.PublicKey)}
}

// bubble runs body in a time of its own.
func bubble(t *testing.T, body func(*testing.T, *fleet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		body(t, &fleet{t: t, members: map[string]*member{}})
	})
}

func (f *fleet) publish(from *member, e *envelope.Envelope) error {
	f.mu.Lock()
	cut := from.cut
	f.mu.Unlock()
	if cut {
		return errors.New("not connected")
	}
	if !f.quick {
		if err := e.Sign(keyOf(from.host)); err != nil {
			return err
		}
	}
	f.mu.Lock()
	f.sent = append(f.sent, e)
	f.mu.Unlock()
	f.spread(e)
	return nil
}

func (f *fleet) spread(e *envelope.Envelope) {
	f.mu.Lock()
	lose := f.lose
	var to []*member
	for _, host := range slices.Sorted(maps.Keys(f.members)) {
		if m := f.members[host]; !m.cut && (lose == nil || !lose(host, e)) {
			to = append(to, m)
		}
	}
	f.mu.Unlock()
	for _, m := range to {
		if err := f.hand(m, e); err != nil {
			f.mu.Lock()
			f.refused = append(f.refused, fmt.Errorf("%s: %w", m.host, err))
			f.mu.Unlock()
		}
	}
}

func (f *fleet) hand(m *member, e *envelope.Envelope) error {
	if f.quick {
		return m.Handle(e)
	}
	got, err := envelope.Decode(e.Table(), bytes.Clone(e.Body), envelope.Limits{})
	if err != nil {
		return err
	}
	if err := got.Verify(trustAll{}); err != nil {
		return err
	}
	return m.Handle(got)
}

// start brings up a gateway that is not connected yet; one of the same host
// before it must have been stopped, and leaves its homes to it.
func (f *fleet) start(host string, change ...func(*Config)) *member {
	f.t.Helper()
	m := &member{host: host, homes: &memory{homes: map[string]Home{}}, log: new(safeBuffer), serving: true, boot: 1000, fleet: f}
	if old := f.members[host]; old != nil {
		m.homes, m.boot = old.homes, old.boot+1
	}
	cfg := Config{
		Host: host, Boot: m.boot, Homes: m.homes, Now: m.wall,
		Serving: func() bool { f.mu.Lock(); defer f.mu.Unlock(); return m.serving },
		Publish: func(_ context.Context, e *envelope.Envelope) error { return f.publish(m, e) },
		Logger:  hclog.New(&hclog.LoggerOptions{Output: m.log, Level: hclog.Info}),
	}
	for _, c := range change {
		c(&cfg)
	}
	r, err := New(cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	m.Roster = r
	ctx, cancel := context.WithCancel(f.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	m.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			f.t.Errorf("Run of %s: %v", host, err)
		}
	})
	f.t.Cleanup(m.stop)
	f.mu.Lock()
	f.members[host] = m
	f.mu.Unlock()
	return m
}

// join starts a gateway and connects it.
func (f *fleet) join(host string, entities ...Entity) *member {
	f.t.Helper()
	m := f.start(host)
	for _, e := range entities {
		m.mustSet(e)
	}
	m.connect()
	return m
}

func (m *member) connect() {
	m.fleet.t.Helper()
	m.setCut(false)
	if err := m.Sync(m.fleet.t.Context()); err != nil {
		m.fleet.t.Fatalf("Sync of %s: %v", m.host, err)
	}
	synctest.Wait()
}

func (f *fleet) setLose(lose func(to string, e *envelope.Envelope) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lose = lose
}

func (m *member) setCut(cut bool) {
	m.fleet.mu.Lock()
	defer m.fleet.mu.Unlock()
	m.cut = cut
}

// crash ends the gateway without a farewell.
func (m *member) crash() {
	m.setCut(true)
	m.stop()
}

func (m *member) mustSet(e Entity) {
	m.fleet.t.Helper()
	if err := m.SetLocal(e); err != nil {
		m.fleet.t.Fatal(err)
	}
}

func (m *member) wall() time.Time {
	m.fleet.mu.Lock()
	defer m.fleet.mu.Unlock()
	return time.Now().Add(m.ahead)
}

// sees lists the entities that m sees on host, as name:state.
func (m *member) sees(host string) string {
	var seen []string
	for _, e := range m.Entities(Filter{Host: host, Gone: true}) {
		seen = append(seen, e.Name+":"+string(e.Status.State))
	}
	return strings.Join(seen, " ")
}

// count counts what was sent since from, by the subject of its key.
func (f *fleet) count(from int, host, subject string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.sent[from:] {
		if h, s, _ := envelope.ParseRosterKey(e.To); (host == "" || h == host) && (subject == "" || s == subject) {
			n++
		}
	}
	return n
}

func (f *fleet) mark() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.sent)
}

// pass lets time go by.
func pass(d time.Duration) {
	time.Sleep(d) // in a bubble: no real time passes
	synctest.Wait()
}

// gid makes one of a number.
func gid(n int) string { return fmt.Sprintf("0197b1c2-7a00-7000-8000-%012x", n+1) }

func worker(n int, name string, groups ...string) Entity {
	return Entity{GID: gid(n), Name: name, Kind: "worker", Groups: groups, Pane: fmt.Sprintf("wQ:p%d", n), Status: Status{State: "idle"}}
}

// memory is a HomeStore.
type memory struct {
	mu    sync.Mutex
	homes map[string]Home
	saves map[string]int
	fail  error
}

func (s *memory) LoadHomes() ([]Home, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.homes)), s.fail
}

func (s *memory) SaveHomes(homes []Home) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return s.fail
	}
	if s.saves == nil {
		s.saves = map[string]int{}
	}
	for _, h := range homes {
		s.homes[h.GID] = h
		s.saves[h.GID]++
	}
	return nil
}

func (s *memory) get(gid string) (Home, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.homes[gid], s.saves[gid]
}

func (s *memory) setFail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = err
}

type safeBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *safeBuffer) count(text string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Count(b.buf.String(), text)
}

// raw makes presence of a host that is played by the test.
func raw(host, subject string, body any) *envelope.Envelope {
	text, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	return &envelope.Envelope{
		V: envelope.Version, Kind: envelope.Presence, MsgID: gid(1 << 20), TraceID: strings.Repeat("a", 32),
		From: envelope.GatewayAddress(host), To: envelope.RosterKey(host, subject), Signer: host,
		TS: time.Now().UnixMilli(), ExpiresAt: time.Now().UnixMilli() + 60_000, Body: text,
	}
}

// say has a host that is played by the test publish to all.
func (f *fleet) say(host, subject string, body any) {
	f.t.Helper()
	e := raw(host, subject, body)
	if !f.quick {
		if err := e.Sign(keyOf(host)); err != nil {
			f.t.Fatal(err)
		}
	}
	f.spread(e)
	synctest.Wait()
}
