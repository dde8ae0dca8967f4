package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
)

// fakeClock is the wall and the monotonic clock of a world.
type fakeClock struct {
	mu    sync.Mutex
	wall  time.Time
	up    time.Duration
	looks int // at uptime: one per sweep
}

func newFakeClock() *fakeClock {
	return &fakeClock{wall: time.Now().Round(0).Truncate(time.Millisecond)}
}

func (c *fakeClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wall
}

func (c *fakeClock) uptime() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.looks++
	return c.up
}

func (c *fakeClock) sweeps() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.looks
}

// pass lets time pass.
func (c *fakeClock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall = c.wall.Add(d)
	c.up += d
}

// jump sets the wall clock alone.
func (c *fakeClock) jump(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall = c.wall.Add(d)
}

// disk is the store as a gateway sees it. What rides with the next commit does
// exactly that, so that a crash before takes it.
type disk struct {
	steps map[string]int // in the trace, by trace id
	world *world
	life  *life

	mu     sync.Mutex
	riders []func(*store.Tx) error
	down   bool
	// lie, once: the commit is made and called failed.
	lie bool
	// dieBefore and dieAfter, if set, let the gateway crash at a commit.
	dieBefore, dieAfter int

	idle     atomic.Bool // nobody is inside of Write
	failures atomic.Int64
}

var errCrashed = errors.New("the gateway has crashed")

var errDown = fault.New(fault.StoreUnavailable, "the disk is full")

func (d *disk) Write(ctx context.Context, fn func(*store.Tx) error) error {
	d.idle.Store(false)
	defer d.idle.Store(true)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return fault.Wrap(err, fault.StoreUnavailable, "cancelled")
	}
	if d.down {
		d.failures.Add(1)
		return errDown
	}
	if d.dieBefore--; d.dieBefore == 0 {
		d.life.alive(func() { d.life.dead = true })
	}
	if !d.life.alive(func() {}) {
		return errCrashed
	}
	riders := d.riders
	err := d.world.store.Write(ctx, func(tx *store.Tx) error {
		for _, r := range riders {
			if err := r(tx); err != nil {
				d.world.t.Errorf("a deferred write failed: %v", err)
			}
		}
		return fn(tx)
	})
	if err == nil {
		d.riders = d.riders[len(riders):]
	}
	if d.lie {
		d.lie = false
		return fault.New(fault.StoreUnavailable, "the commit failed, or so it seems")
	}
	if d.dieAfter--; d.dieAfter == 0 {
		d.life.alive(func() { d.life.dead = true })
		return errCrashed
	}
	return err
}

func (d *disk) Later(fn func(*store.Tx) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.riders = append(d.riders, fn)
}

func (d *disk) View(fn func(*store.Tx) error) error { return d.world.store.View(fn) }

// Trace counts the steps of a flow.
func (d *disk) Trace(ev store.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.steps == nil {
		d.steps = map[string]int{}
	}
	d.steps[ev.TraceID]++
}

func (d *disk) set(fn func(*disk)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fn(d)
}

// flush commits what rides.
func (d *disk) flush() {
	if err := d.Write(context.Background(), func(*store.Tx) error { return nil }); err != nil && !errors.Is(err, errCrashed) {
		d.world.t.Errorf("flush: %v", err)
	}
}

// flushIfUp is flush for a gateway that may die of it.
func (d *disk) flushIfUp() bool {
	return !errors.Is(d.Write(context.Background(), func(*store.Tx) error { return nil }), errCrashed)
}

// broker keeps mail until it is acked and delivers it again on each connection.
type broker struct {
	t      TB
	mu     sync.Mutex
	in     *Inbox
	gen    int
	queues map[string][]*message
	// acking is told of each ack before it counts.
	acking func(env *envelope.Envelope)
}

type message struct {
	env    *envelope.Envelope
	state  string // "", acked, rejected
	handed int    // how often it was handed back
}

// hold is one delivery of a message.
type hold struct {
	b      *broker
	gen    int
	m      *message
	handed int
}

func (b *broker) connect(in *Inbox) {
	b.mu.Lock()
	b.gen++
	b.in = in
	gen := b.gen
	queues := map[string][]*message{}
	for gid, q := range b.queues {
		queues[gid] = slices.Clone(q)
	}
	b.mu.Unlock()
	for gid, q := range queues {
		for _, m := range q {
			if b.open(m) {
				in.Accept(context.Background(), gid, envelope.Delivery{Envelope: m.env, Redelivered: true, Settler: &hold{b: b, gen: gen, m: m, handed: m.handed}})
			}
		}
	}
}

func (b *broker) open(m *message) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return m.state == ""
}

func (b *broker) disconnect() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gen++
	b.in = nil
}

// publish brings mail to gid.
func (b *broker) publish(gid string, env *envelope.Envelope) *message {
	m := &message{env: env}
	b.mu.Lock()
	b.queues[gid] = append(b.queues[gid], m)
	in, gen := b.in, b.gen
	b.mu.Unlock()
	if in != nil {
		in.Accept(context.Background(), gid, envelope.Delivery{Envelope: env, Settler: &hold{b: b, gen: gen, m: m}})
	}
	return m
}

func (b *broker) all(gid string) []*message {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.queues[gid])
}

// handBack ends the hold on a message that was held for long.
func (b *broker) handBack(m *message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m.handed++
}

// again delivers what was handed back.
func (b *broker) again(gid string, m *message) {
	b.mu.Lock()
	in, h := b.in, &hold{b: b, gen: b.gen, m: m, handed: m.handed}
	b.mu.Unlock()
	in.Accept(context.Background(), gid, envelope.Delivery{Envelope: m.env, Redelivered: true, Settler: h})
}

func (b *broker) onAck(fn func(env *envelope.Envelope)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.acking = fn
}

func (b *broker) state(m *message) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return m.state
}

func (h *hold) settle(how string) error {
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	if h.gen != h.b.gen || h.handed != h.m.handed {
		return errors.New("the hold is over")
	}
	if h.m.state != "" {
		return fmt.Errorf("settled already: %s", h.m.state)
	}
	h.m.state = how
	return nil
}

func (h *hold) Ack() error {
	h.b.mu.Lock()
	acking := h.b.acking
	h.b.mu.Unlock()
	if acking != nil {
		acking(h.m.env)
	}
	return h.settle("acked")
}
func (h *hold) Held() bool {
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	return h.gen == h.b.gen && h.handed == h.m.handed && h.m.state == ""
}
func (h *hold) Reject() error  { return h.settle("rejected") }
func (h *hold) Requeue() error { return nil }

// reports notes what senders are told.
type reports struct {
	life     *life
	mu       sync.Mutex
	progress []envelope.Report
	final    []envelope.Report
	arrived  []string
	outcomes []string
	over     []string // "KIND REASON turnId"
	fail     error
	failing  int // calls of Final that failed
	refused  int // calls of Outcome that did
}

func (r *reports) Progress(p envelope.Report) {
	r.mu.Lock() // before life's, as everywhere
	defer r.mu.Unlock()
	r.life.alive(func() { r.progress = append(r.progress, p) })
}

func (r *reports) Final(_ context.Context, p envelope.Report) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail != nil {
		r.failing++
		return r.fail
	}
	if !r.life.alive(func() { r.final = append(r.final, p) }) {
		return errCrashed
	}
	return nil
}

func (r *reports) Arrived(env *envelope.Envelope) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.arrived = append(r.arrived, env.MsgID)
}

func (r *reports) Outcome(_ context.Context, env *envelope.Envelope) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail == nil {
		r.outcomes = append(r.outcomes, env.MsgID)
	} else {
		r.refused++
	}
	return r.fail
}

func (r *reports) TurnOver(ask *envelope.Envelope, kind envelope.Kind, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = append(r.over, strings.TrimSpace(string(kind)+" "+reason)+" "+ask.TurnID)
}

func (r *reports) set(fn func(*reports)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fn(r)
}

func (r *reports) failed() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failing
}

func (r *reports) tries() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refused
}

// told lists what the sender of msgID was told, in order.
func (r *reports) told(msgID string) []string {
	return r.list(msgID, func() []envelope.Report { return r.progress })
}

func (r *reports) ends(msgID string) []string {
	return r.list(msgID, func() []envelope.Report { return r.final })
}

func (r *reports) list(msgID string, of func() []envelope.Report) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []string
	for _, p := range of() {
		if p.MsgID == msgID {
			all = append(all, strings.TrimSpace(string(p.Kind)+" "+p.Reason))
		}
	}
	return all
}

// window is the broker's side of a main's inbox.
type window struct {
	mu      sync.Mutex
	ready   int
	full    bool
	widened int
	bound   bool
	away    error    // the broker cannot be reached
	refuse  int      // so often the inbox is not empty
	steps   []string // of ends, in order
	look    func(step string)
}

func (w *window) Unbind(_ context.Context, gid string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.away == nil {
		w.step("unbound " + gid)
	}
	return w.away
}

func (w *window) set(fn func(*window)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fn(w)
}

func (w *window) step(what string) {
	w.steps = append(w.steps, what)
	if w.look != nil {
		w.look(what)
	}
}

func (w *window) Remove(_ context.Context, gid string) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.away != nil {
		return false, w.away
	}
	if w.refuse > 0 {
		w.refuse--
		return false, nil
	}
	w.step("removed " + gid)
	return true, nil
}

func (w *window) More(string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.bound {
		w.widened++
	}
	return !w.bound
}

func (w *window) Full(string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.full
}

func (w *window) Ready(string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ready
}

func (w *window) times() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.widened
}

// gates notes what the roster is told of gates.
type gates struct {
	mu  sync.Mutex
	all []string
}

func (g *gates) note(_ string, reason envelope.Reason, _ time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all = append(g.all, string(reason))
}

func (g *gates) seen() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.all)
}

func (r *reports) EndTurns(string) {}
