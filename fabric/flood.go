package fabric

import (
	"time"

	"golang.org/x/time/rate"

	"fleetd/fabric/envelope"
	"fleetd/fault"
)

const (
	// floodSlack is how much more than its own gateway lets through a sender
	// may bring: clocks are corrected, limits differ, replies come on top.
	floodSlack = 2
	// floodTell is how often the sender of what is refused is told.
	floodTell = time.Minute
	// floodPairs is how many pairs are remembered before idle ones are
	// forgotten, and all when none is: a host can make up senders.
	floodPairs = 1024
)

// floods bounds what one sender brings to one recipient in a minute, so that
// the mail of a gateway that keeps to no pace leaves room for that of others
// (design §13). One goroutine uses it.
//
// Time is what the sender signed, within what has passed: mail that waited
// while we were away comes at once and was sent at an honest pace. A host that
// lies about its times gets more through, once. Where these times stand still,
// because its clock was put back or dead letters come again, ours goes on.
type floods struct {
	perMinute int // 0: no bound
	pairs     map[[2]string]*flow
}

// flow is the mail of one sender to one recipient.
type flow struct {
	limit *rate.Limiter
	at    time.Time // up to where its time has come; never goes back
	came  time.Time // when its last message came
	told  time.Time // when it was last told that it is too fast
}

// take counts a verified message: accept, or why not.
func (f *floods) take(now time.Time, env *envelope.Envelope) judgement {
	if f.perMinute == 0 {
		return judgement{}
	}
	pair := [2]string{env.From, env.To}
	if env.Kind.Travels(envelope.LaneControl) {
		pair[0] = env.Signer // whoever it says asks: each request costs an answer, a step and a line
	}
	l := f.pairs[pair]
	if l == nil {
		if len(f.pairs) >= floodPairs {
			f.forget(now)
		}
		if f.pairs == nil {
			f.pairs = map[[2]string]*flow{}
		}
		l = &flow{limit: f.limiter(), came: now}
		f.pairs[pair] = l
	}
	l.at = l.at.Add(max(now.Sub(l.came), 0))
	l.came = now
	at := env.Sent()
	if at.After(now) {
		at = now
	}
	if at.After(l.at) {
		l.at = at
	}
	if l.limit.AllowN(l.at, 1) {
		return judgement{}
	}
	j := refused(reasonFlood, fault.RateLimited, "%s sends %s more than %d messages within a minute", pair[0], env.To, floodSlack*f.perMinute)
	if env.Kind.Brief() && now.Sub(l.told) >= floodTell {
		l.told, j.report = now, true
	}
	return j
}

func (f *floods) limiter() *rate.Limiter {
	most := floodSlack * f.perMinute
	return rate.NewLimiter(rate.Limit(float64(most)/60), most)
}

func (f *floods) forget(now time.Time) {
	left := map[[2]string]*flow{}
	for pair, l := range f.pairs {
		if l.limit.TokensAt(now) < float64(l.limit.Burst()) {
			left[pair] = l
		}
	}
	if len(left) >= floodPairs {
		left = nil
	}
	f.pairs = left
}

// counts reports whether a message is one that its sender could bring in any
// number: all mail of other hosts, their questions and requests, and reports on
// either lane about what never went to it. A report that is owed comes once. What
// we signed ourselves is a migration's (design §12), which may bring a whole old
// queue at once.
func (v *verifier) counts(p place, env *envelope.Envelope) bool {
	if env.Signer == v.host {
		return false
	}
	switch env.Kind {
	case envelope.Failed, envelope.Abandoned:
		_, owed := v.noted.RecipientHost(env.InReplyTo, env.From)
		return !owed
	case envelope.Ask:
		return true
	}
	return p.lane == envelope.LaneMail || p.lane == envelope.LaneControl
}
