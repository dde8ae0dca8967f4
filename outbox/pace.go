package outbox

import (
	"sync"
	"time"

	"golang.org/x/time/rate"

	"fleetd/fault"
)

// pace bounds how many messages one entity sends to another in a minute: two
// agents that thank each other for ever are stopped, and everybody else goes on
// (design §7, Loops).
type pace struct {
	perMinute int // 0: no bound
	mu        sync.Mutex
	pairs     map[[2]string]*rate.Limiter // sender and recipient
}

// pairsMost is how many pairs are remembered before idle ones are forgotten.
const pairsMost = 4096

// allow counts one message of from to to.
func (p *pace) allow(now time.Time, from, to, name string) error {
	if p.perMinute == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	pair := [2]string{from, to}
	l := p.pairs[pair]
	if l == nil {
		if p.pairs == nil || len(p.pairs) >= pairsMost {
			p.forget(now)
		}
		l = rate.NewLimiter(rate.Limit(float64(p.perMinute)/60), p.perMinute)
		p.pairs[pair] = l
	}
	if l.AllowN(now, 1) {
		return nil
	}
	return fault.New(fault.RateLimited, "you sent %s more than %d messages within a minute; nothing was sent. Wait a minute, and if the two of you only answer each other, stop and tell a person", name, p.perMinute)
}

// forget drops the pairs that have been idle for a minute; mu is held.
func (p *pace) forget(now time.Time) {
	left := map[[2]string]*rate.Limiter{}
	for pair, l := range p.pairs {
		if l.TokensAt(now) < float64(p.perMinute) {
			left[pair] = l
		}
	}
	p.pairs = left
}
