package fabric

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fault"
)

const (
	// handshakeWait bounds a dial up to the open connection.
	handshakeWait = 10 * time.Second
	// writeWait bounds each write: without it a publish into a frozen broker
	// hangs for good, and so does closing (broker fact §12).
	writeWait = 3 * time.Second
	// closeWait bounds the polite end of a connection.
	closeWait = time.Second
)

type dialer struct {
	uri       amqp.URI
	text      string // the URI with its password: never in an error or a log
	heartbeat time.Duration
	tls       *tls.Config // nil: without encryption
}

// newDialer checks everything that a retry would not cure. Errors of the URI
// parser quote the URI and with it the password, so none is passed on.
func newDialer(cfg Config) (*dialer, error) {
	uri, err := amqp.ParseURI(cfg.URI)
	if err != nil {
		return nil, fault.New(fault.BadRequest, "broker.uri is not a valid amqp:// or amqps:// URI; escape special characters of the password (%%40 for @, %%2F for /)")
	}
	if cfg.TLS.set() && uri.Scheme != "amqps" {
		return nil, fault.New(fault.BadRequest, "broker.tls is set but broker.uri is not amqps://; change the scheme, or remove broker.tls to connect without encryption")
	}
	d := &dialer{uri: uri, text: cfg.URI, heartbeat: cfg.Heartbeat}
	if uri.Scheme != "amqps" {
		return d, nil
	}
	// We encrypt, not the library, to see what the broker says before it does.
	if d.text, err = plainly(cfg.URI); err != nil {
		return nil, err
	}
	how := cfg.TLS
	if !how.set() {
		how = TLS{CA: uri.CACertFile, Cert: uri.CertFile, Key: uri.KeyFile, ServerName: uri.ServerName}
	}
	if d.tls, err = tlsConfig(how, uri.Host); err != nil {
		return nil, err
	}
	return d, nil
}

// plainly is an amqps:// URI as amqp://.
func plainly(uri string) (string, error) {
	_, rest, ok := strings.Cut(uri, "://")
	if !ok {
		return "", fault.New(fault.BadRequest, "broker.uri is not a valid amqp:// or amqps:// URI")
	}
	return "amqp://" + rest, nil
}

// Client is what a client of the broker goes by that speaks another protocol
// than AMQP, as HTTPS; the name it expects is for that one to say.
func (t TLS) Client() (*tls.Config, error) { return tlsConfig(t, "") }

func tlsConfig(t TLS, host string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
	if t.ServerName != "" {
		c.ServerName = t.ServerName
	}
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fault.Wrap(err, fault.BadRequest, "broker.tls.ca cannot be read; correct its name or its rights")
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fault.New(fault.BadRequest, "broker.tls.ca %s holds no PEM certificate; name the file that the broker's CA certificate is in", t.CA)
		}
	}
	if (t.Cert == "") != (t.Key == "") {
		return nil, fault.New(fault.BadRequest, "broker.tls.cert and broker.tls.key go together; set both or none")
	}
	if t.Cert != "" {
		if info, err := os.Stat(t.Key); err == nil && info.Mode().Perm()&0o027 != 0 {
			return nil, fault.New(fault.NotAllowed, "broker.tls.key %s has mode %04o, so that others may use it; make sure nobody did and run: chmod 0600 %s", t.Key, info.Mode().Perm(), t.Key)
		}
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fault.Wrap(err, fault.BadRequest, "broker.tls.cert and broker.tls.key cannot be loaded; correct their names or their rights")
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// where names the broker without the login.
func (d *dialer) where() string {
	return fmt.Sprintf("%s://%s", d.uri.Scheme, net.JoinHostPort(d.uri.Host, fmt.Sprint(d.uri.Port)))
}

// connection is a broker connection that can be ended for certain.
type connection struct {
	*amqp.Connection
	raw net.Conn
}

// dial opens a connection that the broker's tools show under name.
func (d *dialer) dial(ctx context.Context, name string) (*connection, error) {
	props := amqp.NewConnectionProperties()
	props.SetClientConnectionName(name)
	var raw net.Conn
	var in *legible
	var stop func() bool
	cfg := amqp.Config{Heartbeat: d.heartbeat, Properties: props, Dial: func(network, _ string) (net.Conn, error) {
		nd := net.Dialer{Timeout: handshakeWait}
		c, err := nd.DialContext(ctx, network, net.JoinHostPort(d.uri.Host, fmt.Sprint(d.uri.Port)))
		if err != nil {
			return nil, err
		}
		raw = timedConn{c}
		stop = context.AfterFunc(ctx, func() { _ = c.Close() })              // ends the handshake
		if err := c.SetDeadline(time.Now().Add(handshakeWait)); err != nil { // the library clears it
			return nil, err
		}
		if d.tls == nil {
			in = newLegible(raw)
			return in, nil
		}
		secret := tls.Client(raw, d.tls.Clone())
		if err := secret.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		in = newLegible(secret)
		return in, nil
	}}
	conn, err := amqp.DialConfig(d.text, cfg)
	cut := stop != nil && !stop()
	if err == nil && !cut {
		return &connection{Connection: conn, raw: raw}, nil
	}
	if raw != nil {
		_ = raw.Close()
	}
	if cut {
		return nil, context.Cause(ctx)
	}
	if in != nil {
		err = in.why(err)
	}
	return nil, fmt.Errorf("connect to %s: %w", d.where(), d.scrub(err))
}

// scrub makes sure of the rule that no error shows the password. A refusal of
// the broker keeps its code.
func (d *dialer) scrub(err error) error {
	if d.uri.Password == "" || d.uri.Password == "guest" {
		return err
	}
	hide := func(s string) string { return strings.ReplaceAll(s, d.uri.Password, "***") }
	if refusal, ok := errors.AsType[*amqp.Error](err); ok {
		return &amqp.Error{Code: refusal.Code, Reason: hide(refusal.Reason), Server: refusal.Server, Recover: refusal.Recover}
	}
	return errors.New(hide(err.Error()))
}

// end closes the connection politely if it can and by force if not.
func (c *connection) end() {
	_ = c.CloseDeadline(time.Now().Add(closeWait)) // it may be broken; that is why the next line follows
	_ = c.raw.Close()
}

// timedConn gives every write a deadline of its own.
type timedConn struct{ net.Conn }

func (c timedConn) Write(p []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(writeWait)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}
