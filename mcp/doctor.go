package mcp

import "context"

// Doctor is what the daemon alone knows of how it stands, for `bridged doctor`.
// The host's own user asks it over the local socket; it changes nothing.
type Doctor interface {
	Diagnose(ctx context.Context) (Diagnosis, error)
}

// DiagnoseSeconds bounds one look of the daemon at itself, other hosts' answers
// included.
const DiagnoseSeconds = 20

// Diagnosis is how the daemon stands.
type Diagnosis struct {
	Version  string   `json:"version"`
	Host     string   `json:"host"`             // the host id that it serves
	Config   string   `json:"config,omitempty"` // the file that it read
	Key      string   `json:"key,omitempty"`    // the fingerprint of the key that it signs with
	URL      string   `json:"url"`              // the MCP endpoint
	Store    string   `json:"store,omitempty"`  // why it takes no writes
	NotReady []string `json:"not_ready"`        // as /readyz says it

	Broker      string     `json:"broker"` // as in the roster
	Reason      string     `json:"reason,omitempty"`
	Brand       string     `json:"brand,omitempty"` // what the broker calls itself
	Peers       []Peer     `json:"peers"`
	Strangers   []Stranger `json:"strangers"`
	OldQueues   []OldQueue `json:"old_queues"`
	DeadLetters int        `json:"dead_letters"` // of all hosts

	Notes []string `json:"notes"` // what could not be looked at, and why
}

// Peer is another gateway that is trusted here.
type Peer struct {
	Host  string `json:"host"`
	State string `json:"state"` // online, unknown, offline; never: not heard so far
	// Asked: it is online and was asked whether it hears and believes this host.
	Asked       bool    `json:"asked"`
	Answered    bool    `json:"answered"`
	Unreached   bool    `json:"unreached,omitempty"`            // the question did not get there
	ClockOffset float64 `json:"clock_offset_seconds,omitempty"` // its clock is ahead by
}

// Stranger is a host in whose name messages were refused within the last half
// minute, since no key that is trusted here fits them. The name is not proven.
type Stranger struct {
	Host    string `json:"host"`
	Trusted bool   `json:"trusted"` // other keys of it are
}

// OldQueue is a queue of the old daemon that holds mail.
type OldQueue struct {
	Queue     string `json:"queue"`
	Messages  int    `json:"messages"`
	Consumers int    `json:"consumers"`
}

func doctorVerb(d Doctor) verb {
	return newVerb(verb{name: "diagnose"}, func(ctx context.Context, _ struct{}) (Diagnosis, error) { return d.Diagnose(ctx) })
}
