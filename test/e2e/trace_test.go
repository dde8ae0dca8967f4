package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"fleetd/mcp"
)

// A main follows its brief over both hosts, with the tool and on the command
// line. Once the other host has crashed the same call names it, and shows the
// steps of its own host. Fails when a step of either host is missing or out of
// order, when content is shown, when a host that does not answer is not named,
// or when it ends the call.
func TestATraceOverTheFleet(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*bound)
	defer cancel()
	a, b := twoHosts(t, ctx)
	addWorker(t, ctx, b, "reviewer", "--echo", "--work", "10ms")
	m := addMain(t, ctx, a, "lead")
	seen(t, ctx, m, "reviewer@hostb")
	sent, err := m.Send(ctx, map[string]any{"to": "reviewer@hostb", "content": "plum cake", "wait_seconds": 60})
	if err != nil || sent.State != "replied" {
		t.Fatalf("the brief came to %+v, %v", sent, err)
	}
	trace := func() (r mcp.TraceResult) {
		t.Helper()
		if err := m.Call(ctx, "bridge_trace", map[string]any{"trace_id": sent.TraceID, "fleet": true}, &r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	steps := func(r mcp.TraceResult) (have []string) {
		for _, h := range r.Hops {
			have = append(have, h.Host+" "+h.Kind+" "+h.Step)
		}
		return have
	}
	of := func(host string) []string {
		all := map[string][]string{
			"hosta": {"SEND sent", "SEND published", "SEND resolved", "REPLY received", "REPLY drained"},
			"hostb": {"SEND received", "SEND injecting", "SEND injected", "REPLY sent", "REPLY published"},
		}
		for i, s := range all[host] {
			all[host][i] = host + " " + s
		}
		return all[host]
	}
	lacks := func(have []string, want ...string) error {
		for _, s := range want {
			if !slices.Contains(have, s) {
				return fmt.Errorf("%q is not among %q", s, have)
			}
		}
		return nil
	}
	var r mcp.TraceResult
	eventually(t, ctx, func() error {
		r = trace()
		return lacks(steps(r), append(of("hosta"), of("hostb")...)...)
	})
	if !slices.IsSortedFunc(r.Hops, func(x, y mcp.Hop) int { return strings.Compare(x.At, y.At) }) {
		t.Errorf("out of order: %+v", r.Hops)
	}
	if len(r.Hosts) != 1 || r.Hosts[0].Host != "hostb" || !r.Hosts[0].Answered {
		t.Errorf("hosts %+v", r.Hosts)
	}
	cmd := a.Command(ctx, "trace", sent.TraceID, "--fleet", "--json")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var said mcp.TraceResult
	if err := json.Unmarshal(out, &said); err != nil {
		t.Fatal(err)
	}
	if err := lacks(steps(said), of("hostb")...); err != nil || strings.Contains(string(out), "plum") {
		t.Errorf("%v in %s", err, out)
	}

	if err := b.Kill(); err != nil {
		t.Fatal(err)
	}
	r = trace()
	if err := lacks(steps(r), of("hosta")...); err != nil {
		t.Error(err)
	}
	if len(r.Hosts) != 1 || r.Hosts[0].Answered || r.Hosts[0].Reason == "" || !strings.Contains(r.Note, "hostb (") {
		t.Errorf("hostb is gone, and it says %+v, %q", r.Hosts, r.Note)
	}
}
