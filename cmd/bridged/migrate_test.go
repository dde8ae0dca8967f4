package main

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fleetd/cmd/bridged/config"
	"fleetd/fabric"
	"fleetd/fabric/keys"
	"fleetd/fault"
	"fleetd/mcp"
	"fleetd/migrations"
	"fleetd/store"
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
	cfg := func(uri config.URI) config.Config { return config.Config{Broker: config.Broker{URI: uri}} }
	for _, x := range []struct {
		base string
		want migrations.Management
	}{
		{"http://broker:15672", migrations.Management{Base: "http://broker:15672", VHost: "fleet", User: "hosta", Password: "own"}},
		{"http://ops@broker:15672/x", migrations.Management{Base: "http://broker:15672/x", VHost: "fleet", User: "ops", Password: "hidden"}},
	} {
		got, err := a.managementAPI(x.base, cfg("amqp://hosta:own@broker/fleet"))
		if err != nil {
			t.Fatal(err)
		}
		if got.Secure = nil; *got != x.want {
			t.Errorf("%s: %+v", x.base, *got)
		}
	}
	if _, err := a.managementAPI("http://ops:s3cret@broker:15672", cfg("amqp://b/")); err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("a password in the URL: %v", err)
	}
}

// Fault: the main that gets the mail is guessed, or a worker is taken for one.
func TestMigrateChoosesTheMain(t *testing.T) {
	entity := func(name string, kind store.EntityKind) mcp.RosterEntity {
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
		{"rev", "", []mcp.RosterEntity{ann}, "", "rev is a worker"},
		{"", "rev", []mcp.RosterEntity{ann}, "", "rev is a worker"},
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

// Fails when mail is said to be from a main, or when the way out that is named
// cannot be gone: a name that a main has is no worker's.
func TestMigrateMapsToWorkers(t *testing.T) {
	r := mcp.RosterResult{Self: "hosta", Entities: []mcp.RosterEntity{
		{GID: "1", Name: "ann", Host: "hosta", Kind: "main"}, {GID: "2", Name: "far", Host: "hostb", Kind: "worker"},
	}}
	for name, want := range map[string]string{
		"ann": "ann is a main, and what lies in an old queue is from a worker",
		"zoe": "make it with `bridged register zoe --kind worker`",
		"far": "this host has no worker far",
	} {
		_, err := (&app{}).sources(t.Context(), config.Config{}, migrateFlags{}, r, fabric.Names{}, map[string]string{"wQ:p2": name}, nil)
		if !fault.Is(err, fault.BadRequest) || !strings.Contains(err.Error(), want) {
			t.Errorf("--map wQ:p2=%s: %v", name, err)
		}
	}
}

// Fails when mail is signed with a key that the running daemon does not
// believe, which then refuses what was moved; or when a key is made by the way,
// which the next start of a daemon would take for its own.
func TestMigrateSignsOnlyAsTheDaemonDoes(t *testing.T) {
	w := newWorld(t).env("BRIDGED_BROKER_URI=amqp://127.0.0.1:1/") // nobody answers there
	w.gw.info = mcp.InfoResult{Host: "hosta", Keys: []string{"SHA256:own"}, ContentBytes: 1000}
	key := filepath.Join(w.home, ".local/state/bridged/gateway.key")
	r := w.run("migrate", "--apply")
	if r.code == 0 || !strings.Contains(r.err, "is not the data_dir of the daemon that runs; nothing was changed") {
		t.Errorf("without a key: %+v", r)
	}
	if _, err := os.Stat(key); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a key was made: %v", err)
	}
	own, _, err := keys.LoadOrCreate(key, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	r = w.run("migrate", "--apply")
	if r.code == 0 || !strings.Contains(r.err, "CONFLICT") || !strings.Contains(r.err, "is none of the running daemon's (SHA256:own)") {
		t.Errorf("with another key: %+v", r)
	}
	w.gw.info.Keys = append(w.gw.info.Keys, keys.Fingerprint(publicKey(own)))
	if r = w.run("migrate", "--apply"); !strings.Contains(r.err, "the broker cannot be reached") {
		t.Errorf("with a key that the daemon believes: %+v", r)
	}
	if err := infoFault(fault.New(fault.BadRequest, "there is no /api/v1/info here")); !strings.Contains(err.Error(), "Restart it") {
		t.Errorf("an older daemon: %v", err)
	}
}

// Fails when a --map whose pane is mistyped is dropped without a word.
func TestMapsWithoutAQueueAreNamed(t *testing.T) {
	plan := []migrations.Row{{Queue: "agent.wQ:p2.inbox"}}
	got := absent(plan, map[string]string{"wQ:p9": "builder", "wQ:p2": "reviewer", "wQ:p10": "tester"})
	if want := []string{"agent.wQ:p10.inbox", "agent.wQ:p9.inbox"}; !slices.Equal(got, want) {
		t.Errorf("it names %q, want %q", got, want)
	}
}

// Fails when mail that is gone stands in a column alone, where nobody looks who
// sees the command end well; or when the sum of the queues is another.
func TestMigrateSaysWhatIsGone(t *testing.T) {
	for _, x := range []struct {
		counts []migrations.Count
		gone   string
	}{
		{[]migrations.Count{{Queue: "q1", Found: 4, Moved: 4}}, ""},
		{[]migrations.Count{{Queue: "q1", Found: 4, Moved: 1, Vanished: 3}, {Queue: "q2", Found: 2, Vanished: 2}}, "5 messages were not moved and are gone"},
	} {
		var said strings.Builder
		a, w := &app{deps: deps{Err: &said}}, &printer{}
		a.printMoved(w, x.counts)
		if got := said.String(); !strings.HasPrefix(got, x.gone) || x.gone == "" && got != "" {
			t.Errorf("%+v: it says %q", x.counts, got)
		}
		if table := w.buf.String(); len(x.counts) > 1 && !strings.Contains(table, "all\t6\t0\t1\t0\t0\t0\t5\t") {
			t.Errorf("the table:\n%s", table)
		}
	}
}
