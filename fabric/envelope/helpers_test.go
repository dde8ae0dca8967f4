package envelope

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"
)

const (
	gidA  = "0197b1c2-7a00-7000-8000-00000000000a"
	gidB  = "0197b1c2-7a00-7000-8000-00000000000b"
	msg1  = "0197b1c2-7a01-7000-8000-000000000001"
	trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	sent  = 1790000000000
)

// key is the signing key of hosta in tests.
var key = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, ed25519.SeedSize))

// trusting maps a host to the keys it is trusted with.
type trusting map[string][]ed25519.PublicKey

func (t trusting) Keys(host string) []ed25519.PublicKey { return t[host] }

func public(key ed25519.PrivateKey) ed25519.PublicKey { return key.Public().(ed25519.PublicKey) }

var trustA = trusting{"hosta": {public(key)}}

// brief is an ordinary unsigned SEND from hosta.
func brief() *Envelope {
	return &Envelope{
		Kind: Send, MsgID: msg1, TraceID: trace, From: gidA, To: gidB, Signer: "hosta",
		TS: sent, ExpiresAt: sent + 900_000, Body: []byte("review topic/42"),
	}
}

func signedBrief(t testing.TB) *Envelope {
	t.Helper()
	e := brief()
	if err := e.Sign(key); err != nil {
		t.Fatalf("Sign: %v", err)
	}
	return e
}

// receive is a receiver's step 1 with default limits.
func receive(table map[string]any, body []byte, trust Trust) (*Envelope, error) {
	e, err := Decode(table, body, Limits{})
	if err != nil {
		return nil, err
	}
	return e, e.Verify(trust)
}

// reason is the metric label of a refusal, "" for nil.
func reason(t testing.TB, err error) string {
	t.Helper()
	if err == nil {
		return ""
	}
	refusal, ok := err.(*Refusal)
	if !ok {
		t.Fatalf("%T is no *Refusal: %v", err, err)
	}
	return refusal.Reason
}

// vector is one entry of testdata/envelope-v1.json.
type vector struct {
	Name        string
	Seed        string `json:"ed25519_seed_hex"`
	Public      string `json:"ed25519_public_hex"`
	RoutingKey  string `json:"routing_key"`
	Headers     map[string]string
	Body        string `json:"body_hex"`
	InputSHA256 string `json:"signing_input_sha256_hex"`
	Input       string `json:"signing_input_hex"`
	Sig         string
	Valid       bool `json:"signature_valid"`
}

func vectors(t testing.TB) []vector {
	t.Helper()
	text, err := os.ReadFile("../../test/testdata/envelope-v1.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []vector
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatal("the vector file is empty")
	}
	return all
}

func (v vector) body(t testing.TB) []byte {
	t.Helper()
	text, count := v.Body, 1
	if rest, ok := strings.CutPrefix(text, "repeat:"); ok {
		n, unit, _ := strings.Cut(rest, ":")
		var err error
		if count, err = strconv.Atoi(n); err != nil {
			t.Fatal(err)
		}
		text = unit
	}
	return bytes.Repeat(unhex(t, text), count)
}

func (v vector) key(t testing.TB) ed25519.PrivateKey {
	t.Helper()
	return ed25519.NewKeyFromSeed(unhex(t, v.Seed))
}

// table is what the broker would deliver.
func (v vector) table() map[string]any {
	table := map[string]any{"sig": v.Sig}
	for name, value := range v.Headers {
		table[name] = value
	}
	return table
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
