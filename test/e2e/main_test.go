// Package e2e holds what a user relies on, shown with whole gateways: two
// or three processes, a real broker, agents in panes and real MCP clients.
package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"fleetd/mcp"
	"fleetd/test/fleet"
	"fleetd/test/rabbit"
)

// The programs are built and the broker is started before any test's time
// begins to run.
func TestMain(m *testing.M) {
	code := rabbit.Shared(prepared{m}).Run()
	if err := fleet.RemoveBinaries(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

type prepared struct{ m *testing.M }

// atOnce is how many tests run at a time: most of their time they wait for what
// a product takes its time for.
const atOnce = 4

func (p prepared) Run() int {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", fmt.Sprint(atOnce)); err != nil {
			panic(err) // the flag is the testing package's
		}
	}
	err := fleet.Build(context.Background())
	if err == nil {
		err = rabbit.Boot()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return p.m.Run()
}

const (
	// bound is the patience of every wait: a busy machine is slow, a defect is
	// for ever.
	bound = 3 * time.Minute
	// longest is how long one call can be told to wait, in seconds: it ends with
	// what is waited for, and what does not come runs into a test's bound.
	longest = 240
)

// newFleet makes a fleet on the shared broker that ends with the test.
func newFleet(t *testing.T, broker string) *fleet.Fleet {
	t.Helper()
	dir, err := os.MkdirTemp("", "e2e")
	if err != nil {
		t.Fatal(err)
	}
	f, err := fleet.New(t.Context(), dir, broker, rabbit.Prefix(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return f
}

// twoHosts is hosta and hostb on the shared broker, running, trusting each
// other and seeing each other.
func twoHosts(t *testing.T, ctx context.Context) (a, b *fleet.Host) {
	t.Helper()
	f := newFleet(t, rabbit.URI(t))
	a, b = addHost(t, ctx, f, "hosta"), addHost(t, ctx, f, "hostb")
	if err := f.TrustEachOther(); err != nil {
		t.Fatal(err)
	}
	for _, h := range []*fleet.Host{a, b} {
		if err := h.Ready(ctx); err != nil {
			t.Fatal(err)
		}
	}
	meet(t, ctx, a, b)
	return a, b
}

// meet waits until all of these have each other online.
func meet(t *testing.T, ctx context.Context, hosts ...*fleet.Host) {
	t.Helper()
	for _, h := range hosts {
		for _, other := range hosts {
			if other != h {
				sees(t, ctx, h, other)
			}
		}
	}
}

func addHost(t *testing.T, ctx context.Context, f *fleet.Fleet, name string, env ...string) *fleet.Host {
	t.Helper()
	h, err := f.AddHost(ctx, name, env...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of %s:\n%s", name, tail(h.Log(), 12000))
		}
	})
	if err := h.Start(ctx); err != nil {
		t.Fatal(err)
	}
	return h
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

// eventually waits until fn returns nil.
func eventually(t *testing.T, ctx context.Context, fn func() error) {
	t.Helper()
	for {
		err := fn()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("it did not come true: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// sees waits until one gateway has the other online: it trusts its key by then.
func sees(t *testing.T, ctx context.Context, h, other *fleet.Host) {
	t.Helper()
	eventually(t, ctx, func() error {
		r, err := h.API("").Roster(ctx, mcp.RosterArgs{Host: other.Name})
		if err != nil {
			return err
		}
		for _, seen := range r.Hosts {
			if seen.State == "online" {
				return nil
			}
		}
		return fmt.Errorf("%s does not see %s: %+v", h.Name, other.Name, r.Hosts)
	})
}
