package inbox

import (
	"errors"
	"slices"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
)

// What was drained or injected lately can be read again: "written" is all that
// was known of it (design §6). In memory, an hour, and bounded per entity.
const (
	recentFor   = time.Hour
	recentBytes = 8 << 20
)

type recent struct {
	env *envelope.Envelope
	at  time.Time
}

// perRecent is what a remembered message costs beside its body.
const perRecent = 512

// keep remembers messages that have left their box, given to their reader at
// that time, without their headers: nobody asks for those again, and they are
// most of what the collector would have to look at. Of two batches the later one
// may be through first.
func (b *box) keep(at time.Time, given ...*envelope.Envelope) {
	b.mu.Lock()
	defer b.mu.Unlock()
	place := len(b.recent)
	for place > 0 && b.recent[place-1].at.After(at) {
		place--
	}
	for i, e := range given {
		lean := *e
		lean.Headers = nil
		b.recent = slices.Insert(b.recent, place+i, recent{&lean, at})
		b.recentSize += len(e.Body) + perRecent
	}
	b.trim(b.recent[len(b.recent)-1].at)
}

// trim forgets what is too old or too much; mu is held.
func (b *box) trim(now time.Time) {
	old := 0
	for ; old < len(b.recent); old++ {
		r := b.recent[old]
		if now.Sub(r.at) <= recentFor && (b.recentSize <= recentBytes || old == len(b.recent)-1) {
			break
		}
		b.recentSize -= len(r.env.Body) + perRecent
	}
	clear(b.recent[:old])
	b.recent = b.recent[old:]
}

// Recent is one message that gid was given lately.
type Recent struct {
	*envelope.Envelope
	FromName string
	At       time.Time
}

// Recently lists what gid was given within the last hour, the newest first.
func (in *Inbox) Recently(gid string) []Recent {
	b := in.box(gid)
	if b == nil {
		return nil
	}
	now := in.cfg.Now()
	var all []Recent
	b.mu.Lock()
	for _, r := range slices.Backward(b.recent) {
		if now.Sub(r.at) <= recentFor {
			all = append(all, Recent{Envelope: r.env, At: r.at})
		}
	}
	b.mu.Unlock()
	for i, r := range all {
		all[i].FromName = in.cfg.Names.Name(r.From)
	}
	return all
}

// GivenLast returns the brief that a client of gid was given last: one that is
// on its way to it now, else of those of the last hour.
func (in *Inbox) GivenLast(gid string) (brief *envelope.Envelope, found bool) {
	b := in.box(gid)
	if b == nil {
		return nil, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for e := b.items.Back(); e != nil; e = e.Prev() {
		if it := e.Value.(*item); it.state == offered && it.env.Kind.Brief() {
			return it.env, true
		}
	}
	for _, r := range slices.Backward(b.recent) {
		if r.env.Kind.Brief() && in.cfg.Now().Sub(r.at) <= recentFor {
			return r.env, true
		}
	}
	return nil, false
}

// Read gives the whole of one message that was announced, offered or handed to
// gid; nobody reads what was not addressed to him.
func (in *Inbox) Read(gid, msgID string) (Mail, error) {
	b := in.box(gid)
	if b == nil {
		return Mail{}, fault.New(fault.NotAuthenticated, "this identity has no inbox here any more; register again")
	}
	for _, r := range in.Recently(gid) {
		if r.MsgID == msgID {
			return Mail{Envelope: r.Envelope, FromName: r.FromName}, nil
		}
	}
	b.mu.Lock()
	it := b.byID[msgID]
	given := it != nil && (it.state == offered || it.state == injecting)
	again := given && it.redelivered
	b.mu.Unlock()
	if given {
		env, err := in.whole(b, it)
		if err == nil {
			return Mail{Envelope: env, FromName: in.cfg.Names.Name(env.From), Redelivered: again}, nil
		}
		if !errors.Is(err, errGone) {
			return Mail{}, err
		}
	}
	brief, found, err := in.briefOf(gid, msgID)
	if err != nil {
		return Mail{}, err
	}
	if !found || !brief.Announced {
		return Mail{}, fault.New(fault.BadRequest, "no message %s can be read here: it was not announced to you, "+
			"or it is more than an hour ago; bridge_whoami lists what can be read", msgID)
	}
	return Mail{Envelope: &envelope.Envelope{
		Kind: envelope.Kind(brief.Kind), MsgID: brief.MsgID, TraceID: brief.TraceID, From: brief.Sender,
		To: gid, TS: brief.TS, ExpiresAt: brief.ExpiresAt, Hops: brief.Hops, Body: brief.Body,
	}, FromName: brief.SenderName}, nil
}
