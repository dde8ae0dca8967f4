package inbox

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"fleetd/fabric/envelope"
	"fleetd/migrations"
	"fleetd/store"
)

// hang is the deadline of every wait in these tests: long, since it only says
// that something will never come.
const hang = 60 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The hosts of these tests: the one under test and that of the senders.
const (
	here  = "hosta"
	there = "hostb"
)

func newID() string { return uuid.Must(uuid.NewV7()).String() }

// TB is what a test, a benchmark and a rapid check have in common.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

// await polls until ok or the deadline.
func await(t TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(hang); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never happened: %s", what)
		}
	}
}

func openStore(t testing.TB) *store.Store { return openSynced(t, nil) }

// openSynced has synced stand for the disk: its errors are those of a sync.
func openSynced(t testing.TB, synced func() error) *store.Store {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	st, err := store.Open(t.Context(), store.Options{Dir: dir, Steps: migrations.Steps, Synced: synced})
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
	return st
}

// world is a host with its store, its broker and its panes, in which gateways
// live and die one after the other.
type world struct {
	t      TB
	store  *store.Store
	clock  *fakeClock
	panes  *panes
	broker *broker
	window *window
	boot   uint64
	gates  gates

	*life
}

// life is one gateway, from its start to its crash. What its fakes do after
// the crash has no effect.
type life struct {
	in      *Inbox
	disk    *disk
	reports *reports
	cancel  context.CancelFunc
	ended   chan error

	mu   sync.Mutex
	dead bool
}

// alive runs fn if the gateway has not crashed.
func (l *life) alive(fn func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.dead {
		fn()
	}
	return !l.dead
}

func newWorld(t testing.TB) *world {
	w := newWorldOn(t, openStore(t))
	t.Cleanup(w.stop)
	w.begin()
	return w
}

func newWorldOn(t TB, st *store.Store) *world {
	return &world{
		t: t, store: st, clock: newFakeClock(), panes: newPanes(), broker: &broker{t: t, queues: map[string][]*message{}},
		window: &window{},
	}
}

// assemble makes the next gateway without running it.
func (w *world) assemble(change ...func(*Config)) {
	w.t.Helper()
	w.boot++
	l := &life{ended: make(chan error, 1)}
	l.disk = &disk{world: w, life: l}
	l.disk.idle.Store(true)
	l.reports = &reports{life: l}
	cfg := Config{
		Host: here, Boot: w.boot, Store: l.disk, Injector: injector{w.panes, w, l}, Reports: l.reports,
		Names: names{}, Panes: w.panes, Now: w.clock.now, Uptime: w.clock.uptime, NewID: newID,
		Secret: func() string { return "token-" + newID() },
		Window: w.window, Gate: w.gates.note,
	}
	for _, c := range change {
		c(&cfg)
	}
	l.in = New(cfg)
	w.life = l
	err := w.store.View(func(tx *store.Tx) error {
		all, err := tx.Entities()
		for _, e := range all {
			err = errors.Join(err, l.in.Open(e))
		}
		return err
	})
	if err != nil {
		w.t.Fatalf("open: %v", err)
	}
}

func (w *world) run() {
	l := w.life
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	go func() { l.ended <- l.in.Run(ctx) }()
	await(w.t, "the start", func() bool {
		l.in.mu.Lock()
		defer l.in.mu.Unlock()
		return l.in.running != nil || !l.alive(func() {})
	})
}

func (w *world) begin(change ...func(*Config)) {
	w.t.Helper()
	w.assemble(change...)
	w.run()
	w.broker.connect(w.in)
}

// stop ends the gateway in good order.
func (w *world) stop() {
	w.broker.disconnect()
	w.cancel()
	if err := <-w.ended; err != nil {
		w.t.Errorf("run: %v", err)
	}
	w.ended <- nil
	w.disk.flush()
}

// crash ends the gateway where it stands: what was not committed is lost, and
// what it does from now on is not done.
func (w *world) crash() {
	w.life.mu.Lock()
	w.dead = true
	w.life.mu.Unlock()
	w.broker.disconnect()
	w.cancel()
	<-w.ended
	w.ended <- nil
}

// restart crashes the gateway and starts the next.
func (w *world) restart() {
	w.t.Helper()
	w.crash()
	w.begin()
}

// worker registers a worker with a pane of its own.
func (w *world) worker(name string) store.Entity {
	w.t.Helper()
	w.panes.open("pane-" + name)
	e, _, _, err := w.in.Register(context.Background(), Registration{Name: name, Kind: store.Worker, Pane: "pane-" + name})
	if err != nil {
		w.t.Fatalf("register: %v", err)
	}
	return e
}

func (w *world) main(name string) store.Entity {
	w.t.Helper()
	e, _, _, err := w.in.Register(context.Background(), Registration{Name: name, Kind: store.Main})
	if err != nil {
		w.t.Fatalf("register: %v", err)
	}
	return e
}

// mail makes a message from another host.
func (w *world) mail(kind envelope.Kind, to, body string) *envelope.Envelope {
	now := w.clock.now()
	return &envelope.Envelope{
		V: envelope.Version, Kind: kind, MsgID: newID(), TraceID: strings.ReplaceAll(newID(), "-", ""), From: sender, To: to,
		Signer: there, TS: now.UnixMilli(), ExpiresAt: now.Add(15 * time.Minute).UnixMilli(), Body: []byte(body),
	}
}

func (w *world) brief(to, body string) *envelope.Envelope { return w.mail(envelope.Send, to, body) }

// deliver hands over mail of this host.
func (w *world) deliver(env *envelope.Envelope) {
	w.t.Helper()
	if err := w.in.Deliver(context.Background(), env, nil); err != nil {
		w.t.Fatalf("deliver: %v", err)
	}
}

// outcome is what the store says of a message.
func (w *world) outcome(gid, msgID string) string {
	w.t.Helper()
	w.disk.flush()
	var s store.Seen
	err := w.store.View(func(tx *store.Tx) (err error) {
		s, _, err = tx.FindSeen(msgID, gid)
		return err
	})
	if err != nil {
		w.t.Fatalf("seen: %v", err)
	}
	if s.Reason != "" {
		return string(s.Outcome) + " " + s.Reason
	}
	return string(s.Outcome)
}

// stored is the state of a brief's record.
func (w *world) stored(gid, msgID string) string {
	var b store.Brief
	err := w.store.View(func(tx *store.Tx) (err error) {
		b, _, err = tx.BriefByMsg(gid, msgID)
		return err
	})
	if err != nil {
		w.t.Errorf("brief: %v", err)
	}
	return b.State
}

func (w *world) held(gid string) []store.Held {
	w.t.Helper()
	w.disk.flush()
	var all []store.Held
	err := w.store.View(func(tx *store.Tx) (err error) {
		all, err = tx.HeldIndex(gid)
		for i, h := range all {
			if err == nil {
				all[i], _, err = tx.HeldEntry(gid, h.Seq)
			}
		}
		return err
	})
	if err != nil {
		w.t.Fatalf("held: %v", err)
	}
	return all
}

// query asks as the sender's gateway does.
func (w *world) query(env *envelope.Envelope, gid, signer string) string {
	r, ok := w.in.Answer(&envelope.Envelope{
		Kind: envelope.Query, MsgID: newID(), InReplyTo: env.MsgID, To: gid, Signer: signer,
		From: envelope.GatewayAddress(signer),
	})
	if !ok {
		return "no answer"
	}
	return strings.TrimSpace(string(r.Kind) + " " + r.Reason)
}

// poll takes mail as a client does; the batch is not settled.
func (w *world) poll(gid string, f Filter, l Limit) (*Batch, []string) {
	w.t.Helper()
	if l.Max == 0 {
		l.Max = 100
	}
	wait, err := w.in.Wait(gid, f, l)
	if err != nil {
		w.t.Fatalf("wait: %v", err)
	}
	select {
	case b := <-wait.C():
		wait.Close()
		return b, bodies(w.t, b)
	default:
		wait.Close()
		return &Batch{}, nil // nothing to settle
	}
}

// bodies lists a batch; a ! marks what is redelivered.
func bodies(t TB, b *Batch) []string {
	t.Helper()
	var all []string
	mails, err := b.Messages()
	if err != nil {
		t.Fatalf("messages: %v", err)
	}
	for _, m := range mails {
		text := string(m.Body)
		if m.Redelivered {
			text += "!"
		}
		all = append(all, text)
	}
	return all
}

var sender = newID() // an entity of the other host

type names struct{}

func (names) Name(gid string) string { return "name-of-" + gid }
