package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"fleetd/mcp"
	"fleetd/test/fleet"
)

func addWorker(t *testing.T, ctx context.Context, h *fleet.Host, name string, flags ...string) *fleet.Worker {
	t.Helper()
	w, err := h.AddWorker(ctx, name, flags...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			screen, _ := w.Screen()
			events, _ := w.Events()
			t.Logf("pane of %s:\n%s\nevents: %+v", name, screen, events)
		}
	})
	return w
}

func addMain(t *testing.T, ctx context.Context, h *fleet.Host, name string) *fleet.Main {
	t.Helper()
	m, err := h.AddMain(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// seen waits until m sees who it is about to write to, and their hosts see m:
// one that does not know yet where m lives refuses its mail after a while.
func seen(t *testing.T, ctx context.Context, m *fleet.Main, addresses ...string) {
	t.Helper()
	sights(t, ctx, m, addresses...)
	for _, address := range addresses {
		_, host, _ := strings.Cut(address, "@")
		h := m.Host.Peer(host)
		if h == nil {
			t.Fatalf("%s is on no host of this fleet", address)
		}
		eventually(t, ctx, func() error {
			r, err := h.API("").Roster(ctx, mcp.RosterArgs{})
			for _, e := range r.Entities {
				if e.GID == m.GID && e.Status != "unknown" && e.Status != "offline" {
					return nil
				}
			}
			return fmt.Errorf("%s does not see %s: %+v, %v", host, m.Name, r.Entities, err)
		})
	}
}

// sights waits until m sees them, whether or not they see m.
func sights(t *testing.T, ctx context.Context, m *fleet.Main, addresses ...string) {
	t.Helper()
	eventually(t, ctx, func() error {
		r, err := m.Roster(ctx)
		if err != nil {
			return err
		}
		have := map[string]string{}
		for _, e := range r.Entities {
			have[e.Name+"@"+e.Host] = e.Status
		}
		for _, address := range addresses {
			if s, ok := have[address]; !ok || s == "unknown" || s == "offline" {
				return fmt.Errorf("%s sees %v, not %s", m.Name, have, address)
			}
		}
		return nil
	})
}
