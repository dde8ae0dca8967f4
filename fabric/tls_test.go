package fabric

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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

// Fails if amqps does not connect with the configured CA, or connects to a
// broker whose name or authority is another.
func TestTLSConnectsOnlyToTheRightBroker(t *testing.T) {
	t.Attr("threat", "B7")
	ours, others := newAuthority(t, "ours"), newAuthority(t, "others")
	ours.issue("broker", &x509.Certificate{
		Subject: pkix.Name{CommonName: "broker"}, DNSNames: []string{"broker.test"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	ours.issue("client", &x509.Certificate{
		Subject: pkix.Name{CommonName: "hosta"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	node := rabbit.Private(t, rabbit.TLS(ours.path("ca.pem"), ours.path("broker.pem"), ours.path("broker.key")))
	fl := newFleet(t, "")
	good := TLS{CA: ours.path("ca.pem"), Cert: ours.path("client.pem"), Key: ours.path("client.key"), ServerName: "broker.test"}
	with := func(host string, c TLS) *gateway {
		return fl.gateway(host, func(cfg *Config, _ *Deps) { cfg.URI, cfg.TLS = "amqps://guest:guest@"+node.TLSAddr+"/", c }).run()
	}
	with("hosta", good).await(Connected)
	wrongName, wrongCA := good, good
	wrongName.ServerName, wrongCA.CA = "other.test", others.path("ca.pem")
	for host, c := range map[string]TLS{"hostb": wrongName, "hostc": wrongCA} {
		g := with(host, c)
		eventually(t, "refused", func() bool {
			return strings.Contains(g.State().Reason, "x509") || strings.Contains(g.State().Reason, "certificate")
		})
	}
}
