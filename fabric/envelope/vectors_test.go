package envelope

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"testing"
)

// Fails when the signing input is not byte for byte the one of design §4, e.g.
// when x- headers are signed or names are not sorted bytewise.
func TestVectorSigningInput(t *testing.T) {
	for _, v := range vectors(t) {
		t.Run(v.Name, func(t *testing.T) {
			input := SigningInput(v.Headers, v.body(t))
			if sum := sha256.Sum256(input); hex.EncodeToString(sum[:]) != v.InputSHA256 {
				t.Errorf("signing input has sha256 %x, want %s", sum, v.InputSHA256)
			}
			if v.Input != "" && hex.EncodeToString(input) != v.Input {
				t.Errorf("signing input\n got %x\nwant %s", input, v.Input)
			}
			withSig := map[string]string{"sig": v.Sig}
			for name, value := range v.Headers {
				withSig[name] = value
			}
			if string(SigningInput(withSig, v.body(t))) != string(input) {
				t.Error("the signature is part of its own input")
			}
		})
	}
}

// Fails when Verify accepts what was changed after signing, refuses what was
// not, or takes a key other than the signer's.
func TestVectorVerify(t *testing.T) {
	t.Attr("threat", "B1")
	for _, v := range vectors(t) {
		t.Run(v.Name, func(t *testing.T) {
			trust := trusting{v.Headers["signer"]: {unhex(t, v.Public)}}
			headers := map[string]string{"sig": v.Sig}
			for name, value := range v.Headers {
				headers[name] = value
			}
			e := &Envelope{Headers: headers, Body: v.body(t)}
			got, want := reason(t, e.Verify(trust)), ""
			if !v.Valid {
				want = BadSignature
			}
			if got != want {
				t.Errorf("Verify: %q, want %q", got, want)
			}
			if _, err := receive(v.table(), v.body(t), trust); (err == nil) != v.Valid {
				t.Errorf("Decode and Verify: %v, want valid %v", err, v.Valid)
			}
		})
	}
}

// Fails when Sign doesn't make the very signature that an independent
// implementation made from the same seed.
func TestVectorSign(t *testing.T) {
	for _, v := range vectors(t) {
		t.Run(v.Name, func(t *testing.T) {
			signers := hex.EncodeToString(public(v.key(t))) == v.Public
			if signers == (v.Name == "bad-sig-other-key") {
				t.Fatalf("the seed is the signer's: %v", signers)
			}
			raw := ed25519.Sign(v.key(t), SigningInput(v.Headers, v.body(t)))
			if made := sigText.EncodeToString(raw) == v.Sig; made != (v.Valid || !signers) {
				t.Errorf("signing with the seed reproduces sig: %v", made)
			}
			if !v.Valid {
				return
			}
			e, err := Decode(v.table(), v.body(t), Limits{})
			if err != nil {
				t.Fatal(err)
			}
			if err := e.Sign(v.key(t)); err != nil {
				t.Fatal(err)
			}
			if _, empty := v.Headers["turnId"]; empty && e.TurnID == "" {
				return // Sign writes no empty header, so this one has another signature
			}
			if e.Headers["sig"] != v.Sig {
				t.Errorf("Sign made %s, want %s", e.Headers["sig"], v.Sig)
			}
		})
	}
}

// Fails when a message is published under another key than the design's.
func TestVectorRoutingKey(t *testing.T) {
	for _, v := range vectors(t) {
		kind, lane := Kind(v.Headers["kind"]), LaneMail
		if kind.Travels(LaneSignal) {
			lane = LaneSignal
		}
		e := &Envelope{Kind: kind, To: v.Headers["to"]}
		if got := e.RoutingKey(lane); got != v.RoutingKey {
			t.Errorf("%s: routing key %q, want %q", v.Name, got, v.RoutingKey)
		}
	}
}
