package config

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"

	"fleetd/fault"
)

// box is a home of its own with an optional configuration file in it.
type box struct {
	t    *testing.T
	home string
	src  Source
}

func newBox(t *testing.T, file string) *box {
	t.Helper()
	b := &box{t: t, home: t.TempDir()}
	b.src = Source{Environ: []string{"HOME=" + b.home}, Hostname: "Box-7.example.org", Dir: b.home}
	if file != "" {
		b.write(".config/bridged/bridged.yaml", file, 0o600)
	}
	return b
}

func (b *box) write(name, content string, mode os.FileMode) string {
	b.t.Helper()
	path := filepath.Join(b.home, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		b.t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil { // whatever the umask
		b.t.Fatal(err)
	}
	return path
}

func (b *box) env(pairs ...string) *box { b.src.Environ = append(b.src.Environ, pairs...); return b }

func (b *box) flags(path, value string) *box {
	if b.src.Flags == nil {
		b.src.Flags = map[string]string{}
	}
	b.src.Flags[path] = value
	return b
}

func (b *box) load() Config {
	b.t.Helper()
	c, err := Load(b.src)
	if err != nil {
		b.t.Fatalf("Load: %v", err)
	}
	return c
}

func (b *box) fails() string {
	b.t.Helper()
	c, err := Load(b.src)
	if err == nil {
		b.t.Fatalf("Load accepted it:\n%v", c)
	}
	if !fault.Is(err, fault.BadRequest) {
		b.t.Fatalf("Load: code %s, want BAD_REQUEST: %v", fault.CodeOf(err), err)
	}
	return strings.ReplaceAll(err.Error(), b.home, "HOME")
}

// Fault: a default is lost on its way through the layers, or a path keeps its ~.
func TestWithoutAnythingItServesOneHost(t *testing.T) {
	b := newBox(t, "")
	got := b.load()
	want := Config{
		Host: "box-7", Listen: "127.0.0.1:8765",
		DataDir:  b.home + "/.local/state/bridged",
		Socket:   b.home + "/.local/state/bridged/bridged.sock",
		TrustDir: b.home + "/.config/bridged/trust",
		Broker:   Broker{Heartbeat: 5 * time.Second},
		Herdr:    Herdr{Socket: b.home + "/.config/herdr/herdr.sock"},
		Limits:   Limits{ContentBytes: 262144, MaxTTL: 168 * time.Hour, PerPair: 300},
		Inject:   Inject{PasteBytes: 4096},
		Log:      Log{Level: "info"},
	}
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		t.Fatal(d)
	}
	if got.StorePath() != b.home+"/.local/state/bridged/bridged.db" {
		t.Fatalf("store at %s", got.StorePath())
	}
}

const fullFile = `
host: hosta
listen: "[::1]:8765"
data_dir: ~/state
broker:  {uri: "amqps://hosta:s3cret@broker:5671/", prefix: lab., heartbeat: 10s, tls: {ca: ca.pem, cert: , key: }}
trust_dir: ~/trust
herdr:   {socket: /run/herdr.sock}
mcp:     {default_main: main}
profiles:
  reviewer: {argv: [claude, --port, 5], cwd: ~/src/app, env: {A: 1, B: "", C: }, groups: [reviewers], ready_timeout: 90s, remote: true}
  plain: {argv: [opencode]}
control: {allow: {hostb: [send, spawn, stop], hostc: }}
limits:  {content_bytes: 1000, max_ttl: 24h, per_pair: 0}
inject: {paste_bytes: 2048}
log: {level: debug, json: true}
`

// Fault: a key of the file is not read, or read into another one.
func TestFileHoldsEveryKey(t *testing.T) {
	b := newBox(t, fullFile)
	got := b.load()
	want := Config{
		Host: "hosta", HostGiven: true, Listen: "[::1]:8765", DataDir: b.home + "/state",
		Socket: b.home + "/state/bridged.sock", TrustDir: b.home + "/trust",
		Broker: Broker{
			URI: "amqps://hosta:s3cret@broker:5671/", Prefix: "lab.", Heartbeat: 10 * time.Second,
			TLS: TLS{CA: b.home + "/.config/bridged/ca.pem"},
		},
		Herdr: Herdr{Socket: "/run/herdr.sock"},
		MCP:   MCP{DefaultMain: "main"},
		Profiles: map[string]Profile{
			"reviewer": {
				Argv: []string{"claude", "--port", "5"}, Cwd: b.home + "/src/app",
				Env: Env{"A": "1", "B": "", "C": ""}, Groups: []string{"reviewers"},
				ReadyTimeout: 90 * time.Second, Remote: true,
			},
			"plain": {Argv: []string{"opencode"}, ReadyTimeout: time.Minute},
		},
		Control: Control{Allow: map[string][]string{"hostb": {"send", "spawn", "stop"}, "hostc": {}}},
		Limits:  Limits{ContentBytes: 1000, MaxTTL: 24 * time.Hour},
		Inject:  Inject{PasteBytes: 2048},
		Log:     Log{Level: "debug", JSON: true},
		File:    b.home + "/.config/bridged/bridged.yaml",
	}
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		t.Fatal(d)
	}
}

// Fault: the layers are read in another order.
func TestLaterLayersWin(t *testing.T) {
	b := newBox(t, "host: fromfile\nlog: {level: warn}\nlimits: {content_bytes: 1}\n")
	b.env("BRIDGED_HOST=fromenv", "BRIDGED_LOG_LEVEL=error", "BRIDGED_LISTEN=")
	b.flags("host", "fromflag")
	c := b.load()
	got := []any{c.Host, c.Log.Level, c.Limits.ContentBytes, c.Listen}
	if d := cmp.Diff([]any{"fromflag", "error", 1, "127.0.0.1:8765"}, got); d != "" {
		t.Fatal(d)
	}
}

// Fault: a flag that is given and empty cannot take the broker away.
func TestEmptyFlagTakesAway(t *testing.T) {
	b := newBox(t, "broker: {uri: 'amqps://b/'}\nmcp: {default_main: main}\n").flags("broker.uri", "").flags("mcp.default_main", "")
	if c := b.load(); c.Broker.URI != "" || c.MCP.DefaultMain != "" {
		t.Fatalf("still %q and %q", c.Broker.URI, c.MCP.DefaultMain)
	}
	if got := newBox(t, "").flags("data_dir", "").fails(); !strings.Contains(got, "--data-dir: data_dir: is empty") {
		t.Fatal(got)
	}
}

// Fault: a mapping of a later layer is mixed with the earlier one, so that
// what was taken out of control.allow stays allowed.
func TestMappingsAreReplacedWhole(t *testing.T) {
	b := newBox(t, "control: {allow: {hostb: [spawn], hostc: [stop]}}\nprofiles: {a: {argv: [x]}}\n")
	b.env("BRIDGED_CONTROL_ALLOW={hostb: [send]}", "BRIDGED_PROFILES={b: {argv: [y], ready_timeout: 5s}}")
	c := b.load()
	if d := cmp.Diff(map[string][]string{"hostb": {"send"}}, c.Control.Allow); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(map[string]Profile{"b": {Argv: []string{"y"}, ReadyTimeout: 5 * time.Second}}, c.Profiles); d != "" {
		t.Error(d)
	}
	if c := newBox(t, "control: {allow: {hostb: [spawn]}}").flags("control.allow", "{}").load(); len(c.Control.Allow) != 0 {
		t.Errorf("an empty mapping left %v", c.Control.Allow)
	}
}

// Fault: a host that is not listed may spawn, or one that is listed with
// nothing may still send.
func TestControlAllows(t *testing.T) {
	t.Attr("threat", "G4")
	c := Control{Allow: map[string][]string{"hostb": {"send", "spawn"}, "hostc": {}}}
	for _, x := range []struct {
		host, verb string
		want       bool
	}{
		{"hosta", "send", true}, {"hosta", "spawn", false}, {"hosta", "stop", false},
		{"hostb", "send", true}, {"hostb", "spawn", true}, {"hostb", "stop", false},
		{"hostc", "send", false},
	} {
		if got := c.Allows(x.host, x.verb); got != x.want {
			t.Errorf("%s %s: %v", x.host, x.verb, got)
		}
	}
}

// Fault: a name of the contract changes: scripts and units rely on them.
func TestNamesOfVariablesAndFlags(t *testing.T) {
	want := strings.Fields(`
		BRIDGED_HOST --host BRIDGED_LISTEN --listen BRIDGED_DATA_DIR --data-dir BRIDGED_SOCKET --socket
		BRIDGED_TRUST_DIR --trust-dir BRIDGED_BROKER_URI --broker-uri BRIDGED_BROKER_PREFIX --broker-prefix
		BRIDGED_BROKER_HEARTBEAT --broker-heartbeat BRIDGED_BROKER_TLS_CA --broker-tls-ca
		BRIDGED_BROKER_TLS_CERT --broker-tls-cert BRIDGED_BROKER_TLS_KEY --broker-tls-key
		BRIDGED_HERDR_SOCKET --herdr-socket BRIDGED_MCP_DEFAULT_MAIN --mcp-default-main
		BRIDGED_PROFILES --profiles BRIDGED_CONTROL_ALLOW --control-allow
		BRIDGED_LIMITS_CONTENT_BYTES --limits-content-bytes BRIDGED_LIMITS_MAX_TTL --limits-max-ttl
		BRIDGED_LIMITS_PER_PAIR --limits-per-pair
		BRIDGED_INJECT_PASTE_BYTES --inject-paste-bytes BRIDGED_LOG_LEVEL --log-level BRIDGED_LOG_JSON --log-json`)
	var got []string
	for _, k := range keys {
		got = append(got, k.env(), "--"+k.flag())
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Fatal(d)
	}
}

// Fault: a key of the struct is not in the schema (or the other way round), so
// that it can be set by nobody.
func TestSchemaAndStructHoldTheSameKeys(t *testing.T) {
	full := newBox(t, fullFile).load()
	k := flat(full)
	for _, key := range keys {
		if !k.Exists(key.path) {
			t.Errorf("%s is in the schema and not in the struct", key.path)
		}
	}
	for _, path := range k.Keys() {
		if !knownPath(path) && !strings.HasPrefix(path, "profiles.") && !strings.HasPrefix(path, "control.allow.") {
			t.Errorf("%s is in the struct and not in the schema", path)
		}
	}
}

// Fault: a variable or a flag is read as another key or with another type.
func TestEveryKeyFromVariableAndFlag(t *testing.T) {
	values := map[string]string{
		"host": "x", "listen": "127.0.0.2:1", "data_dir": "/d", "socket": "/s", "trust_dir": "/t",
		"broker.uri": "amqps://u:p@b/", "broker.prefix": "p.", "broker.heartbeat": "7s",
		"broker.tls.ca": "/ca", "broker.tls.cert": "/cert", "broker.tls.key": "/key",
		"herdr.socket": "/h", "mcp.default_main": "m", "profiles": "{a: {argv: [b]}}",
		"control.allow": "{h: [stop]}", "limits.content_bytes": "9", "limits.max_ttl": "1h", "limits.per_pair": "7",
		"inject.paste_bytes": "300", "log.level": "trace", "log.json": "true",
	}
	want := Config{
		Host: "x", HostGiven: true, Listen: "127.0.0.2:1", DataDir: "/d", Socket: "/s", TrustDir: "/t",
		Broker: Broker{
			URI: "amqps://u:p@b/", Prefix: "p.", Heartbeat: 7 * time.Second,
			TLS: TLS{CA: "/ca", Cert: "/cert", Key: "/key"},
		},
		Herdr: Herdr{Socket: "/h"}, MCP: MCP{DefaultMain: "m"},
		Profiles: map[string]Profile{"a": {Argv: []string{"b"}, ReadyTimeout: time.Minute}},
		Control:  Control{Allow: map[string][]string{"h": {"stop"}}},
		Limits:   Limits{ContentBytes: 9, MaxTTL: time.Hour, PerPair: 7},
		Inject:   Inject{PasteBytes: 300}, Log: Log{Level: "trace", JSON: true},
	}
	byEnv, byFlag := newBox(t, ""), newBox(t, "")
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	AddFlags(fs)
	var args []string
	for _, k := range keys {
		v, ok := values[k.path]
		if !ok {
			t.Fatalf("no value for %s", k.path)
		}
		byEnv.env(k.env() + "=" + v)
		v = strings.Replace(v, "u:p@", "u@", 1) // no password on the command line
		args = append(args, "--"+k.flag()+"="+v)
	}
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	byFlag.src.Flags = FlagValues(fs)
	for by, got := range map[string]Config{"variables": byEnv.load(), "flags": byFlag.load()} {
		if by == "flags" {
			want.Broker.URI = "amqps://u@b/"
		} else {
			want.Broker.URI = "amqps://u:p@b/"
		}
		if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
			t.Errorf("by %s: %s", by, d)
		}
	}
}

// Fault: flags that nobody gave count as given, and the file is never read.
func TestFlagsThatWereNotGivenSayNothing(t *testing.T) {
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	AddFlags(fs)
	if got := FlagValues(fs); len(got) != 0 {
		t.Fatal(got)
	}
	for _, want := range []string{"HOST:PORT", `(default "168h")`, "$BRIDGED_LIMITS_MAX_TTL", `(default "127.0.0.1:8765")`} {
		if !strings.Contains(fs.FlagUsages(), want) {
			t.Errorf("the help does not say %s:\n%s", want, fs.FlagUsages())
		}
	}
}

// Fault: the wrong file is read, or a named one that is missing is passed over.
func TestWhichFileIsRead(t *testing.T) {
	b := newBox(t, "host: bydefault\n")
	if got := b.load().Host; got != "bydefault" {
		t.Errorf("default file: %s", got)
	}
	b.write("env.yaml", "host: byenv\n", 0o600)
	b.env("BRIDGED_CONFIG=~/env.yaml")
	if got := b.load().Host; got != "byenv" {
		t.Errorf("BRIDGED_CONFIG: %s", got)
	}
	b.write("flag.yaml", "host: byflag\n", 0o600)
	b.src.File = "flag.yaml"
	if c := b.load(); c.Host != "byflag" || c.File != b.home+"/flag.yaml" {
		t.Errorf("--config: %s from %s", c.Host, c.File)
	}
	b.src.File = "none.yaml"
	if got := b.fails(); !strings.Contains(got, "HOME/none.yaml (named by --config) cannot be read") {
		t.Error(got)
	}
	if got := newBox(t, "").env("BRIDGED_CONFIG=/no/such.yaml").fails(); !strings.Contains(got, "/no/such.yaml (named by $BRIDGED_CONFIG) cannot be read") {
		t.Error(got)
	}
	for _, empty := range []string{"", "\n# nothing\n", "---\n", "broker:\nprofiles:\n"} {
		b.write("flag.yaml", empty, 0o600)
		b.src.File = "flag.yaml"
		if got := b.load().Host; got != "box-7" {
			t.Errorf("%q: %s", empty, got)
		}
	}
}

// Fault: the hostname makes a host id that the fleet refuses.
func TestHostFromHostname(t *testing.T) {
	for in, want := range map[string]string{
		"hosta": "hosta", "Host_A.lan": "host-a", "--x--": "x", "7up": "7up", "ünï": "n",
		strings.Repeat("a", 70): strings.Repeat("a", 63),
	} {
		if got := hostID(in); got != want || checkHost(got) != "" {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	b := newBox(t, "")
	b.src.Hostname = "..."
	if got := b.fails(); !strings.Contains(got, `host: nothing of the hostname "..." can be used; write one`) {
		t.Error(got)
	}
}

// Fault: the daemon looks for herdr where herdr is not (herdr reference §1.1).
func TestHerdrSocket(t *testing.T) {
	for _, x := range []struct{ env, want string }{
		{"HOME=/h", "/h/.config/herdr/herdr.sock"},
		{"HOME=/h HERDR_SESSION=default", "/h/.config/herdr/herdr.sock"},
		{"HOME=/h HERDR_SESSION=team", "/h/.config/herdr/sessions/team/herdr.sock"},
		{"HOME=/h HERDR_SESSION=..", "/h/.config/herdr/herdr.sock"},
		{"HOME=/h HERDR_SESSION=.", "/h/.config/herdr/herdr.sock"},
		{"HOME=/h HERDR_SESSION=a/b", "/h/.config/herdr/herdr.sock"},
		{"HOME=/h XDG_CONFIG_HOME=/x", "/x/herdr/herdr.sock"},
		{"HOME=/h XDG_CONFIG_HOME=", "herdr/herdr.sock"},
		{"HOME=/h HERDR_SESSION=work HERDR_SOCKET_PATH=/s.sock", "/s.sock"},
		{"TMPDIR=/t", "/t/herdr/herdr.sock"},
		{"", "/tmp/herdr/herdr.sock"},
	} {
		if got := herdrSocket(environment(strings.Fields(x.env))); got != x.want {
			t.Errorf("%s: %s, want %s", x.env, got, x.want)
		}
	}
}

// Fault: the broker's password can be given where ps shows it to every user, or
// the refusal shows it.
func TestNoPasswordOnTheCommandLine(t *testing.T) {
	t.Attr("threat", "B7")
	b := newBox(t, "")
	b.src.Flags = map[string]string{"broker.uri": "amqps://hosta:s3cret@broker/"}
	_, err := Load(b.src)
	if err == nil || !strings.Contains(err.Error(), "BRIDGED_BROKER_URI") || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("it reads %v", err)
	}
}

// Fault: some way of printing a configuration shows the broker's password or
// the value of a profile's variable.
func TestPrintingRedacts(t *testing.T) {
	t.Attr("threat", "B7")
	b := newBox(t, `
broker: {uri: "amqps://hosta:s3cret@broker:5671/"}
profiles: {a: {argv: [x], env: {API_KEY: t0ken}}}
`)
	c := b.load()
	inJSON, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	for how, out := range map[string]string{
		"String": c.String(), "%v": fmt.Sprintf("%v", c), "%+v": fmt.Sprintf("%+v", c), "%#v": fmt.Sprintf("%#v", c),
		"broker %+v": fmt.Sprintf("%+v", c.Broker), "broker %#v": fmt.Sprintf("%#v", c.Broker),
		"profiles %v": fmt.Sprint(c.Profiles), "profiles %#v": fmt.Sprintf("%#v", c.Profiles), "JSON": string(inJSON),
	} {
		if strings.Contains(out, "s3cret") || strings.Contains(out, "t0ken") {
			t.Errorf("%s shows a secret: %s", how, out)
		}
	}
	for _, want := range []string{"broker.uri: amqps://hosta:xxxxx@broker:5671/\n", "API_KEY", "limits.max_ttl: 168h0m0s\n"} {
		if !strings.Contains(c.String(), want) {
			t.Errorf("String does not say %q:\n%s", want, c)
		}
	}
	if c.Broker.URI.Secret() != "amqps://hosta:s3cret@broker:5671/" {
		t.Error("Secret is not the whole URI")
	}
}

// Fault: a file that another account wrote or can write is believed. It names
// programs to start, and whom to trust.
func TestAFileOfOthersIsRefused(t *testing.T) {
	t.Attr("threat", "U1")
	b := newBox(t, "")
	b.src.File = b.write("b.yaml", "host: hosta\n", 0o602)
	if _, err := Load(b.src); !fault.Is(err, fault.NotAllowed) || !strings.Contains(err.Error(), "chmod go-w "+b.src.File) {
		t.Errorf("every user can write it: %v", err)
	}
	for _, x := range []struct {
		uid, euid int
		mode      os.FileMode
		want      string // "": it is read
	}{
		{1000, 1000, 0o600, ""},
		{1000, 1000, 0o660, ""}, // warned of
		{1000, 1000, 0o602, "chmod go-w b.yaml"},
		{0, 1000, 0o644, ""},
		{0, 1000, 0o646, "chmod go-w b.yaml"},
		{1001, 1000, 0o644, "belongs to user 1001"},
		{0, 0, 0o600, ""},
		{1000, 0, 0o600, ""}, // warned of
		{1000, 0, 0o602, "chmod go-w b.yaml"},
	} {
		err := checkOwner("b.yaml", x.uid, x.euid, x.mode)
		if x.want == "" && err != nil || x.want != "" && (!fault.Is(err, fault.NotAllowed) || !strings.Contains(err.Error(), x.want)) {
			t.Errorf("of user %d, mode %04o, read by user %d: %v", x.uid, x.mode, x.euid, err)
		}
	}
}

// Fault: root, who asks a user's daemon with the user's own file or runs in a
// container with a file from outside, is refused, or is told to take the file
// over: then the user's own daemon does not start any more. Or root is not told
// whose it is, or others are told of their own.
func TestRootReadsAnyUsersFile(t *testing.T) {
	const risk = "b.yaml belongs to user 4242, who decides with it what root starts; run the daemon as that user, or give root's a file of its own"
	for _, x := range []struct {
		uid, euid int
		want      string
	}{{4242, 0, risk}, {0, 0, ""}, {4242, 4242, ""}, {0, 4242, ""}} {
		if got := rootsRisk("b.yaml", x.uid, x.euid); got != x.want {
			t.Errorf("of user %d, read by user %d: %q", x.uid, x.euid, got)
		}
	}
	b := newBox(t, "")
	b.src.File = b.write("b.yaml", "host: hosta\n", 0o600)
	want := ""
	if os.Geteuid() == 0 { // who else can give a file away
		want = strings.Replace(risk, "b.yaml", b.src.File, 1)
		if err := os.Chown(b.src.File, 4242, -1); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Join(b.load().Warnings, "\n"); got != want {
		t.Errorf("warned of: %q, want %q", got, want)
	}
}

// Fault: a file with a password that everybody can read is passed over, or
// agents that would all be taken for the first one.
func TestWarnings(t *testing.T) {
	const withPassword = "broker: {uri: 'amqps://u:p@broker/'}\n"
	for _, x := range []struct {
		file string
		mode os.FileMode
		want string
	}{
		{withPassword, 0o600, ""},
		{withPassword, 0o640, ""},
		{withPassword, 0o644, "HOME/b.yaml holds the broker's password and can be read by every user (mode 0644); run chmod 600 HOME/b.yaml"},
		{"broker: {uri: 'amqps://broker/'}\n", 0o644, ""},
		{"log: {json: true}\n", 0o620, "HOME/b.yaml can be changed by other users (mode 0620), and it names programs to start; run chmod go-w HOME/b.yaml"},
		{"broker: {uri: 'amqp://127.0.0.1/'}\n", 0o600, ""},
		{"profiles: {a: {argv: [codex, --no-daemon]}, b: {argv: [codex], env: {CODEX_HOME: /b}}}\n", 0o600, ""},
		{"profiles: {a: {argv: [/usr/bin/codex]}}\n", 0o600, "profiles.a starts codex without --no-daemon: its MCP daemon keeps the identity of the first agent for all later ones; add --no-daemon to argv"},
		{"broker: {uri: 'amqp://broker/'}\n", 0o600, "broker.uri is amqp to another machine: login and messages cross the network in the clear; use amqps"},
	} {
		b := newBox(t, "")
		b.src.File = b.write("b.yaml", x.file, x.mode)
		got := strings.ReplaceAll(strings.Join(b.load().Warnings, "\n"), b.home, "HOME")
		if got != x.want {
			t.Errorf("%s (%o):\n got %q\nwant %q", x.file, x.mode, got, x.want)
		}
	}
}
