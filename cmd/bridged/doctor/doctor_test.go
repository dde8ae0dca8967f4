package doctor

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fleetd/cmd/bridged/config"
	"fleetd/fabric"
	"fleetd/fabric/keys"
	"fleetd/fault"
	"fleetd/mcp"
	"fleetd/mcp/api"
)

// fake is a daemon that says what the test wants.
type fake struct {
	mcp.Diagnosis
	roster mcp.RosterResult
	err    error
}

func (f fake) Diagnose(context.Context) (mcp.Diagnosis, error) { return f.Diagnosis, f.err }

func (f fake) Roster(context.Context, mcp.RosterArgs) (mcp.RosterResult, error) { return f.roster, nil }

// well is a host on which all is well but for herdr, which nobody needs.
func well(t *testing.T) (Patient, *fake) {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "" { // as with mcp.default_main: no session
			http.Error(w, "Invalid session ID", http.StatusBadRequest)
			return
		}
		w.WriteHeader(http.StatusUnauthorized)
		if _, err := w.Write([]byte(`{"jsonrpc":"2.0","id":null,"error":{}}`)); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(srv.Close)
	dir := t.TempDir()
	key, _, err := keys.LoadOrCreate(filepath.Join(dir, "data", "gateway.key"), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	d := &fake{Diagnosis: mcp.Diagnosis{
		Version: "1.2.3", Host: "hosta", Key: keys.Fingerprint(key.Public().(ed25519.PublicKey)), URL: srv.URL, Broker: string(fabric.Connected), Brand: "RabbitMQ 4.0.1",
		Peers: []mcp.Peer{{Host: "hostb", State: "online", Asked: true, Answered: true}},
	}}
	d.roster.Entities = []mcp.RosterEntity{{Name: "main", Host: "hosta", Kind: "main", Status: "online"}}
	return Patient{
		Config: config.Config{
			Host: "hosta", DataDir: filepath.Join(dir, "data"), Socket: filepath.Join(dir, "data", "s"), TrustDir: filepath.Join(dir, "trust"),
			Listen: strings.TrimPrefix(srv.URL, "http://"), Herdr: config.Herdr{Socket: filepath.Join(dir, "herdr")},
		},
		Broker: fabric.Config{URI: "amqp://u:p@broker/"}, Version: "1.2.3", Daemon: d,
		Free: func(string) (uint64, error) { return 1 << 40, nil },
	}, d
}

// What cannot be brought about on one test machine, or takes long: a finding for
// each, with its level and what to do. Fails when one of them is not seen, is no
// failure although it keeps something from working, or names no cure.
func TestEachTroubleHasItsLine(t *testing.T) {
	p, _ := well(t)
	if all := Examine(t.Context(), p); !Healthy(all) {
		t.Fatalf("a host that is well: %+v", all)
	}
	peer := func(p mcp.Peer) func(*Patient, *fake) {
		return func(_ *Patient, d *fake) { d.Peers[0] = p }
	}
	entity := func(status, refusing string) func(*Patient, *fake) {
		return func(_ *Patient, d *fake) {
			d.roster.Entities = []mcp.RosterEntity{{Name: "near", Kind: "worker", Status: status, Refusing: refusing}}
		}
	}
	room := func(free uint64, err error) func(*Patient, *fake) {
		return func(p *Patient, _ *fake) { p.Free = func(string) (uint64, error) { return free, err } }
	}
	link := func(state, reason string) func(*Patient, *fake) {
		return func(_ *Patient, d *fake) {
			d.Broker, d.Reason, d.NotReady = state, reason, []string{"broker " + state + ": " + reason}
		}
	}
	for name, x := range map[string]struct {
		change func(*Patient, *fake)
		want   Finding
	}{
		"disk nearly full": {room(600<<20-1, nil), Finding{"disk", OK, "599 MiB are free", ""}},
		"disk short":       {room(roomWarn-1, nil), Finding{"disk", Warn, "511 MiB are free", "free some"}},
		"disk full":        {room(roomFail-1, nil), Finding{"disk", Fail, "31 MiB are free", "free some"}},
		"disk unknown":     {room(0, errors.New("no such device")), Finding{"disk", Warn, "cannot be told (no such device)", "df"}},
		"store": {func(_ *Patient, d *fake) {
			d.Store = "the store cannot be written since noon; free or mend the disk"
			d.NotReady = []string{"STORE_UNAVAILABLE: " + d.Store}
		}, Finding{"daemon", Fail, "cannot be written since noon", "free or mend the disk"}},
		"older daemon": {func(_ *Patient, d *fake) {
			d.err = fault.New(fault.BadRequest, "there is no /api/v1/diagnose here")
		}, Finding{"daemon", Fail, "older than this program, 1.2.3", "restart"}},
		"hanging daemon": {func(_ *Patient, d *fake) {
			d.err = fault.New(fault.Internal, "the daemon did not answer in time.")
		}, Finding{"daemon", Fail, "did not answer in time", "restart"}},
		"another version": {func(_ *Patient, d *fake) { d.Version = "1.2.2" }, Finding{"daemon", Warn, "of version 1.2.2, this program of 1.2.3", "restart"}},
		"another file": {func(_ *Patient, d *fake) { d.Config = "/etc/b.yaml" },
			Finding{"daemon", Warn, "from /etc/b.yaml, this command from no file", "--config"}},
		"not ready": {func(_ *Patient, d *fake) { d.NotReady = []string{"no probe has come back from the broker lately"} },
			Finding{"daemon", Fail, "not ready: no probe", "log"}},
		"no mcp":       {func(_ *Patient, d *fake) { d.URL = "http://127.0.0.1:1/mcp" }, Finding{"mcp", Fail, "no answer at http://127.0.0.1:1/mcp", "restart"}},
		"contested":    {entity("contested", ""), Finding{"agents", Fail, "mail for near would wait: contested", "stop it"}},
		"mismatched":   {entity("mismatched", ""), Finding{"agents", Fail, "mail for near would wait: mismatched", "docs/upgrade.md"}},
		"no pane":      {entity("no pane", ""), Finding{"agents", Warn, "mail for near would wait: no pane", "--pane PANE"}},
		"pane changed": {entity("pane changed", ""), Finding{"agents", Warn, "would wait: pane changed", "bridged register near"}},
		"dialog":       {entity("blocked", "BLOCKED since 10:00"), Finding{"agents", Warn, "would wait: BLOCKED since 10:00", "answer the dialog"}},
		"draft":        {entity("idle", "DRAFT since 10:00"), Finding{"agents", Warn, "DRAFT since", "clear the text"}},
		"busy":         {entity("working", "BUSY since 10:00"), Finding{"agents", OK, "1 registered here, 1 of them workers", ""}},
		"blocked":      {link("blocked", "the broker blocks publishers: low on disk"), Finding{"broker", Fail, "low on disk", "free memory or disk"}},
		"certificate": {link("connecting", "connect to amqps://b:5671: tls: failed to verify certificate: x509: certificate signed by unknown authority"),
			Finding{"broker", Fail, "unknown authority", "broker.tls.ca"}},
		"no such host": {link("connecting", "connect to amqps://b:5671: dial tcp: lookup b: no such host"), Finding{"broker", Fail, "lookup b", "correct the host"}},
		"plain to TLS": {link("connecting", `connect to amqp://b:5671: Exception (501) Reason: "EOF"`), Finding{"broker", Fail, "EOF", "takes amqps only"}},
		"plain to TLS, said": {link("connecting", `connect to amqp://b:5671: Exception (501) Reason: "Exception (501) Reason: \"its port speaks TLS, which amqps:// is for\""`),
			Finding{"broker", Fail, "speaks TLS", "amqps:// for this port"}},
		"TLS to plain": {link("connecting", "connect to amqps://b:5672: tls: first record does not look like a TLS handshake"),
			Finding{"broker", Fail, "first record", "this port is plain"}},
		"silent":           {link("connecting", "connect to amqp://b:5672: dial tcp 10.0.0.1:5672: i/o timeout"), Finding{"broker", Fail, "i/o timeout", "drops its port"}},
		"vhost":            {link("connecting", `Exception (403) Reason: "no access to this vhost"`), Finding{"broker", Fail, "vhost", "correct the vhost"}},
		"something else":   {link("connecting", "the consuming connection was closed"), Finding{"broker", Fail, "was closed", "redials by itself"}},
		"broker set later": {link("none", ""), Finding{"broker", Fail, "runs without a broker", "restart the daemon"}},
		"not believed":     {peer(mcp.Peer{Host: "hostb", State: "online", Asked: true}), Finding{"trust", Fail, "hostb is online and does not answer", "bridged keys trust hosta.pub` there"}},
		"killed just now":  {peer(mcp.Peer{Host: "hostb", State: "online", Asked: true, Unreached: true}), Finding{"trust", Warn, "hostb was heard lately and could not be asked just now", "run this again"}},
		"stopped":          {peer(mcp.Peer{Host: "hostb", State: "offline"}), Finding{"trust", Warn, "hostb is trusted and was stopped", "start bridged there"}},
		"no key": {func(_ *Patient, d *fake) { d.Strangers = []mcp.Stranger{{Host: "hostc"}} },
			Finding{"trust", Warn, "from hostc is refused: no key", "bridged keys trust hostc.pub` here"}},
		"a new key": {func(_ *Patient, d *fake) {
			d.Strangers, d.Peers[0].Answered = []mcp.Stranger{{Host: "hostb", Trusted: true}}, false
		},
			Finding{"trust", Fail, "its signature fits no key", "--beside hostb.pub` here"}},
		"a namesake": {func(_ *Patient, d *fake) {
			d.Strangers = []mcp.Stranger{{Host: "hostb", Trusted: true}}
			d.Peers[0].Answered = true
		},
			Finding{"trust", Warn, "hostb is online, and each believes the other; what else comes as from it is refused", "another host"}},
		"key put in place": {func(p *Patient, d *fake) { d.Key = "an earlier one" },
			Finding{"daemon", Warn, "signs with the key an earlier one", "restart the daemon"}},
		"no such CA": {func(p *Patient, _ *fake) { p.Broker.URI, p.Broker.TLS.CA = "amqps://u:p@broker/", "/nowhere/ca.pem" },
			Finding{"broker", Warn, "could not be started again: broker.tls.ca cannot be read (open /nowhere/ca.pem", "correct its name"}},
		"no such CA, stopped": {func(p *Patient, d *fake) {
			p.Broker.URI, p.Broker.TLS.CA = "amqps://u:p@broker/", "/nowhere/ca.pem"
			d.err = fault.Wrap(api.ErrNotRunning, fault.Internal, "bridged is not running on this host")
		}, Finding{"broker", Fail, "broker.tls.ca cannot be read (open /nowhere/ca.pem", "correct its name"}},
		"default main": {func(p *Patient, _ *fake) { p.Config.MCP.DefaultMain = "lead" },
			Finding{"agents", Fail, "mcp.default_main is lead, and nobody", "bridged register lead --kind main"}},
		"default main, a worker": {func(p *Patient, d *fake) {
			p.Config.MCP.DefaultMain = "near"
			d.roster.Entities = append(d.roster.Entities, mcp.RosterEntity{Name: "near", Kind: "worker", Status: "idle"})
		}, Finding{"agents", Fail, "mcp.default_main is near, and that is a worker", "bridged register NAME --kind main"}},
		"default main, an orchestrator": {func(p *Patient, d *fake) {
			p.Config.MCP.DefaultMain = "main"
			d.roster.Entities[0].Kind = "orchestrator"
		}, Finding{"agents", OK, "1 registered here, 0 of them workers", ""}},
		"default main, registered": {func(p *Patient, _ *fake) { p.Config.MCP.DefaultMain = "main" },
			Finding{"agents", OK, "1 registered here, 0 of them workers", ""}},
		"not heard":      {peer(mcp.Peer{Host: "hostb", State: "never"}), Finding{"trust", Warn, "hostb is trusted and not heard", "bridged doctor"}},
		"clock":          {peer(mcp.Peer{Host: "hostb", State: "online", Asked: true, Answered: true, ClockOffset: -6}), Finding{"clock", Warn, "hostb is -6 s off", "NTP"}},
		"clock far off":  {peer(mcp.Peer{Host: "hostb", State: "online", Asked: true, Answered: true, ClockOffset: 31}), Finding{"clock", Fail, "hostb is +31 s off", "NTP"}},
		"nobody trusted": {func(_ *Patient, d *fake) { d.Peers = nil }, Finding{"trust", Warn, "no other host is trusted", "bridged keys trust"}},
		"own name": {func(_ *Patient, d *fake) { d.Strangers = []mcp.Stranger{{Host: "hosta", Trusted: true}} },
			Finding{"trust", Fail, "another gateway signs as hosta", "set another host"}},
		"old daemon": {func(_ *Patient, d *fake) {
			d.OldQueues = []mcp.OldQueue{{Queue: "agent.w1:p1.inbox", Messages: 2, Consumers: 1}}
		}, Finding{"mail", Warn, "holds 2 messages", "stop the old daemon"}},
		"what could not be seen": {func(_ *Patient, d *fake) { d.Notes = []string{"the dead letters could not be counted (no right)"} },
			Finding{"broker", Warn, "could not be counted", "docs/broker.md"}},
	} {
		p, d := well(t)
		x.change(&p, d)
		all := Examine(t.Context(), p)
		found := 0
		for _, f := range all {
			if f.Check == x.want.Check && f.Level == x.want.Level && strings.Contains(f.What, x.want.What) && strings.Contains(f.Next, x.want.Next) {
				found++
			}
		}
		if found != 1 {
			t.Errorf("%s: %d lines say %+v: %+v", name, found, x.want, all)
		}
		if Healthy(all) != (x.want.Level != Fail) {
			t.Errorf("%s: healthy is %v: %+v", name, Healthy(all), all)
		}
	}
}

// While no daemon runs, people are told whether its port is free. Fails when a
// bridged with another socket, another program and nobody are mixed up, or when
// a token that the daemon does not know is taken for a good one, or any other
// trouble for such a token.
func TestWhoHasThePortAndTheToken(t *testing.T) {
	says := ""
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if _, err := w.Write([]byte(says)); err != nil {
			t.Error(err)
		}
	}))
	p, d := well(t)
	p.Broker.URI = ""
	d.err = fault.Wrap(api.ErrNotRunning, fault.Internal, "bridged is not running on this host")
	p.Config.Listen = strings.TrimPrefix(srv.URL, "http://")
	look := func(level, what string) {
		t.Helper()
		all := Examine(t.Context(), p)
		if !slices.ContainsFunc(all, func(f Finding) bool { return f.Check == "port" && f.Level == level && strings.Contains(f.What, what) }) {
			t.Errorf("nothing says %s, %q: %+v", level, what, all)
		}
	}
	says = `{"status":"alive"}`
	look(Fail, "a bridged with another socket has "+p.Config.Listen)
	says = "<html>"
	look(Fail, "another program, or the old daemon, has "+p.Config.Listen)
	srv.Close()
	look(OK, p.Config.Listen+" is free")

	p, _ = well(t)
	p.Bearer = func(context.Context) (mcp.WhoamiResult, error) {
		return mcp.WhoamiResult{Name: "main", Host: "hosta"}, nil
	}
	if all := Examine(t.Context(), p); !Healthy(all) {
		t.Errorf("with a good token: %+v", all)
	}
	p.Bearer = func(context.Context) (mcp.WhoamiResult, error) {
		return mcp.WhoamiResult{}, fault.New(fault.NotAuthenticated, "this token is not known here.")
	}
	told := func() bool {
		return slices.ContainsFunc(Examine(t.Context(), p), func(f Finding) bool { return f.Level == Fail && strings.Contains(f.Next, "--new-token") })
	}
	if !told() {
		t.Error("with a token that is not known nobody is told to make a new one")
	}
	p.Bearer = func(context.Context) (mcp.WhoamiResult, error) {
		return mcp.WhoamiResult{}, fault.New(fault.StoreUnavailable, "the store cannot be written; free the disk")
	}
	if all := Examine(t.Context(), p); told() || Healthy(all) {
		t.Errorf("when nobody could say whose the token is: %+v", all)
	}
}
