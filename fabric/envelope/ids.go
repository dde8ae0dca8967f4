package envelope

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"strings"

	"github.com/google/uuid"

	"fleetd/fault"
)

// What every host takes of one entity; what is above it can be announced to
// nobody (design §1, §8).
const (
	MaxName   = 63 // bytes, of a host id too
	MaxGroups = 32
)

// reports is the namespace of ReportID, drawn once for this project. Changing
// it would make a report sent again after an upgrade look like a new one.
var reports = uuid.MustParse("6a7f0c1e-5d0b-4c59-9f0e-3b1d2a6e84c7")

// ReportID derives the id of the report of kind about the message original at
// recipient: a UUIDv5, so that a report made twice, or sent on two lanes, is
// one message (design §4).
func ReportID(original, recipient string, kind Kind) string {
	name := strings.Join([]string{original, recipient, string(kind)}, "\n")
	return uuid.NewSHA1(reports, []byte(name)).String()
}

// NewTraceID draws a W3C trace id, 32 lower-case hex digits and not all zero,
// from rand.
func NewTraceID(rand io.Reader) (string, error) {
	var id [16]byte
	if _, err := io.ReadFull(rand, id[:]); err != nil {
		return "", fault.Wrap(err, fault.Internal, "could not draw a trace id; the system's random source failed")
	}
	if id == [16]byte{} {
		return "", fault.New(fault.Internal, "could not draw a trace id; the random source gave nothing but zeros")
	}
	return hex.EncodeToString(id[:]), nil
}

// Hash is the SHA-256 of a body, by which a duplicate is told from another
// message under the same id (design §4).
func Hash(body []byte) [32]byte { return sha256.Sum256(body) }

// ValidHost reports whether s is a host id: [a-z0-9][a-z0-9-]{0,62} (design §1).
func ValidHost(s string) bool {
	return s != "" && len(s) <= MaxName && s[0] != '-' && consists(s, isLabel)
}

// ValidName reports whether s may name an entity, a group or a profile:
// [a-z][a-z0-9-]{0,62}, and not the reserved word "all" (design §1).
func ValidName(s string) bool {
	return ValidHost(s) && !isDigit(s[0]) && s != everyone
}

// CheckMember says why an entity of that name in those groups cannot be
// announced (BAD_REQUEST, TOO_LARGE), and nil where it can.
func CheckMember(name string, groups []string) *fault.Error {
	if !ValidName(name) {
		return fault.New(fault.BadRequest, "%.80q is no name: use lower-case letters, digits and dashes, a letter first, at most %d; the name all is taken", name, MaxName)
	}
	if len(groups) > MaxGroups {
		return fault.New(fault.TooLarge, "%s would be in %d groups; at most %d are possible", name, len(groups), MaxGroups)
	}
	for _, group := range groups {
		if !ValidName(group) {
			return fault.New(fault.BadRequest, "%.80q is no group name: use lower-case letters, digits and dashes, a letter first, at most %d; the name all is taken", group, MaxName)
		}
	}
	return nil
}

// ValidGID reports whether s is a global id: a UUID as canonical lower-case
// text. The nil UUID, which an unset variable prints, is none.
func ValidGID(s string) bool { return validUUID(s) }

func validUUID(s string) bool {
	if len(s) != 36 || s == uuid.Nil.String() {
		return false
	}
	for i := range len(s) {
		if dash := i == 8 || i == 13 || i == 18 || i == 23; dash != (s[i] == '-') || !dash && !isHex(s[i]) {
			return false
		}
	}
	return true
}

func validTraceID(s string) bool {
	return len(s) == 32 && consists(s, isHex) && strings.Trim(s, "0") != ""
}

// validVersion accepts "major" and "major.minor", each without leading zeros
// so that a version has one spelling. There was no major version 0.
func validVersion(s string) bool {
	major, minor, both := strings.Cut(s, ".")
	return validNumber(major) && major != "0" && (!both || validNumber(minor))
}

func validNumber(s string) bool {
	return s != "" && consists(s, isDigit) && (s[0] != '0' || s == "0")
}

// newerMajor compares spellings: a valid version that is not of our major one
// is of a later one, whatever its size.
func newerMajor(version string) bool {
	return majorOf(version) != majorOf(Version)
}

func majorOf(version string) string {
	major, _, _ := strings.Cut(version, ".")
	return major
}

// validToken accepts what may stand in an AMQP short string and in a log line
// as it is: visible ASCII. An empty value is no question of shape.
func validToken(s string) bool { return len(s) <= maxShort && consists(s, isVisible) }

// validReason accepts an error code as in design §11, of at most 64 bytes.
func validReason(s string) bool {
	return s != "" && len(s) <= 64 && isUpper(s[0]) && consists(s, isCode)
}

func consists(s string, of func(byte) bool) bool {
	for i := range len(s) {
		if !of(s[i]) {
			return false
		}
	}
	return true
}

func isDigit(c byte) bool   { return c >= '0' && c <= '9' }
func isUpper(c byte) bool   { return c >= 'A' && c <= 'Z' }
func isHex(c byte) bool     { return isDigit(c) || c >= 'a' && c <= 'f' }
func isLabel(c byte) bool   { return isDigit(c) || c >= 'a' && c <= 'z' || c == '-' }
func isCode(c byte) bool    { return isUpper(c) || isDigit(c) || c == '_' }
func isVisible(c byte) bool { return c > ' ' && c < 0x7f }
