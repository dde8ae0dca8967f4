package fabric

import (
	"crypto/rand"
	"sync"
	"time"

	"github.com/google/uuid"

	"fleetd/fabric/envelope"
)

// A probe is an ordinary signed QUERY from our gateway's address to itself,
// about a message that does not exist: it takes the way that every signal
// takes, there and back. It never leaves this package.

// probeMisses is after how many heartbeats without a probe the session is
// taken for deaf and started anew.
const probeMisses = 6

type probeState struct {
	mu     sync.Mutex
	msgID  string
	cameAt time.Time // monotonic; zero if none came back in this session
}

func (p *probeState) sent(msgID string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.msgID = msgID
}

// back reports whether env is a probe of ours, and notes its return.
func (p *probeState) back(env *envelope.Envelope) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if env.Kind != envelope.Query || env.From != env.To || env.MsgID != env.InReplyTo {
		return false
	}
	if env.MsgID == p.msgID {
		p.cameAt = time.Now()
	}
	return true
}

func (p *probeState) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.msgID, p.cameAt = "", time.Time{}
}

func (p *probeState) fresh(within time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.cameAt.IsZero() && time.Since(p.cameAt) <= within
}

// probe asks ourselves every heartbeat and ends a session that is deaf: whose
// bindings or consumers an operator or a bug took away.
func (s *session) probe() {
	f := s.f
	f.probed.reset()
	every := time.NewTicker(f.cfg.Heartbeat)
	defer every.Stop()
	misses := 0
	for {
		out, err := s.sendProbe()
		switch {
		case out == Returned:
			s.fail("our own signal queue is not bound any more")
			return
		case err != nil || f.probed.fresh(2*f.cfg.Heartbeat):
			misses = 0 // a link that is down or blocked proves nothing
		default:
			misses++
		}
		if misses > probeMisses {
			s.fail("the broker did not give back our probes")
			return
		}
		select {
		case <-every.C:
		case <-s.ctx.Done():
			return
		}
	}
}

func (s *session) sendProbe() (Outcome, error) {
	env, err := s.f.question(envelope.GatewayAddress(s.f.cfg.Host))
	if err != nil {
		return NotSent, err
	}
	s.f.probed.sent(env.MsgID)
	return s.f.Publish(s.ctx, envelope.LaneSignal, env, nil)
}

// question is a signed QUERY to a gateway about a message that does not exist.
func (f *Fabric) question(to string) (*envelope.Envelope, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	trace, err := envelope.NewTraceID(rand.Reader)
	if err != nil {
		return nil, err
	}
	now := f.deps.Now()
	env := &envelope.Envelope{
		V: envelope.Version, Kind: envelope.Query, MsgID: id.String(), TraceID: trace,
		From: envelope.GatewayAddress(f.cfg.Host), To: to, Signer: f.cfg.Host, InReplyTo: id.String(),
		TS: now.UnixMilli(), ExpiresAt: now.Add(time.Minute).UnixMilli(),
	}
	return env, env.Sign(f.deps.Key)
}
