// Package config is what the daemon and its command line are told: one struct,
// its defaults, and the layers that fill it (defaults, file, environment,
// flags; design §11).
//
// It decides what a value may be and says in one sentence what to write
// instead. It opens nothing but the configuration file: whether a socket
// answers or a certificate can be read is for those who use it.
package config

import (
	"net/url"
	"path/filepath"
	"sort"
	"strings"
	"time"
)

// Config is the whole configuration. All paths are absolute.
type Config struct {
	Host     string             `koanf:"host"`      // host id (design §1)
	Listen   string             `koanf:"listen"`    // loopback HOST:PORT of MCP, REST and metrics
	DataDir  string             `koanf:"data_dir"`  // store, key and socket
	Socket   string             `koanf:"socket"`    // the daemon's local API
	TrustDir string             `koanf:"trust_dir"` // <host>.pub, one per trusted gateway
	Broker   Broker             `koanf:"broker"`
	Herdr    Herdr              `koanf:"herdr"`
	MCP      MCP                `koanf:"mcp"`
	Profiles map[string]Profile `koanf:"profiles"`
	Control  Control            `koanf:"control"`
	Limits   Limits             `koanf:"limits"`
	Inject   Inject             `koanf:"inject"`
	Log      Log                `koanf:"log"`

	// HostGiven is whether Host was said; else it comes from the hostname.
	HostGiven bool `koanf:"-"`
	// File is the configuration file that was read, "" if there was none.
	File string `koanf:"-"`
	// Warnings are sentences about what was accepted and should be changed.
	Warnings []string `koanf:"-"`
}

// Broker is the fabric between hosts. An empty URI means: this host alone.
type Broker struct {
	URI       URI           `koanf:"uri"`
	Prefix    string        `koanf:"prefix"`    // before the name of every exchange and queue
	Heartbeat time.Duration `koanf:"heartbeat"` // whole seconds
	TLS       TLS           `koanf:"tls"`
}

// TLS names PEM files for amqps; empty ones leave it to the system's roots and
// to the login of the URI.
type TLS struct {
	CA   string `koanf:"ca"`
	Cert string `koanf:"cert"`
	Key  string `koanf:"key"`
}

// Herdr is the terminal multiplexer of this host.
type Herdr struct {
	Socket string `koanf:"socket"`
}

// MCP is the last hop to MCP clients.
type MCP struct {
	// DefaultMain is the main that an unidentified loopback client is taken
	// for; "" takes none (design §11).
	DefaultMain string `koanf:"default_main"`
}

// Profile is one kind of agent that can be spawned here (design §9).
type Profile struct {
	Argv         []string      `koanf:"argv"`
	Cwd          string        `koanf:"cwd"`
	Env          Env           `koanf:"env"`
	Groups       []string      `koanf:"groups"`
	ReadyTimeout time.Duration `koanf:"ready_timeout"`
	Remote       bool          `koanf:"remote"` // other hosts may ask for it, if control.allow lets them
}

// The verbs of control.allow.
const (
	VerbSend  = "send"
	VerbSpawn = "spawn"
	VerbStop  = "stop"
)

// Control is what other hosts may ask of this one.
type Control struct {
	Allow map[string][]string `koanf:"allow"` // host id → verbs
}

// Allows reports whether host may do verb here: what its list says, and
// without a list send alone (design §11).
func (c Control) Allows(host, verb string) bool {
	verbs, listed := c.Allow[host]
	if !listed {
		return verb == VerbSend
	}
	for _, v := range verbs {
		if v == verb {
			return true
		}
	}
	return false
}

// Limits bound what is accepted from callers.
type Limits struct {
	ContentBytes int           `koanf:"content_bytes"`
	MaxTTL       time.Duration `koanf:"max_ttl"`
	PerPair      int           `koanf:"per_pair"` // messages of one entity to another in a minute; 0: no bound
}

// Inject is the last hop to panes.
type Inject struct {
	PasteBytes int `koanf:"paste_bytes"` // longer briefs are announced (design §6)
}

// Log is the daemon's own log, on standard error.
type Log struct {
	Level string `koanf:"level"` // trace, debug, info, warn, error or off
	JSON  bool   `koanf:"json"`
}

// StorePath is the one file of the store.
func (c Config) StorePath() string { return filepath.Join(c.DataDir, "bridged.db") }

// KeyPath is the private key of this gateway.
func (c Config) KeyPath() string { return filepath.Join(c.DataDir, "gateway.key") }

// URI is a broker URI. It prints and marshals without its password, so that no
// log can hold it by accident; Secret is the whole.
type URI string

// Secret returns the URI with its password.
func (u URI) Secret() string { return string(u) }

// String returns the URI with its password made "xxxxx".
func (u URI) String() string {
	if u == "" {
		return ""
	}
	parsed, err := url.Parse(string(u))
	if err != nil {
		return "(a URI that cannot be read)"
	}
	return parsed.Redacted()
}

// GoString is String, for %#v.
func (u URI) GoString() string { return u.String() }

// MarshalText is String, for JSON logs.
func (u URI) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// Env is the environment of a profile. It prints and marshals as names only,
// because such values are often keys to something.
type Env map[string]string

// String returns the names, sorted.
func (e Env) String() string {
	names := make([]string, 0, len(e))
	for name := range e {
		names = append(names, name+"=…")
	}
	sort.Strings(names)
	return "{" + strings.Join(names, " ") + "}"
}

// GoString is String, for %#v.
func (e Env) GoString() string { return e.String() }

// MarshalText is String, for JSON logs.
func (e Env) MarshalText() ([]byte, error) { return []byte(e.String()), nil }
