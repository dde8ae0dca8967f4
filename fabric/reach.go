package fabric

import (
	"context"
	"sync"
	"time"

	"fleetd/fabric/envelope"
)

// Reach asks the gateways of other hosts whether they hear and believe this
// one: with the probe, a QUERY about a message that does not exist, from our
// gateway's address to theirs (design §5: it changes nothing). Whoever does not
// trust our key, or whose key we do not trust, cannot answer.

// reachAgain is after what time a host that did not answer is asked again: any
// signal may be lost.
const reachAgain = 3 * time.Second

// reaches are the questions that wait for an answer.
type reaches struct {
	mu   sync.Mutex
	open map[string]reach // by the question's id
}

type reach struct {
	host     string
	answered chan struct{}
}

// Reached is what became of the question to one host.
type Reached int

const (
	Unreached Reached = iota // it did not get there: the host's queue, or our link, is gone
	Silent                   // it lies with the host, who did not answer in time
	Answered
)

// Reach returns what became of the question to each of hosts before ctx ended.
func (f *Fabric) Reach(ctx context.Context, hosts []string) map[string]Reached {
	reached := make([]Reached, len(hosts))
	var asks sync.WaitGroup
	for i, host := range hosts {
		asks.Go(func() { reached[i] = f.reach(ctx, host) })
	}
	asks.Wait()
	all := map[string]Reached{}
	for i, host := range hosts {
		all[host] = reached[i]
	}
	return all
}

func (f *Fabric) reach(ctx context.Context, host string) Reached {
	env, err := f.question(envelope.GatewayAddress(host))
	if err != nil {
		return Unreached
	}
	r := reach{host, make(chan struct{})}
	f.reached.add(env.MsgID, r)
	defer f.reached.forget(env.MsgID)
	so := Unreached
	for {
		switch out, err := f.Publish(ctx, envelope.LaneSignal, env, nil); {
		case err == nil && out == Confirmed:
			so = Silent
		case ctx.Err() == nil: // what got there before is lost with the queue
			return Unreached
		}
		select {
		case <-r.answered:
			return Answered
		case <-ctx.Done():
			return so
		case <-time.After(reachAgain):
		}
		// Under the same id it would be taken for a copy of the one before.
		if env, err = f.question(env.To); err != nil {
			return Unreached
		}
		f.reached.add(env.MsgID, r)
		defer f.reached.forget(env.MsgID)
	}
}

func (r *reaches) add(id string, one reach) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open == nil {
		r.open = map[string]reach{}
	}
	r.open[id] = one
}

func (r *reaches) forget(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, id)
}

// answered reports whether env is a gateway's answer to one of the questions,
// and notes it. Only the host that was asked can give it.
func (r *reaches) answered(env *envelope.Envelope) bool {
	if env.Kind != envelope.Deferred || env.From != envelope.GatewayAddress(env.Signer) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	one, ok := r.open[env.InReplyTo]
	if !ok || one.host != env.Signer {
		return false
	}
	for id, other := range r.open { // asked twice, answered once
		if other.answered == one.answered {
			delete(r.open, id)
		}
	}
	select {
	case <-one.answered: // asked again just as the first answer came
	default:
		close(one.answered)
	}
	return true
}
