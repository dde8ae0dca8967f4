package config

import (
	"strings"
	"testing"
)

const at = "BAD_REQUEST: the configuration cannot be used: HOME/.config/bridged/bridged.yaml:"

// Fault: a mistake in the file is accepted, or its report leaves out key, line
// or what to write.
func TestBadFile(t *testing.T) {
	for _, x := range []struct{ file, want string }{
		// unknown keys
		{"hots: a", at + "1:1: hots: there is no such key; the nearest is host"},
		{"\nbroker:\n  url: amqps://b/", at + "3:3: broker.url: there is no such key; the nearest is broker.uri"},
		{"uri: amqps://b/", at + "1:1: uri: there is no such key; the nearest is broker.uri"},
		{"default_main: main", at + "1:1: default_main: there is no such key; the nearest is mcp.default_main"},
		{"broker: {tls: {cacert: x}}", at + "1:16: broker.tls.cacert: there is no such key; the nearest is broker.tls.cert"},
		{"profiles: {a: {argv: [x], timeout: 5s}}", at + "1:27: profiles.a.timeout: there is no such key; the nearest is profiles.a.ready_timeout"},
		{"broker.uri: amqps://b/", at + "1:1: broker.uri: a key is not written with dots here; write broker: {uri: …}"},
		{"host: a\nhost: b", at + "2:1: host: is said twice; leave one of them out"},
		{"<<: {host: a}", at + "1:1: merge keys (<<) are not read here; write the keys out"},
		{"broker: {'amqps://u:s3cret@h/': 1}", at + "1:10: broker.(not shown): there is no such key; the nearest is broker.uri"},
		// wrong types
		{"host: [a]", at + "1:7: host: must be text and is a list; write hosta"},
		{"broker: amqps://u:s3cret@b/", at + "1:9: broker: must be a mapping and is text; write broker: {uri: amqps://user:password@broker:5671/}"},
		{"profiles: [a]", at + "1:11: profiles: must be a mapping and is a list; write {reviewer: {argv: [claude], cwd: /src/app}}"},
		{"profiles: {a: {argv: claude}}", at + "1:22: profiles.a.argv: must be a list and is text; write [claude, --flag]"},
		{"control: {allow: {hostb: send}}", at + "1:26: control.allow.hostb: must be a list and is text; write [send, spawn, stop]"},
		{"log: {json: yes}", at + `1:13: log.json: "yes" is not true or false`},
		{"limits: {content_bytes: 256KiB}", at + `1:25: limits.content_bytes: "256KiB" is not a whole number; write digits only, as in 262144`},
		{"limits: {content_bytes: 0}", at + "1:25: limits.content_bytes: 0 is out of range; write 1 to 16777216"},
		{"- host", at + "1:1: must be a mapping and is a list; write host: hosta"},
		// durations
		{"broker: {heartbeat: 5}", at + `1:21: broker.heartbeat: "5" is not a duration; write a number with its unit (ms, s, m, h), as in 5s`},
		{"broker: {heartbeat: 1500ms}", at + `1:21: broker.heartbeat: "1500ms" is not a multiple of 1s; write 5s`},
		{"broker: {heartbeat: 2m}", at + `1:21: broker.heartbeat: "2m" is out of range; write 1s to 1m`},
		{"limits: {max_ttl: 8d}", at + `1:19: limits.max_ttl: "8d" is not a duration; write a number with its unit (ms, s, m, h), as in 168h`},
		{"limits: {max_ttl: 169h}", at + `1:19: limits.max_ttl: "169h" is out of range; write 1s to 168h`},
		// values
		{"host: Host_A", at + `1:7: host: "Host_A" is not a host id; write 1 to 63 lower-case letters, digits and dashes that begin with a letter or digit, as in hosta`},
		{"mcp: {default_main: all}", at + `1:21: mcp.default_main: "all" is reserved for broadcasts; write another name`},
		{"mcp: {default_main: 1st}", at + `1:21: mcp.default_main: "1st" is not a name; write 1 to 63 lower-case letters, digits and dashes that begin with a letter`},
		{"broker: {prefix: 'a b'}", at + `1:18: broker.prefix: "a b" is not a prefix; write 1 to 32 lower-case letters, digits, dots, dashes and underscores that begin with a letter or digit, as in lab.`},
		{"log: {level: loud}", at + `1:14: log.level: "loud" is not a level; write trace, debug, info, warn, error or off`},
		{"control: {allow: {hostb: [kill]}}", at + `1:27: control.allow.hostb[0]: "kill" is not known; write send, spawn or stop`},
		{"control: {allow: {'*': [send]}}", at + `1:19: control.allow: "*" is not a host id; write 1 to 63 lower-case letters, digits and dashes that begin with a letter or digit, as in hosta`},
		{"profiles: {a: {cwd: /x}}", at + "1:15: profiles.a: argv is missing; write {argv: [claude], cwd: /src/app}"},
		{"profiles: {a: {argv: []}}", at + "1:22: profiles.a.argv: is empty; write [claude, --flag]"},
		{"profiles: {a: {argv: [x], groups: [" + strings.Repeat("g, ", 33) + "]}}", at + "1:35: profiles.a.groups: lists 33; write at most 32"},
		{"profiles: {a: }", at + "1:12: profiles.a: holds nothing; write {argv: [claude], cwd: /src/app}"},
		{"profiles: {a: {argv: [x, ]}, b: {argv: [~]}}", at + "1:41: profiles.b.argv[0]: holds nothing; write claude"},
		{"profiles: {a: {argv: [x], env: {'A B': 1}}}", at + `1:33: profiles.a.env: "A B" is not the name of a variable; write letters, digits and underscores, as in API_URL`},
		{"data_dir: ~bob/x", at + `1:11: data_dir: "~bob/x": only one's own ~ is known; write the path in full`},
		{"socket: /" + strings.Repeat("s", 107), at + `1:9: socket: "/` + strings.Repeat("s", 59) + `…" has 108 bytes and a socket's path at most 107; write a shorter one`},
		// listen
		{"listen: 8765", at + `1:9: listen: "8765" is not HOST:PORT; write 127.0.0.1:8765`},
		{"listen: 127.0.0.1:99999", at + `1:9: listen: "127.0.0.1:99999" has no port from 1 to 65535 (0: any free one); write 127.0.0.1:8765`},
		{"listen: 0.0.0.0:80", at + `1:9: listen: "0.0.0.0:80" can be reached from other machines, and MCP is served to this one only; write 127.0.0.1:80 (agents elsewhere use the gateway of their own host)`},
		{"listen: ':80'", at + `1:9: listen: ":80" can be reached from other machines, and MCP is served to this one only; write 127.0.0.1:80 (agents elsewhere use the gateway of their own host)`},
		{"listen: '[::]:80'", at + `1:9: listen: "[::]:80" can be reached from other machines, and MCP is served to this one only; write 127.0.0.1:80 (agents elsewhere use the gateway of their own host)`},
		// broker
		{"broker: {uri: 'https://u:s3cret@b/'}", at + "1:15: broker.uri: is not an AMQP URI; write amqps://user:password@broker:5671/ (percent-encode / ? # @ : and blanks in the password)"},
		{"broker: {uri: 'amqps://u:s3/cret@b/'}", at + "1:15: broker.uri: is not a URI that can be read; write amqps://user:password@broker:5671/ (percent-encode / ? # @ : and blanks in the password)"},
		{"broker: {uri: 'amqps:b'}", at + "1:15: broker.uri: names no host; write amqps://user:password@broker:5671/ (percent-encode / ? # @ : and blanks in the password)"},
		{"broker: {uri: 'amqps://u:p w@b/'}", at + "1:15: broker.uri: is not a URI that can be read; write amqps://user:password@broker:5671/ (percent-encode / ? # @ : and blanks in the password)"},
		{"broker: {uri: 'amqp://b/', tls: {ca: /x}}", at + "1:38: broker.tls.ca: is set, but broker.uri is amqp, which is not encrypted; write amqps://… or leave broker.tls out"},
		{"broker: {tls: {cert: /x}}", at + "1:22: broker.tls.cert: is set without broker.tls.key; write both or neither"},
		{"broker: {tls: {key: /x}}", at + "1:21: broker.tls.key: is set without broker.tls.cert; write both or neither"},
		// YAML itself
		{"host: a\n  b: [", at + "2: this is not YAML: mapping values are not allowed in this context"},
		{"host: a\n---\nhost: b", "BAD_REQUEST: the configuration cannot be used: HOME/.config/bridged/bridged.yaml: holds more than one YAML document; write one"},
	} {
		got := newBox(t, x.file).fails()
		if got != x.want {
			t.Errorf("%s\n got %s\nwant %s", x.file, got, x.want)
		}
		if strings.Contains(got, "s3") {
			t.Errorf("%s: the report holds the password", x.file)
		}
	}
}

// Fault: only the first of several mistakes is reported.
func TestAllMistakesAtOnce(t *testing.T) {
	got := newBox(t, "host: A\nlisten: x\n").env("BRIDGED_LOG_JSON=1").flags("inject.paste_bytes", "-1").fails()
	want := `BAD_REQUEST: the configuration cannot be used, 4 things are wrong:
  HOME/.config/bridged/bridged.yaml:1:7: host: "A" is not a host id; write 1 to 63 lower-case letters, digits and dashes that begin with a letter or digit, as in hosta
  HOME/.config/bridged/bridged.yaml:2:9: listen: "x" is not HOST:PORT; write 127.0.0.1:8765
  $BRIDGED_LOG_JSON: log.json: "1" is not true or false
  --inject-paste-bytes: inject.paste_bytes: -1 is out of range; write 256 to 65536`
	if got != want {
		t.Fatalf("got %s", got)
	}
}

// Fault: a slip in a variable's name is passed over in silence.
func TestBadVariables(t *testing.T) {
	for _, x := range []struct{ env, want string }{
		{"BRIDGED_BROKER_URL=amqps://u:s3cret@b/", "$BRIDGED_BROKER_URL: there is no such variable; the nearest is BRIDGED_BROKER_URI"},
		{"BRIDGED_DEFAULT_MAIN=x", "$BRIDGED_DEFAULT_MAIN: there is no such variable; the nearest is BRIDGED_MCP_DEFAULT_MAIN"},
		{"BRIDGED_TOKENS=s3cret", "$BRIDGED_TOKENS: there is no such variable; the nearest is BRIDGED_TOKEN"},
		{"BRIDGED_BROKER_URI=s3cret", "$BRIDGED_BROKER_URI: broker.uri: is not an AMQP URI; write amqps://user:password@broker:5671/ (percent-encode / ? # @ : and blanks in the password)"},
		{"BRIDGED_PROFILES={", "$BRIDGED_PROFILES: profiles: is not YAML that can be read; write {reviewer: {argv: [claude], cwd: /src/app}}"},
		{"BRIDGED_PROFILES={a: {argv: [x], en: {}}}", "$BRIDGED_PROFILES: profiles.a.en: there is no such key; the nearest is profiles.a.env"},
	} {
		got := newBox(t, "").env(x.env).fails()
		if got != "BAD_REQUEST: the configuration cannot be used: "+x.want {
			t.Errorf("%s\n got %s\nwant %s", x.env, got, x.want)
		}
	}
	newBox(t, "").env("BRIDGED_TOKEN=t", "BRIDGED_URL=u", "BRIDGED_AS=main", "BRIDGED_TEST_ANY=1", "BRIDGED=1", "OTHER=2").load()
}

// Fault: a daemon without a home writes into a directory named "~".
func TestWithoutHome(t *testing.T) {
	b := newBox(t, "")
	b.src.Environ = nil
	got := b.fails()
	if !strings.Contains(got, `data_dir: "~/.local/state/bridged" needs HOME, which is not set; set it or write a path that begins with /`) {
		t.Error(got)
	}
	b.flags("data_dir", "/var/lib/bridged").flags("trust_dir", "/etc/bridged/trust")
	if c := b.load(); c.Socket != "/var/lib/bridged/bridged.sock" || c.Herdr.Socket != "/tmp/herdr/herdr.sock" {
		t.Errorf("%s %s", c.Socket, c.Herdr.Socket)
	}
}
