package fabric

import (
	"errors"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
)

// The reasons for which a message is refused after step 1, whose reasons are
// those of the envelope package. They label metrics and log lines.
const (
	reasonLane        = "wrong_lane"      // the lane does not carry this kind
	reasonQueue       = "wrong_queue"     // the queue does not belong to `to`
	reasonKey         = "wrong_key"       // routed under a key that is not `to`
	reasonForeignHome = "foreign_home"    // `from` lives on another host than the signer
	reasonUnknownHome = "unknown_home"    // nobody announces `from`, nor does the signer when asked
	reasonExpired     = "expired"         // its life was over
	reasonHorizon     = "outside_horizon" // its ts is too far from our clock
	reasonNotSentTo   = "wrong_witness"   // a signal about a message from a host it was not sent to
	reasonUnknownKind = "unknown_kind"    // a newer minor version, in an inbox
	reasonFlood       = "rate_limited"    // its sender brings too much; see floods
	reasonPanic       = "internal"        // reading it failed in a way that is our fault
)

// place is where a delivery was taken from.
type place struct {
	lane   envelope.Lane
	gid    string // of an inbox
	worker bool   // whose inbox also takes broadcast.all
	queue  string // for the log
}

// verdict is what to do with a message.
type verdict int

const (
	accept  verdict = iota
	refuse          // reject without requeue
	ignore          // ack, log, count: a signal of a kind we do not know
	solicit         // its home is unknown and its signer is live: ask, wait
	silent          // its home is unknown and its signer is not heard
)

// judgement is a verdict and what led to it.
type judgement struct {
	verdict verdict
	reason  string
	code    fault.Code
	err     error // the sentence for the log
	report  bool  // a brief whose steps 1 to 3 held: its sender is told
}

func refused(reason string, code fault.Code, format string, args ...any) judgement {
	return judgement{verdict: refuse, reason: reason, code: code, err: fault.New(code, format, args...)}
}

// verifier judges by design §4, steps 1 to 5, in that order.
type verifier struct {
	host  string
	now   func() time.Time
	trust envelope.Trust
	homes Homes
	noted Noted
	owner Owner
}

// judge verifies a decoded envelope that was published under key.
func (v *verifier) judge(p place, key string, env *envelope.Envelope) judgement {
	if err := env.Verify(v.trust); err != nil { // step 1
		return fromRefusal(err)
	}
	if j := v.placed(p, key, env); j.verdict != accept { // step 2
		return j
	}
	return v.resume(p, env)
}

// resume judges from step 3 on: again, for a message whose home was unknown.
func (v *verifier) resume(p place, env *envelope.Envelope) judgement {
	if j := v.atHome(p, env); j.verdict != accept { // step 3
		return j
	}
	j := v.timely(p, env) // step 4
	if j.verdict == accept {
		j = v.witnessed(env) // step 5
	}
	if j.verdict == accept && !env.Kind.Known() {
		j = v.unknownKind(p, env)
	}
	j.report = j.verdict == refuse && p.lane == envelope.LaneMail && (env.Kind.Brief() || !env.Kind.Known())
	return j
}

func fromRefusal(err error) judgement {
	if r, ok := errors.AsType[*envelope.Refusal](err); ok {
		return judgement{verdict: refuse, reason: r.Reason, code: fault.CodeOf(r), err: r}
	}
	return judgement{verdict: refuse, reason: reasonPanic, code: fault.Internal, err: err}
}

// placed is step 2: lane, queue and key fit `to`. A key alone proves nothing:
// an unsigned CC header delivers into other queues under the original key.
func (v *verifier) placed(p place, key string, env *envelope.Envelope) judgement {
	if env.Kind.Known() && !env.Kind.Travels(p.lane) {
		return refused(reasonLane, fault.Refused, "%s does not travel on the %s lane", env.Kind, p.lane)
	}
	if !v.belongs(p, env.To) {
		return refused(reasonQueue, fault.Refused, "a message to %s was in a queue that is not its own: it was copied or bound there", env.To)
	}
	if want := env.RoutingKey(p.lane); key != want {
		return refused(reasonKey, fault.Refused, "a message to %s was published under the key %.80q", env.To, key)
	}
	return judgement{}
}

func (v *verifier) belongs(p place, to string) bool {
	switch p.lane {
	case envelope.LaneMail:
		group, broadcast := envelope.BroadcastGroup(to)
		switch {
		case !broadcast:
			return to == p.gid
		case group == "all":
			return p.worker
		}
		return v.owner.Member(p.gid, group)
	case envelope.LaneSignal:
		return to == envelope.GatewayAddress(v.host) || v.owner.Owns(to)
	case envelope.LaneControl:
		return to == v.host
	case envelope.LanePresence:
		_, _, ok := envelope.ParseRosterKey(to)
		return ok
	}
	return false
}

// atHome is step 3: `from` lives on the host that signed.
func (v *verifier) atHome(p place, env *envelope.Envelope) judgement {
	if p.lane == envelope.LanePresence {
		return v.presenceAtHome(env)
	}
	if host, gateway := envelope.GatewayHost(env.From); gateway {
		return v.same(env, host)
	}
	if env.Signer == v.host && v.owner.Owns(env.From) {
		return judgement{}
	}
	if host, known := v.homes.Home(env.From); known {
		return v.same(env, host)
	}
	if v.homes.Live(env.Signer) {
		return judgement{verdict: solicit}
	}
	return judgement{verdict: silent}
}

// presenceAtHome: presence speaks for its signer alone, under keys that carry
// the signer's host word; only a solicitation may also name the host that it
// asks, and orders nothing else. What it claims about an entity whose home is
// elsewhere is the roster's to refuse (design §8).
func (v *verifier) presenceAtHome(env *envelope.Envelope) judgement {
	word, subject, _ := envelope.ParseRosterKey(env.To)
	asksUs := subject == envelope.RosterSolicit && word == v.host
	if word != env.Signer && !asksUs {
		return refused(reasonForeignHome, fault.Refused, "host %s published presence under the key of host %s", env.Signer, word)
	}
	if host, gateway := envelope.GatewayHost(env.From); gateway {
		return v.same(env, host)
	}
	if env.From != subject {
		return refused(reasonForeignHome, fault.Refused, "presence from %s was published under the key of %s", env.From, subject)
	}
	if host, known := v.homes.Home(env.From); known {
		return v.same(env, host)
	}
	return judgement{}
}

func (v *verifier) same(env *envelope.Envelope, home string) judgement {
	if home == env.Signer {
		return judgement{}
	}
	return refused(reasonForeignHome, fault.Refused, "host %s signed a message from %s, who is at home on %s", env.Signer, env.From, home)
}

// timely is step 4. Presence is ordered by boot and sequence instead.
func (v *verifier) timely(p place, env *envelope.Envelope) judgement {
	if p.lane == envelope.LanePresence {
		return judgement{}
	}
	now := v.now()
	if env.Expired(now, envelope.Skew) {
		return refused(reasonExpired, fault.Expired, "the message's life ended at %s", env.Expiry().UTC().Format(time.RFC3339))
	}
	if away := now.Sub(env.Sent()); away > envelope.Horizon || away < -envelope.Horizon {
		return refused(reasonHorizon, fault.Refused, "the message says it was sent at %s, more than 8 days from our clock", env.Sent().UTC().Format(time.RFC3339))
	}
	return judgement{}
}

// witnessed is step 5: an outcome comes from the host that the message went
// to. FAILED and ABANDONED say the same on both lanes, so both are held to it.
// Of a message that the outbox does not know nothing can be said here.
func (v *verifier) witnessed(env *envelope.Envelope) judgement {
	switch env.Kind {
	case envelope.Injected, envelope.Deferred, envelope.Failed, envelope.Abandoned,
		envelope.Answer, envelope.NoWaiter, envelope.TooLate:
	default:
		return judgement{}
	}
	if env.InReplyTo == "" {
		return judgement{}
	}
	if host, ok := v.noted.RecipientHost(env.InReplyTo, env.From); ok && host != env.Signer {
		return refused(reasonNotSentTo, fault.Refused, "%s about message %s came from host %s; it was sent to host %s", env.Kind, env.InReplyTo, env.Signer, host)
	}
	return judgement{}
}

// unknownKind: in an inbox it is refused, because someone was told that it was
// accepted; elsewhere it is let go (design §4).
func (v *verifier) unknownKind(p place, env *envelope.Envelope) judgement {
	err := fault.New(fault.Refused, "kind %.40q is not known to this version of bridged; upgrade it", string(env.Kind))
	if p.lane == envelope.LaneMail {
		return judgement{verdict: refuse, reason: reasonUnknownKind, code: fault.Refused, err: err}
	}
	return judgement{verdict: ignore, reason: reasonUnknownKind, code: fault.Refused, err: err}
}
