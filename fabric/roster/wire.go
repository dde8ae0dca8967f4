package roster

import (
	"encoding/json"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
)

// The most that presence may carry.
const (
	maxBody     = 64 << 10 // bytes of one body
	partBytes   = 48 << 10 // bytes of entities in one part of a full announcement
	maxProfiles = 128      // profile names of one host
	maxProgress = 200      // signs of progress in one heartbeat
	maxTargets  = 200      // hosts in one solicitation
)

// stamp orders all presence of one host: by boot epoch, then by sequence.
type stamp struct {
	Boot uint64 `json:"boot"`
	Seq  uint64 `json:"seq"`
}

func (s stamp) when() stamp { return s }

// gatewayBody is a heartbeat and, where Parts is set, one part of a full
// announcement. Unknown fields of later versions are ignored.
type gatewayBody struct {
	stamp
	IntervalMS int64            `json:"interval_ms"`
	Profiles   []string         `json:"profiles,omitempty"`
	Count      int              `json:"entity_count"`
	Digest     string           `json:"digest"`
	Serving    bool             `json:"serving"`
	Leaving    bool             `json:"leaving,omitempty"`  // a clean stop
	Progress   map[string]int64 `json:"progress,omitempty"` // gid → Unix ms
	Part       int              `json:"part,omitempty"`     // from 1
	Parts      int              `json:"parts,omitempty"`
	Entities   []entityBody     `json:"entities,omitempty"`
}

type announceBody struct {
	stamp
	Entity entityBody `json:"entity"`
}

type solicitBody struct {
	stamp
	Targets []string `json:"targets,omitempty"` // none: everyone
}

// entityBody is an entity on the wire; times are Unix milliseconds.
type entityBody struct {
	GID           string           `json:"gid"`
	Name          string           `json:"name"`
	Kind          store.EntityKind `json:"kind"`
	Groups        []string         `json:"groups,omitempty"`
	Gone          bool             `json:"gone,omitempty"`
	Pane          string           `json:"pane,omitempty"`
	Capabilities  []string         `json:"capabilities,omitempty"`
	State         State            `json:"status,omitempty"`
	Since         int64            `json:"since,omitempty"`
	Progress      int64            `json:"progress,omitempty"`
	Refusing      string           `json:"refusing,omitempty"`
	RefusingSince int64            `json:"refusing_since,omitempty"`
}

func (r *record) body() entityBody {
	b := entityBody{GID: r.GID, Name: r.Name, Kind: r.Kind, Groups: r.Groups, Gone: r.gone}
	if r.gone {
		return b
	}
	b.Pane, b.Capabilities, b.State, b.Refusing = r.Pane, r.Capabilities, r.Status.State, r.Status.Refusing
	b.Since, b.Progress, b.RefusingSince = millis(r.Status.Since), millis(r.Status.Progress), millis(r.Status.RefusingSince)
	return b
}

func (b entityBody) entity() Entity {
	return Entity{
		GID: b.GID, Name: b.Name, Kind: b.Kind, Groups: b.Groups, Pane: b.Pane, Capabilities: b.Capabilities,
		Status: Status{
			State: b.State, Refusing: b.Refusing,
			Since: instant(b.Since), Progress: instant(b.Progress), RefusingSince: instant(b.RefusingSince),
		},
	}
}

func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func instant(ms int64) time.Time {
	if ms <= 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// The reasons for which Handle refuses a message, beside those of envelope.
const (
	NotPresence  = "not_presence"     // another kind, or not under a presence key
	ForeignWord  = "foreign_presence" // a host speaks for another one
	BadPresence  = "bad_presence"     // the body is not what its key promises
	HugePresence = "presence_too_large"
)

func refuse(reason string, code fault.Code, format string, args ...any) error {
	return &envelope.Refusal{Reason: reason, Err: fault.New(code, format, args...)}
}

// message is presence that was read; one of the three bodies is set.
type message struct {
	host string // that signed it
	stamp
	sent     time.Time // by its host's clock
	gateway  *gatewayBody
	announce *announceBody
	solicit  *solicitBody
	toUs     bool // a solicitation under our own host word: carries no order
}

// read checks that e speaks for its signer alone and decodes its body. It
// looks at nothing but e, so whatever it refuses changes no state.
func read(e *envelope.Envelope, us string) (message, error) {
	m := message{host: e.Signer, sent: e.Sent()}
	word, subject, ok := envelope.ParseRosterKey(e.To)
	if !ok || e.Kind != envelope.Presence {
		return m, refuse(NotPresence, fault.BadRequest, "a %.20s to %.120q is no presence", e.Kind, e.To)
	}
	if e.From != envelope.GatewayAddress(e.Signer) && (e.From != subject || !envelope.ValidGID(subject)) {
		return m, refuse(ForeignWord, fault.NotAllowed, "host %s announces presence in the name of %.120q", e.Signer, e.From)
	}
	m.toUs = subject == envelope.RosterSolicit && word == us && e.Signer != us
	if word != e.Signer && !m.toUs {
		return m, refuse(ForeignWord, fault.NotAllowed, "host %s announces presence of host %.80s; it may speak for itself alone", e.Signer, word)
	}
	if len(e.Body) > maxBody {
		return m, refuse(HugePresence, fault.TooLarge, "presence of host %s has %d bytes; at most %d are allowed", e.Signer, len(e.Body), maxBody)
	}
	if m.toUs {
		m.solicit = &solicitBody{Targets: []string{us}}
		return m, nil
	}
	return m.decode(e.Body, subject)
}

func (m message) decode(body []byte, subject string) (message, error) {
	var into interface{ when() stamp }
	switch subject {
	case envelope.RosterGateway:
		m.gateway = new(gatewayBody)
		into = m.gateway
	case envelope.RosterSolicit:
		m.solicit = new(solicitBody)
		into = m.solicit
	default:
		m.announce = new(announceBody)
		into = m.announce
	}
	if err := json.Unmarshal(body, into); err != nil {
		return m, refuse(BadPresence, fault.BadRequest, "presence of host %s under %s cannot be read; that gateway is broken or of another version", m.host, subject)
	}
	m.stamp = into.when()
	switch {
	case m.Boot == 0 || m.Seq == 0:
		return m, refuse(BadPresence, fault.BadRequest, "presence of host %s has no boot epoch or sequence number", m.host)
	case m.announce != nil && m.announce.Entity.GID != subject:
		return m, refuse(BadPresence, fault.BadRequest, "host %s announces entity %.80q under the key of %s", m.host, m.announce.Entity.GID, subject)
	case m.gateway != nil && (m.gateway.Part < 0 || m.gateway.Part > m.gateway.Parts || m.gateway.Parts > 0 && m.gateway.Part == 0):
		return m, refuse(BadPresence, fault.BadRequest, "host %s sent part %d of %d of a full announcement", m.host, m.gateway.Part, m.gateway.Parts)
	}
	return m, nil
}

// split divides entities into parts that each fit a body; there is always one.
func split(entities []entityBody) [][]entityBody {
	parts, size := [][]entityBody{nil}, 0
	for _, e := range entities {
		text, _ := json.Marshal(e) // strings and numbers can always be marshalled
		if size += len(text) + 1; size > partBytes {
			parts, size = append(parts, nil), len(text)+1
		}
		parts[len(parts)-1] = append(parts[len(parts)-1], e)
	}
	return parts
}
