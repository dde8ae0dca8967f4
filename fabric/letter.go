package fabric

import (
	"errors"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric/envelope"
)

// DeadLetter is one message of bridge.dlq as people are shown it. Of a letter
// that is not verified every word is a stranger's: cut short, good to look at
// and for nothing else.
type DeadLetter struct {
	MsgID, TraceID, Kind, From, To, Signer, InReplyTo string

	Sent, Expires time.Time // as the sender stated them; zero if they cannot be read
	Key           string    // the routing key it was published under
	Bytes         int       // of the body
	Deaths        []Death   // the newest first; a hint, never proof

	// Problem is empty for a letter that its signer's key and the home of its
	// sender vouch for, else one word that says what is wrong; Err is the
	// sentence.
	Problem string
	Err     error
	Own     bool // verified, and signed by this gateway

	// Only while the letter is looked at:
	Envelope *envelope.Envelope // nil unless it is verified
	Body     []byte
	headers  amqp.Table
}

// Death is one entry of x-death. The broker believes what a publisher put
// there (broker fact §5).
type Death struct {
	Queue, Reason string
	Count         int64
	At            time.Time // whole seconds; zero if it is not said
}

// Death is the newest death of the letter, with "unknown" for what is not said.
func (l *DeadLetter) Death() Death {
	if len(l.Deaths) == 0 {
		return Death{Queue: unknown, Reason: unknown}
	}
	return l.Deaths[0]
}

// shown are the headers whose values people are shown. The signature is not
// among them, and neither is what we do not know: it may be anything.
var shown = []string{
	"v", "kind", "msgId", "traceId", "from", "to", "signer", "inReplyTo", "turnId", "spawnId",
	"ts", "expiresAt", "reason", "hops",
}

// Headers returns the values of the headers of design §4, cut short, and the
// names of all others. Only while the letter is looked at.
func (l *DeadLetter) Headers() (known map[string]string, others []string) {
	known = map[string]string{}
	for name, value := range l.headers {
		text, ok := value.(string)
		if ok && slices.Contains(shown, name) {
			known[name] = short(text)
		} else {
			others = append(others, short(name))
		}
	}
	slices.Sort(others)
	return known, others
}

// letter reads a raw delivery.
func (f *Fabric) letter(d *amqp.Delivery) *DeadLetter {
	l := &DeadLetter{Key: short(d.RoutingKey), Bytes: len(d.Body), Deaths: deathsOf(d.Headers), Body: d.Body, headers: d.Headers}
	env, err := envelope.Decode(d.Headers, d.Body, f.cfg.Limits)
	if err != nil {
		word := func(name string) string { s, _ := d.Headers[name].(string); return short(s) }
		l.MsgID, l.TraceID, l.Kind, l.InReplyTo = word("msgId"), word("traceId"), word("kind"), word("inReplyTo")
		l.From, l.To, l.Signer = word("from"), word("to"), word("signer")
		l.Problem, l.Err = problem(err), err
		return l
	}
	l.MsgID, l.TraceID, l.Kind, l.InReplyTo = env.MsgID, env.TraceID, short(string(env.Kind)), env.InReplyTo
	l.From, l.To, l.Signer = short(env.From), short(env.To), env.Signer
	l.Sent, l.Expires = env.Sent(), env.Expiry()
	if err := env.Verify(f.verifier.trust); err != nil {
		l.Problem, l.Err = problem(err), err
		return l
	}
	// That a home is not known at present is no flaw of the letter: its
	// recipient asks for it.
	if j := f.verifier.atHome(place{lane: envelope.LaneMail}, env); j.verdict == refuse {
		l.Problem, l.Err = j.reason, j.err
		return l
	}
	l.Envelope, l.Own = env, env.Signer == f.cfg.Host
	return l
}

func problem(err error) string {
	if r, ok := errors.AsType[*envelope.Refusal](err); ok {
		return r.Reason
	}
	return reasonPanic
}

const (
	unknown = "unknown"
	// deathsMost bounds what is read of an array that anyone may have made.
	deathsMost = 16
)

// deathsOf reads x-death, the newest first.
func deathsOf(h amqp.Table) []Death {
	list, _ := h["x-death"].([]any)
	var all []Death
	for _, entry := range list[:min(len(list), deathsMost)] {
		d := Death{Queue: unknown, Reason: unknown}
		t, _ := entry.(amqp.Table)
		if q, ok := t["queue"].(string); ok {
			d.Queue = short(q)
		}
		if r, ok := t["reason"].(string); ok {
			d.Reason = short(r)
		}
		switch n := t["count"].(type) { // brokers differ (broker fact §5)
		case int64:
			d.Count = n
		case int32:
			d.Count = int64(n)
		}
		d.At, _ = t["time"].(time.Time)
		all = append(all, d)
	}
	return all
}

// Filter picks dead letters; what is empty picks all.
type Filter struct {
	MsgID      string
	Reason     string    // of the newest death
	Queue      string    // of the newest death: its whole name, or the gid of an inbox
	DiedBefore time.Time // a letter that does not say when it died is not picked
}

func (q Filter) match(n Names, l *DeadLetter) bool {
	d := l.Death()
	return (q.MsgID == "" || l.MsgID == q.MsgID) &&
		(q.Reason == "" || d.Reason == q.Reason) &&
		(q.Queue == "" || d.Queue == q.Queue || d.Queue == n.Inbox(q.Queue)) &&
		(q.DiedBefore.IsZero() || !d.At.IsZero() && d.At.Before(q.DiedBefore))
}
