package envelope

import (
	"cmp"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"fleetd/fault"
)

// preamble keeps a signature of ours from ever meaning something elsewhere.
const preamble = "bridge-envelope-v1\n"

// sigText is strict: the two spare bits of encodings must be zero, or one
// signature would have several spellings.
var sigText = base64.RawURLEncoding.Strict()

// Sign writes the typed fields into Headers, keeps what other headers are
// there except the broker's own, and signs all of it with Body. An empty V
// becomes Version. What Sign accepts, Decode with DefaultLimits accepts too,
// but for the size of the body. The errors are fault.BadRequest for a field
// that is missing or malformed and fault.TooLarge for headers over a limit;
// e is then as it was.
func (e *Envelope) Sign(key ed25519.PrivateKey) error {
	if len(key) != ed25519.PrivateKeySize {
		return fault.New(fault.Internal, "the gateway has no key to sign with; see its log")
	}
	version := cmp.Or(e.V, Version)
	headers := e.write()
	headers[headerV] = version
	if err := check(headers); err != nil {
		return err.Err
	}
	headers[headerSig] = sigText.EncodeToString(ed25519.Sign(key, SigningInput(headers, e.Body)))
	e.V, e.Headers = version, headers
	return nil
}

// check holds headers that are about to be signed to what a receiver demands.
func check(headers map[string]string) *Refusal {
	sig := perHeader + len(headerSig) + sigText.EncodedLen(ed25519.SignatureSize)
	if err := within(headers, DefaultHeaderBytes-sig); err != nil {
		return err
	}
	return new(Envelope).read(headers)
}

// SigningInput is what a signature of design §4 covers: all headers but sig
// and the broker's own (x-…), in bytewise order of name, and the body, each
// with its length before it. It panics if a name or the number of headers is
// over 65535, where lengths would no longer tell messages apart; Sign and
// Verify check far lower limits first.
func SigningInput(headers map[string]string, body []byte) []byte {
	names := make([]string, 0, len(headers))
	size := len(preamble) + 2 + 8 + len(body)
	for name, value := range headers {
		if signed(name) {
			names = append(names, name)
			size += 2 + len(name) + 4 + len(value)
		}
	}
	slices.Sort(names)
	input := append(make([]byte, 0, size), preamble...)
	input = binary.BigEndian.AppendUint16(input, fits[uint16](len(names), math.MaxUint16))
	for _, name := range names {
		input = binary.BigEndian.AppendUint16(input, fits[uint16](len(name), math.MaxUint16))
		input = append(input, name...)
		input = binary.BigEndian.AppendUint32(input, fits[uint32](len(headers[name]), math.MaxUint32))
		input = append(input, headers[name]...)
	}
	input = binary.BigEndian.AppendUint64(input, uint64(len(body)))
	return append(input, body...)
}

func fits[T uint16 | uint32](n int, limit uint64) T {
	if uint64(n) > limit {
		panic(fmt.Sprintf("envelope: a length of %d cannot be signed; check the limits first", n))
	}
	return T(n)
}
