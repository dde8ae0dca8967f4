package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"fleetd/mcp"
	"fleetd/test/fleet"
	"fleetd/test/rabbit"
)

// tale is the state of the demo.
type tale struct {
	out   *narrator
	began time.Time

	dir         string
	node        *rabbit.Node // nil: a broker that ran already
	fleet       *fleet.Fleet
	a, b        *fleet.Host
	agent       *fleet.Worker
	mainSession *fleet.Main

	first mcp.SendResult // the brief whose trip is shown at the end
}

const (
	briefs = 3
	answer = "Reviewed: no findings."
	draft  = "Drafted."
	// work is how long the agent takes for an answer: long enough to stop
	// waiting for the second one before it comes, and to kill a gateway before
	// the third comes.
	work = 8 * time.Second
	// patience is how long the main waits for the second answer: by then the
	// brief is usually in the pane.
	patience = 4 * time.Second
)

// tell acts the whole tale out.
func (t *tale) tell(ctx context.Context) error {
	t.out.line("bridged on two hosts, hosta and hostb. Both run on this machine, each with a data")
	t.out.line("directory, a key and a herdr (simulated) of its own; only the broker joins them.")
	chapters := []struct {
		title string
		tell  func(context.Context) error
	}{
		{"A broker and two gateways", t.start},
		{"The gateways learn to trust each other", t.trust},
		{"An agent on hostb, a main session on hosta", t.people},
		{"The main briefs the agent and waits for the answer", t.brief},
		{"The main does not wait, and the answer is kept for it", t.late},
		{"hosta's gateway is killed between a brief and its answer", t.crash},
		{"The main has an agent started on hostb", t.spawn},
		{"An agent asks in the middle of its work", t.ask},
		{"One message to a group, over both hosts", t.broadcast},
		{"The broker stops, and local traffic goes on", t.outage},
		{"One brief's whole trip, under one trace id", t.trace},
	}
	for _, c := range chapters {
		t.out.chapter(c.title)
		if err := c.tell(ctx); err != nil {
			return fmt.Errorf("%s: %w", c.title, err)
		}
	}
	return nil
}

func (t *tale) start(ctx context.Context) error {
	var err error
	if t.dir, err = os.MkdirTemp("", "demo"); err != nil {
		return err
	}
	if err := os.Setenv("TMPDIR", t.dir); err != nil { // so that everything goes with it
		return err
	}
	uri, err := t.broker(ctx)
	if err != nil {
		return err
	}
	if t.node != nil {
		t.out.say("A private RabbitMQ node runs: %s", uri)
	} else {
		t.out.say("The broker is the one of $%s.", rabbit.EnvBroker)
	}
	if t.fleet, err = fleet.New(ctx, t.dir, uri, fmt.Sprintf("demo-%x.", os.Getpid())); err != nil {
		return err
	}
	if t.a, err = t.fleet.AddHost(ctx, "hosta"); err != nil {
		return err
	}
	t.b, err = t.fleet.AddHost(ctx, "hostb", "BRIDGED_CONTROL_ALLOW={hosta: [send, spawn, stop]}",
		fmt.Sprintf("BRIDGED_PROFILES={drafter: {argv: [%s, --reply-with, %s], remote: true}}", t.fleet.Agent(), draft))
	if err != nil {
		return err
	}
	g, both := errgroup.WithContext(ctx)
	for _, h := range []*fleet.Host{t.a, t.b} {
		g.Go(func() error { return h.Start(both) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, h := range []*fleet.Host{t.a, t.b} {
		t.out.say("Gateway %s serves MCP clients at http://%s/mcp", h.Name, h.Addr)
	}
	return nil
}

// trust carries each host's public key to the other one.
func (t *tale) trust(ctx context.Context) error {
	t.out.say("Every message is signed by its sender's gateway. Each host is told, by hand, whose")
	t.out.say("signatures it accepts; a login at the broker alone is worth nothing.")
	for _, h := range []*fleet.Host{t.a, t.b} {
		line, err := t.output(ctx, h, "keys", "show")
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(t.dir, h.Name+".pub"), line, 0o600); err != nil {
			return err
		}
		t.out.command(h.Name, "bridged keys show > "+h.Name+".pub", string(line))
	}
	if _, err := t.show(ctx, t.b, "keys", "trust", "hosta.pub"); err != nil {
		return err
	}
	if _, err := t.show(ctx, t.a, "keys", "trust", "hostb.pub"); err != nil {
		return err
	}
	for _, h := range []*fleet.Host{t.a, t.b} {
		if err := h.Ready(ctx); err != nil {
			return err
		}
	}
	t.out.line("")
	t.out.say("Both gateways are connected and ready.")
	return nil
}

// people brings the agent and the main, and shows who each host sees.
func (t *tale) people(ctx context.Context) error {
	var err error
	if t.agent, err = t.b.AddWorker(ctx, "reviewer", "--reply-with", answer, "--work", work.String()); err != nil {
		return err
	}
	t.out.say("reviewer: a coding agent (scripted) in herdr pane %s of hostb. Briefs are typed into", t.agent.Pane)
	t.out.say("its terminal; it answers with the tool bridge_reply.")
	if t.mainSession, err = t.a.AddMain(ctx, "lead"); err != nil {
		return err
	}
	t.out.say("lead: a main session on hosta, a real MCP client. It sends with bridge_send.")
	for _, h := range []*fleet.Host{t.a, t.b} {
		err := until(ctx, func() error {
			return sees(ctx, h, map[string]string{"reviewer@hostb": "idle", "lead@hosta": "online"})
		})
		if err != nil {
			return err
		}
		if _, err := t.show(ctx, h, "roster"); err != nil {
			return err
		}
	}
	return nil
}

// sees tells whether the roster of h has these addresses in these states.
func sees(ctx context.Context, h *fleet.Host, want map[string]string) error {
	r, err := h.API("").Roster(ctx, mcp.RosterArgs{})
	if err != nil {
		return err
	}
	have := map[string]string{}
	for _, e := range r.Entities {
		if e.Status == "done" { // idle too, and nobody has looked at it yet
			e.Status = "idle"
		}
		have[e.Name+"@"+e.Host] = e.Status
	}
	for address, status := range want {
		if have[address] != status {
			return fmt.Errorf("%s sees %v, not %s %s", h.Name, have, address, status)
		}
	}
	return nil
}

// until waits for fn to return nil, as long as ctx allows.
func until(ctx context.Context, fn func() error) error {
	for {
		err := fn()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("it did not come true: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// given is what the agent's terminal and its model got so far.
func (t *tale) given() (pastes, prompts, replies []string, err error) {
	events, err := t.agent.Events()
	for _, e := range events {
		switch {
		case e.Event == "paste":
			pastes = append(pastes, e.Text)
		case e.Event == "prompt":
			prompts = append(prompts, e.Text)
		case e.Event == "reply" && e.Error == "":
			replies = append(replies, e.Text)
		case e.Event == "reply":
			err = fmt.Errorf("the agent's answer was refused: %s", e.Error)
		}
	}
	return pastes, prompts, replies, err
}

// typedOnce waits until the model has its nth prompt and checks that it is the
// brief, and that every brief so far was one paste.
func (t *tale) typedOnce(ctx context.Context, n int, brief string) error {
	return until(ctx, func() error {
		pastes, prompts, _, err := t.given()
		switch {
		case err != nil:
			return err
		case len(prompts) < n:
			return fmt.Errorf("the agent was given %d briefs, not %d", len(prompts), n)
		case len(prompts) > n || len(pastes) != n || !strings.Contains(pastes[n-1], brief):
			return fmt.Errorf("the agent was given %q in %d pastes, not each brief once", prompts, len(pastes))
		}
		return nil
	})
}
