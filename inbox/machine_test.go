package inbox

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
)

// machine drives one worker and one main through whatever rapid thinks of, and
// notes what became of each message.
type machine struct {
	*world
	worker, main store.Entity
	batches      []*Batch
	sent         []*post
	away         []away
	luck         *rand.Rand // of the pane
}

// away is a message that was handed back and has not come again.
type away struct {
	gid string
	m   *message
}

// small has a main's local mail go to the backlog soon.
func small(c *Config) { c.LocalWindow = 2 }

// post is one message of a run.
type post struct {
	env    *envelope.Envelope
	gid    string
	local  bool
	shown  int // times a client saw it
	marked int // of them, those marked redelivered
	ends   []string
}

// Fails if a message is lost, injected twice, shown twice without a mark, or
// has two ends, whatever happens in between: crashes at any commit and around
// every byte, reconnects, duplicates, a full disk, refusals and doubt.
func TestEveryMessageHasOneEnd(t *testing.T) {
	if checks := flag.Lookup("rapid.checks"); checks.Value.String() == checks.DefValue {
		// A run waits for retries; more than these are for whoever asks for them.
		t.Cleanup(func() { _ = checks.Value.Set(checks.DefValue) })
		if err := checks.Value.Set("40"); err != nil {
			t.Fatal(err)
		}
	}
	st := openStore(t)
	rapid.Check(t, func(t *rapid.T) {
		m := &machine{world: newWorldOn(t, st), luck: rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "luck"), 0))}
		m.boot = uint64(time.Now().UnixNano()) // the store is that of all runs
		m.begin(small)
		defer func() { m.crash() }()
		m.world.panes.script(m.attempt)
		name := "a" + strings.ReplaceAll(newID(), "-", "")
		m.worker, m.main = m.world.worker(name), m.world.main("m"+name)
		t.Repeat(map[string]func(*rapid.T){
			"publish":   func(t *rapid.T) { m.publish(t) },
			"publish 2": func(t *rapid.T) { m.publish(t) },
			"deliver":   func(t *rapid.T) { m.deliverOne(t) },
			"deliver 2": func(t *rapid.T) { m.deliverOne(t) },
			"again":     func(t *rapid.T) { m.again(t) },
			"gate": func(t *rapid.T) {
				m.panes.gate(m.worker.Pane, rapid.SampledFrom([]envelope.Reason{"", "", "BUSY"}).Draw(t, "gate"))
			},
			"poll":      func(t *rapid.T) { m.take(t) },
			"settle":    func(t *rapid.T) { m.settle(t) },
			"hand back": func(t *rapid.T) { m.handBack(t) },
			"take back": func(t *rapid.T) { m.takeBack() },
			"reconnect": func(t *rapid.T) { m.reconnect() },
			"disk": func(t *rapid.T) {
				m.disk.set(func(d *disk) { d.lie = true })
			},
			"crash": func(t *rapid.T) { m.restartAll() },
			"crash at a commit": func(t *rapid.T) {
				n, after := rapid.IntRange(1, 3).Draw(t, "n"), rapid.Bool().Draw(t, "after")
				m.disk.set(func(d *disk) {
					if after {
						d.dieAfter = n
					} else {
						d.dieBefore = n
					}
				})
			},
			"": func(t *rapid.T) { m.revive() },
		})
		m.check(t)
	})
}

// attempt lets the pane do what panes do.
func (m *machine) attempt(msgID string) *plan {
	switch m.luck.IntN(8) {
	case 0:
		return &plan{after: &Injection{Result: NotSent, Reason: "NOT_INJECTED"}}
	case 1:
		return &plan{after: &Injection{Result: InDoubt}, text: m.luck.IntN(2) == 0}
	case 2:
		return &plan{do: func() { m.life.alive(func() { m.dead = true }) }} // between record and byte
	case 3:
		return &plan{text: true, after: &Injection{Result: NotSent}, do: func() {
			m.panes.set(func() { // the byte, then the crash
				p := m.panes.all[m.worker.Pane]
				p.text = append(p.text, msgID)
			})
			m.life.alive(func() { m.dead = true })
		}}
	}
	return nil
}

// revive starts the next gateway if this one has crashed by itself.
func (m *machine) revive() {
	if !m.life.alive(func() {}) {
		m.restartAll()
	}
}

func (m *machine) restartAll() {
	m.crash()
	m.noteEnds()
	m.batches, m.away = nil, nil
	m.begin(small)
}

// handBack hands back what was held for long and is not in hand.
func (m *machine) handBack(t *rapid.T) {
	gid := rapid.SampledFrom([]string{m.main.GID, m.worker.GID}).Draw(t, "whose")
	for _, msg := range m.broker.all(gid) {
		out := slices.ContainsFunc(m.away, func(a away) bool { return a.m == msg })
		if !out && m.broker.open(msg) && !m.in.InHand(gid, msg.env.MsgID) {
			m.broker.handBack(msg)
			m.away = append(m.away, away{gid, msg})
		}
	}
}

func (m *machine) takeBack() {
	for _, a := range m.away {
		m.broker.again(a.gid, a.m)
	}
	m.away = nil
}

func (m *machine) reconnect() {
	m.away = nil
	m.broker.disconnect()
	m.broker.connect(m.in)
}

// noteEnds keeps what senders were told over a crash: it is durable.
func (m *machine) noteEnds() {
	for _, p := range m.sent {
		p.ends = append(p.ends, m.reports.ends(p.env.MsgID)...)
		m.reports.set(func(r *reports) {
			r.final = slices.DeleteFunc(r.final, func(f envelope.Report) bool { return f.MsgID == p.env.MsgID })
		})
	}
}

func (m *machine) post(t *rapid.T) *post {
	p := &post{gid: m.worker.GID}
	kind := rapid.SampledFrom([]envelope.Kind{envelope.Send, envelope.Send, envelope.Reply}).Draw(t, "kind")
	if rapid.Bool().Draw(t, "to the main") {
		p.gid = m.main.GID
	}
	p.env = m.mail(kind, p.gid, fmt.Sprint(len(m.sent)))
	return p
}

func (m *machine) publish(t *rapid.T) {
	p := m.post(t)
	m.sent = append(m.sent, p)
	m.broker.publish(p.gid, p.env)
}

func (m *machine) deliverOne(t *rapid.T) {
	p := m.post(t)
	p.local = true
	err := m.in.Deliver(context.Background(), p.env, nil)
	if err == nil {
		m.sent = append(m.sent, p)
	}
}

func (m *machine) again(t *rapid.T) {
	if len(m.sent) > 0 {
		p := rapid.SampledFrom(m.sent).Draw(t, "which")
		m.broker.publish(p.gid, p.env)
	}
}

func (m *machine) take(t *rapid.T) {
	gid := rapid.SampledFrom([]string{m.main.GID, m.main.GID, m.worker.GID}).Draw(t, "whose")
	wait, err := m.in.Wait(gid, Filter{}, Limit{Max: rapid.IntRange(1, 3).Draw(t, "max")})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case b := <-wait.C():
		if mails, err := b.Messages(); err == nil {
			m.show(mails)
		}
		m.batches = append(m.batches, b)
	default:
	}
	wait.Close()
}

// show is a client that reads. What it saw is what it was told within a second
// before a crash.
func (m *machine) show(mails []Mail) {
	if !m.disk.flushIfUp() {
		return // it died before the response was written
	}
	for _, mail := range mails {
		i := slices.IndexFunc(m.sent, func(p *post) bool { return p.env.MsgID == mail.MsgID })
		if i < 0 {
			continue // a delivery that only seemed to fail
		}
		m.sent[i].shown++
		if mail.Redelivered {
			m.sent[i].marked++
		}
	}
}

func (m *machine) settle(t *rapid.T) {
	if len(m.batches) == 0 {
		return
	}
	i := rapid.IntRange(0, len(m.batches)-1).Draw(t, "batch")
	m.batches[i].Settle(rapid.Bool().Draw(t, "written"))
	m.batches = slices.Delete(m.batches, i, i+1)
}

// check lets everything come to rest and looks at every message.
func (m *machine) check(t *rapid.T) {
	m.panes.script(nil)
	m.panes.set(func() { m.panes.all[m.worker.Pane].reason = "" })
	if m.life.alive(func() {}) { // what came again needs no restart to be settled
		m.takeBack()
		await(t, "an owner of all that lies on the broker", func() bool { return m.unowned() == "" || !m.life.alive(func() {}) })
	}
	m.restartAll()
	rest := func() bool {
		b := m.in.box(m.worker.GID)
		b.mu.Lock()
		defer b.mu.Unlock()
		for e := b.items.Front(); e != nil; e = e.Next() {
			if !e.Value.(*item).pollOnly {
				return false
			}
		}
		return true
	}
	await(t, "rest", rest)
	await(t, "the end of what was in doubt", func() bool {
		open, err := m.in.OpenBriefs(m.worker.GID)
		m.disk.flush()
		return err == nil && !slices.ContainsFunc(open, func(b store.Brief) bool { return b.State == briefInjecting && b.Boot != m.boot })
	})
	m.disk.flush()
	m.noteEnds()
	screen := m.panes.screen(m.worker.Pane)
	for _, p := range m.sent {
		m.checkOne(t, p, screen)
	}
	// What has left its box is acked a moment later.
	await(t, "an owner of all that lies on the broker", func() bool { return m.unowned() == "" })
}

// unowned is the body of a message on the broker that nobody here holds.
func (m *machine) unowned() string {
	for _, gid := range []string{m.worker.GID, m.main.GID} {
		for _, msg := range m.broker.all(gid) {
			if m.broker.open(msg) && !m.holds(gid, msg.env.MsgID) {
				return string(msg.env.Body)
			}
		}
	}
	return ""
}

// holds reports whether a message is here, in a box or in the store alone.
func (w *world) holds(gid, msgID string) bool {
	b := w.in.box(gid)
	b.mu.Lock()
	held := b.byID[msgID] != nil
	b.mu.Unlock()
	return held || slices.ContainsFunc(w.held(gid), func(h store.Held) bool { return h.Local && h.MsgID == msgID })
}

func (m *machine) checkOne(t *rapid.T, p *post, screen []string) {
	id, brief := p.env.MsgID, p.env.Kind == envelope.Send
	bytes := 0
	for _, text := range screen {
		if text == id {
			bytes++
		}
	}
	outcome := m.outcome(p.gid, id)
	ends := slices.Compact(p.ends) // told twice is told once: the id is derived
	held := m.holds(p.gid, id)
	what := fmt.Sprintf("%s %s (local %t, worker %t): on screen %d, outcome %q, told %v, held %t, shown %d, marked %d",
		p.env.Kind, p.env.Body, p.local, p.gid == m.worker.GID, bytes, outcome, ends, held, p.shown, p.marked)
	if brief && bytes > 1 {
		t.Errorf("injected twice: %s", what)
	}
	if p.shown > p.marked+1 {
		t.Errorf("shown twice without a mark: %s", what)
	}
	switch {
	case held:
		if outcome != "" && outcome != "waiting" || len(ends) > 0 {
			t.Errorf("held and ended: %s", what)
		}
	case outcome == "injected":
		if bytes != 1 || len(ends) > 0 || !brief {
			t.Errorf("not injected: %s", what)
		}
	case outcome == "drained":
		if len(ends) > 0 || p.shown == 0 && bytes == 0 {
			t.Errorf("drained by nobody: %s", what)
		}
	case outcome == "failed "+string(fault.InDoubt):
		if !brief || len(ends) != 1 {
			t.Errorf("not reported: %s", what)
		}
	default:
		t.Errorf("lost: %s", what)
	}
}
