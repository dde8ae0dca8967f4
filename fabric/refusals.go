package fabric

import (
	"maps"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/time/rate"

	"fleetd/fabric/envelope"
)

// refusals counts what was refused and says it: each once and loudly, but a
// flood of one reason only as often as its limiter lets it.
type refusals struct {
	f *Fabric

	mu      sync.Mutex
	counts  map[string]uint64
	limits  map[string]*rate.Limiter
	unsaid  map[string]uint64
	onCount func(queue, reason string)
}

const (
	linesBurst  = 20
	linesPerSec = 0.2
)

func newRefusals(f *Fabric) *refusals {
	return &refusals{f: f, counts: map[string]uint64{}, limits: map[string]*rate.Limiter{}, unsaid: map[string]uint64{}}
}

// Refusals returns how many messages were refused, by reason.
func (f *Fabric) Refusals() map[string]uint64 {
	f.refusals.mu.Lock()
	defer f.refusals.mu.Unlock()
	return maps.Clone(f.refusals.counts)
}

// OnRefusal registers fn for each refusal, for metrics. Register before Run.
func (f *Fabric) OnRefusal(fn func(queue, reason string)) {
	f.refusals.mu.Lock()
	defer f.refusals.mu.Unlock()
	f.refusals.onCount = fn
}

// note counts and logs one refusal. Reasons are our own words, so neither the
// counters nor the limiters grow with what a stranger sends.
func (r *refusals) note(p place, d *amqp.Delivery, env *envelope.Envelope, j judgement) {
	r.mu.Lock()
	r.counts[j.reason]++
	limit := r.limits[j.reason]
	if limit == nil {
		limit = rate.NewLimiter(linesPerSec, linesBurst)
		r.limits[j.reason] = limit
	}
	say := limit.Allow()
	unsaid := r.unsaid[j.reason]
	if say {
		r.unsaid[j.reason] = 0
	} else {
		r.unsaid[j.reason]++
	}
	count := r.onCount
	r.mu.Unlock()
	if count != nil {
		count(p.queue, j.reason)
	}
	if say {
		r.f.log.Error("message refused", append(about(d, env),
			"queue", p.queue, "reason", j.reason, "error", j.err, "unsaid", unsaid)...)
	}
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
