package inbox

import (
	"slices"
	"sync"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
	"fleetd/test/failpoint"
)

// turns are the questions that entities of this host were asked, and the open
// calls that can take one (design §7). Memory only: a turn is a live
// conversation, and a restart ends it.
type turns struct {
	mu   sync.Mutex
	ears []*Ears          // the one that listens longest first
	byID map[string]*turn // by turnId
	list []*turn          // of byID, the oldest first
}

// turn is one question.
type turn struct {
	ask   *envelope.Envelope // without its body once the turn has ended
	until time.Time          // by this host's clock the asker has given up for sure
	state turnState
	why   string // of the end, in words
}

type turnState int

const (
	turnOffered   turnState = iota // in a response that is not known to be written
	turnOpen                       // the one who is asked has it
	turnAnswering                  // an answer is on its way
	turnEnded
)

const (
	// turnSkew is how long after the end of a question's life an answer is
	// still sent: the asker's gateway decides, by its own clock.
	turnSkew = envelope.Skew
	// endedTurnsMost is how many ended turns are remembered, to say how they ended.
	endedTurnsMost = 1024
	// openMost is how many questions can be open on this host; with the bound on
	// the length of each (envelope.AskBytes) it bounds what they take.
	openMost = 1024
	// openMostTo is how many of them can be put to one entity, and openMostOf how
	// many one asker can have put.
	openMostTo, openMostOf = 128, 32
	// turnMost is for how long a question is open at most: no gateway of ours has
	// an agent wait for longer than 4 minutes, but another may say what it likes.
	turnMost = time.Hour
)

// Ears are one open call of an entity, a blocked send or a blocked poll, that
// returns with a question if one comes.
type Ears struct {
	in    *Inbox
	gid   string
	about string         // the brief that was sent; "" of a poll
	from  string         // whose questions it takes, of a send its recipient's; "" all
	c     chan *Question // capacity 1
}

// Question is an ASK in a response that is being written. Settle must be
// called, whatever became of the response; only the first call counts.
type Question struct {
	in       *Inbox
	turn     *turn
	once     sync.Once
	Ask      *envelope.Envelope
	FromName string // name@host
}

// Listen registers an open call of gid that takes questions of from ("" of all):
// a send of the brief about to him, or a poll. Close it.
func (in *Inbox) Listen(gid, about, from string) *Ears {
	e := &Ears{in: in, gid: gid, about: about, from: from, c: make(chan *Question, 1)}
	in.turns.mu.Lock()
	in.turns.ears = append(in.turns.ears, e)
	in.turns.mu.Unlock()
	return e
}

// C yields one question at most.
func (e *Ears) C() <-chan *Question { return e.c }

// Close withdraws the call. A question that came and was not taken goes to the
// next one that listens.
func (e *Ears) Close() {
	t := &e.in.turns
	t.mu.Lock()
	t.ears = slices.DeleteFunc(t.ears, func(o *Ears) bool { return o == e })
	t.mu.Unlock()
	select {
	case q := <-e.c:
		q.Settle(false)
	default:
	}
}

// rank says how well the call suits a question: 3 the send of that brief, 2
// another send to the asker, 1 a poll that admits him, 0 not at all. A send to
// somebody else is never interrupted.
func (e *Ears) rank(ask *envelope.Envelope) int {
	switch {
	case e.gid != ask.To || e.from != "" && e.from != ask.From:
		return 0
	case e.about == "":
		return 1
	case e.about == ask.InReplyTo:
		return 3
	}
	return 2
}

// take removes and returns the call that a question goes to; mu is held.
func (t *turns) take(ask *envelope.Envelope) *Ears {
	var best *Ears
	for _, e := range t.ears {
		if rank := e.rank(ask); rank > 0 && (best == nil || rank > best.rank(ask)) {
			best = e
		}
	}
	t.ears = slices.DeleteFunc(t.ears, func(o *Ears) bool { return o == best })
	return best
}

// Ask takes a question for an entity of this host: it goes to an open call now,
// or its asker is told at once that nobody listens. It never blocks.
func (in *Inbox) Ask(ask *envelope.Envelope) (taken bool) {
	failpoint.Hit("inbox.ask.before")
	b := in.box(ask.To)
	switch {
	case b == nil || b.snapshot().Ended():
		in.cfg.Reports.TurnOver(ask, envelope.Abandoned, string(fault.PaneGone))
		return false
	case !in.mayWrite(ask):
		in.trace("refused", ask, ask.To, store.Failed, string(fault.NotAllowed))
		in.cfg.Reports.TurnOver(ask, envelope.Failed, string(fault.NotAllowed))
		return false
	case len(ask.Body) > envelope.AskBytes: // a gateway of ours lets none leave
		in.trace("refused", ask, ask.To, store.Failed, string(fault.TooLarge))
		in.cfg.Reports.TurnOver(ask, envelope.Failed, string(fault.TooLarge))
		return false
	}
	now := in.cfg.Now()
	life := time.Duration(min(max(ask.ExpiresAt-ask.TS, 0), turnMost.Milliseconds())) * time.Millisecond
	t := &turn{ask: ask, until: now.Add(life + turnSkew)}
	in.turns.mu.Lock()
	_, again := in.turns.byID[ask.TurnID]
	room := again || in.turns.room(ask, now, ask.Signer != in.cfg.Host)
	if room && !again {
		in.turns.keep(t)
	}
	in.turns.mu.Unlock()
	if !room {
		in.trace("refused", ask, ask.To, store.Failed, string(fault.RateLimited))
		in.cfg.Reports.TurnOver(ask, envelope.Failed, string(fault.RateLimited))
		return false
	}
	return again || in.offerTurn(t)
}

// expire ends the questions that have run out.
func (t *turns) expire(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, o := range t.list {
		o.expire(now)
	}
}

// room reports whether one more question may be open, besides those that have
// not run out; it ends the others. Another host may make up askers: it gets half
// of the room. mu is held.
func (t *turns) room(ask *envelope.Envelope, now time.Time, foreign bool) bool {
	all, to, of, host, hostTo := 0, 0, 0, 0, 0
	for _, o := range t.list {
		o.expire(now)
		if o.state == turnEnded {
			continue
		}
		all++
		if o.ask.To == ask.To {
			to++
		}
		if o.ask.From == ask.From {
			of++
		}
		if o.ask.Signer == ask.Signer {
			host++
			if o.ask.To == ask.To {
				hostTo++
			}
		}
	}
	if foreign && (host >= openMost/2 || hostTo >= openMostTo/2) {
		return false
	}
	return all < openMost && to < openMostTo && of < openMostOf
}

// keep remembers a turn, and forgets the oldest of those that have ended when
// they are too many; mu is held.
func (t *turns) keep(one *turn) {
	if t.byID == nil {
		t.byID = map[string]*turn{}
	}
	t.byID[one.ask.TurnID] = one
	t.list = append(t.list, one)
	if len(t.list) <= endedTurnsMost {
		return
	}
	ended := 0
	for _, o := range t.list {
		if o.state == turnEnded {
			ended++
		}
	}
	t.list = slices.DeleteFunc(t.list, func(o *turn) bool {
		if o.state != turnEnded || ended < endedTurnsMost {
			return false
		}
		ended--
		delete(t.byID, o.ask.TurnID)
		return true
	})
}

// offerTurn gives a question to the call that suits it best, else ends it.
func (in *Inbox) offerTurn(t *turn) (taken bool) {
	in.turns.mu.Lock()
	if t.state != turnOffered {
		in.turns.mu.Unlock()
		return false
	}
	ask := t.ask
	e := in.turns.take(ask)
	if e == nil {
		t.end("nobody was listening when it came")
	} else {
		e.c <- &Question{in: in, turn: t, Ask: ask, FromName: in.cfg.Names.Name(ask.From)}
	}
	in.turns.mu.Unlock()
	if e == nil {
		failpoint.Hit("inbox.ask.nobody")
		in.trace("no_waiter", ask, ask.To, "", string(fault.NoWaiter))
		in.cfg.Reports.TurnOver(ask, envelope.NoWaiter, "")
	}
	return e != nil
}

func (t *turn) end(why string) {
	if t.state == turnEnded {
		return
	}
	ended := *t.ask
	ended.Body = nil
	t.ask, t.state, t.why = &ended, turnEnded, why
}

// expire ends a turn that nobody can answer any more.
func (t *turn) expire(now time.Time) {
	if t.state != turnAnswering && now.After(t.until) {
		t.end("the agent had stopped waiting")
	}
}

// Settle ends the offer. Written: the turn is open until it is answered or runs
// out. Not written: the next call gets it, or its asker hears that nobody
// listens.
func (q *Question) Settle(written bool) {
	q.once.Do(func() {
		in, t := q.in, q.turn
		if !written {
			in.offerTurn(t)
			return
		}
		failpoint.Hit("inbox.ask.written")
		in.turns.mu.Lock()
		if t.state == turnOffered {
			t.state = turnOpen
		}
		in.turns.mu.Unlock()
		if b := in.box(q.Ask.To); b != nil {
			b.keep(in.cfg.Now(), q.Ask) // a long one is read on
		}
		in.trace("offered", q.Ask, q.Ask.To, "", "")
	})
}

// AskedBy returns the newest question of asker that gid has not answered.
func (in *Inbox) AskedBy(gid, asker string) (ask *envelope.Envelope, found bool) {
	for _, q := range in.Questions(gid) {
		if q.From == asker {
			ask, found = q, true
		}
	}
	return ask, found
}

// Questions lists the questions that gid was asked and has not answered, the
// oldest first.
func (in *Inbox) Questions(gid string) (open []*envelope.Envelope) {
	now := in.cfg.Now()
	in.turns.mu.Lock()
	defer in.turns.mu.Unlock()
	for _, t := range in.turns.list {
		// The skew is left out: who is not sure to be heard need not be urged.
		if t.ask.To == gid && (t.state == turnOffered || t.state == turnOpen) && now.Before(t.until.Add(-turnSkew)) {
			open = append(open, t.ask)
		}
	}
	return open
}

// TurnToAnswer returns the question of a turn and how much of its life is left,
// and keeps others from answering it until Answered. A turn that is over is
// TOO_LATE; which ones there were before a restart is not known, so that an
// unknown one is, too.
func (in *Inbox) TurnToAnswer(gid, turnID string) (ask *envelope.Envelope, left time.Duration, err error) {
	now := in.cfg.Now()
	in.turns.mu.Lock()
	defer in.turns.mu.Unlock()
	t := in.turns.byID[turnID]
	switch {
	case !envelope.ValidGID(turnID):
		return nil, 0, fault.New(fault.BadRequest, "%.80q is no turn id; take turn_id from the question, bridge_whoami lists what is open", turnID)
	case t == nil:
		return nil, 0, fault.New(fault.TooLate, "no question with the turn id %s is open here: it is over, or this gateway was restarted since; "+
			"nothing was delivered. Write to the agent with bridge_send if your answer still matters", turnID)
	case t.ask.To != gid:
		return nil, 0, fault.New(fault.NotAllowed, "the question with the turn id %s was put to somebody else; bridge_whoami lists what you were asked", turnID)
	case t.state == turnAnswering:
		return nil, 0, fault.New(fault.Conflict, "an answer to this question is on its way already; only one can be given")
	}
	t.expire(now)
	if t.state == turnEnded {
		return nil, 0, tooLate(t.why)
	}
	t.state = turnAnswering
	return t.ask, t.until.Add(-turnSkew).Sub(now), nil
}

func tooLate(why string) error {
	return fault.New(fault.TooLate, "this question is over: %s. Nothing was delivered; write to the agent with bridge_send if your answer still matters", why)
}

// Answered ends a turn whose answer left, with why in words; "" opens it again,
// because nothing left.
func (in *Inbox) Answered(turnID, why string) {
	in.turns.mu.Lock()
	defer in.turns.mu.Unlock()
	t := in.turns.byID[turnID]
	switch {
	case t == nil:
	case why != "":
		t.end(why)
	case t.state == turnAnswering:
		t.state = turnOpen
	}
}

// Withdrawn takes the word that an asker has ended.
func (in *Inbox) Withdrawn(env *envelope.Envelope) {
	in.turns.mu.Lock()
	defer in.turns.mu.Unlock()
	if t := in.turns.byID[env.TurnID]; t != nil && t.ask.From == env.From && t.ask.To == env.To {
		t.end("the agent that asked has ended")
	}
}

// endTurns ends what an entity that is gone was asked, and tells the askers.
func (in *Inbox) endTurns(gid string) {
	var over []*envelope.Envelope
	in.turns.mu.Lock()
	for _, t := range in.turns.byID {
		if t.ask.To == gid && t.state != turnEnded {
			t.end("you were unregistered")
			over = append(over, t.ask)
		}
	}
	in.turns.mu.Unlock()
	for _, ask := range over {
		in.cfg.Reports.TurnOver(ask, envelope.Abandoned, string(fault.PaneGone))
	}
}

// Keep lets gid read a message again that never lay in its inbox: the answer to
// a question.
func (in *Inbox) Keep(gid string, env *envelope.Envelope) {
	if b := in.box(gid); b != nil {
		b.keep(in.cfg.Now(), env)
	}
}

// MarkAsked returns the change to commit before a question about brief leaves,
// if it was in doubt: whoever asks about it has it. Else nil.
func MarkAsked(brief store.Brief, now time.Time) func(*store.Tx) error {
	if brief.State != briefInDoubt {
		return nil
	}
	return func(tx *store.Tx) error {
		b, found, err := tx.BriefByMsg(brief.GID, brief.MsgID)
		if err != nil || !found || b.State != briefInDoubt {
			return err
		}
		b.State, b.At = briefOpen, now.UnixMilli()
		seen, found, err := tx.SeenOf(b.TS, b.MsgID, b.GID)
		if err != nil {
			return err
		}
		if found {
			seen.Outcome, seen.Reason = store.Injected, ""
			if err := tx.PutSeen(b.TS, b.MsgID, b.GID, seen); err != nil {
				return err
			}
		}
		return tx.PutBrief(b)
	}
}
