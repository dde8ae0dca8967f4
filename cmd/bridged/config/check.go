package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/hashicorp/go-hclog"
	amqp "github.com/rabbitmq/amqp091-go"
)

// Each check returns what is wrong with a value and what to write, as the end
// of a sentence that begins with the key; "" if nothing is.

var (
	hostPattern   = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)
	namePattern   = regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}$`)
	prefixPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,31}$`)
	envPattern    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

func checkHost(s string) string {
	if hostPattern.MatchString(s) {
		return ""
	}
	return fmt.Sprintf("%s is not a host id; write 1 to 63 lower-case letters, digits and dashes that begin with a letter or digit, as in hosta", quote(s))
}

func checkName(s string) string {
	switch {
	case s == "all":
		return `"all" is reserved for broadcasts; write another name`
	case !namePattern.MatchString(s):
		return fmt.Sprintf("%s is not a name; write 1 to 63 lower-case letters, digits and dashes that begin with a letter", quote(s))
	}
	return ""
}

func checkPrefix(s string) string {
	if prefixPattern.MatchString(s) {
		return ""
	}
	return fmt.Sprintf("%s is not a prefix; write 1 to 32 lower-case letters, digits, dots, dashes and underscores that begin with a letter or digit, as in lab.", quote(s))
}

func checkVerb(s string) string {
	switch s {
	case VerbSend, VerbSpawn, VerbStop:
		return ""
	}
	return fmt.Sprintf("%s is not known; write send, spawn or stop", quote(s))
}

func checkLevel(s string) string {
	if hclog.LevelFromString(s) != hclog.NoLevel {
		return ""
	}
	return fmt.Sprintf("%s is not a level; write trace, debug, info, warn, error or off", quote(s))
}

func checkEnvName(s string) string {
	if envPattern.MatchString(s) {
		return ""
	}
	return fmt.Sprintf("%s is not the name of a variable; write letters, digits and underscores, as in API_URL", quote(s))
}

func checkArg(s string) string {
	if strings.ContainsRune(s, 0) {
		return "no program can be given a zero byte; leave it out"
	}
	return ""
}

// checkListen keeps the port on this machine: whoever reaches it may be taken
// for the default main (design §11, §13).
func checkListen(s string) string {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Sprintf("%s is not HOST:PORT; write 127.0.0.1:8765", quote(s))
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || strings.HasPrefix(port, "+") {
		return fmt.Sprintf("%s has no port from 1 to 65535 (0: any free one); write 127.0.0.1:8765", quote(s))
	} else if addr, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !addr.IsLoopback()) {
		return fmt.Sprintf("%s can be reached from other machines, and MCP is served to this one only; write 127.0.0.1:%d (agents elsewhere use the gateway of their own host)", quote(s), n)
	}
	return ""
}

// checkURI says nothing of what it read: parse errors quote parts of the URI,
// and a part of it is the password.
func checkURI(s string) string {
	const write = "; write amqps://user:password@broker:5671/ (percent-encode / ? # @ : and blanks in the password)"
	parsed, err := url.Parse(s)
	if err != nil {
		return "is not a URI that can be read" + write
	}
	if parsed.Scheme != "amqp" && parsed.Scheme != "amqps" {
		return "is not an AMQP URI" + write
	}
	if parsed.Hostname() == "" {
		return "names no host" + write
	}
	if _, err := amqp.ParseURI(s); err != nil {
		return "is not an AMQP URI that the broker library can read" + write
	}
	return ""
}
