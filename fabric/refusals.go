package fabric

import (
	"maps"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/time/rate"

	"fleetd/fabric/envelope"
)

// refusals counts what was refused and says it: each once and loudly, but a
// flood of one reason only as often as its limiter lets it.
type refusals struct {
	f *Fabric

	mu     sync.Mutex
	counts map[string]uint64
	limits map[string]*rate.Limiter
	unsaid map[string]uint64

	strangers map[string]Stranger // by the host they say they are
}

// Stranger is a host in whose name messages come that are refused for want of
// a key that fits. Anybody with a login may use any name.
type Stranger struct {
	Host   string
	Reason string        // envelope.UnknownSigner or envelope.BadSignature
	Last   time.Duration // uptime at the last of them
}

// strangersMost bounds what is remembered of names that anybody can make up.
const strangersMost = 32

const (
	linesBurst  = 20
	linesPerSec = 0.2
)

func newRefusals(f *Fabric) *refusals {
	return &refusals{f: f, counts: map[string]uint64{}, limits: map[string]*rate.Limiter{}, unsaid: map[string]uint64{}, strangers: map[string]Stranger{}}
}

// Refusals returns how many messages were refused, by reason.
func (f *Fabric) Refusals() map[string]uint64 {
	f.refusals.mu.Lock()
	defer f.refusals.mu.Unlock()
	return maps.Clone(f.refusals.counts)
}

// Strangers lists in whose names messages were refused for want of a key within
// the given time, by host. A gateway that runs is heard every few seconds.
func (f *Fabric) Strangers(within time.Duration) []Stranger {
	now := f.uptime()
	f.refusals.mu.Lock()
	defer f.refusals.mu.Unlock()
	var all []Stranger
	for _, host := range slices.Sorted(maps.Keys(f.refusals.strangers)) {
		if s := f.refusals.strangers[host]; now-s.Last <= within {
			all = append(all, s)
		}
	}
	return all
}

// met notes a stranger; mu is held. Of too many the one that was heard longest
// ago is forgotten.
func (r *refusals) met(env *envelope.Envelope, reason string) {
	if env == nil || reason != envelope.UnknownSigner && reason != envelope.BadSignature || !envelope.ValidHost(env.Signer) {
		return
	}
	if _, known := r.strangers[env.Signer]; !known && len(r.strangers) >= strangersMost {
		oldest := ""
		for host, s := range r.strangers {
			if oldest == "" || s.Last < r.strangers[oldest].Last {
				oldest = host
			}
		}
		delete(r.strangers, oldest)
	}
	r.strangers[env.Signer] = Stranger{Host: env.Signer, Reason: reason, Last: r.f.uptime()}
}

// note counts and logs one refusal. Reasons are our own words, so neither the
// counters nor the limiters grow with what a stranger sends.
func (r *refusals) note(p place, d *amqp.Delivery, env *envelope.Envelope, j judgement) {
	r.mu.Lock()
	r.counts[j.reason]++
	r.met(env, j.reason)
	r.mu.Unlock()
	if unsaid, say := r.say(j.reason); say {
		r.f.log.Error("message refused", append(about(d, env),
			"queue", p.queue, "reason", j.reason, "error", j.err, "unsaid", unsaid)...)
	}
}

// say reports whether one more line of a sort may be written, and how many were
// left out since the last. Sorts are words of our own.
func (r *refusals) say(sort string) (unsaid uint64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	limit := r.limits[sort]
	if limit == nil {
		limit = rate.NewLimiter(linesPerSec, linesBurst)
		r.limits[sort] = limit
	}
	unsaid = r.unsaid[sort]
	if ok = limit.Allow(); ok {
		r.unsaid[sort] = 0
	} else {
		r.unsaid[sort]++
	}
	return unsaid, ok
}

// about describes a message for the log. Headers of one that was not verified
// are a stranger's words: short, and quoted by the logger.
func about(d *amqp.Delivery, env *envelope.Envelope) []any {
	if env != nil {
		return []any{"trace", env.TraceID, "msg", env.MsgID, "kind", short(string(env.Kind)), "from", env.From, "to", env.To, "signer", env.Signer}
	}
	word := func(name string) string { s, _ := d.Headers[name].(string); return short(s) }
	return []any{"trace", word("traceId"), "msg", word("msgId"), "kind", word("kind"), "from", word("from"), "signer", word("signer")}
}

func short(s string) string {
	const most = 80
	if len(s) > most {
		return s[:most]
	}
	return s
}
