package doctor

import (
	"context"
	"fmt"
	"math"
	"strings"

	"fleetd/fabric"
	"fleetd/mcp"
)

// visit tries the broker's login while no daemon does.
func (p Patient) visit(ctx context.Context, r *report) {
	if p.Broker.URI == "" {
		r.alone()
		return
	}
	if err := fabric.Check(p.Broker); err != nil {
		r.fault("broker", err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, portWait)
	defer cancel()
	brand, err := fabric.Visit(ctx, p.Broker)
	if err != nil {
		why := err.Error()
		if timeout(err) {
			why = "timeout"
		}
		r.add(Fail, "broker", fmt.Sprintf("the broker cannot be used: %s", why), cure(why))
		return
	}
	r.add(OK, "broker", fmt.Sprintf("the broker takes the login of broker.uri (%s)", brand), "")
}

func (r *report) alone() {
	r.add(OK, "broker", "broker.uri is not set: this host alone", "other hosts: docs/broker.md")
}

// brokerCures are for what a link that does not come up says, the first that
// fits. The text comes from the broker, the system or the AMQP library, and from
// the daemon it comes as text alone.
var brokerCures = []struct{ sign, next string }{
	{"in use by another gateway", "two gateways have one host id: set another host on one of them"},
	{"blocks publishers", "free memory or disk on the broker's machine; it goes on by itself"},
	{"no access to this vhost", "give the login the rights of docs/broker.md, or correct the vhost of broker.uri"},
	{"username or password", "correct the login in broker.uri; / ? # @ : in a password are percent-encoded"},
	{"too few rights", "give the login the rights of docs/broker.md"},
	{"access to", "give the login the rights of docs/broker.md"},
	{"x509", "see broker.tls.ca, and that the broker's certificate names the host of broker.uri (docs/broker.md)"},
	{"speaks TLS", "correct broker.uri: amqps:// for this port"},
	{"does not look like a TLS handshake", "correct broker.uri: this port is plain; write the one that names the TLS port (5671), or amqp:// to go without encryption"},
	{"tls:", "see that broker.uri names the TLS port (5671) and broker.tls.cert what the broker wants (docs/broker.md)"},
	{"no such host", "correct the host in broker.uri"},
	{"refused", "start the broker, or correct host and port in broker.uri (amqps 5671, amqp 5672)"},
	{"timeout", "see that the broker runs, and that nothing between drops its port"},
	{"EOF", "see broker.uri: a TLS port (5671) takes amqps only"},
	{"for the first time", "it has just started: run this again in some seconds"},
	{"setting up", "run this again in some seconds"},
}

func cure(why string) string {
	for _, c := range brokerCures {
		if strings.Contains(why, c.sign) {
			return c.next
		}
	}
	return "it redials by itself; the daemon's log has more"
}

// link says how the daemon stands with the broker, and what else keeps it from
// being ready.
func (p Patient) link(r *report, d mcp.Diagnosis) {
	linked := d.Broker == string(fabric.Connected)
	switch {
	case d.Broker == "none" && p.Broker.URI != "":
		r.add(Fail, "broker", "broker.uri is set, and the daemon runs without a broker", "restart the daemon")
	case d.Broker == "none":
		r.alone()
	case linked:
		r.add(OK, "broker", fmt.Sprintf("connected to %s", d.Brand), "")
	default:
		r.add(Fail, "broker", fmt.Sprintf("no link to the broker, %s: %s", d.Broker, d.Reason), cure(d.Reason))
	}
	if p.Broker.URI != "" {
		if err := fabric.Check(p.Broker); err != nil { // the daemon has read the files that are gone
			r.fault("broker", err)
			last := &(*r)[len(*r)-1]
			last.Level, last.What = Warn, "the daemon could not be started again: "+last.What
		}
	}
	for _, why := range d.NotReady {
		said := strings.HasPrefix(why, "broker ") || strings.HasPrefix(why, "herdr ") || d.Store != "" && strings.Contains(why, d.Store) ||
			strings.HasSuffix(why, " is "+string(fabric.InboxContested)) || strings.HasSuffix(why, " is "+string(fabric.InboxMismatched))
		if said { // by its own check
			continue
		}
		r.add(Fail, "daemon", "not ready: "+why, "run this again in some seconds; if it stays, see the daemon's log")
	}
	for _, note := range d.Notes {
		r.add(Warn, "broker", note, "see the rights of the login (docs/broker.md)")
	}
}

// How far another clock may be off, in seconds: from clockWarn on briefs live
// shorter or longer than asked, from clockFail on they are refused (design §4).
const (
	clockWarn = 5
	clockFail = 30
)

// peers says of every trusted host, and of those who want to be, whether each
// believes the other.
func (p Patient) peers(r *report, d mcp.Diagnosis) {
	if d.Broker == "none" {
		return
	}
	strange := map[string]bool{}
	for _, s := range d.Strangers {
		strange[s.Host] = true
		if s.Host == d.Host {
			r.add(Fail, "trust", "another gateway signs as "+s.Host+" with another key", "set another host on one of the two; or this data_dir is not the one that "+s.Host+" had")
		} else if !s.Trusted {
			// It may be so on purpose, as after `bridged keys revoke`.
			r.add(Warn, "trust", fmt.Sprintf("what comes as from %s is refused: no key of it is trusted here", s.Host),
				fmt.Sprintf("if it is one of yours: `bridged keys show > %s.pub` there, `bridged keys trust %s.pub` here", s.Host, s.Host))
		}
	}
	for _, peer := range d.Peers {
		p.peer(r, d, peer, strange[peer.Host])
	}
	if len(d.Peers) == 0 {
		r.add(Warn, "trust", "no other host is trusted", "bring each host's key to the others: bridged keys show, bridged keys trust")
	}
}

func (p Patient) peer(r *report, d mcp.Diagnosis, peer mcp.Peer, strange bool) {
	host := peer.Host
	switch {
	case strange && peer.Answered: // anybody with a login may use its name
		r.add(Warn, "trust", fmt.Sprintf("%s is online, and each believes the other; what else comes as from it is refused: its signature fits no key of it that is trusted here", host),
			"another gateway on this broker uses its name: give one of the two another host, or each fleet a vhost or broker.prefix of its own")
	case strange:
		r.add(Fail, "trust", fmt.Sprintf("what comes as from %s is refused: its signature fits no key of it that is trusted here", host),
			fmt.Sprintf("if it has a new key: `bridged keys show > %s.pub` there, `bridged keys trust --beside %s.pub` here", host, host))
	case d.Broker != string(fabric.Connected):
		r.add(Warn, "trust", fmt.Sprintf("%s is trusted; whether it trusts this host cannot be told without the broker", host), "")
	case peer.Asked && peer.Answered:
		r.add(OK, "trust", fmt.Sprintf("%s is online, and each believes the other", host), "")
	case peer.Asked && peer.Unreached:
		r.add(Warn, "trust", fmt.Sprintf("%s was heard lately and could not be asked just now", host), "run this again in some seconds")
	case peer.Asked:
		r.add(Fail, "trust", fmt.Sprintf("%s is online and does not answer this host: it does not trust its key, or not under the name %s, or is of an older version", host, d.Host),
			fmt.Sprintf("`bridged keys show > %s.pub` here, `bridged keys trust %s.pub` there, which says so if it knows the key under another name; its log says unknown_signer or bad_signature", d.Host, d.Host))
	case peer.State == "offline":
		r.add(Warn, "trust", fmt.Sprintf("%s is trusted and was stopped", host), "start bridged there")
	default:
		r.add(Warn, "trust", fmt.Sprintf("%s is trusted and not heard", host), "run `bridged doctor` there; broker and broker.prefix have to be the same")
	}
	off := math.Abs(peer.ClockOffset)
	if level := map[bool]string{false: Warn, true: Fail}[off >= clockFail]; off >= clockWarn {
		r.add(level, "clock", fmt.Sprintf("the clock of %s is %+.0f s off this host's", host, peer.ClockOffset), "set both by NTP: messages expire early or late, and from 30 s on are refused")
	}
}

// mail says what waits on the broker for a person.
func (p Patient) mail(r *report, d mcp.Diagnosis) {
	for _, q := range d.OldQueues {
		next := "move it: bridged migrate (docs/upgrade.md)"
		if q.Consumers > 0 {
			next = "stop the old daemon, which consumes it, then: bridged migrate (docs/upgrade.md)"
		}
		r.add(Warn, "mail", fmt.Sprintf("the queue %s of the old daemon holds %s", q.Queue, many(q.Messages, "message")), next)
	}
	if d.DeadLetters > 0 {
		r.add(Warn, "mail", fmt.Sprintf("on the broker, of all hosts: %s", many(d.DeadLetters, "dead letter")), "see them: bridged dlq list")
	}
}

func many(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}
