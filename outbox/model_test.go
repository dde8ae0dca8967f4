package outbox

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
)

// message is the truth about one brief, which the gateway can only hear of.
type message struct {
	id       string
	to       string
	expires  time.Time
	arrived  bool   // in its inbox, or on its way there
	state    string // at its recipient: "" (waits), injected, replied, failed, abandoned
	accepted bool   // Send returned no error
	doubted  bool   // Send returned IN_DOUBT
	refused  bool   // the broker's word was a refusal
	allowed  int    // how often it may have been published
	key      string
}

// model is a gateway, a broker and a remote host in any order of events.
type model struct {
	*world
	t        *rapid.T
	briefs   []*message
	mail     []*envelope.Envelope // reports that lie in our inbox on the broker
	answered int                  // QUERYs seen
	out      []string             // ids of REPLYs and FAILEDs that have to get through
	refused  []string             // ids of REPLYs whose callers were told that nothing arrives
	alive    bool                 // the remote host answers questions
}

func (m *model) up() bool { ok, _ := m.broker.Connected(); return ok }

func (m *model) pick(label string, ok func(*message) bool) *message {
	var all []*message
	for _, b := range m.briefs {
		if ok(b) {
			all = append(all, b)
		}
	}
	if len(all) == 0 {
		m.t.Skip("none")
	}
	return rapid.SampledFrom(all).Draw(m.t, label)
}

// words draws the broker's word on the next mail. A cut comes with whatever
// has no word.
func (m *model) words() reply {
	switch rapid.SampledFrom([]string{"yes", "yes", "late", "late", "lost", "returned", "nacked", "no"}).Draw(m.t, "word") {
	case "late":
		return reply{late: true}
	case "lost":
		return reply{out: fabric.InDoubt}
	case "returned":
		return reply{out: fabric.Returned}
	case "nacked":
		return reply{out: fabric.Nacked}
	case "no":
		return reply{err: errNoLink}
	}
	return reply{out: fabric.Confirmed}
}

// send sends a new brief, or one that was refused once more under its key.
func (m *model) send(*rapid.T) {
	b := &message{key: newID(), to: rapid.SampledFrom([]string{"coder", "chief"}).Draw(m.t, "to")}
	life := time.Duration(rapid.IntRange(1, 10).Draw(m.t, "life")) * time.Minute
	m.try(b, life)
}

func (m *model) sendAgain(*rapid.T) {
	b := m.pick("again", func(b *message) bool { return b.id != "" })
	m.try(b, 5*time.Minute)
}

func (m *model) try(b *message, life time.Duration) {
	answer := m.words()
	m.broker.script(answer)
	before := len(m.broker.mail())
	s, err := m.world.send(Request{To: b.to, Life: life, Key: b.key})
	published := len(m.broker.mail()) > before
	if s.Repeated && b.refused && !b.doubted {
		m.t.Fatalf("%s was refused, and its key calls it sent", b.id)
	}
	if s.Repeated || !published {
		return
	}
	if b.id == "" {
		b.id = s.MsgID
		m.briefs = append(m.briefs, b)
	}
	if b.id != s.MsgID {
		m.t.Fatalf("%s was tried again as %s", b.id, s.MsgID)
	}
	if b.allowed > 0 && !b.refused {
		m.t.Fatalf("%s was published again, and it had not been refused", b.id)
	}
	b.allowed++
	b.expires, b.state = s.ExpiresAt, ""
	b.accepted, b.doubted = err == nil, fault.Is(err, fault.InDoubt)
	b.refused = answer.out == fabric.Returned || answer.out == fabric.Nacked
	b.arrived = answer.out == fabric.Confirmed || !b.refused && rapid.Bool().Draw(m.t, "arrived")
	if answer.out == fabric.InDoubt {
		m.broker.cut()
	}
}

// lateWord gives the broker's word on a brief that waits for it.
func (m *model) lateWord(*rapid.T) {
	b := m.pick("late", func(b *message) bool { return len(m.broker.late[b.id]) > 0 })
	if b.arrived {
		m.broker.settle(b.id, fabric.Confirmed)
		return
	}
	b.refused = true
	m.broker.settle(b.id, rapid.SampledFrom([]fabric.Outcome{fabric.Returned, fabric.Nacked}).Draw(m.t, "refusal"))
}

// hear brings a report to the gateway: live, by mail, both, in doubt neither.
func (m *model) hear(b *message, kind envelope.Kind, reason string) {
	e := report(kind, reason, b.id)
	e.From = m.dir.who[b.to].GID
	if kind == envelope.Failed || kind == envelope.Abandoned {
		m.mail = append(m.mail, e)
	}
	if m.up() && rapid.Bool().Draw(m.t, "live") {
		must(m.t, m.world.out.Signal(context.Background(), e))
	}
}

// happens moves a brief at its recipient.
func (m *model) happens(*rapid.T) {
	b := m.pick("at", func(b *message) bool { return b.arrived && (b.state == "" || b.state == "injected") })
	what := rapid.SampledFrom([]string{"injected", "failed", "abandoned", "replied", "deferred"}).Draw(m.t, "what")
	switch {
	case what == "deferred" && b.state == "":
		m.hear(b, envelope.Deferred, "BUSY")
	case what == "injected" && b.state == "" && m.clock.Now().Before(b.expires):
		b.state = what
		m.hear(b, envelope.Injected, "")
	case what == "failed" && b.state == "":
		b.state = what
		m.hear(b, envelope.Failed, "NOT_INJECTED")
	case what == "abandoned" && b.state == "injected" && b.to == "coder":
		b.state = what
		m.hear(b, envelope.Abandoned, "PANE_GONE")
	case what == "replied" && b.state == "injected":
		b.state = what
		e := report(envelope.Reply, "", b.id)
		e.From = m.dir.who[b.to].GID
		m.world.out.Arrived(e)
	}
}

// read takes one report out of our inbox on the broker; it may come twice.
func (m *model) read(*rapid.T) {
	if len(m.mail) == 0 || !m.up() {
		m.t.Skip("none")
	}
	must(m.t, m.world.out.Outcome(context.Background(), m.mail[0]))
	if !rapid.Bool().Draw(m.t, "ack lost") {
		m.mail = m.mail[1:]
	}
}

// die dead-letters a brief, or a copy of it: of that the recipient says in time
// that it is one.
func (m *model) die(*rapid.T) {
	b := m.pick("dies", func(b *message) bool { return b.arrived && b.allowed > 0 })
	if b.state == "" && rapid.Bool().Draw(m.t, "truly") {
		b.arrived = false
	} else if !m.up() || !m.alive {
		m.t.Skip("none")
	}
	for _, e := range m.broker.mail() {
		if e.MsgID == b.id {
			must(m.t, m.world.out.DeadLetter(e, "expired"))
			break
		}
	}
	m.turn()
	m.answer(m.t)
}

// answer lets the remote host answer what it was asked.
func (m *model) answer(*rapid.T) {
	asked := m.broker.sent(envelope.LaneSignal, envelope.Query)
	for ; m.answered < len(asked); m.answered++ {
		q := asked[m.answered]
		i := slices.IndexFunc(m.briefs, func(b *message) bool { return b.id == q.InReplyTo })
		if i < 0 || !m.up() || !m.alive {
			continue
		}
		e := report(envelope.Deferred, "UNSEEN", q.InReplyTo)
		e.From, e.To = q.To, q.From
		switch b := m.briefs[i]; {
		case !b.arrived:
		case b.state == "" && m.clock.Now().After(b.expires):
			b.state = "failed"
			e.Kind, e.Reason = envelope.Failed, "EXPIRED"
		case b.state == "":
			e.Reason = "BUSY"
		case b.state == "failed":
			e.Kind, e.Reason = envelope.Failed, "NOT_INJECTED"
		case b.state == "abandoned":
			e.Kind, e.Reason = envelope.Abandoned, "PANE_GONE"
		default:
			e.Kind, e.Reason = envelope.Injected, ""
		}
		must(m.t, m.world.out.Signal(context.Background(), e))
	}
}

// speak has the gateway send what it has to get through: an answer or a report.
func (m *model) speak(*rapid.T) {
	m.broker.script(m.words())
	before := len(m.broker.mail())
	if rapid.Bool().Draw(m.t, "reply") {
		s, err := m.world.reply("")
		switch {
		case len(m.broker.mail()) == before:
		case err == nil || fault.Is(err, fault.InDoubt):
			m.out = append(m.out, s.MsgID)
		default:
			m.refused = append(m.refused, s.MsgID)
		}
		return
	}
	r := envelope.Report{Kind: envelope.Failed, Reason: "EXPIRED", MsgID: newID(), TraceID: newTrace(), Sender: chief, SenderHost: "hostb", Recipient: aide}
	must(m.t, m.world.out.Final(context.Background(), r))
	m.out = append(m.out, envelope.ReportID(r.MsgID, aide, envelope.Failed))
	m.turn()
}

func (m *model) cut(*rapid.T) { m.broker.cut(); m.turn() }

func (m *model) connect(*rapid.T) { m.broker.script(reply{out: fabric.Confirmed}); m.reconnect() }

func (m *model) restart(*rapid.T) { m.broker.cut(); m.crash() }

func (m *model) kill(*rapid.T) { m.broker.cut(); m.fall() }

func (m *model) pass(*rapid.T) {
	m.broker.script(reply{out: fabric.Confirmed})
	m.after(time.Duration(rapid.SampledFrom([]int{1, 6, 30, 120}).Draw(m.t, "seconds")) * time.Second)
}

// check holds what was told and published to what may be.
func (m *model) check(*rapid.T) {
	published := map[string]int{}
	for _, e := range m.broker.mail() {
		published[e.MsgID]++
	}
	for _, id := range m.refused {
		if published[id] > 1 {
			m.t.Fatalf("the answer %s was refused, and published again", id)
		}
	}
	for _, b := range m.briefs {
		if published[b.id] > b.allowed {
			m.t.Fatalf("%s was published %d times", b.id, published[b.id])
		}
		rank, told := 0, map[string]bool{}
		for _, n := range m.local.notices(b.id) {
			r := map[string]int{"FAILED": 1, "INJECTED": 2, "ABANDONED": 3}[strings.Fields(n)[0]]
			if told[n] || r < rank {
				m.t.Fatalf("%s: told %q", b.id, m.local.notices(b.id))
			}
			rank, told[n] = r, true
		}
	}
}

// end lets everything come to rest and checks that every brief had its last
// word, and that it was true if the remote host could be asked.
func (m *model) end() {
	m.broker.script(reply{out: fabric.Confirmed})
	m.broker.cut() // what waits for a word gets none
	m.reconnect()
	for range 40 {
		m.after(30 * time.Second)
		m.answer(m.t)
		for len(m.mail) > 0 && m.alive {
			must(m.t, m.world.out.Outcome(context.Background(), m.mail[0]))
			m.mail = m.mail[1:]
		}
	}
	m.after(time.Minute)
	m.check(m.t)
	for _, op := range m.world.out.open {
		if m.alive || !op.intent.Told { // who never answers may be back some day: he is asked as long as he can know
			m.t.Fatalf("%+v never ends", op.intent)
		}
	}
	for _, b := range m.briefs {
		told := m.local.notices(b.id)
		if err := b.wrong(told, m.alive); err != "" {
			in, _ := m.stored(b.id)
			m.t.Fatalf("%+v was told %q: %s; the intent is %+v", *b, told, err, in)
		}
	}
	for _, id := range m.out {
		in, found := m.stored(id)
		if !found || in.Outcome != store.EndAccepted && len(m.local.notices(id)) == 0 && in.Kind == string(envelope.Reply) {
			m.t.Fatalf("%s %s ended as %s and nobody knows", in.Kind, id, in.Outcome)
		}
	}
}

// wrong says what is wrong with what a sender was told at the end.
func (b *message) wrong(told []string, alive bool) string {
	last := ""
	if len(told) > 0 {
		last = told[len(told)-1]
	}
	switch {
	case b.allowed == 0 || b.refused && !b.doubted:
		if len(told) > 0 && !b.refused {
			return "he had an error"
		}
	case b.refused && len(told) == 0:
		return "a late refusal must be told"
	case b.refused:
	case b.to == "coder" && len(told) == 0 && b.state != "replied":
		return "there was no last word"
	case b.doubted && !b.arrived && len(told) == 0:
		return "there was no last word"
	case !alive:
	case b.state == "abandoned" && last != "ABANDONED PANE_GONE":
		return "it was abandoned"
	case b.state == "injected" && b.to == "coder" && last != "INJECTED":
		return "it was injected"
	case (b.state == "failed" || !b.arrived) && len(told) > 0 && !strings.HasPrefix(last, "FAILED"):
		return "it failed"
	}
	return ""
}

// Fault: any interleaving that publishes a brief twice, ends one without a
// last word, tells a wrong or a falling one, or loses an answer or a report.
func TestEveryInterleavingEndsInOneTruth(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := &model{world: newWorld(rt), t: rt, alive: rapid.Bool().Draw(rt, "remote host answers")}
		rt.Repeat(map[string]func(*rapid.T){
			"": m.check, "send": m.send, "send again": m.sendAgain, "late word": m.lateWord, "happens": m.happens,
			"read": m.read, "die": m.die, "answer": m.answer, "speak": m.speak, "cut": m.cut, "connect": m.connect,
			"restart": m.restart, "kill": m.kill, "pass": m.pass,
		})
		m.end()
	})
}
