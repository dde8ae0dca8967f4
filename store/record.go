package store

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"fleetd/fault"

	"github.com/google/uuid"
)

// recordVersion is the first byte of every value. A build that changes the
// form of a record raises it and keeps reading the older form, or brings a
// schema step that rewrites them.
const recordVersion = 1

// idLen is the width of a UUID or a trace id in a key.
const idLen = 16

// present is the value of an index entry, whose key says it all.
var present = []byte{recordVersion}

var errDamaged = errors.New("the value has an unknown version or is cut off")

// damaged makes the error of a value that cannot be read.
func damaged(bucket string, cause error) error {
	return fault.Wrap(fmt.Errorf("%w: %w", errDamage, cause), fault.StoreUnavailable,
		"a record in bucket %q of the store cannot be read; stop the daemon, run \"bridged store check\" and restore a copy if it finds damage", bucket)
}

// bad makes the error of an argument that cannot be a key.
func bad(what, value string, cause error) error {
	return fault.Wrap(cause, fault.BadRequest, "%q is not a valid %s; give one in its canonical form", clip(value), what)
}

func clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "…"
	}
	return s
}

// idKey returns the 16 bytes of a gid or message id written as UUID text.
func idKey(what, text string) ([]byte, error) {
	if len(text) != 36 {
		return nil, bad(what, text, nil)
	}
	id, err := uuid.Parse(text)
	if err != nil {
		return nil, bad(what, text, err)
	}
	return id[:], nil
}

// idText is the inverse of idKey.
func idText(key []byte) string {
	var id uuid.UUID
	copy(id[:], key)
	return id.String()
}

// pairKey joins two UUIDs to one key.
func pairKey(whatA, a, whatB, b string) ([]byte, error) {
	ka, err := idKey(whatA, a)
	if err != nil {
		return nil, err
	}
	kb, err := idKey(whatB, b)
	if err != nil {
		return nil, err
	}
	return append(ka, kb...), nil
}

// traceKey returns the 16 bytes of a W3C trace id, 32 lower-case hex digits.
func traceKey(text string) ([]byte, error) {
	key, err := hex.DecodeString(text)
	if err != nil || len(key) != idLen || text != strings.ToLower(text) {
		return nil, bad("trace id", text, err)
	}
	return key, nil
}

func u32(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }

func u64(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }

// millisKey orders as its time does; times before 1970 do not occur and would
// sort last.
func millisKey(ms int64) []byte { return u64(uint64(ms)) }

// encode writes a cold record: the version byte, then JSON.
func encode(v any) ([]byte, error) {
	js, err := json.Marshal(v)
	if err != nil {
		return nil, fault.Wrap(err, fault.Internal, "a record could not be encoded for the store; see the log")
	}
	return append([]byte{recordVersion}, js...), nil
}

// decode reads what encode wrote. Nothing in v points into value afterwards.
func decode(bucket string, value []byte, v any) error {
	if len(value) == 0 || value[0] != recordVersion {
		return damaged(bucket, errDamaged)
	}
	if err := json.Unmarshal(value[1:], v); err != nil {
		return damaged(bucket, err)
	}
	return nil
}

// encodeBody writes a record that carries a body: version, length of the JSON
// (4 bytes), the JSON, the raw body. Base64 inside JSON would be a third more.
func encodeBody(v any, body []byte) ([]byte, error) {
	js, err := json.Marshal(v)
	if err != nil {
		return nil, fault.Wrap(err, fault.Internal, "a record could not be encoded for the store; see the log")
	}
	out := make([]byte, 0, 5+len(js)+len(body))
	out = append(out, recordVersion)
	out = binary.BigEndian.AppendUint32(out, uint32(len(js)))
	out = append(out, js...)
	return append(out, body...), nil
}

// splitBody returns the JSON and the body of what encodeBody wrote, both still
// inside value.
func splitBody(bucket string, value []byte) (js, body []byte, err error) {
	if len(value) < 5 || value[0] != recordVersion {
		return nil, nil, damaged(bucket, errDamaged)
	}
	n := uint64(binary.BigEndian.Uint32(value[1:5]))
	if uint64(len(value)-5) < n {
		return nil, nil, damaged(bucket, errDamaged)
	}
	return value[5 : 5+n], value[5+n:], nil
}

// decodeBody reads what encodeBody wrote; the body is a copy, nil if empty.
func decodeBody(bucket string, value []byte, v any) (body []byte, err error) {
	js, raw, err := splitBody(bucket, value)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(js, v); err != nil {
		return nil, damaged(bucket, err)
	}
	return clone(raw), nil
}

// clone copies a value out of the file's map; an empty one becomes nil.
func clone(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	return append([]byte(nil), b...)
}

func short(bucket string, have, want int) error {
	return damaged(bucket, fmt.Errorf("%w: %d bytes, at least %d expected", errDamaged, have, want))
}
