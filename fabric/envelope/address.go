package envelope

import "strings"

// The words of which routing keys are made (design §3, §8).
const (
	everyone        = "all"
	broadcastPrefix = "broadcast."
	rosterPrefix    = "roster."
	signalSuffix    = ".signal"

	// RosterGateway and RosterSolicit stand in a roster key where the gid of
	// an entity would.
	RosterGateway = "_gateway"
	RosterSolicit = "_solicit"
)

// BroadcastKey is the routing key of a group; of all workers for "all".
func BroadcastKey(group string) string { return broadcastPrefix + group }

// BroadcastGroup returns the group of a broadcast key, which may be "all".
func BroadcastGroup(key string) (group string, ok bool) {
	group, ok = strings.CutPrefix(key, broadcastPrefix)
	return group, ok && (group == everyone || ValidName(group))
}

// RosterKey is the routing key of presence: subject is a gid, RosterGateway or
// RosterSolicit.
func RosterKey(host, subject string) string { return rosterPrefix + host + "." + subject }

// ParseRosterKey splits a presence routing key into host and subject; ok is
// false for anything else.
func ParseRosterKey(key string) (host, subject string, ok bool) {
	rest, found := strings.CutPrefix(key, rosterPrefix)
	host, subject, split := strings.Cut(rest, ".")
	known := subject == RosterGateway || subject == RosterSolicit || ValidGID(subject)
	return host, subject, found && split && known && ValidHost(host)
}

// RoutingKey is the key under which the envelope travels on lane: its to, on
// the signal lane with ".signal" behind it (design §4).
func (e *Envelope) RoutingKey(lane Lane) string {
	if lane == LaneSignal {
		return e.To + signalSuffix
	}
	return e.To
}

// validEndpoint accepts who may send, and to whom mail and signals go.
func validEndpoint(s string) bool {
	host, gateway := GatewayHost(s)
	return gateway && ValidHost(host) || ValidGID(s)
}

// validTo says whether kind may be addressed to s (design §4, header to). For
// a kind that this build doesn't know, any of the shapes will do.
func validTo(kind Kind, s string) bool {
	_, broadcast := BroadcastGroup(s)
	_, _, roster := ParseRosterKey(s)
	switch {
	case !kind.Known():
		return broadcast || roster || validEndpoint(s) || ValidHost(s)
	case kind == Broadcast:
		return broadcast
	case kind.Travels(LanePresence):
		return roster
	case kind.Travels(LaneControl):
		return ValidHost(s)
	}
	return validEndpoint(s)
}
