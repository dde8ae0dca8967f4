package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fabric/roster"
	"fleetd/store"
)

const (
	presenceHosts = 3
	warmBeats     = 24  // simulated: two minutes
	measuredBeats = 120 // ten minutes
)

// presenceBytes is what one of three hosts publishes per second of a simulated
// clock once all know each other, with 1, 10 and 100 agents a host: headers and
// body, signed. The base is that of 1 agent.
func presenceBytes(ctx context.Context, h *host) error {
	for _, c := range []struct {
		name string
		busy bool
		bars []bar
		note string
	}{
		{"presence_bytes", false, []bar{ratioAtMost(1.5)}, "100 agents a host against 1; 10 agents: %s"},
		{"presence_bytes_progress", true, nil, "the same with a sign of progress from every agent all the time; 10 agents: %s"},
	} {
		rate := func(agents int) func() (float64, error) {
			return func() (float64, error) { return presenceRate(ctx, agents, c.busy) }
		}
		ten, err := rate(10)()
		if err != nil {
			return err
		}
		o, b, err := h.sides(min(h.rounds, 3), rate(1), rate(100))
		if err != nil {
			return err
		}
		line{name: c.name, unit: "B/s", ours: o, base: b, bars: c.bars, note: fmt.Sprintf(c.note, number(ten))}.print()
	}
	return nil
}

// chorus is some rosters that hear each other, on a clock that is moved by
// hand.
type chorus struct {
	now     atomic.Int64 // Unix ns
	members []*member
}

type member struct {
	*roster.Roster
	host  string
	gids  []string
	beats atomic.Int64 // publishes
	bytes atomic.Int64
}

func presenceRate(ctx context.Context, agents int, busy bool) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c := &chorus{}
	c.now.Store(time.Now().UnixNano())
	var running sync.WaitGroup
	run, stop := context.WithCancel(ctx)
	defer running.Wait()
	defer stop()
	for i := range presenceHosts {
		m, err := c.join(fmt.Sprintf("host%d", i), agents)
		if err != nil {
			return 0, err
		}
		c.members = append(c.members, m)
	}
	for _, m := range c.members {
		running.Go(func() { _ = m.Run(run) }) // it ends with its context
	}
	if err := c.meet(ctx); err != nil {
		return 0, err
	}
	for range warmBeats {
		if err := c.beat(ctx, busy); err != nil {
			return 0, err
		}
	}
	before, began := c.members[0].bytes.Load(), c.time()
	for range measuredBeats {
		if err := c.beat(ctx, busy); err != nil {
			return 0, err
		}
	}
	return float64(c.members[0].bytes.Load()-before) / c.time().Sub(began).Seconds(), nil
}

func (c *chorus) time() time.Time { return time.Unix(0, c.now.Load()) }

func (c *chorus) join(host string, agents int) (*member, error) {
	ks, err := newKeys(host)
	if err != nil {
		return nil, err
	}
	m := &member{host: host}
	m.Roster, err = roster.New(roster.Config{
		Host: host, Boot: 1, Now: c.time, Mono: c.time,
		Publish: func(_ context.Context, env *envelope.Envelope) error {
			if err := env.Sign(ks[host]); err != nil {
				return err
			}
			m.bytes.Add(int64(wireSize(env)))
			defer m.beats.Add(1)
			return c.spread(env)
		},
	})
	if err != nil {
		return nil, err
	}
	for i := range agents {
		gid := newID()
		m.gids = append(m.gids, gid)
		err := m.SetLocal(roster.Entity{
			GID: gid, Name: fmt.Sprintf("agent%d", i), Kind: store.Worker, Pane: fmt.Sprintf("w1:p%d", i),
			Status: roster.Status{State: "idle", Since: c.time()},
		})
		if err != nil {
			return nil, err
		}
	}
	return m, nil
}

// spread hands a message to everyone, its sender included, as the broker does.
func (c *chorus) spread(env *envelope.Envelope) error {
	var errs []error
	for _, m := range c.members {
		errs = append(errs, m.Handle(env))
	}
	return errors.Join(errs...)
}

// meet has all of them synced.
func (c *chorus) meet(ctx context.Context) error {
	synced := make(chan error, len(c.members))
	for _, m := range c.members {
		go func() { synced <- m.Sync(ctx) }()
	}
	for range c.members {
		for met := false; !met; {
			select {
			case err := <-synced:
				if err != nil {
					return err
				}
				met = true
			case <-time.After(time.Millisecond):
				c.now.Add(int64(50 * time.Millisecond))
				for _, m := range c.members {
					m.Pulse() // looks at the clock
				}
			}
		}
	}
	return nil
}

// beat moves the clock to the next heartbeat and waits until all have spoken.
func (c *chorus) beat(ctx context.Context, busy bool) error {
	c.now.Add(int64(roster.DefaultInterval))
	var before []int64
	for _, m := range c.members {
		before = append(before, m.beats.Load())
		if busy {
			for _, gid := range m.gids {
				m.SetStatus(gid, roster.Status{State: "idle", Since: time.Unix(0, 0), Progress: c.time()})
			}
		}
	}
	for i, m := range c.members {
		m.Pulse() // it is due now; the speaker sleeps in real time
		err := until(ctx, func() error {
			if m.beats.Load() == before[i] {
				return fmt.Errorf("a heartbeat of %s", m.host)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// wireSize is what headers and body take on the wire; the frames around them
// are the same for all.
func wireSize(env *envelope.Envelope) int {
	const perHeader = 6
	n := len(env.Body)
	for name, value := range env.Headers {
		n += len(name) + len(value) + perHeader
	}
	return n
}
