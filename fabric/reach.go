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

// Reach returns which of hosts answered before ctx ended. Those that the broker
// leads nowhere, and those that are asked while it is away, did not.
func (f *Fabric) Reach(ctx context.Context, hosts []string) map[string]bool {
	answered := make([]bool, len(hosts))
	var asks sync.WaitGroup
	for i, host := range hosts {
		asks.Go(func() { answered[i] = f.reach(ctx, host) })
	}
	asks.Wait()
	all := map[string]bool{}
	for i, host := range hosts {
		all[host] = answered[i]
	}
	return all
}

func (f *Fabric) reach(ctx context.Context, host string) bool {
	env, err := f.question(envelope.GatewayAddress(host))
	if err != nil {
		return false
	}
	r := reach{host, make(chan struct{})}
	f.reached.add(env.MsgID, r)
	defer f.reached.forget(env.MsgID)
	for {
		if out, err := f.Publish(ctx, envelope.LaneSignal, env, nil); err != nil || out == Returned {
			return false
		}
		select {
		case <-r.answered:
			return true
		case <-ctx.Done():
			return false
		case <-time.After(reachAgain):
		}
		// Under the same id it would be taken for a copy of the one before.
		if env, err = f.question(env.To); err != nil {
			return false
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
