package outbox

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/fabric/roster"
	"fleetd/fault"
	"fleetd/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience only says that something will never come.
const patience = time.Minute

// The people of these tests: two senders here, a worker and a main elsewhere.
var (
	boss   = gid(1)
	aide   = gid(2)
	coder  = gid(11)
	critic = gid(12)
	chief  = gid(13)
)

func gid(n int) string { return fmt.Sprintf("01890000-0000-7000-8000-%012d", n) }

func newID() string { return uuid.Must(uuid.NewV7()).String() }

func newTrace() string { return strings.ReplaceAll(uuid.NewString(), "-", "") }

var signKey = ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))

// tester is what testing.T and rapid.T share.
type tester interface {
	Helper()
	Cleanup(func())
	Fatal(...any)
	Fatalf(string, ...any)
	Errorf(string, ...any)
}

// clock is a clock that the test moves.
type fakeClock struct {
	mu  sync.Mutex
	now time.Time
	up  time.Duration
}

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) Uptime() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.up
}

// add lets d pass.
func (c *fakeClock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now, c.up = c.now.Add(d), c.up+d
}

// step has somebody set the wall clock.
func (c *fakeClock) step(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// publication is one call of Publish.
type publication struct {
	lane envelope.Lane
	env  *envelope.Envelope
}

// reply is what the fake broker does with a publication: nothing said means
// confirmed at once.
type reply struct {
	out  fabric.Outcome
	err  error
	late bool // InDoubt is returned, and the word comes by settle
}

type fakeBroker struct {
	mu          sync.Mutex
	down        string // why there is no link
	answer      func(publication) reply
	all         []publication
	late        map[string][]func(fabric.Outcome) // by msgID
	full        bool
	unreachable error
	gone        map[string]bool
	renews      []string
}

var errNoLink = fault.New(fault.BrokerDown, "no link")

func (b *fakeBroker) Connected() (bool, string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.down == "", b.down
}

func (b *fakeBroker) Publish(_ context.Context, lane envelope.Lane, env *envelope.Envelope, settled func(fabric.Outcome)) (fabric.Outcome, error) {
	b.mu.Lock()
	if b.down != "" {
		b.mu.Unlock()
		return fabric.NotSent, errNoLink
	}
	p := publication{lane, env}
	answer := b.answer
	b.mu.Unlock()
	r := reply{out: fabric.Confirmed}
	if answer != nil {
		r = answer(p)
	}
	b.mu.Lock()
	if r.late || r.out != fabric.NotSent {
		b.all = append(b.all, p)
	}
	if r.late {
		b.late[env.MsgID] = append(b.late[env.MsgID], settled)
	}
	b.mu.Unlock()
	switch {
	case r.late:
		return fabric.InDoubt, nil
	case r.out != fabric.NotSent && settled != nil:
		settled(r.out)
	}
	return r.out, r.err
}

func (b *fakeBroker) Reachable(context.Context, string) error { return b.unreachable }

func (b *fakeBroker) InboxFull(context.Context, string) (bool, error) { return b.full, nil }

func (b *fakeBroker) Renew(_ context.Context, gid string) (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.renews = append(b.renews, gid)
	return !b.gone[gid], nil
}

// script sets what the broker answers to mail; signals are confirmed.
func (b *fakeBroker) script(r reply) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answer = func(p publication) reply {
		if p.lane == envelope.LaneSignal {
			return reply{out: fabric.Confirmed}
		}
		return r
	}
}

// settle gives the late word on every publication of msgID.
func (b *fakeBroker) settle(msgID string, w fabric.Outcome) {
	b.mu.Lock()
	all := b.late[msgID]
	delete(b.late, msgID)
	b.mu.Unlock()
	for _, settled := range all {
		settled(w)
	}
}

// cut loses the link: whatever had no word gets none.
func (b *fakeBroker) cut() {
	b.mu.Lock()
	b.down = "connecting: cut"
	var ids []string
	for id := range b.late {
		ids = append(ids, id)
	}
	b.mu.Unlock()
	for _, id := range ids {
		b.settle(id, fabric.InDoubt)
	}
}

// sent lists what was published: the kinds, or for mail "KIND id".
func (b *fakeBroker) sent(lane envelope.Lane, kinds ...envelope.Kind) []*envelope.Envelope {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []*envelope.Envelope
	for _, p := range b.all {
		if p.lane == lane && (len(kinds) == 0 || slices.Contains(kinds, p.env.Kind)) {
			list = append(list, p.env)
		}
	}
	return list
}

func (b *fakeBroker) mail() []*envelope.Envelope { return b.sent(envelope.LaneMail) }

// queries counts the QUERYs about msgID.
func (b *fakeBroker) queries(msgID string) int {
	n := 0
	for _, e := range b.sent(envelope.LaneSignal, envelope.Query) {
		if e.InReplyTo == msgID {
			n++
		}
	}
	return n
}

// fakeLocal is the inbox: mail that it took is one message per id.
type fakeLocal struct {
	store    *store.Store
	owned    map[string]bool
	err      error
	outcomes map[string]store.Outcome
	backlog  map[string]int

	mu    sync.Mutex
	mail  []*envelope.Envelope
	turns []*envelope.Envelope // ASKs and their ABANDONED
}

func (l *fakeLocal) Backlog(gid string) int { return l.backlog[gid] }

func (l *fakeLocal) Ask(ask *envelope.Envelope) bool {
	l.turn(ask)
	return true
}

func (l *fakeLocal) Withdrawn(env *envelope.Envelope) { l.turn(env) }

func (l *fakeLocal) turn(env *envelope.Envelope) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turns = append(l.turns, env)
}

func (l *fakeLocal) Deliver(ctx context.Context, env *envelope.Envelope, also func(*store.Tx) error) error {
	switch {
	case l.err != nil:
		return l.err
	case !l.owned[env.To]:
		return fault.New(fault.UnknownRecipient, "nobody here is %s", env.To)
	}
	if also != nil {
		if err := l.store.Write(ctx, also); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.ContainsFunc(l.mail, func(e *envelope.Envelope) bool { return e.MsgID == env.MsgID }) {
		l.mail = append(l.mail, env)
	}
	return nil
}

func (l *fakeLocal) Local(_, msgID string) (store.Outcome, string) { return l.outcomes[msgID], "" }

func (l *fakeLocal) Owns(gid string) bool { return l.owned[gid] }

// notices lists what was told about msgID, as "KIND REASON".
func (l *fakeLocal) notices(msgID string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []string
	for _, e := range l.mail {
		if e.InReplyTo == msgID {
			list = append(list, strings.TrimSpace(string(e.Kind)+" "+e.Reason))
		}
	}
	return list
}

type fakeDirectory struct {
	mu    sync.Mutex
	who   map[string]roster.Target
	doing map[string]roster.State // status by gid
	stale bool
	hosts []roster.HostView
}

func (d *fakeDirectory) Resolve(address string) (roster.Target, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	t, ok := d.who[address]
	if !ok {
		return t, fault.New(fault.UnknownRecipient, "nobody is %s", address)
	}
	for _, h := range d.hosts {
		if h.Host == t.Host {
			t.HostState = h.State
		}
	}
	return t, nil
}

func (d *fakeDirectory) Entities(f roster.Filter) (all []roster.EntityView) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for address, t := range d.who {
		if address != t.GID || f.Kind != "" && f.Kind != t.Kind || f.Group != "" && !slices.Contains(t.Groups, f.Group) {
			continue
		}
		e := roster.EntityView{
			Entity: roster.Entity{GID: t.GID, Name: t.Name, Kind: t.Kind, Groups: t.Groups}, Host: t.Host, Local: t.Local,
		}
		e.Status.State = d.doing[t.GID]
		for _, h := range d.hosts {
			if h.Host == t.Host {
				e.HostState = h.State
			}
		}
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b roster.EntityView) int { return strings.Compare(a.GID, b.GID) })
	return all
}

func (d *fakeDirectory) Current() bool { return !d.stale }

func (d *fakeDirectory) Hosts() []roster.HostView {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.hosts)
}

// host changes what is known of hostb.
func (d *fakeDirectory) host(change func(*roster.HostView)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(&d.hosts[1])
}
