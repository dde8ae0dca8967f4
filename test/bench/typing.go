package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"fleetd/herdr"
	"fleetd/inbox"
	"fleetd/store"
	"fleetd/test/herdrsim"
)

// agents is a simulated herdr with agents in panes.
type agents struct {
	sim    *herdrsim.Server
	client *herdr.Client
	panes  []herdr.Pane
}

// kind is the agent that is typed into.
const kind = "claude"

// startAgents runs n agents and returns when all of them take input. With more
// than one, the next message need not wait for the turn that the last one
// began.
func startAgents(ctx context.Context, dir string, n int) (*agents, error) {
	sim, err := herdrsim.Start(ctx, herdrsim.Options{
		SocketPath: filepath.Join(dir, "herdr.sock"), Version: herdrsim.V082, Shell: []string{"/bin/sh"},
		Timing: herdrsim.Fast(),
	})
	if err != nil {
		return nil, err
	}
	self, err := os.Executable() // herdr takes a relative name from the pane's directory
	if err != nil {
		return nil, errors.Join(err, sim.Close())
	}
	a := &agents{sim: sim, client: &herdr.Client{Socket: sim.SocketPath()}}
	for i := range n {
		argv := []string{self, "--kind", kind, "--work", "5ms"}
		place, err := sim.Run(fmt.Sprintf("agent%d", i), argv, map[string]string{asAgent: "1"}, dir)
		if err != nil {
			return nil, errors.Join(err, sim.Close())
		}
		err = until(ctx, func() error {
			pane, err := a.client.Identify(ctx, place.PaneID)
			if err == nil && pane.Kind == kind {
				a.panes = append(a.panes, pane)
				return nil
			}
			return errors.Join(err, errors.New("an agent to be seen"))
		})
		if err == nil {
			err = a.idle(ctx, a.panes[i])
		}
		if err != nil {
			return nil, errors.Join(err, sim.Close())
		}
	}
	return a, nil
}

// idle waits until the agent's turn is over and its composer is empty, so that
// no closed gate is part of a measure.
func (a *agents) idle(ctx context.Context, p herdr.Pane) error {
	return until(ctx, func() error {
		who, err := a.client.AgentGet(ctx, p.ID)
		if err != nil {
			return err
		}
		why, err := a.client.AgentExplain(ctx, p.ID)
		if err != nil {
			return err
		}
		rested := who.AgentStatus == herdr.StatusIdle || who.AgentStatus == herdr.StatusDone
		if !rested || why.State != herdr.StatusIdle || why.VisibleWorking || why.VisibleBlocker || why.SkipStateUpdate {
			return fmt.Errorf("an idle agent, it is %s, its screen %s", who.AgentStatus, why.State)
		}
		return nil
	})
}

// calls is how often herdr was asked, but for the lists and pings that the
// monitor asks for all the time.
func (a *agents) calls() (n int) {
	for method, times := range a.sim.Asked() {
		switch method {
		case "agent.list", "pane.list", "ping":
		default:
			n += times
		}
	}
	return n
}

// frame makes the text that the gateway would paste.
func frame(id, content string) string {
	text, _ := herdr.Frame(herdr.Message{
		ID: id, Kind: "SEND", From: "lead@hosta", Content: content, ExpectsReply: true, Limit: herdr.PasteLimit(kind),
	})
	return text
}

// pasted is what the agent shows for a text of our length.
const pasted = "[Pasted text #"

// typeBare makes the calls that the paste procedure needs (herdr socket
// reference §10), one after the other, and nothing else: who is there, is it
// still in the same state (an agent.get does not say since when it is, so step 5
// takes two), does the screen agree, twice; paste, look, who is there, Enter,
// verify.
func (a *agents) typeBare(ctx context.Context, p herdr.Pane, id, text string) error {
	c := a.client
	who, err := c.AgentGet(ctx, p.ID)
	if err != nil {
		return err
	}
	if who.TerminalID != p.Terminal || who.Agent != p.Kind {
		return errors.New("another agent is in the pane")
	}
	for stable := false; !stable; {
		again, err := c.AgentGet(ctx, p.ID)
		if err != nil {
			return err
		}
		stable = again.StateChangeSeq == who.StateChangeSeq && again.AgentStatus == who.AgentStatus
		who = again
	}
	if _, err := c.AgentExplain(ctx, p.ID); err != nil {
		return err
	}
	before := 0
	for range 2 {
		screen, err := c.PaneRead(ctx, p.ID, herdr.SourceDetection, false)
		if err != nil {
			return err
		}
		before = strings.Count(screen.Text, pasted)
	}
	if err := c.SendInput(ctx, p.ID, text); err != nil {
		return err
	}
	for shown := false; !shown; {
		screen, err := c.PaneRead(ctx, p.ID, herdr.SourceDetection, false)
		if err != nil {
			return err
		}
		shown = strings.Count(screen.Text, pasted) > before || strings.Contains(screen.Text, id)
	}
	if who, err = c.AgentGet(ctx, p.ID); err != nil {
		return err
	}
	if err := c.SendKeys(ctx, p.ID, "enter"); err != nil {
		return err
	}
	return a.submitted(ctx, p, id, who.StateChangeSeq)
}

// submitted looks until the agent has the text.
func (a *agents) submitted(ctx context.Context, p herdr.Pane, id string, before uint64) error {
	for {
		who, err := a.client.AgentGet(ctx, p.ID)
		if err != nil {
			return err
		}
		if who.StateChangeSeq > before || who.AgentStatus == herdr.StatusWorking {
			return nil
		}
		screen, err := a.client.PaneRead(ctx, p.ID, herdr.SourceDetection, false)
		if err != nil {
			return err
		}
		if strings.Contains(screen.Text, id) {
			return nil // it went from the composer, where only its marker was, into the transcript
		}
	}
}

// asWorkers registers the agents at g, and returns their addresses.
func (a *agents) asWorkers(ctx context.Context, g *gateway) ([]string, error) {
	var names []string
	for i, p := range a.panes {
		name := fmt.Sprintf("worker%d", i)
		if _, _, _, err := g.inbox.Register(ctx, inbox.Registration{Name: name, Kind: store.Worker, Pane: p.ID}); err != nil {
			return nil, err
		}
		names = append(names, name+"@"+g.host)
	}
	return names, nil
}
