package outbox

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/fabric/roster"
	"fleetd/fault"
	"fleetd/migrations"
	"fleetd/store"
)

// world is one gateway, hosta, with everything around it fake but the store.
// Nothing runs by itself: turn does what the loop and the workers would.
type world struct {
	t      tester
	clock  *fakeClock
	store  *store.Store
	disk   string       // the folder of store
	sick   *atomic.Bool // the syncs of its disk fail
	broker *fakeBroker
	local  *fakeLocal
	dir    *fakeDirectory
	out    *Outbox
}

func newWorld(t tester) *world {
	t.Helper()
	disk, err := os.MkdirTemp(memory(), "outbox")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(disk)) })
	sick := &atomic.Bool{}
	st := runStore(t, disk, sick)
	w := &world{
		t: t, store: st, disk: disk, sick: sick,
		clock:  &fakeClock{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)},
		broker: &fakeBroker{late: map[string][]func(fabric.Outcome){}, gone: map[string]bool{}},
		local:  &fakeLocal{store: st, owned: map[string]bool{boss: true, aide: true}, outcomes: map[string]store.Outcome{}},
		dir: &fakeDirectory{who: map[string]roster.Target{}, hosts: []roster.HostView{
			{Host: "hosta", State: roster.Online, Local: true, Boot: 1}, {Host: "hostb", State: roster.Online, Boot: 1},
		}},
	}
	for name, t := range map[string]roster.Target{
		"boss":   {GID: boss, Name: "boss", Host: "hosta", Kind: "main", Local: true},
		"aide":   {GID: aide, Name: "aide", Host: "hosta", Kind: "worker", Local: true},
		"coder":  {GID: coder, Name: "coder", Host: "hostb", Kind: "worker"},
		"critic": {GID: critic, Name: "critic", Host: "hostb", Kind: "worker"},
		"chief":  {GID: chief, Name: "chief", Host: "hostb", Kind: "main"},
	} {
		w.dir.who[name], w.dir.who[t.GID] = t, t
	}
	w.boot()
	return w
}

var errSync = errors.New("the disk is sick")

func runStore(t tester, dir string, sick *atomic.Bool) *store.Store {
	t.Helper()
	st, err := store.Open(context.Background(), store.Options{Dir: dir, Steps: migrations.Steps, Synced: func() error {
		if sick.Load() {
			return errSync
		}
		return nil
	}})
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- st.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		must(t, errors.Join(<-done, st.Check(context.Background()), st.Close()))
	})
	return st
}

// memory is a folder on no disk, where there is one: none of these tests pulls
// the plug, and thousands of commits need not wait for a disk.
func memory() string {
	const shm = "/dev/shm"
	if info, err := os.Stat(shm); err != nil || !info.IsDir() {
		return ""
	}
	return shm
}

// boot starts the gateway (again) on what the store holds.
func (w *world) boot() {
	w.t.Helper()
	w.out = New(Config{
		Host: "hosta", Store: w.store, Directory: w.dir, Broker: w.broker, Now: w.clock.Now, Uptime: w.clock.Uptime,
		Sign:  func(e *envelope.Envelope) error { return e.Sign(signKey) },
		NewID: newID, NewTrace: newTrace,
	})
	w.out.Use(w.local)
	must(w.t, w.out.Load())
}

// crash ends the gateway where it stands and boots it anew. The fake broker's
// late words go to nobody.
func (w *world) crash() {
	w.broker.mu.Lock()
	w.broker.late = map[string][]func(fabric.Outcome){}
	w.broker.mu.Unlock()
	must(w.t, w.store.Flush(context.Background()))
	w.boot()
}

// fall is crash, and takes along what no commit was waited for: the store is
// as a reader finds it on disk.
func (w *world) fall() {
	w.t.Helper()
	disk, err := os.MkdirTemp(w.disk, "next")
	must(w.t, err)
	must(w.t, w.store.View(func(*store.Tx) error { // no page of what is read is used again meanwhile
		data, err := os.ReadFile(filepath.Join(w.disk, store.DefaultFile))
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(disk, store.DefaultFile), data, 0o600)
	}))
	w.sick.Store(false) // else the store that is left behind cannot be closed
	w.sick = &atomic.Bool{}
	w.store, w.disk = runStore(w.t, disk, w.sick), disk
	w.local.store = w.store
	w.broker.mu.Lock()
	w.broker.late = map[string][]func(fabric.Outcome){}
	w.broker.mu.Unlock()
	w.boot()
}

// reconnect brings the link up.
func (w *world) reconnect() {
	w.broker.mu.Lock()
	w.broker.down = ""
	w.broker.mu.Unlock()
	w.out.Connected()
	w.turn()
}

// turn does what is due until nothing is left to do.
func (w *world) turn() {
	for {
		w.out.look()
		for len(w.out.work) > 0 {
			(<-w.out.work)(context.Background())
		}
		select {
		case <-w.out.wake:
		default:
			return
		}
	}
}

// after lets d pass in steps of a second, with a turn at each.
func (w *world) after(d time.Duration) {
	step := time.Second
	if d > time.Hour {
		step = time.Minute
	}
	for ; d > 0; d -= step {
		w.clock.add(min(step, d))
		w.turn()
	}
}

func (w *world) send(r Request) (Sent, error) {
	if r.From == "" {
		r.From = boss
	}
	if r.To == "" {
		r.To = "coder"
	}
	if r.Content == nil {
		r.Content = []byte("do it")
	}
	return w.out.Send(context.Background(), r)
}

// sent sends to coder and wants no error.
func (w *world) sent(r Request) Sent {
	w.t.Helper()
	s, err := w.send(r)
	must(w.t, err)
	return s
}

// reply has aide answer a brief of chief's.
func (w *world) reply(key string) (Sent, error) {
	return w.out.Reply(context.Background(), Answer{From: aide, Brief: brief(), Content: []byte("done"), Key: key})
}

func brief() store.Brief {
	return store.Brief{GID: aide, MsgID: newID(), TraceID: newTrace(), Sender: chief, SenderHost: "hostb", SenderName: "chief"}
}

// report is what coder's gateway says about a message.
func report(kind envelope.Kind, reason, msgID string) *envelope.Envelope {
	return &envelope.Envelope{Kind: kind, Reason: reason, InReplyTo: msgID, From: coder, To: boss, Signer: "hostb", TraceID: newTrace()}
}

func (w *world) signal(kind envelope.Kind, reason, msgID string) {
	w.t.Helper()
	must(w.t, w.out.Signal(context.Background(), report(kind, reason, msgID)))
}

// answers is coder's gateway answering a QUERY.
func (w *world) answers(kind envelope.Kind, reason, msgID string) {
	w.t.Helper()
	e := report(kind, reason, msgID)
	e.To = envelope.GatewayAddress("hosta")
	must(w.t, w.out.Signal(context.Background(), e))
}

// stored is the intent as a restart would find it.
func (w *world) stored(msgID string) (store.Intent, bool) {
	w.t.Helper()
	must(w.t, w.store.Flush(context.Background()))
	in, found, err := w.out.stored(msgID)
	must(w.t, err)
	return in, found
}

// wantNotices fails unless exactly these were told about msgID.
func (w *world) wantNotices(msgID string, want ...string) {
	w.t.Helper()
	if got := w.local.notices(msgID); !slices.Equal(got, want) {
		w.t.Errorf("told about the message: %q, want %q", got, want)
	}
}

func must(t tester, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantCode(t tester, err error, code fault.Code) {
	t.Helper()
	if fault.CodeOf(err) != code {
		t.Fatalf("got %v, want %s", err, code)
	}
}

// ids lists message ids.
func ids(envs []*envelope.Envelope) []string {
	var list []string
	for _, e := range envs {
		list = append(list, e.MsgID)
	}
	return list
}
