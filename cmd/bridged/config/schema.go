package config

import (
	"strings"
	"time"

	"fleetd/fabric/envelope"
)

type kind int

const (
	text kind = iota
	path
	duration
	count
	boolean
	list  // of elem
	dict  // of elem, under keys that the user makes up
	table // of fields
)

func (k kind) String() string {
	return [...]string{
		"text", "a path", "a duration", "a whole number", "true or false",
		"a list", "a mapping", "a mapping",
	}[k]
}

// rule is what a key may hold. The tree of rules is the one list of what is
// known: the file is walked against it, and flags and variables are made from
// it.
type rule struct {
	name   string
	kind   kind
	usage  string // for people, with the unit
	sample string // what to write, for errors
	secret bool   // the value is never repeated in an error

	check    func(string) string // text: what is wrong with it, "" if nothing
	min, max int64               // count, and duration in nanoseconds; list: how many, 0 is no bound
	step     time.Duration       // duration: a multiple of this
	fields   []rule              // table
	required []string            // table: fields that must be there
	elem     *rule               // list, dict
	key      func(string) string // dict: what is wrong with a key
}

// schema is every key of design §11.
var schema = rule{kind: table, fields: []rule{
	{name: "host", kind: text, check: checkHost, sample: "hosta",
		usage: "host `ID` of this gateway (default: the short hostname made to fit)"},
	{name: "listen", kind: text, check: checkListen, sample: "127.0.0.1:8765",
		usage: "loopback `HOST:PORT` of MCP, REST and metrics"},
	{name: "data_dir", kind: path, sample: "~/.local/state/bridged",
		usage: "`DIR` of store, key and socket"},
	{name: "socket", kind: path, sample: "~/.local/state/bridged/bridged.sock",
		usage: "`PATH` of the daemon's local API (default: bridged.sock in data_dir)"},
	{name: "trust_dir", kind: path, sample: "~/.config/bridged/trust",
		usage: "`DIR` with one HOST.pub per trusted gateway"},
	{name: "broker", kind: table, fields: []rule{
		{name: "uri", kind: text, check: checkURI, secret: true, sample: "amqps://user:password@broker:5671/",
			usage: "`URI` of the broker, amqps or amqp; without one this host is alone. One with a password is refused as a flag"},
		{name: "prefix", kind: text, check: checkPrefix, sample: "lab.",
			usage: "`TEXT` before the name of every exchange and queue, where several fleets share a broker"},
		{name: "heartbeat", kind: duration, min: int64(time.Second), max: int64(time.Minute), step: time.Second, sample: "5s",
			usage: "broker heartbeat (`DURATION`), 1s to 1m; three missed ones are a lost connection"},
		{name: "tls", kind: table, fields: []rule{
			{name: "ca", kind: path, sample: "~/.config/bridged/ca.pem", usage: "PEM `FILE` of the broker's authority (default: the system's)"},
			{name: "cert", kind: path, sample: "~/.config/bridged/cert.pem", usage: "PEM `FILE` of this gateway's certificate"},
			{name: "key", kind: path, sample: "~/.config/bridged/key.pem", usage: "PEM `FILE` of the certificate's private key"},
		}},
	}},
	{name: "herdr", kind: table, fields: []rule{
		{name: "socket", kind: path, sample: "~/.config/herdr/herdr.sock",
			usage: "`PATH` of herdr's socket (default: where herdr itself looks)"},
	}},
	{name: "mcp", kind: table, fields: []rule{
		{name: "default_main", kind: text, check: checkName, sample: "main",
			usage: "`NAME` of the main that a loopback client without a token is taken for (default: none)"},
	}},
	{name: "profiles", kind: dict, key: checkName, elem: &profile,
		sample: "{reviewer: {argv: [claude], cwd: /src/app}}",
		usage:  "agents that can be spawned here, as `YAML`"},
	{name: "control", kind: table, fields: []rule{
		{name: "allow", kind: dict, key: checkHost, sample: "{hostb: [send, spawn, stop]}",
			elem:  &rule{kind: list, sample: "[send, spawn, stop]", elem: &rule{kind: text, check: checkVerb, sample: "send"}},
			usage: "what other hosts may do here, as `YAML` (default: every trusted host may send, nobody may spawn or stop)"},
	}},
	{name: "limits", kind: table, fields: []rule{
		{name: "content_bytes", kind: count, min: 1, max: 16 << 20, sample: "262144",
			usage: "longest content of one message, in `BYTES`"},
		{name: "max_ttl", kind: duration, min: int64(time.Second), max: int64(envelope.MaxLife), sample: "168h",
			usage: "longest life of one message (`DURATION`), up to 168h"},
		{name: "per_pair", kind: count, min: 0, max: 1 << 20, sample: "300",
			usage: "at most `N` messages of one entity to another in a minute; 0 for no bound"},
	}},
	{name: "inject", kind: table, fields: []rule{
		{name: "paste_bytes", kind: count, min: 256, max: 64 << 10, sample: "4096",
			usage: "longest paste into a pane, in `BYTES`; longer briefs are announced and fetched"},
	}},
	{name: "log", kind: table, fields: []rule{
		{name: "level", kind: text, check: checkLevel, sample: "info",
			usage: "`LEVEL` of the log: trace, debug, info, warn, error or off"},
		{name: "json", kind: boolean, sample: "true", usage: "log in JSON, one object a line"},
	}},
}}

var profile = rule{kind: table, required: []string{"argv"}, sample: "{argv: [claude], cwd: /src/app}", fields: []rule{
	{name: "argv", kind: list, min: 1, sample: "[claude, --flag]", elem: &rule{kind: text, check: checkArg, sample: "claude"}},
	{name: "cwd", kind: path, sample: "/src/app"},
	{name: "env", kind: dict, key: checkEnvName, sample: "{NAME: value}", elem: &rule{kind: text, check: checkArg, secret: true, sample: "value"}},
	{name: "groups", kind: list, max: envelope.MaxGroups, sample: "[reviewers]", elem: &rule{kind: text, check: checkName, sample: "reviewers"}},
	{name: "ready_timeout", kind: duration, min: int64(time.Second), max: int64(time.Hour), sample: "60s"},
	{name: "remote", kind: boolean, sample: "true"},
}}

// key is a leaf of the schema: what a flag or a variable can set.
type key struct {
	rule
	path string // as in the file: broker.tls.ca
}

// env is the variable of the key. It is made from the key and never split
// back: BRIDGED_MCP_DEFAULT_MAIN could be read in three ways.
func (k key) env() string { return envPrefix + strings.ToUpper(strings.ReplaceAll(k.path, ".", "_")) }

// flag is the long flag of the key, without its dashes.
func (k key) flag() string { return strings.NewReplacer(".", "-", "_", "-").Replace(k.path) }

// keys are the leaves in the order of the schema.
var keys = leaves(schema, "")

func leaves(r rule, at string) []key {
	var out []key
	for _, f := range r.fields {
		here := join(at, f.name)
		if f.kind == table {
			out = append(out, leaves(f, here)...)
		} else {
			out = append(out, key{rule: f, path: here})
		}
	}
	return out
}

func join(at, name string) string {
	if at == "" {
		return name
	}
	return at + "." + name
}
