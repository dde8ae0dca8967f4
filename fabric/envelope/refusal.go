package envelope

import "fleetd/fault"

// The reasons for which Decode and Verify refuse a message: short words that
// can label a metric.
const (
	Malformed      = "malformed_header"
	HeaderTooLarge = "header_too_large"
	BodyTooLarge   = "body_too_large"
	NewerMajor     = "newer_major"
	UnknownSigner  = "unknown_signer"
	BadSignature   = "bad_signature"
)

// Refusal says why a message is not to be believed (design §4, step 1).
type Refusal struct {
	Reason string // one of the constants above
	Err    error  // the sentence for the log, with a fault code; never a body
}

// Error returns the reason and the sentence behind it.
func (r *Refusal) Error() string { return r.Reason + ": " + r.Err.Error() }

// Unwrap returns Err, so that fault.CodeOf works on a Refusal.
func (r *Refusal) Unwrap() error { return r.Err }

func refuse(reason string, code fault.Code, format string, args ...any) *Refusal {
	return &Refusal{Reason: reason, Err: fault.New(code, format, args...)}
}
