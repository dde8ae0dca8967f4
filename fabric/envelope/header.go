package envelope

import (
	"strconv"
	"strings"

	"fleetd/fault"
)

const (
	headerV      = "v"
	headerSig    = "sig"
	headerSigner = "signer"

	// brokerPrefix marks the headers that belong to the broker.
	brokerPrefix = "x-"

	// maxShort is the longest AMQP short string in bytes: header names, and
	// the values that are mirrored into properties (broker facts §9).
	maxShort = 255

	// perHeader is what a string header takes on the wire besides its name and
	// value: one byte of name length, one of type, four of value length.
	perHeader = 6
)

// A field is one header of design §4 with the typed field that mirrors it.
type field struct {
	name     string
	required bool
	want     string // what a good value looks like, for the error
	// read stores value, which is not empty; false if it is malformed.
	read  func(e *Envelope, value string) bool
	write func(e *Envelope) string // "" leaves the header out
}

// fields lists every typed header. The version is first, because what follows
// may look otherwise in a newer one. The to comes after the kind that shapes it.
var fields = []field{
	text(headerV, true, "major or major.minor", validVersion, func(e *Envelope) *string { return &e.V }),
	text("kind", true, "visible ASCII", validToken, func(e *Envelope) *string { return (*string)(&e.Kind) }),
	text("msgId", true, "a lower-case UUID", validUUID, func(e *Envelope) *string { return &e.MsgID }),
	text("traceId", true, "32 lower-case hex digits, not all zero", validTraceID, func(e *Envelope) *string { return &e.TraceID }),
	text("from", true, "a gid or _gateway@<host>", validEndpoint, func(e *Envelope) *string { return &e.From }),
	to,
	text(headerSigner, true, "a host id", ValidHost, func(e *Envelope) *string { return &e.Signer }),
	text("inReplyTo", false, "a lower-case UUID", validUUID, func(e *Envelope) *string { return &e.InReplyTo }),
	text("turnId", false, "visible ASCII", validToken, func(e *Envelope) *string { return &e.TurnID }),
	text("spawnId", false, "a lower-case UUID", validUUID, func(e *Envelope) *string { return &e.SpawnID }),
	millis("ts", func(e *Envelope) *int64 { return &e.TS }),
	millis("expiresAt", func(e *Envelope) *int64 { return &e.ExpiresAt }),
	text("reason", false, "an upper-case code of at most 64 bytes", validReason, func(e *Envelope) *string { return &e.Reason }),
	hops,
}

var to = field{
	name: "to", required: true, want: "an address that this kind can have",
	read: func(e *Envelope, value string) bool {
		e.To = value
		return validTo(e.Kind, value)
	},
	write: func(e *Envelope) string { return e.To },
}

var hops = field{
	name: "hops", want: "a decimal number from 0",
	read: func(e *Envelope, value string) (ok bool) {
		n, err := strconv.ParseInt(value, 10, 32) // so that hops + 1 fits an int anywhere
		e.Hops = int(n)
		return err == nil && validNumber(value)
	},
	write: func(e *Envelope) string {
		if e.Hops == 0 {
			return ""
		}
		return strconv.Itoa(e.Hops)
	},
}

func text(name string, required bool, want string, valid func(string) bool, at func(*Envelope) *string) field {
	return field{
		name: name, required: required, want: want,
		read: func(e *Envelope, value string) bool {
			*at(e) = value
			return valid(value)
		},
		write: func(e *Envelope) string { return *at(e) },
	}
}

func millis(name string, at func(*Envelope) *int64) field {
	return field{
		name: name, required: true, want: "Unix milliseconds, a decimal number above 0",
		read: func(e *Envelope, value string) (ok bool) {
			n, err := strconv.ParseInt(value, 10, 64)
			*at(e) = n
			return err == nil && n > 0 && validNumber(value)
		},
		write: func(e *Envelope) string {
			if *at(e) == 0 {
				return ""
			}
			return strconv.FormatInt(*at(e), 10)
		},
	}
}

var typed = func() map[string]bool {
	names := make(map[string]bool, len(fields))
	for _, f := range fields {
		names[f.name] = true
	}
	return names
}()

// read fills the typed fields from headers. It never changes Headers or Body.
func (e *Envelope) read(headers map[string]string) *Refusal {
	for _, f := range fields {
		value := headers[f.name]
		switch {
		case value == "" && f.required:
			return refuse(Malformed, fault.BadRequest, "header %s is missing", f.name)
		case value == "": // an empty value is signed but reads as zero
		case !f.read(e, value):
			return refuse(Malformed, fault.BadRequest, "header %s is %.80q; it should be %s", f.name, value, f.want)
		case f.name == headerV && newerMajor(value):
			return refuse(NewerMajor, fault.Refused, "the message is of envelope version %.20s and this gateway reads %s; upgrade this gateway", value, Version)
		}
	}
	return nil
}

// write returns the headers of the typed fields, and with them those headers
// of e.Headers that are neither typed, nor the signature, nor the broker's.
func (e *Envelope) write() map[string]string {
	headers := make(map[string]string, len(fields)+len(e.Headers)+1)
	for name, value := range e.Headers {
		if signed(name) && !typed[name] {
			headers[name] = value
		}
	}
	for _, f := range fields {
		if value := f.write(e); value != "" {
			headers[f.name] = value
		}
	}
	return headers
}

// ours reports whether a header of that name is ours and not the broker's.
func ours(name string) bool { return !strings.HasPrefix(name, brokerPrefix) }

// signed reports whether the signature covers a header of that name.
func signed(name string) bool { return name != headerSig && ours(name) }

// A budget is what is left of a message's header limit, in bytes on the wire.
type budget struct{ left, limit int }

// take counts one header of ours.
func (b *budget) take(name, value string) *Refusal {
	switch {
	case len(name) > maxShort:
		return refuse(HeaderTooLarge, fault.TooLarge, "a header name has %d bytes; at most %d are allowed", len(name), maxShort)
	case len(value) > maxShort && (typed[name] || name == headerSig):
		return refuse(HeaderTooLarge, fault.TooLarge, "header %s has %d bytes; at most %d are allowed", name, len(value), maxShort)
	case perHeader+len(name)+len(value) > b.left:
		return refuse(HeaderTooLarge, fault.TooLarge, "the headers have more than the %d bytes that are allowed", b.limit)
	}
	b.left -= perHeader + len(name) + len(value)
	return nil
}

// within holds headers to limit bytes; the broker's own don't count.
func within(headers map[string]string, limit int) *Refusal {
	b := budget{left: limit, limit: limit}
	for name, value := range headers {
		if !ours(name) {
			continue
		}
		if refusal := b.take(name, value); refusal != nil {
			return refusal
		}
	}
	return nil
}

// Table returns the headers as an AMQP header table: string values only, and
// none of the broker's own, which a republished message must not carry.
func (e *Envelope) Table() map[string]any {
	table := make(map[string]any, len(e.Headers))
	for name, value := range e.Headers {
		if ours(name) {
			table[name] = value
		}
	}
	return table
}
