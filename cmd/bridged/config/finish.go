package config

import (
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxSocket is the longest path of a unix socket on Linux, in bytes.
const maxSocket = 107

// finisher fills in what depends on the machine and checks what no key can
// tell alone.
type finisher struct {
	merged
	src   Source
	env   map[string]string
	here  place
	found []problem
}

func (f *finisher) wrong(key, format string, args ...any) {
	f.found = append(f.found, problem{where: f.origin[key], key: key, says: fmt.Sprintf(format, args...)})
}

func (f *finisher) finish() (Config, []problem) {
	f.host()
	f.paths()
	f.password()
	f.tls()
	for name, p := range f.config.Profiles {
		if p.ReadyTimeout == 0 {
			p.ReadyTimeout = defaultReadyTimeout
			f.config.Profiles[name] = p
		}
	}
	f.warn()
	return f.config, f.found
}

func (f *finisher) host() {
	if f.config.HostGiven = f.config.Host != ""; f.config.HostGiven {
		return
	}
	name := f.src.Hostname
	if name == "" {
		got, err := os.Hostname()
		if err != nil {
			f.wrong("host", "the system tells no hostname (%v); write one, as in host: hosta", err)
			return
		}
		name = got
	}
	if f.config.Host = hostID(name); f.config.Host == "" {
		f.wrong("host", "nothing of the hostname %s can be used; write one, as in host: hosta", quote(name))
	}
}

func (f *finisher) paths() {
	if f.config.Herdr.Socket == "" {
		f.config.Herdr.Socket = herdrSocket(f.env)
	}
	for _, p := range []struct {
		key string
		at  *string
	}{
		{"data_dir", &f.config.DataDir}, {"trust_dir", &f.config.TrustDir}, {"herdr.socket", &f.config.Herdr.Socket},
	} {
		if *p.at == "" {
			f.wrong(p.key, "is empty; leave it out or write a path")
			continue
		}
		abs, says := f.here.path(*p.at) // defaults still have their ~
		if says != "" {
			f.wrong(p.key, "%s", says)
			continue
		}
		*p.at = abs.(string)
	}
	if f.config.Socket == "" {
		f.config.Socket = filepath.Join(f.config.DataDir, "bridged.sock")
	}
	if n := len(f.config.Socket); n > maxSocket {
		f.wrong("socket", "%s has %d bytes and a socket's path at most %d; write a shorter one", quote(f.config.Socket), n, maxSocket)
	}
}

// password refuses one on the command line: every user of the host can read it
// there, in the list of processes.
func (f *finisher) password() {
	uri, err := url.Parse(f.config.Broker.URI.Secret())
	if err != nil || !strings.HasPrefix(f.origin["broker.uri"], "--") {
		return
	}
	if _, has := uri.User.Password(); has {
		f.wrong("broker.uri", "has a password, and every user of this machine can read command lines (ps); write it into the configuration file, mode 600, or set BRIDGED_BROKER_URI")
	}
}

func (f *finisher) tls() {
	b := f.config.Broker
	given := ""
	for _, k := range []struct{ key, value string }{
		{"broker.tls.ca", b.TLS.CA}, {"broker.tls.cert", b.TLS.Cert}, {"broker.tls.key", b.TLS.Key},
	} {
		if k.value != "" && given == "" {
			given = k.key
		}
	}
	switch {
	case given != "" && strings.HasPrefix(b.URI.Secret(), "amqp:"):
		f.wrong(given, "is set, but broker.uri is amqp, which is not encrypted; write amqps://… or leave broker.tls out")
	case b.TLS.Cert != "" && b.TLS.Key == "":
		f.wrong("broker.tls.cert", "is set without broker.tls.key; write both or neither")
	case b.TLS.Key != "" && b.TLS.Cert == "":
		f.wrong("broker.tls.key", "is set without broker.tls.cert; write both or neither")
	}
}

// warn collects what a careful person would change (design §13).
func (f *finisher) warn() {
	say := func(format string, args ...any) {
		f.config.Warnings = append(f.config.Warnings, fmt.Sprintf(format, args...))
	}
	for name, p := range f.config.Profiles {
		if filepath.Base(p.Argv[0]) == "codex" && !slices.Contains(p.Argv, "--no-daemon") && p.Env["CODEX_HOME"] == "" {
			say("profiles.%s starts codex without --no-daemon: its MCP daemon keeps the identity of the first agent for all later ones; add --no-daemon to argv", name)
		}
	}
	uri, err := url.Parse(f.config.Broker.URI.Secret())
	if err != nil {
		return // reported already
	}
	if uri.Scheme == "amqp" && !loopback(uri.Hostname()) {
		say("broker.uri is amqp to another machine: login and messages cross the network in the clear; use amqps")
	}
	file := f.config.File
	if file == "" {
		return
	}
	info, err := os.Stat(file)
	if err != nil {
		return // it was readable a moment ago; nothing depends on its mode
	}
	mode := info.Mode().Perm()
	if _, has := uri.User.Password(); has && mode&0o004 != 0 && strings.HasPrefix(f.origin["broker.uri"], file+":") {
		say("%s holds the broker's password and can be read by every user (mode %04o); run chmod 600 %s", file, mode, file)
	}
	if mode&0o022 != 0 {
		say("%s can be changed by other users (mode %04o), and it names programs to start; run chmod go-w %s", file, mode, file)
	}
	if risk := rootsRisk(file, owner(info), os.Geteuid()); risk != "" {
		say("%s", risk)
	}
}

func loopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || (err == nil && addr.IsLoopback())
}
