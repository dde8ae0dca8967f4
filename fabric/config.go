package fabric

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/clock"
	"fleetd/fabric/envelope"
	"fleetd/fault"
)

// Config is what a user decides about the fabric.
type Config struct {
	Host      string        // our host id
	URI       string        // amqp:// or amqps://, with the gateway's own login
	Heartbeat time.Duration // 0 is DefaultHeartbeat
	TLS       TLS
	Prefix    string // of exchange and queue names; see Names
	Limits    envelope.Limits
	PerPair   int // messages of one sender to one recipient in a minute, twice of which are taken; 0: no bound
}

// TLS names the PEM files for an amqps URI; all are optional.
type TLS struct {
	CA, Cert, Key string
	ServerName    string // expected of the broker instead of the URI's host
}

func (t TLS) set() bool { return t != TLS{} }

// DefaultHeartbeat makes a dead peer known within 15 s (broker fact §3).
const DefaultHeartbeat = 5 * time.Second

// Owner knows the entities of this host.
type Owner interface {
	// Owns reports whether gid is a live local entity.
	Owns(gid string) bool
	// Member reports whether the local entity gid is in group.
	Member(gid, group string) bool
}

// Homes knows on which host every gid lives (design §4).
type Homes interface {
	Home(gid string) (host string, known bool)
	// Live reports whether host is heard at present.
	Live(host string) bool
	// Solicit asks host for its full announcement; it must not block. Once
	// that came, and whenever host is heard again, call Fabric.Heard.
	Solicit(host string)
}

// Noted knows what the outbox noted when it sent.
type Noted interface {
	// RecipientHost returns the host that gid lived on when msgID was sent to
	// it; ok is false if no such sending is known.
	RecipientHost(msgID, gid string) (host string, ok bool)
}

// Deps is what the fabric needs of the rest of the gateway. Callbacks run one
// at a time per queue, on the goroutine that reads it: they return soon and do
// not call Attach, Detach or More.
type Deps struct {
	Log   hclog.Logger
	Key   ed25519.PrivateKey // signs the probe; its public half is always trusted for our host
	Trust envelope.Trust
	Homes Homes
	Noted Noted
	Owner Owner

	// Known reports whether a message with the id and body of env was taken
	// before, by this recipient. Such a duplicate is handed on without being
	// verified anew (design §4): nobody may believe its other headers. May be nil.
	Known func(gid string, env *envelope.Envelope) bool

	// Steady reports whether the wall clock may end the lives of messages that
	// wait here: not after it jumped. Nil: always.
	Steady func() bool

	// Sync gets the roster up to date after the roster queue is bound and
	// before the state becomes connected; ctx ends after 5 s. May be nil.
	Sync func(ctx context.Context) error

	OnSignal func(*envelope.Envelope)
	// OnPresence takes presence; what it returns refused is counted and logged.
	OnPresence func(*envelope.Envelope) error
	// OnControl takes a control message: it returns nil when what it needs is
	// committed, and the message is acked; an error gives it back to the
	// broker. Nil: control messages are counted and acked.
	OnControl func(*envelope.Envelope) error
	// OnDeadLetter gets each dead letter that carries our own signature. queue
	// and reason are the broker's words: a hint, never proof (design §6). It is
	// acked when nil is returned, else it comes again. Unlike the other
	// callbacks it may take its time.
	OnDeadLetter func(env *envelope.Envelope, queue, reason string) error
	// OnInbox is told of each change of an inbox's state, in order. May be nil.
	OnInbox func(gid string, s InboxStatus)
	// RefusedBrief is told of a brief that was refused although its signature,
	// place and home are good; the gateway sends FAILED(code). May be nil.
	RefusedBrief func(env *envelope.Envelope, code fault.Code)

	Now  func() time.Time // wall clock; nil is time.Now
	Word func() string    // a random word of [a-z0-9]; nil draws 8 letters
}

// New makes a Fabric; nothing is dialled before Run.
func New(cfg Config, deps Deps) (*Fabric, error) {
	if !envelope.ValidHost(cfg.Host) {
		return nil, fault.New(fault.BadRequest, "host id %q is not of the form [a-z0-9][a-z0-9-]{0,62}; set `host`", cfg.Host)
	}
	cfg.Heartbeat = cmp.Or(cfg.Heartbeat, DefaultHeartbeat)
	if len(cfg.Prefix) > maxPrefix || strings.HasPrefix(cfg.Prefix, "amq.") {
		return nil, fault.New(fault.BadRequest, "broker.prefix must have at most %d bytes and not begin with amq.", maxPrefix)
	}
	d, err := newDialer(cfg)
	if err != nil {
		return nil, err
	}
	if deps.Trust == nil || deps.Homes == nil || deps.Noted == nil || deps.Owner == nil || len(deps.Key) != ed25519.PrivateKeySize {
		return nil, fault.New(fault.Internal, "the fabric needs a key, Trust, Homes, Noted and Owner; one is missing")
	}
	if deps.Steady == nil {
		deps.Steady = func() bool { return true }
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	if deps.Word == nil {
		deps.Word = func() string { return strings.ToLower(rand.Text()[:8]) }
	}
	if deps.Log == nil {
		deps.Log = hclog.NewNullLogger()
	}
	f := &Fabric{
		cfg: cfg, deps: deps, log: deps.Log, dialer: d, names: Names{Prefix: cfg.Prefix},
		inboxCap: InboxCap, confirmWait: confirmWait, inboxes: map[string]*inbox{},
		state: State{Phase: Connecting, Reason: "not started", Since: deps.Now()},
		claim: Claim{Status: ClaimNone, Since: deps.Now()},
		heard: map[string]uint64{}, stats: newStats(), changed: make(chan struct{}, 1),
		browsing: make(chan struct{}, 1), browseBound: browseBound, loadBytes: loadBytes, lookEvery: lookEvery, solicitWait: solicitWait,
		refusedFor: refusedBeats * cfg.Heartbeat,
	}
	f.lavin = lavin
	f.uptime = clock.Uptime()
	f.verifier = &verifier{
		host: cfg.Host, now: deps.Now, trust: ownTrust{deps.Trust, cfg.Host, publicOf(deps.Key)},
		homes: deps.Homes, noted: deps.Noted, owner: deps.Owner,
	}
	f.refusals = newRefusals(f)
	return f, nil
}

const maxPrefix = 64

// ownTrust adds our own key: our own host is trusted (design §4, step 1).
type ownTrust struct {
	envelope.Trust
	host string
	key  ed25519.PublicKey
}

func (t ownTrust) Keys(host string) []ed25519.PublicKey {
	keys := t.Trust.Keys(host)
	if host == t.host {
		keys = append(keys[:len(keys):len(keys)], t.key)
	}
	return keys
}

func publicOf(key ed25519.PrivateKey) ed25519.PublicKey { return key.Public().(ed25519.PublicKey) }

// login is the user that the broker knows us by; "" where a certificate says
// it, since a wrong user_id closes the channel (broker fact §10).
func (f *Fabric) login() string {
	for _, mechanism := range f.dialer.uri.AuthMechanism {
		if strings.EqualFold(mechanism, "external") {
			return ""
		}
	}
	return f.dialer.uri.Username
}

// Names are the names of the exchanges and queues this fabric uses.
func (f *Fabric) Names() Names { return f.names }

// lavin reports whether the broker at the other end is LavinMQ, which differs
// in ways that its replies do not show (broker facts §2, §7).
func lavin(conn *amqp.Connection) bool {
	product, _ := conn.Properties["product"].(string)
	return product == "LavinMQ"
}

// brand is what the broker at the other end calls itself, with its version.
func brand(conn *amqp.Connection) string {
	product, _ := conn.Properties["product"].(string)
	version, _ := conn.Properties["version"].(string)
	return strings.TrimSpace(short(product) + " " + short(version))
}

// Brand is what the broker calls itself, with its version; "" while there is no
// link.
func (f *Fabric) Brand() string {
	s, err := f.session()
	if err != nil {
		return ""
	}
	return brand(s.con.Connection)
}

// Check returns what of cfg's URI and TLS files would keep New from making a
// Fabric; nothing is dialled.
func Check(cfg Config) error {
	_, err := newDialer(cfg)
	return err
}

// Visit connects to the broker as a gateway with cfg does, changes nothing, and
// hangs up. It returns the broker's Brand. Errors never hold the password.
func Visit(ctx context.Context, cfg Config) (string, error) {
	cfg.Heartbeat = cmp.Or(cfg.Heartbeat, DefaultHeartbeat)
	d, err := newDialer(cfg)
	if err != nil {
		return "", err
	}
	c, err := d.dial(ctx, "bridged "+cfg.Host+" doctor")
	if err != nil {
		return "", err
	}
	defer c.end()
	return brand(c.Connection), nil
}
