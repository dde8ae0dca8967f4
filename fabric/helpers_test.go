package fabric

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/test/rabbit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(rabbit.Shared(m)) }

// patience bounds every wait for something that should happen.
const patience = 90 * time.Second

// fleet is what the gateways of one test share: a broker, a name prefix, and
// who trusts whom.
type fleet struct {
	t      testing.TB
	uri    string
	prefix string

	mu    sync.Mutex
	keys  map[string]ed25519.PrivateKey
	homes map[string]string
	quiet map[string]bool // hosts that are not heard
}

func newFleet(t testing.TB, uri string) *fleet {
	fl := &fleet{t: t, uri: uri, prefix: rabbit.Prefix(t), keys: map[string]ed25519.PrivateKey{}, homes: map[string]string{}, quiet: map[string]bool{}}
	t.Cleanup(fl.sweep)
	return fl
}

func (fl *fleet) names() Names { return Names{Prefix: fl.prefix} }

// sweep deletes what the test declared; a private node is gone by itself.
func (fl *fleet) sweep() {
	if fl.uri == "" {
		return
	}
	n := fl.names()
	fl.mu.Lock()
	defer fl.mu.Unlock()
	queues := []string{n.DLQ()}
	for host := range fl.keys {
		queues = append(queues, n.ControlQueue(host), n.ReportQueue(host))
	}
	for gid := range fl.homes {
		queues = append(queues, n.Inbox(gid))
	}
	if err := rabbit.Sweep(fl.uri, queues, n.Exchanges()); err != nil {
		fl.t.Error("sweep:", err)
	}
}

func (fl *fleet) key(host string) ed25519.PrivateKey {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	if fl.keys[host] == nil {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			fl.t.Fatal(err)
		}
		fl.keys[host] = key
	}
	return fl.keys[host]
}

// entity makes a gid at home on host.
func (fl *fleet) entity(host string) string {
	gid := uuid.Must(uuid.NewV7()).String()
	fl.settle(gid, host)
	return gid
}

func (fl *fleet) settle(gid, host string) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	fl.homes[gid] = host
}

func (fl *fleet) silence(host string, quiet bool) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	fl.quiet[host] = quiet
}

// gateway is one Fabric with the rest of its gateway played by the test.
type gateway struct {
	*Fabric
	fl        *fleet
	host      string
	log       *logged
	signals   chan *envelope.Envelope
	presence  chan *envelope.Envelope
	dead      chan deadLetter
	reported  chan fault.Code
	solicited chan string
	states    chan State
	stop      func()

	mu     sync.Mutex
	noted  map[string]string // msgID+gid → host
	groups map[string][]string
	known  map[string]bool // msgID
}

type deadLetter struct {
	env           *envelope.Envelope
	queue, reason string
}

// Keys makes the gateway its own Trust: every host that has a key.
func (g *gateway) Keys(host string) []ed25519.PublicKey {
	g.fl.mu.Lock()
	defer g.fl.mu.Unlock()
	if key := g.fl.keys[host]; key != nil && host != g.host {
		return []ed25519.PublicKey{publicOf(key)}
	}
	return nil
}

func (g *gateway) Home(gid string) (string, bool) {
	g.fl.mu.Lock()
	defer g.fl.mu.Unlock()
	h, ok := g.fl.homes[gid]
	return h, ok
}

func (g *gateway) Live(host string) bool {
	g.fl.mu.Lock()
	defer g.fl.mu.Unlock()
	return !g.fl.quiet[host]
}

func (g *gateway) Solicit(host string) { g.solicited <- host }

func (g *gateway) Owns(gid string) bool {
	h, _ := g.Home(gid)
	return h == g.host
}

func (g *gateway) Member(gid, group string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, m := range g.groups[gid] {
		if m == group {
			return true
		}
	}
	return false
}

func (g *gateway) RecipientHost(msgID, gid string) (string, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	h, ok := g.noted[msgID+gid]
	return h, ok
}

func (g *gateway) note(msgID, gid, host string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.noted[msgID+gid] = host
}

// gateway makes a Fabric that does not run yet.
func (fl *fleet) gateway(host string, change ...func(*Config, *Deps)) *gateway {
	fl.t.Helper()
	g := &gateway{
		fl: fl, host: host, log: newLogged(), signals: make(chan *envelope.Envelope, 256),
		presence: make(chan *envelope.Envelope, 256), dead: make(chan deadLetter, 256),
		reported: make(chan fault.Code, 64), solicited: make(chan string, 1024), states: make(chan State, 256),
		noted: map[string]string{}, groups: map[string][]string{}, known: map[string]bool{},
	}
	cfg := Config{Host: host, URI: fl.uri, Prefix: fl.prefix} // a shorter heartbeat than usual is missed by a busy machine
	deps := Deps{
		Log: g.log, Key: fl.key(host), Trust: g, Homes: g, Noted: g, Owner: g,
		OnSignal:     func(e *envelope.Envelope) { g.signals <- e },
		OnPresence:   func(e *envelope.Envelope) error { g.presence <- e; return nil },
		OnDeadLetter: func(e *envelope.Envelope, q, r string) error { g.dead <- deadLetter{e, q, r}; return nil },
		RefusedBrief: func(_ *envelope.Envelope, c fault.Code) { g.reported <- c },
	}
	for _, c := range change {
		c(&cfg, &deps)
	}
	f, err := New(cfg, deps)
	if err != nil {
		fl.t.Fatal(err)
	}
	g.Fabric = f
	f.confirmWait = patience // a broker that is slow is no fault of ours
	f.OnState(func(s State) { g.states <- s })
	return g
}

// run starts the gateway and ends it with the test.
func (g *gateway) run() *gateway {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	var once sync.Once
	g.stop = func() {
		once.Do(func() {
			cancel()
			select {
			case err := <-done:
				if err != nil {
					g.fl.t.Error("Run:", err)
				}
			case <-time.After(patience):
				g.fl.t.Error("Run did not end")
			}
		})
	}
	g.fl.t.Cleanup(g.stop)
	return g
}

// up starts a gateway and waits until it is connected.
func (fl *fleet) up(host string, change ...func(*Config, *Deps)) *gateway {
	fl.t.Helper()
	g := fl.gateway(host, change...).run()
	g.await(Connected)
	return g
}

func (g *gateway) await(p Phase) {
	g.fl.t.Helper()
	eventually(g.fl.t, "state "+string(p), func() bool { return g.State().Phase == p })
}

// reporting waits until dead letters of g are reported from now on.
func (g *gateway) reporting() {
	g.fl.t.Helper()
	eventually(g.fl.t, "the reports are read", func() bool {
		q, err := g.inspect(g.fl.names().ReportQueue(g.host))
		return err == nil && q.Consumers == 1
	})
}

// eventually polls until ok; the deadline only bounds a failure.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	limit := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(limit) {
			t.Fatalf("never came to: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// got takes the next value of c.
func got[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("never got: %s", what)
		panic("unreachable")
	}
}

// mailbox is an attached inbox whose deliveries go to a channel.
type mailbox struct {
	gid  string
	mail chan envelope.Delivery
	lost chan struct{}
}

func (g *gateway) attach(gid string, change ...func(*Inbox)) *mailbox {
	g.fl.t.Helper()
	m := g.box(gid, change...)
	eventually(g.fl.t, "inbox attached", func() bool { return g.InboxState(gid).Status == InboxAttached })
	return m
}

func (g *gateway) box(gid string, change ...func(*Inbox)) *mailbox {
	m := &mailbox{gid: gid, mail: make(chan envelope.Delivery, 8192), lost: make(chan struct{}, 256)}
	spec := Inbox{
		GID: gid, Prefetch: 64,
		Handler: func(_ context.Context, d envelope.Delivery) { m.mail <- d },
		Lost:    func() { m.lost <- struct{}{} },
	}
	for _, c := range change {
		c(&spec)
	}
	g.mu.Lock()
	g.groups[gid] = spec.Groups
	g.mu.Unlock()
	if err := g.Attach(spec); err != nil {
		g.fl.t.Fatal(err)
	}
	return m
}

// take takes the next mail, checks and acks it.
func (m *mailbox) take(t testing.TB, body string) envelope.Delivery {
	t.Helper()
	d := got(t, "mail "+body, m.mail)
	if string(d.Body) != body {
		t.Fatalf("got mail %q, want %q", d.Body, body)
	}
	if err := d.Ack(); err != nil {
		t.Fatal("ack:", err)
	}
	return d
}

// letter makes a signed envelope of an entity at home on signer.
func (fl *fleet) letter(kind envelope.Kind, signer, from, to, body string, change ...func(*envelope.Envelope)) *envelope.Envelope {
	fl.t.Helper()
	now := time.Now()
	trace, err := envelope.NewTraceID(rand.Reader)
	if err != nil {
		fl.t.Fatal(err)
	}
	e := &envelope.Envelope{
		V: envelope.Version, Kind: kind, MsgID: uuid.Must(uuid.NewV7()).String(), TraceID: trace,
		From: from, To: to, Signer: signer, TS: now.UnixMilli(), ExpiresAt: now.Add(envelope.Life(kind, 0)).UnixMilli(),
		Body: []byte(body),
	}
	for _, c := range change {
		c(e)
	}
	if err := e.Sign(fl.key(signer)); err != nil {
		fl.t.Fatal(err)
	}
	return e
}

// publish publishes and wants the outcome.
func (g *gateway) publish(lane envelope.Lane, e *envelope.Envelope, want Outcome) {
	g.fl.t.Helper()
	out, err := g.Publish(context.Background(), lane, e, nil)
	if out != want {
		g.fl.t.Fatalf("publish: %v (%v), want %v", out, err, want)
	}
}
