package envelope

import (
	"crypto/ed25519"

	"fleetd/fault"
)

// Trust knows the public keys of the gateways that are believed.
type Trust interface {
	// Keys returns the keys of host, several while it changes its key, and
	// none if the host is not trusted.
	Keys(host string) []ed25519.PublicKey
}

// Verify checks, in this order, that the major version is not newer than ours,
// that the signer is trusted, and that one of its keys made the signature over
// Headers and Body (design §4, step 1). It looks at Headers alone: typed fields
// are only as good as Decode made them. The error is always a *Refusal.
func (e *Envelope) Verify(trust Trust) error {
	if refusal := e.verify(trust); refusal != nil {
		return refusal
	}
	return nil
}

func (e *Envelope) verify(trust Trust) *Refusal {
	if refusal := within(e.Headers, DefaultHeaderBytes); refusal != nil {
		return refusal
	}
	signer, version := e.Headers[headerSigner], e.Headers[headerV]
	if !validVersion(version) {
		return refuse(Malformed, fault.BadRequest, "header %s is %.80q; it should be major or major.minor", headerV, version)
	}
	if newerMajor(version) {
		return refuse(NewerMajor, fault.Refused, "the message is of envelope version %.20q and this gateway reads %s; upgrade this gateway", version, Version)
	}
	keys := trust.Keys(signer)
	if len(keys) == 0 {
		return refuse(UnknownSigner, fault.Refused, "the message is signed by host %.80q, which is not trusted here; trust its key with `bridged keys trust` if it is one of yours", signer)
	}
	sig, ok := parseSig(e.Headers[headerSig])
	if !ok {
		return refuse(BadSignature, fault.Refused, "the message claims to be from host %s but carries no signature of 64 bytes", signer)
	}
	input := SigningInput(e.Headers, e.Body)
	for _, key := range keys {
		if len(key) == ed25519.PublicKeySize && ed25519.Verify(key, input, sig) {
			return nil
		}
	}
	return refuse(BadSignature, fault.Refused, "the signature does not fit any key of host %s that is trusted here; it was changed on the way, is forged, or the host has a new key", signer)
}

// parseSig looks at the length first: the decoder would skip line breaks.
func parseSig(text string) ([]byte, bool) {
	if len(text) != sigText.EncodedLen(ed25519.SignatureSize) {
		return nil, false
	}
	sig, err := sigText.DecodeString(text)
	return sig, err == nil && len(sig) == ed25519.SignatureSize
}
