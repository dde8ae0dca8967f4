package main

import (
	"strings"
	"testing"

	"fleetd/cmd/bridged/config"
	"fleetd/mcp"
	"fleetd/migrations"
)

// Fault: a slip on the command line is taken for something to do, or the broker
// is dialled for it.
func TestMigrateUsage(t *testing.T) {
	for args, want := range map[string]string{
		"migrate":                             "set broker.uri to the one that the old daemon used",
		"migrate --delete":                    "--delete goes with --apply",
		"migrate --map wQ:p2":                 "write PANE=NAME",
		"migrate --map wQ:p2=":                "write PANE=NAME",
		"migrate --map wQ:p2=a --map wQ:p2=b": "names pane wQ:p2 twice",
		"migrate now":                         `unknown command "now"`,
	} {
		w := newWorld(t)
		r := w.run(strings.Fields(args)...)
		if r.code != 2 || !strings.Contains(r.err, want) || len(w.gw.asked) != 0 {
			t.Errorf("%s: %+v, asked %v", args, r, w.gw.asked)
		}
	}
}

// Fault: the management API is asked as somebody else than the command says, or
// a password can stand where ps shows it.
func TestMigrateAsksTheManagementAPI(t *testing.T) {
	a := &app{deps: deps{Environ: []string{"BRIDGED_MANAGEMENT_PASSWORD=hidden"}}}
	for _, x := range []struct {
		base string
		want managementAPI
	}{
		{"http://broker:15672", managementAPI{"http://broker:15672", "fleet", "hosta", "own"}},
		{"http://ops@broker:15672/x", managementAPI{"http://broker:15672/x", "fleet", "ops", "hidden"}},
	} {
		if got, err := a.managementAPI(x.base, "amqp://hosta:own@broker/fleet"); err != nil || got != x.want {
			t.Errorf("%s: %+v, %v", x.base, got, err)
		}
	}
	if _, err := a.managementAPI("http://ops:s3cret@broker:15672", "amqp://b/"); err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("a password in the URL: %v", err)
	}
}

// Fault: the main that gets the mail is guessed, or a worker is taken for one.
func TestMigrateChoosesTheMain(t *testing.T) {
	entity := func(name, kind string) mcp.RosterEntity {
		return mcp.RosterEntity{GID: "id of " + name, Name: name, Host: "hosta", Kind: kind}
	}
	ann, bob, rev := entity("ann", "main"), entity("bob", "orchestrator"), entity("rev", "worker")
	for _, x := range []struct {
		to, standard string
		mains        []mcp.RosterEntity
		want, noMain string
	}{
		{"", "", []mcp.RosterEntity{ann}, "ann@hosta", ""},
		{"bob", "ann", []mcp.RosterEntity{ann, bob}, "bob@hosta", ""},
		{"", "ann", []mcp.RosterEntity{ann, bob}, "ann@hosta", ""},
		{"", "", []mcp.RosterEntity{ann, bob}, "", "several mains"},
		{"", "", nil, "", "register main --kind main"},
		{"", "zoe", []mcp.RosterEntity{ann}, "", "no main zoe"},
		{"rev", "", []mcp.RosterEntity{ann}, "", "no main rev"},
	} {
		var s migrations.Sources
		byName := map[string]mcp.RosterEntity{"rev": rev}
		for _, e := range x.mains {
			byName[e.Name] = e
		}
		err := chooseMain(&s, config.Config{MCP: config.MCP{DefaultMain: x.standard}}, x.to, byName, x.mains)
		if err != nil || s.Main.Address != x.want || !strings.Contains(s.NoMain, x.noMain) || (x.noMain == "") != (s.NoMain == "") {
			t.Errorf("--to %q, default %q: %+v, %v", x.to, x.standard, s, err)
		}
	}
}
