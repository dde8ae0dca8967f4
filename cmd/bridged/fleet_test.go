package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleetd/mcp"
)

var fleet = mcp.RosterResult{
	Self: "hosta", Broker: "connecting", Reason: "no route", ViewAge: 17.4, Note: "2 entities are left out",
	Hosts: []mcp.RosterHost{
		{Host: "hosta", State: "online", AgeSeconds: 0, Entities: 1},
		{Host: "hostb", State: "unknown", AgeSeconds: 17.4, Entities: 1, Profiles: []string{"builder", "reviewer"}, Note: "clock is 9 s off"},
	},
	Entities: []mcp.RosterEntity{
		{GID: "g1", Name: "rev", Host: "hosta", Kind: "worker", Groups: []string{"reviewers", "all-day"}, Pane: "wQ:p2", Status: "idle", Since: "10:00"},
		{GID: "g2", Name: "main", Host: "hostb", Kind: "main", Status: "unknown", Refusing: "a\tdialog\nis open"},
	},
}

// Fault: a filter is lost, or a cell breaks the table of a script.
func TestRoster(t *testing.T) {
	w := newWorld(t)
	w.gw.roster = fleet
	w.want(result{
		out: "host\thosta\nbroker\tconnecting (no route)\nview\t17s old\n\n" +
			"host\tstate\tage\tentities\tprofiles\tnote\nhosta\tonline\t0s\t1\t\t\nhostb\tunknown\t17s\t1\tbuilder,reviewer\tclock is 9 s off\n\n" +
			"address\tkind\tstatus\tsince\tgroups\tpane\tgid\trefusing\n" +
			"rev@hosta\tworker\tidle\t10:00\treviewers,all-day\twQ:p2\tg1\t\n" +
			"main@hostb\tmain\tunknown\t\t\t\tg2\ta dialog is open\n",
		err: "2 entities are left out\n",
	}, "roster", "--host", "h", "--kind", "worker", "--group", "g", "--status", "idle")
	if d := cmp.Diff([]any{mcp.RosterArgs{Host: "h", Kind: "worker", Group: "g", Status: "idle"}}, w.gw.asked); d != "" {
		t.Error(d)
	}
}

// Fault: in a terminal the columns do not stand under each other.
func TestRosterInATerminal(t *testing.T) {
	w := newWorld(t)
	w.deps.OutTTY = true
	w.gw.roster = mcp.RosterResult{Self: "hosta", Broker: "none", Entities: fleet.Entities[:1]}
	w.want(result{
		out: `host    hosta
broker  none

address    kind    status  since  groups             pane   gid  refusing
rev@hosta  worker  idle    10:00  reviewers,all-day  wQ:p2  g1
`,
	}, "roster")
	w.gw.roster = mcp.RosterResult{Self: "hosta", Broker: "none"}
	w.want(result{out: "host    hosta\nbroker  none\n", err: "no agents or mains\n"}, "roster")
}

// Fails when README shows a table of the roster with other columns than are printed.
func TestRosterIsAsReadmeShowsIt(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	w.gw.roster = fleet
	printed, seen := w.run("roster").out, 0
	for line := range strings.Lines(string(readme)) {
		columns := strings.Fields(line)
		if !strings.HasPrefix(line, "host   state ") && !strings.HasPrefix(line, "address   ") {
			continue
		}
		if seen++; !strings.Contains(printed, "\n"+strings.Join(columns, "\t")+"\n") {
			t.Errorf("README has the columns %q; printed is\n%s", columns, printed)
		}
	}
	if seen < 2 {
		t.Errorf("README has %d tables of the roster", seen)
	}
}

// Fault: --json prints another shape than the tools and REST.
func TestJSONIsTheResultItself(t *testing.T) {
	w := newWorld(t)
	w.gw.roster = fleet
	r := w.run("roster", "--json")
	var got mcp.RosterResult
	if err := json.Unmarshal([]byte(r.out), &got); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(fleet, got); d != "" || r.err != "" {
		t.Error(d, r.err)
	}
}

// Fault: steps of a trace are printed in another order or under other names,
// or the fleet is asked when nobody wished it, or not when somebody did.
func TestTrace(t *testing.T) {
	w := newWorld(t)
	w.gw.trace = mcp.TraceResult{TraceID: "t", Hops: []mcp.Hop{
		{At: "10:00", Host: "hosta", Step: "accepted", MsgID: "m", Kind: "SEND", Entity: "main", Peer: "rev@hostb", Outcome: "waiting", Reason: "busy"},
		{At: "10:01", Host: "hosta", Step: "injected", MsgID: "m", Kind: "INJECTED"},
	}}
	w.want(result{out: "at\thost\tstep\tkind\tmsg\tentity\tpeer\toutcome\treason\n" +
		"10:00\thosta\taccepted\tSEND\tm\tmain\trev@hostb\twaiting\tbusy\n10:01\thosta\tinjected\tINJECTED\tm\t\t\t\t\n"}, "trace", "t")
	w.gw.trace = mcp.TraceResult{TraceID: "t", Note: "Nothing."}
	w.want(result{err: "Nothing.\n"}, "trace", "t", "--fleet")
	if d := cmp.Diff([]any{mcp.TraceArgs{TraceID: "t"}, mcp.TraceArgs{TraceID: "t", Fleet: true}}, w.gw.asked); d != "" {
		t.Error(d)
	}
}

// Fault: whoami hides a brief that waits for an answer.
func TestWhoami(t *testing.T) {
	w := newWorld(t)
	w.gw.whoami = mcp.WhoamiResult{
		GID: "g", Name: "rev", Host: "hosta", Kind: "worker", Pane: "wQ:p2", Groups: []string{"a", "b"},
		OpenBriefs: []mcp.OpenBrief{{MsgID: "m1", From: "main@hosta", At: "10:00", Bytes: 9000}},
		Drained:    []mcp.Drained{{MsgID: "m2", From: "main@hosta", At: "09:00"}},
	}
	w.want(result{out: "name\trev@hosta\ngid\tg\nkind\tworker\npane\twQ:p2\ngroups\ta,b\nheld\t0\n\n" +
		"open brief\tfrom\tat\tbytes to read\nm1\tmain@hosta\t10:00\t9000\n\n" +
		"read lately\tfrom\tat\nm2\tmain@hosta\t09:00\n"}, "whoami")
}
