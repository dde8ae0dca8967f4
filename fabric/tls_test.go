package fabric

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"fleetd/fault"
	"fleetd/test/rabbit"
)

// authority makes certificates in a directory of the test.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.issue("ca", &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	return a
}

func (a *authority) issue(file string, c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := c, key
	if a.cert != nil {
		parent, signer = a.cert, a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	text, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	a.write(file+".pem", "CERTIFICATE", der)
	a.write(file+".key", "PRIVATE KEY", text)
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

func (a *authority) write(file, kind string, der []byte) {
	if err := os.WriteFile(a.path(file), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
}

func (a *authority) path(file string) string { return filepath.Join(a.dir, file) }

// Fails if amqps does not connect with the configured CA and certificate, if it
// connects to a broker whose name or authority is another, if a broker that
// wants certificates takes a gateway that has none, or one of another authority,
// or if nothing says that a port is the one with TLS, or the one without.
func TestTLSConnectsOnlyToTheRightBroker(t *testing.T) {
	t.Attr("threat", "B7")
	ours, others := newAuthority(t, "ours"), newAuthority(t, "others")
	ours.issue("broker", &x509.Certificate{
		Subject: pkix.Name{CommonName: "broker"}, DNSNames: []string{"broker.test"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	for _, a := range []*authority{ours, others} {
		a.issue("client", &x509.Certificate{
			Subject: pkix.Name{CommonName: "hosta"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		})
	}
	node := rabbit.Private(t, rabbit.TLS(ours.path("ca.pem"), ours.path("broker.pem"), ours.path("broker.key")), rabbit.ClientCertificates())
	fl := newFleet(t, "")
	with := func(host string, change func(*TLS)) *gateway {
		c := TLS{CA: ours.path("ca.pem"), Cert: ours.path("client.pem"), Key: ours.path("client.key"), ServerName: "broker.test"}
		change(&c)
		return fl.gateway(host, func(cfg *Config, _ *Deps) { cfg.URI, cfg.TLS = "amqps://guest:guest@"+node.TLSAddr+"/", c }).run()
	}
	with("hosta", func(*TLS) {}).await(Connected)
	for host, change := range map[string]func(*TLS){
		"other-name":        func(c *TLS) { c.ServerName = "other.test" },
		"name-of-the-uri":   func(c *TLS) { c.ServerName = "" }, // 127.0.0.1, which the certificate does not name
		"other-ca":          func(c *TLS) { c.CA = others.path("ca.pem") },
		"the-systems-ca":    func(c *TLS) { c.CA = "" },
		"no-certificate":    func(c *TLS) { c.Cert, c.Key = "", "" },
		"other-certificate": func(c *TLS) { c.Cert, c.Key = others.path("client.pem"), others.path("client.key") },
	} {
		g := with(host, change)
		eventually(t, host+" refused", func() bool {
			reason := g.State().Reason
			return strings.Contains(reason, "x509") || strings.Contains(reason, "certificate")
		})
		if g.State().Phase == Connected {
			t.Errorf("%s is connected", host)
		}
	}
	// amqp:// written for amqps://, or the port of the one for that of the other.
	for uri, want := range map[string]string{
		"amqp://guest:guest@" + node.TLSAddr + "/":          "its port speaks TLS",
		strings.Replace(node.URI, "amqp://", "amqps://", 1): "first record does not look like a TLS handshake",
	} {
		if _, err := Visit(t.Context(), Config{Host: "hosta", URI: uri}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s came to %v, want %q", uri, err, want)
		}
	}
}

// Whoever sits on the broker's port and does not speak TLS hears nothing. Fails
// if a byte of AMQP, or the login, is sent to him, however often it is tried.
func TestAmqpsNeverTurnsIntoPlain(t *testing.T) {
	t.Attr("threat", "B7")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	heard := make(chan []byte, 64)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				_, _ = c.Write([]byte("AMQP\x00\x00\x09\x01")) // what a plain broker says to a client it does not like
				buf := make([]byte, 4096)
				n, _ := c.Read(buf)
				select {
				case heard <- buf[:n]:
				default:
				}
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	fl := newFleet(t, "")
	g := fl.gateway("hosta", func(cfg *Config, _ *Deps) { cfg.URI = "amqps://hosta:hunter2@" + l.Addr().String() + "/" }).run()
	for range 3 {
		const handshake = 22 // the type of the first TLS record
		if b := got(t, "a try", heard); len(b) > 0 && b[0] != handshake || bytes.Contains(b, []byte("hunter2")) || bytes.Contains(b, []byte("AMQP")) {
			t.Errorf("it was sent %q", b)
		}
	}
	if s := g.State(); s.Phase == Connected || strings.Contains(s.Reason, "hunter2") {
		t.Errorf("the state is %+v", s)
	}
	g.stop()
}

// Fails if a private key that others can read is used for the connection, or
// the refusal does not say how to mend it.
func TestTheCertificatesKeyIsPrivate(t *testing.T) {
	t.Attr("threat", "U1")
	a := newAuthority(t, "ours")
	a.issue("client", &x509.Certificate{Subject: pkix.Name{CommonName: "hosta"}})
	if err := os.Chmod(a.path("client.key"), 0o644); err != nil {
		t.Fatal(err)
	}
	c := TLS{Cert: a.path("client.pem"), Key: a.path("client.key")}
	if _, err := tlsConfig(c, "broker"); !fault.Is(err, fault.NotAllowed) || !strings.Contains(err.Error(), "chmod") {
		t.Errorf("it reads %v", err)
	}
	if err := os.Chmod(a.path("client.key"), 0o640); err != nil { // for a group of those who may, as distributions have it
		t.Fatal(err)
	}
	if _, err := tlsConfig(c, "broker"); err != nil {
		t.Errorf("it reads %v", err)
	}
}
