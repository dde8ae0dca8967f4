package envelope

import (
	"cmp"

	"fleetd/fault"
)

// The default limits of one message in bytes.
const (
	// DefaultHeaderBytes is the most that our headers may take on the wire: a
	// table over one frame of 128 KiB closes the connection, and 64 KiB leaves
	// room for what the broker adds (broker facts §9).
	DefaultHeaderBytes = 64 << 10
	// DefaultBodyBytes is the most that a body may have (design §4).
	DefaultBodyBytes = 256 << 10
	// AskBytes is the most that a question may have: it is held in memory while
	// it is open, and whoever is asked answers it in the middle of something.
	AskBytes = 64 << 10
)

// Limits bound what Decode accepts, in bytes; zero stands for the default.
type Limits struct {
	HeaderBytes int // all our headers as they are on the wire; Verify takes no more than the default
	BodyBytes   int
}

// Decode reads a message as it came from the broker. The result shares body
// and the strings of headers. Headers that are no strings, and those whose name
// begins with x-, are not ours: neither kept nor counted.
//
// The error is always a *Refusal. A message that was decoded is well-formed
// and within limits, and no more than that: Verify it before it is believed.
func Decode(headers map[string]any, body []byte, limits Limits) (*Envelope, error) {
	e, refusal := decode(headers, body, limits)
	if refusal != nil {
		return nil, refusal
	}
	return e, nil
}

func decode(table map[string]any, body []byte, limits Limits) (*Envelope, *Refusal) {
	if limit := cmp.Or(limits.BodyBytes, DefaultBodyBytes); len(body) > limit {
		return nil, refuse(BodyTooLarge, fault.TooLarge, "the body has %d bytes; at most %d are allowed", len(body), limit)
	}
	headers, refusal := collect(table, cmp.Or(limits.HeaderBytes, DefaultHeaderBytes))
	if refusal != nil {
		return nil, refusal
	}
	e := &Envelope{Headers: headers, Body: body}
	if refusal := e.read(headers); refusal != nil {
		return nil, refusal
	}
	return e, nil
}

// collect counts the headers that are ours before it makes room for them.
func collect(table map[string]any, limit int) (map[string]string, *Refusal) {
	b, n := budget{left: limit, limit: limit}, 0
	for name, value := range table {
		if value, ok := value.(string); ok && ours(name) {
			if refusal := b.take(name, value); refusal != nil {
				return nil, refusal
			}
			n++
		}
	}
	headers := make(map[string]string, n)
	for name, value := range table {
		if value, ok := value.(string); ok && ours(name) {
			headers[name] = value
		}
	}
	return headers, nil
}
