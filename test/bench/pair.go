package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/inbox"
	"fleetd/outbox"
	"fleetd/store"
)

// agentCount is how many panes there are to type into.
const agentCount = 8

// tripBound is the patience with one message.
const tripBound = 30 * time.Second

// body is a content of 1 KiB, in lines as people write them.
var body = []byte(strings.Repeat(strings.Repeat("lorem ipsum ", 5)+"dol\n", 16)[:1024])

// pair is hosta with a main and hostb with workers in panes and a main, both
// on the broker of this run.
type pair struct {
	*agents
	a, b       *gateway
	lead       string   // gid of the main of hosta
	boss       string   // gid of the main of hostb
	workers    []string // addresses, as the panes
	trip       *trip
	dir        string
	brokerURI  string
	nextWorker int
}

// newPair runs both; agents is how many panes hostb has.
func newPair(ctx context.Context, h *host, name string, agents int) (p *pair, err error) {
	p = &pair{trip: &trip{}, dir: filepath.Join(h.dir, name)}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if err = os.Mkdir(p.dir, 0o700); err != nil {
		return p, err
	}
	if p.brokerURI, err = h.broker(ctx); err != nil {
		return p, err
	}
	if p.agents, err = startAgents(ctx, p.dir, agents); err != nil {
		return p, err
	}
	keys, err := newKeys("hosta", "hostb")
	if err != nil {
		return p, err
	}
	for _, side := range []struct {
		host string
		at   **gateway
	}{{"hosta", &p.a}, {"hostb", &p.b}} {
		*side.at, err = startGateway(ctx, setting{
			host: side.host, dir: filepath.Join(p.dir, side.host), broker: p.brokerURI, prefix: name + ".",
			herdr: p.sim.SocketPath(), keys: keys, trip: p.trip,
		})
		if err != nil {
			return p, err
		}
	}
	return p, p.populate(ctx)
}

// populate registers everyone and waits until they see each other.
func (p *pair) populate(ctx context.Context) error {
	lead, _, _, err := p.a.inbox.Register(ctx, inbox.Registration{Name: "lead", Kind: store.Main})
	if err != nil {
		return err
	}
	boss, _, _, err := p.b.inbox.Register(ctx, inbox.Registration{Name: "boss", Kind: store.Main})
	if err != nil {
		return err
	}
	p.lead, p.boss = lead.GID, boss.GID
	if p.workers, err = p.asWorkers(ctx, p.b); err != nil {
		return err
	}
	for _, w := range p.workers {
		if err := p.a.sees(ctx, w); err != nil {
			return err
		}
	}
	for _, e := range append(p.a.inbox.Entities(), p.b.inbox.Entities()...) {
		g := p.b
		if e.GID == p.lead {
			g = p.a
		}
		if err := g.attached(ctx, e.GID); err != nil {
			return err
		}
	}
	return errors.Join(p.a.sees(ctx, "boss@hostb"), p.b.sees(ctx, "lead@hosta"))
}

func (p *pair) close() error {
	var errs []error
	for _, g := range []*gateway{p.a, p.b} {
		if g != nil {
			errs = append(errs, g.close())
		}
	}
	if p.agents != nil {
		errs = append(errs, p.sim.Close())
	}
	return errors.Join(errs...)
}

// pane is the next one, and idle.
func (p *pair) pane(ctx context.Context) (i int, err error) {
	i = p.nextWorker
	p.nextWorker = (i + 1) % len(p.panes)
	return i, p.idle(ctx, p.panes[i])
}

// inject sends one brief from an entity of g and returns how long it took
// until INJECTED was known there.
func (p *pair) inject(ctx context.Context, g *gateway, from, to string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, tripBound)
	defer cancel()
	var w *outbox.Watch
	begin := time.Now()
	p.trip.mark(&p.trip.sent)
	_, err := g.outbox.Send(ctx, outbox.Request{From: from, To: to, Content: body, Leaving: func(id, _ string) {
		w = g.outbox.Watch(id)
		p.trip.mark(&p.trip.intended)
	}})
	if w != nil {
		defer w.Close()
	}
	if err != nil {
		return 0, err
	}
	for {
		select {
		case got := <-w.C():
			if got.Kind == envelope.Injected {
				p.trip.mark(&p.trip.told)
				return time.Since(begin), nil
			}
		case <-ctx.Done():
			return 0, fmt.Errorf("a brief to %s was not injected: %w", to, ctx.Err())
		}
	}
}

// everyPane runs n calls of fn for each pane, the panes at the same time.
func (p *pair) everyPane(ctx context.Context, n int, fn func(ctx context.Context, i int) (time.Duration, error)) ([]float64, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex
	var took []float64
	var all sync.WaitGroup
	for i := range p.panes {
		all.Go(func() {
			for range n {
				err := p.idle(ctx, p.panes[i])
				var d time.Duration
				if err == nil {
					d, err = fn(ctx, i)
				}
				if err != nil {
					cancel(err)
					return
				}
				mu.Lock()
				took = append(took, millis(d))
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return took, context.Cause(ctx)
}
