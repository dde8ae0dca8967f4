package fabric

import (
	"bytes"
	"fmt"
	"maps"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/wait"
)

const (
	// solicitWait bounds the wait for an announcement (design §4, Homes).
	solicitWait = 5 * time.Second
	// waitingMost is how many messages of unknown home wait per queue. With
	// more the queue is not read on, so that none is lost or overtaken. Those of
	// a host that did not announce whom it was asked for do not stop it again.
	waitingMost = 8
	// lateFor is how long a host is remembered for that.
	lateFor = 10 * time.Minute
	// fullsMost full announcements after asking that do not name a sender say
	// that nobody has it: the first may have been under way before he was there.
	fullsMost = 2
	// missedFor is how long what was handed back is expected to come again while
	// there is room for it.
	missedFor = 30 * time.Second

	lookSoon  = 250 * time.Millisecond
	lookLater = 5 * time.Second
)

// reader judges the deliveries of one queue, in order, and keeps those whose
// home is not known yet. One goroutine uses it.
type reader struct {
	f      *Fabric
	place  place
	accept func(*envelope.Envelope, *amqp.Delivery, *hold)
	room   func() bool // for one more that may wait for days; nil: always
	open   func() bool // whether the broker gives what it has; nil: always
	spare  func() int  // how many may be handed back at once; nil with room nil
	parked []*parked
	counts map[sender]int       // of the parked ones
	hosts  map[string]tally     // likewise, by signer
	awaits *awaited             // those hosts, for who hears them
	quiet  map[string]bool      // hosts that are not heard, for which messages wait
	late   map[string]time.Time // hosts that did not announce a sender of theirs when asked, and when that was
	floods floods
	next   time.Time // when the parked ones are due; zero: not reckoned yet
	told   int       // how many are parked, as the gauge has it
	away   int       // of the parked ones, those that come again with their text
	left   int       // of spare, in this look; negative: not asked yet
}

// newReader makes the reader of a queue; awaits has what reads it woken.
func newReader(f *Fabric, p place, awaits *awaited, accept func(*envelope.Envelope, *amqp.Delivery, *hold)) *reader {
	return &reader{
		f: f, place: p, accept: accept, awaits: awaits, floods: floods{perMinute: f.cfg.PerPair},
		counts: map[sender]int{}, hosts: map[string]tally{}, quiet: map[string]bool{}, late: map[string]time.Time{},
	}
}

// sender is whose messages stay in order. The signer belongs to it: what one
// host says of a sender must not hold up what another says.
type sender struct{ signer, from string }

func senderOf(env *envelope.Envelope) sender { return sender{env.Signer, env.From} }

// tally counts the parked messages of one host, and those that it was asked for.
type tally struct{ all, asked int }

// awaited are the hosts that the messages of one queue wait for.
type awaited struct {
	wake chan struct{} // capacity 1: one of them was heard

	mu    sync.Mutex
	hosts map[string]bool
}

func newAwaited() *awaited {
	return &awaited{wake: make(chan struct{}, 1), hosts: map[string]bool{}}
}

// add wakes too: a host that is new here may have been heard since it was judged.
func (a *awaited) add(host string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.hosts[host] {
		a.hosts[host] = true
		wait.Poke(a.wake)
	}
}

// only drops the hosts for which nothing waits any more.
func (a *awaited) only(hosts map[string]tally) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.hosts, func(host string, _ bool) bool { return hosts[host].all == 0 })
}

func (a *awaited) heard(host string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.hosts[host] {
		wait.Poke(a.wake)
	}
}

// parked is a message that waits for its sender's home to become known.
type parked struct {
	env    *envelope.Envelope
	d      amqp.Delivery
	h      *hold
	asked  bool          // the signer is live and was solicited
	until  time.Time     // end of the wait after asking
	behind bool          // waits only because mail of its sender does
	heard  uint64        // full announcements of the signer before we asked
	once   bool          // one came since, and he was asked again
	light  bool          // its text was let go of: the broker still has it
	back   bool          // handed back, to get that text again
	missed time.Duration // uptime at which it was first missed after it was handed back; 0: it was not
}

// gauge tells how many wait, between two steps: one that judges them all again
// takes none of them away on its way.
func (r *reader) gauge() {
	r.f.stats.parked.Add(int64(len(r.parked) - r.told))
	r.told = len(r.parked)
}

// take judges one delivery and acts on it.
func (r *reader) take(d amqp.Delivery, h *hold) {
	defer r.gauge()
	env, known := r.known(&d)
	if known {
		r.accept(env, &d, h)
		return
	}
	if r.again(&d, h) {
		return
	}
	env, j := r.judge(&d, env)
	m := &parked{env: env, d: d, h: h}
	unknown := j.verdict == solicit || j.verdict == silent
	if env != nil && j.verdict != refuse && r.counts[senderOf(env)] > 0 {
		if !unknown {
			r.resume() // its home became known
		}
		m.behind = r.counts[senderOf(env)] > 0
	}
	switch {
	case (m.behind || j.verdict == solicit) && r.crowdedBy(env.Signer):
		r.refuse(m, refused(reasonUnknownHome, fault.Refused, "host %s signed a message from %s, which it did not announce, and others wait for the same already", env.Signer, env.From))
	case m.behind:
		r.park(m)
	default:
		r.act(m, j)
	}
}

// crowdedBy reports whether so many messages of one host wait that one more is
// refused unheard. Mail never is: it is somebody's word.
func (r *reader) crowdedBy(host string) bool {
	return r.place.lane != envelope.LaneMail && r.hosts[host].all >= waitingMost && r.isLate(host)
}

// isLate reports whether host did not announce a sender of its own lately. It
// must not stop the line for that again and again.
func (r *reader) isLate(host string) bool {
	at, ok := r.late[host]
	return ok && time.Since(at) < lateFor
}

// again takes the new hold on a message that waits and was handed back: it
// keeps its place before later ones of its sender.
func (r *reader) again(d *amqp.Delivery, h *hold) bool {
	if len(r.parked) == 0 || !d.Redelivered {
		return false
	}
	env, err := envelope.Decode(d.Headers, d.Body, r.f.cfg.Limits)
	if err != nil {
		return false
	}
	for _, m := range r.parked {
		if !m.h.done.Load() || !maps.Equal(m.env.Headers, env.Headers) {
			continue
		}
		// The signature, which is one of the headers, stands for a text that was let go of.
		if same := !m.light && bytes.Equal(m.env.Body, env.Body) || m.light && env.Verify(r.f.verifier.trust) == nil; !same {
			continue
		}
		m.h, m.missed, d.Redelivered = h, 0, m.d.Redelivered // nobody here has seen it
		switch {
		case !m.light:
			m.env, m.d = env, *d // one text, not two
		case !m.back:
			h.lighten()
		default:
			m.env, m.d, m.light, m.back = env, *d, false, false
			// Not a look for each of them, if more come at once.
			if r.away--; r.away == 0 || h.from.full() {
				wait.Poke(r.awaits.wake)
			} else {
				r.soon()
			}
		}
		return true
	}
	return false
}

// known reports whether mail is a duplicate of what was taken before. What it
// decoded is returned either way; nil if that failed, or was not called for.
func (r *reader) known(d *amqp.Delivery) (env *envelope.Envelope, known bool) {
	if r.f.deps.Known == nil || r.place.lane != envelope.LaneMail {
		return nil, false
	}
	env, err := envelope.Decode(d.Headers, d.Body, r.f.cfg.Limits)
	if err != nil {
		return nil, false
	}
	return env, r.f.deps.Known(r.place.gid, env)
}

// judge never takes the consumer down: a message that we fail on is refused.
// decoded is nil unless d was decoded before.
func (r *reader) judge(d *amqp.Delivery, decoded *envelope.Envelope) (env *envelope.Envelope, j judgement) {
	defer func() {
		if p := recover(); p != nil {
			env, j = nil, refused(reasonPanic, fault.Internal, "verifying the message failed: %s", fmt.Sprint(p))
		}
	}()
	if env = decoded; env == nil {
		var err error
		if env, err = envelope.Decode(d.Headers, d.Body, r.f.cfg.Limits); err != nil {
			return nil, fromRefusal(err)
		}
	}
	return env, r.f.verifier.judge(r.place, d.RoutingKey, env)
}

func (r *reader) act(m *parked, j judgement) {
	switch j.verdict {
	case accept:
		if !m.d.Redelivered && r.f.verifier.counts(r.place, m.env) { // what was put back was counted when it came first
			if j = r.floods.take(r.f.deps.Now(), m.env); j.verdict == refuse {
				r.refuse(m, j)
				return
			}
		}
		r.accept(m.env, &m.d, m.h)
	case refuse:
		r.refuse(m, j)
	case ignore:
		r.f.stats.unknownKinds.Add(1)
		if unsaid, say := r.f.refusals.say("ignored"); say {
			r.f.log.Warn("message ignored", append(about(&m.d, m.env), "error", j.err, "unsaid", unsaid)...)
		}
		r.settle(m.h.Ack)
	case solicit:
		r.ask(m)
		r.park(m)
	case silent:
		if r.place.lane != envelope.LaneMail {
			r.drop(m)
			return
		}
		r.park(m)
	}
}

// refuse rejects without requeue and changes nothing else.
func (r *reader) refuse(m *parked, j judgement) {
	r.f.refusals.note(r.place, &m.d, m.env, j)
	// Each report is a record here, and a message: no more of them than of briefs.
	report := j.report && (j.reason == reasonFlood || m.d.Redelivered || !r.f.verifier.counts(r.place, m.env) ||
		r.floods.take(r.f.deps.Now(), m.env).verdict == accept)
	if report && r.f.deps.RefusedBrief != nil {
		brief := *m.env
		brief.To = r.place.gid // a broadcast is refused by each of its recipients
		r.f.deps.RefusedBrief(&brief, j.code)
	}
	r.settle(m.h.Reject)
}

// drop lets go of a signal or request whose signer is not heard: signals may be
// lost, SPAWN and STOP are made again, and who asked by TRACE is told that the
// answer is missing.
func (r *reader) drop(m *parked) {
	r.f.stats.dropped.Add(1)
	if unsaid, say := r.f.refusals.say("dropped"); say {
		r.f.log.Warn("message dropped: its sender's home is unknown and its host is not heard", append(about(&m.d, m.env), "queue", r.place.queue, "unsaid", unsaid)...)
	}
	r.settle(m.h.Ack)
}

// settle: what cannot be settled is on a dead channel and comes again.
func (r *reader) settle(do func() error) {
	if err := do(); err != nil {
		r.f.log.Debug("not settled; the broker delivers it again", "queue", r.place.queue, "error", err)
	}
}

func (r *reader) park(m *parked) {
	host := m.env.Signer
	n := r.hosts[host]
	n.all++
	if m.back {
		r.away++
	}
	if m.asked && !m.h.done.Load() { // what was handed back is read again only if the line goes on
		n.asked++
		r.soon()
	}
	r.parked, r.hosts[host] = append(r.parked, m), n
	r.counts[senderOf(m.env)]++
	r.awaits.add(host)
	if r.room != nil && !m.light && !r.room() {
		m.lighten()
	}
	if !m.asked && !m.behind && !r.quiet[host] {
		r.quiet[host] = true
		r.f.log.Warn("message waits: its sender's home is unknown and its host is not heard", append(about(&m.d, m.env), "queue", r.place.queue)...)
	}
}

// soon has the parked ones looked at before long; traffic does not put it off.
func (r *reader) soon() {
	if soon := time.Now().Add(lookSoon); r.next.IsZero() || r.next.After(soon) {
		r.next = soon
	}
}

func (r *reader) ask(m *parked) {
	m.asked, m.once, m.until, m.heard = true, false, time.Now().Add(r.f.solicitWait), r.f.fullsOf(m.env.Signer)
	r.f.deps.Homes.Solicit(m.env.Signer)
}

// lighten lets go of the text of a message that waits: it may do so for days,
// and in any number.
func (m *parked) lighten() {
	env := *m.env
	env.Body, m.d.Body = nil, nil
	m.env, m.light = &env, true
	m.h.lighten()
}

// fetch hands a light message back, so that it comes again with its text. Until
// then it keeps its place. Where the queue has no room for it, it waits.
func (r *reader) fetch(m *parked) {
	if r.left < 0 {
		r.left = max(0, r.spare())
	}
	if r.left > 0 {
		r.left--
		m.back = true
		r.settle(m.h.Requeue)
	}
	r.park(m)
}

// resume judges everything parked again, in order; mail behind other mail of
// its sender waits along.
func (r *reader) resume() {
	defer r.gauge()
	open := !r.full() && (r.open == nil || r.open())
	list := r.empty()
	r.left = -1
	unknown, home := map[sender]bool{}, map[sender]bool{}
	for _, m := range list {
		by := senderOf(m.env)
		switch {
		case r.lost(m, open):
			r.f.log.Debug("a message that was handed back does not come again; if it does it is judged anew", append(about(&m.d, m.env), "queue", r.place.queue)...)
		case m.back:
			r.park(m) // it was judged, and comes again
		case r.counts[by] == 0 || r.over(m):
			r.rejudge(m, unknown)
			home[by] = m.back
		case m.light && home[by]:
			r.fetch(m) // with the first of its sender, in their order
		default:
			r.park(m)
		}
	}
	r.awaits.only(r.hosts)
	maps.DeleteFunc(r.quiet, func(host string, _ bool) bool { return r.hosts[host].all == 0 })
}

// empty takes all that is parked. Its hosts are awaited until only is called.
func (r *reader) empty() []*parked {
	list := r.parked
	r.parked, r.next, r.away = nil, time.Time{}, 0
	clear(r.counts)
	clear(r.hosts)
	return list
}

// over reports whether the life of a message ended while it waited.
func (r *reader) over(m *parked) bool {
	return m.env.Expired(r.f.deps.Now(), envelope.Skew) && r.f.deps.Steady()
}

// lost reports whether not to wait any more for a message that was handed back:
// its life is over, or it does not come, though the queue is read. It was pushed
// out or purged, and must not hold up what is behind it.
func (r *reader) lost(m *parked, open bool) bool {
	now := max(r.f.uptime(), 1)
	switch {
	case !m.h.done.Load():
		return false
	case r.over(m):
		return true
	case m.missed == 0 || !open:
		m.missed = now
	}
	return now-m.missed > missedFor
}

// rejudge judges again what waits. unknown are the senders that turned out not
// to be announced: what waited behind their first message goes with it.
func (r *reader) rejudge(m *parked, unknown map[sender]bool) {
	j := r.f.verifier.resume(r.place, m.env)
	m.behind = false
	switch {
	case j.verdict == solicit && (m.asked || unknown[senderOf(m.env)]):
		fulls := r.f.fullsOf(m.env.Signer) - m.heard
		if unknown[senderOf(m.env)] || fulls >= fullsMost || !time.Now().Before(m.until) {
			j = refused(reasonUnknownHome, fault.Refused, "host %s signed a message from %s and does not announce it", m.env.Signer, m.env.From)
			unknown[senderOf(m.env)] = true
			r.late[m.env.Signer] = time.Now()
			break
		}
		if fulls > 0 && !m.once {
			m.once = true
			r.f.deps.Homes.Solicit(m.env.Signer)
		}
		r.park(m)
		return
	case j.verdict == silent:
		m.asked = false
		if r.over(m) {
			j = refused(reasonExpired, fault.Expired, "the message's life ended while its host was not heard")
		}
	}
	switch {
	case m.light && (j.verdict == accept || j.verdict == ignore):
		r.fetch(m)
	case j.verdict == refuse && m.h.done.Load():
		r.park(m) // it comes again, to be counted and told of once
	default:
		r.act(m, j)
	}
}

// forget drops everything parked: the broker gives it again.
func (r *reader) forget() {
	defer r.gauge()
	for _, m := range r.empty() {
		m.h.end()
	}
	r.awaits.only(r.hosts)
}

// full reports whether to read on would be to let too many wait.
func (r *reader) full() bool {
	n := 0
	for host, t := range r.hosts {
		if !r.isLate(host) {
			n += t.asked
		}
	}
	return n > waitingMost
}

// look is when the parked ones are due again; nil if there are none. Traffic
// does not put it off.
func (r *reader) look() <-chan time.Time {
	if len(r.parked) == 0 {
		return nil
	}
	if r.next.IsZero() {
		r.next = time.Now().Add(lookLater)
		for _, t := range r.hosts {
			if t.asked > 0 {
				r.next = time.Now().Add(lookSoon)
			}
		}
	}
	return time.After(time.Until(r.next))
}

// Heard tells that host was heard again, or announced something; full: that
// its full announcement was taken in. Messages that waited for it are judged
// again. It does not block.
func (f *Fabric) Heard(host string, full bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if full {
		f.heard[host]++
	}
	for _, in := range f.inboxes {
		in.awaits.heard(host)
	}
	if f.sess != nil {
		for _, a := range f.sess.awaits {
			a.heard(host)
		}
	}
}

func (f *Fabric) fullsOf(host string) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.heard[host]
}
