package outbox

import (
	"context"
	"time"

	"fleetd/clock"
	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/fabric/roster"
	"fleetd/fault"
	"fleetd/store"
	"fleetd/test/failpoint"
)

const (
	firstQuery = 5 * time.Second  // after a silent SEND (design §5)
	nextQuery  = time.Minute      // then 1, 4, 16 … minutes
	lastGrace  = 60 * time.Second // after expiresAt, before the last word
	answerWait = 10 * time.Second // for the answer to a QUERY that decides
	// unreachable is how long the last word waits for a link over which the
	// recipient can be asked.
	unreachable = 24 * time.Hour
)

// peer is another gateway, as far as asking it is concerned.
type peer struct {
	boot   uint64
	online bool
	lag    time.Duration // how far its clock is behind ours
	judged bool          // by what was heard of it since our start
}

// view is what the loop sees when it looks.
type view struct {
	clock.Moment
	up    bool
	down  time.Duration   // for how long the link has been down
	peers map[string]peer // as they are known now
}

// look does what is due for everything that is open.
func (o *Outbox) look() {
	v, fresh := o.view()
	var ask []question
	o.mu.Lock()
	if v.up {
		o.resend()
	}
	stepped := v.Steps != o.steps
	o.steps = v.Steps
	for _, op := range o.open {
		host := v.peers[op.intent.ToHost]
		op.silent = op.silent && !host.online && op.gen == o.gen
		if stepped && op.kind().Brief() && !op.ended() {
			op.askNow(v.Wall) // when it was asked, and when it is due, is not known any more
		}
		switch {
		case op.ended() || op.ending || op.telling:
		case op.intent.Told && v.Steady && v.Past.Sub(time.UnixMilli(op.intent.TS)) > envelope.Horizon:
			op.intent.State, op.intent.Outcome, op.intent.OutcomeReason = store.IntentEnded, store.EndVerdict, string(fault.InDoubt)
			o.save(op) // its recipient has forgotten it too
		case op.doubted && op.refused():
			op.telling = o.later(func(ctx context.Context) { o.tellLate(ctx, op) })
		case !op.kind().Brief() || op.many():
		case op.verdict(v) != "":
			op.telling = o.later(func(ctx context.Context) { o.lastWord(ctx, op, v) })
		case v.up:
			if fresh[op.intent.ToHost] {
				op.askNow(v.Wall)
			}
			if q, due := op.due(v); due {
				ask = append(ask, q)
			}
		}
	}
	o.mu.Unlock()
	for _, q := range ask {
		o.query(q)
	}
	o.flush()
}

// view looks around: at the link, and at other gateways. Those whose boot is
// new or that are heard again are fresh: they may know more than they could say
// (design §5).
func (o *Outbox) view() (v view, fresh map[string]bool) {
	up := o.cfg.Uptime()
	v = view{Moment: o.clock.Look(o.cfg.Now(), up), up: o.connected(), peers: map[string]peer{}}
	fresh = map[string]bool{}
	var hosts []roster.HostView
	if o.cfg.Broker != nil {
		hosts = o.cfg.Directory.Hosts()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if v.up || o.linked < 0 { // without a link the wait for one begins with the first look
		o.linked = up
	}
	v.down = up - o.linked
	for _, h := range hosts {
		old := o.peers[h.Host]
		p := peer{boot: h.Boot, online: h.Local || h.State == roster.Online, lag: old.lag}
		if h.Age >= 0 {
			p.lag, p.judged = max(0, -h.Offset), true
		}
		fresh[h.Host] = p.online && (!old.online || old.boot != p.boot)
		o.peers[h.Host], v.peers[h.Host] = p, p
	}
	return v, fresh
}

// question is one QUERY about to be sent.
type question struct {
	op      *open
	in      store.Intent
	decides bool
}

// over reports whether the last word on a message may be said: by his clock
// its recipient can no longer be beginning to inject it. Not while our own may
// be wrong.
func (op *open) over(v view) bool {
	return v.Steady && !v.Wall.Before(time.UnixMilli(op.intent.ExpiresAt).Add(lastGrace+v.peers[op.intent.ToHost].lag))
}

// due says whether to ask now, and notes that it was asked; Outbox.mu is held.
func (op *open) due(v view) (question, bool) {
	in := &op.intent
	switch decides := in.Outcome == store.EndDead || op.over(v); {
	case decides && !op.asked.IsZero():
		return question{}, false // wait for the answer
	case decides:
		op.asked, op.answered = v.Wall, false
		return question{op, *in, true}, true
	case in.NextQuery == 0:
		in.NextQuery = time.UnixMilli(in.TS).Add(firstQuery).UnixMilli()
	}
	op.asked = time.Time{} // its clock was judged anew: there is time left
	if v.Wall.UnixMilli() < in.NextQuery {
		return question{}, false
	}
	op.asksNext(v.Wall)
	return question{op, *in, false}, true
}

// asksNext sets the time of the next QUERY.
func (op *open) asksNext(now time.Time) {
	in := &op.intent
	in.NextQuery = now.Add(nextQuery << (2 * min(in.Queries, 6))).UnixMilli()
	in.Queries++
}

// askNow begins the schedule anew at the next look; what was asked over the old
// link may never be answered.
func (op *open) askNow(now time.Time) {
	op.intent.NextQuery, op.intent.Queries = now.UnixMilli(), 0
	op.asked = time.Time{}
}

// verdict is the end that this gateway says when the recipient has not: not
// before he was asked once more, and never earlier, since an injection may be
// under way (design §5). What lies dead on the broker is asked for as well: who
// was cut off before he could ack it may have injected it. Where he does not
// answer, nobody knows, unless his host was never there to take it.
func (op *open) verdict(v view) fault.Code {
	in := &op.intent
	dead := in.Outcome == store.EndDead
	if !dead && !op.over(v) {
		return ""
	}
	asked := v.up && !op.asked.IsZero() && v.Wall.Sub(op.asked) >= answerWait
	switch {
	case asked && dead && (op.answered || op.silent):
		return fault.Code(in.OutcomeReason)
	case asked && op.answered:
		if !v.peers[in.ToHost].judged {
			return "" // by his clock it may not be over; he is there, so that is known soon
		}
		return fault.Expired
	case in.Told:
		return ""
	case asked, !v.up && !dead && v.down > unreachable: // nobody could be asked for a day
		return fault.InDoubt
	}
	return ""
}

// query asks the recipient's gateway what became of a message. One that did
// not leave is asked again at the next look.
func (o *Outbox) query(q question) {
	env := o.queryAbout(q.in)
	if !o.later(func(ctx context.Context) {
		failpoint.Hit("outbox.query.before")
		if o.publishSignal(ctx, env) == fabric.NotSent {
			o.unasked(q)
		}
	}) {
		o.unasked(q)
	}
}

func (o *Outbox) queryAbout(in store.Intent) *envelope.Envelope {
	now := o.cfg.Now()
	o.trace("asked", wire(in), in.TraceID, string(envelope.Query), in.From, in.To, "", "")
	return &envelope.Envelope{
		V: envelope.Version, Kind: envelope.Query, MsgID: o.cfg.NewID(), TraceID: in.TraceID,
		From: envelope.GatewayAddress(o.cfg.Host), To: in.To, Signer: o.cfg.Host, InReplyTo: wire(in),
		TS: now.UnixMilli(), ExpiresAt: now.Add(envelope.Life(envelope.Query, 0)).UnixMilli(),
	}
}

func (o *Outbox) unasked(q question) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if q.decides {
		q.op.asked = time.Time{}
		return
	}
	q.op.intent.NextQuery, q.op.intent.Queries = o.cfg.Now().UnixMilli(), max(0, q.op.intent.Queries-1)
}

// lastWord tells the sender the end that this gateway has come to.
func (o *Outbox) lastWord(ctx context.Context, op *open, v view) {
	defer o.told(op)
	lock := o.stripe(o.wireOf(op.id))
	lock.Lock()
	defer lock.Unlock()
	o.mu.Lock()
	in, code := op.intent, op.verdict(v)
	o.mu.Unlock()
	if code == "" || in.State == store.IntentEnded || o.moment().Steps != v.Steps {
		return // a word came in between, or a step of the clock
	}
	failpoint.Hit("outbox.verdict.before")
	if err := o.notice(ctx, failed(in, code), in, true, store.EndVerdict); err != nil {
		o.log.Error("the last word on a message could not be told yet", "msg", in.MsgID, "trace", in.TraceID, "error", err)
	}
}

// told lets the loop look at an intent again.
func (o *Outbox) told(op *open) {
	o.mu.Lock()
	op.telling = false
	o.mu.Unlock()
}

// failed is the report of this gateway itself about a message of its own.
func failed(in store.Intent, code fault.Code) envelope.Report {
	return envelope.Report{
		Kind: envelope.Failed, Reason: string(code), MsgID: wire(in), TraceID: in.TraceID,
		Sender: in.From, Recipient: in.To, Hops: in.Hops,
	}
}
