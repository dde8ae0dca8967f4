package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	"fleetd/mcp"
	"fleetd/store"
	"fleetd/test/agent"
	"fleetd/test/herdrsim"
)

// Worker is a scripted agent in a pane, registered as a worker.
type Worker struct {
	Name  string
	GID   string
	Token string
	Pane  string
	Host  *Host

	kind store.EntityKind
	argv []string
	env  map[string]string
}

// AddWorker registers a worker, starts an agent for it in a pane with its
// identity in the environment, and binds the two. flags are those of the
// agent program.
func (h *Host) AddWorker(ctx context.Context, name string, flags ...string) (*Worker, error) {
	r, err := h.Register(ctx, mcp.RegisterArgs{Name: name, Kind: store.Worker})
	if err != nil {
		return nil, err
	}
	w := &Worker{Name: name, GID: r.GID, Token: r.Token, Host: h, kind: store.Worker}
	w.argv = append([]string{h.fleet.agent, "--log", w.logPath(), "--control", w.controlPath()}, flags...)
	w.env = map[string]string{"BRIDGED_URL": r.URL, "BRIDGED_TOKEN": r.Token}
	return w, w.Reopen(ctx)
}

// OpenPane starts an agent in a pane that no gateway knows of, and returns its id.
func (h *Host) OpenPane(name string, flags ...string) (string, error) {
	w := &Worker{Name: name, Host: h}
	w.argv = append([]string{h.fleet.agent, "--log", w.logPath(), "--control", w.controlPath()}, flags...)
	place, err := w.open()
	return place.PaneID, err
}

// Reopen starts the agent in a new pane and registers the worker there.
func (w *Worker) Reopen(ctx context.Context) error {
	place, err := w.open()
	if err != nil {
		return err
	}
	w.Pane = place.PaneID
	return w.bind(ctx)
}

// Seat starts a scripted agent in a pane as the client of main m, and binds the
// pane to it.
func (h *Host) Seat(ctx context.Context, m *Main, flags ...string) (*Worker, error) {
	w := &Worker{Name: m.Name, GID: m.GID, Token: m.Token, Host: h, kind: store.Main}
	w.argv = append([]string{h.fleet.agent, "--log", w.logPath(), "--control", w.controlPath()}, flags...)
	w.env = map[string]string{"BRIDGED_URL": m.URL, "BRIDGED_TOKEN": m.Token}
	return w, w.Reopen(ctx)
}

func (w *Worker) open() (herdrsim.Place, error) {
	return w.Host.Herdr.Run(w.Name, w.argv, maps.Clone(w.env), w.Host.dir)
}

// bind registers the pane once herdr sees the agent in it.
func (w *Worker) bind(ctx context.Context) error {
	for {
		_, err := w.Host.Register(ctx, mcp.RegisterArgs{Name: w.Name, Kind: w.kind, Pane: w.Pane})
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("bind %s to its pane: %w", w.Name, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (w *Worker) logPath() string     { return filepath.Join(w.Host.dir, w.Name+".jsonl") }
func (w *Worker) controlPath() string { return filepath.Join(w.Host.dir, w.Name+".ctl") }

// Control tells the agent to behave in some way from now on.
func (w *Worker) Control(command string) error {
	_, err := agent.Control(w.controlPath(), command, time.Minute)
	return err
}

// State is what is going on in the agent.
func (w *Worker) State() (s agent.State, err error) {
	answer, err := agent.Control(w.controlPath(), "state", time.Minute)
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal([]byte(answer), &s)
}

// Events is what happened in the agent so far.
func (w *Worker) Events() ([]agent.Event, error) {
	text, err := os.ReadFile(w.logPath())
	if err != nil {
		return nil, err
	}
	return agent.ReadEvents(bytes.NewReader(text))
}

// Prompts is what the model behind the agent was given, in order.
func (w *Worker) Prompts() ([]string, error) {
	events, err := w.Events()
	var all []string
	for _, e := range events {
		if e.Event == "prompt" {
			all = append(all, e.Text)
		}
	}
	return all, err
}

// Screen is what a person sees in the pane.
func (w *Worker) Screen() (string, error) { return w.Host.Herdr.Screen(w.Pane) }
