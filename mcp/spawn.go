package mcp

import (
	"context"
	"strings"
	"time"

	"fleetd/fabric/control"
	"fleetd/fabric/envelope"
	"fleetd/fabric/roster"
	"fleetd/fault"
	"fleetd/store"
)

// Control starts and ends agents, here and on other hosts, and asks those what
// they saw of a flow.
type Control interface {
	Spawn(ctx context.Context, r control.Request) (control.Spawned, error)
	Stop(ctx context.Context, from, address string) (t roster.Target, done bool, err error)
	Trace(ctx context.Context, traceID string) ([]control.Traced, error)
}

// SpawnArgs are the arguments of bridge_spawn.
type SpawnArgs struct {
	Profile        string   `json:"profile" jsonschema:"required"`
	Host           string   `json:"host,omitempty"` // "": this one
	Name           string   `json:"name,omitempty"`
	Groups         []string `json:"groups,omitempty"`
	Task           *string  `json:"task,omitempty"`            // nil: none
	TimeoutSeconds int      `json:"timeout_seconds,omitempty"` // 0: 90
	IdempotencyKey string   `json:"idempotency_key,omitempty"`
}

// SpawnResult is the new entity.
type SpawnResult struct {
	State   string           `json:"state"` // spawned
	GID     string           `json:"gid"`
	Address string           `json:"address"` // name@host
	Name    string           `json:"name"`
	Host    string           `json:"host"`
	Kind    store.EntityKind `json:"kind"`
	Groups  []string         `json:"groups,omitempty"`
	MsgID   string           `json:"msg_id,omitempty"` // of the task, where there was one
	TraceID string           `json:"trace_id"`
	Note    string           `json:"note"`
	Held    int              `json:"held"`
}

// StopArgs name a worker.
type StopArgs struct {
	Target string `json:"target" jsonschema:"required"`
}

// StopResult tells what became of it.
type StopResult struct {
	State  string `json:"state"` // stopped or stopping
	GID    string `json:"gid"`
	Target string `json:"target"` // name@host
	Note   string `json:"note,omitempty"`
	Held   int    `json:"held"`
}

// StateSpawned says that an agent lives and takes input.
const StateSpawned = "spawned"

const spawnTimeout = 90 // seconds

func (a SpawnArgs) timeout() time.Duration {
	if a.TimeoutSeconds == 0 {
		return spawnTimeout * time.Second
	}
	return time.Duration(a.TimeoutSeconds) * time.Second
}

func (a SpawnArgs) waitFor() time.Duration { return a.timeout() }

// waitFor is more than any stop waits: the client is kept patient.
func (StopArgs) waitFor() time.Duration { return time.Minute }

var spawnVerb = verb{
	name:  "spawn",
	title: "Start an agent",
	doc: `Start a new agent in a pane, on this host or another one, and wait until it takes input. What can be started are the named profiles of that host. With "task" it gets its first message right away; its answer comes as mail: fetch it with bridge_poll. Write to it with bridge_send to the "address" of the result, and end it with bridge_stop when it is not needed any more.

Errors: SPAWN_TIMEOUT says that there was no word yet; the launch may go on. Call again with the idempotency_key that the error names: nothing is started twice. After SPAWN_FAILED nothing is left of the attempt, and the error says in which way it failed: calling again without a change will fail again. PROFILE_UNKNOWN: that host offers no such profile. NOT_ALLOWED: that host takes no spawns from this one. CONFLICT: the name is in use, choose another one. After BROKER_DOWN or HOST_OFFLINE nothing was started.`,
	args: map[string]argument{
		"profile":         {doc: "The profile to start, as the host names it in its configuration."},
		"host":            {doc: "The host where it is to live; absent: this one. bridge_roster lists them."},
		"name":            {doc: "Its name: lower-case letters, digits and dashes. Absent: that of the profile, with a number where it is taken."},
		"groups":          {doc: "Groups it belongs to, beside those of the profile."},
		"task":            {doc: "Its first message, sent once it is ready. Say what you want back; it does not see your screen or files."},
		"timeout_seconds": {doc: "How long to wait for it. Nothing is launched after that.", bounded: true, min: 1, max: MaxWaitSeconds, def: spawnTimeout},
		"idempotency_key": {doc: "Any text of your own that names this one agent. Repeating the call with the same key within 24 hours never starts it twice."},
	},
	openWorld: true,
}

var stopVerb = verb{
	name:  "stop",
	title: "End an agent",
	doc: `End a worker for good, on this host or another one: its pane is closed, whoever waits for an answer of it is told ABANDONED, mail that it did not get is reported to its senders. It does not come back.

"stopped": nothing is left of it. "stopping": its end is on record and goes on by itself; do nothing. Calling again does no harm. NOT_ALLOWED: it is no worker, or its host takes no stops from this one.`,
	args: map[string]argument{
		"target": {doc: "Which worker: a name, name@host, a local pane id, or the entity's id."},
	},
	alias:       map[string]string{"to": "target"},
	destructive: true, idempotent: true, openWorld: true, hostUser: true,
}

// Spawn starts an agent and waits for it.
func (c *Conversation) Spawn(ctx context.Context, a SpawnArgs) (SpawnResult, error) {
	who, err := caller(ctx)
	if err != nil {
		return SpawnResult{}, err
	}
	task := ""
	if a.Task != nil {
		if task = *a.Task; strings.TrimSpace(task) == "" {
			return SpawnResult{}, fault.New(fault.BadContent, "the task is empty; write what it is to do, or leave it out")
		}
	}
	got, err := c.Control.Spawn(ctx, control.Request{
		From: who.GID, Profile: a.Profile, Host: a.Host, Name: a.Name, Groups: a.Groups, Task: task,
		Timeout: a.timeout(), Key: a.IdempotencyKey,
	})
	if err != nil {
		return SpawnResult{}, err
	}
	t := got.Target
	r := SpawnResult{
		State: StateSpawned, GID: t.GID, Address: t.Address(), Name: t.Name, Host: t.Host, Kind: t.Kind, Groups: t.Groups,
		MsgID: got.TaskID, TraceID: got.TraceID, Held: c.Mailbox.Held(who.GID),
		Note: "It takes input. Write to it with bridge_send.",
	}
	switch {
	case t.Gone:
		r.Note = "It was spawned under this key, and has ended since. Use a new key to start another one."
	case got.TaskID != "":
		r.Note = "It takes input and was sent its task. Its answer will come as mail: fetch it with bridge_poll."
	}
	return r, nil
}

// Stop ends a worker and waits for its end.
func (c *Conversation) Stop(ctx context.Context, a StopArgs) (StopResult, error) {
	from := envelope.GatewayAddress(c.Host)
	who, known := CallerFrom(ctx)
	if known {
		from = who.GID
	}
	t, done, err := c.Control.Stop(ctx, from, a.Target)
	if err != nil {
		return StopResult{}, err
	}
	r := StopResult{State: StateStopped, GID: t.GID, Target: t.Address()}
	if known {
		r.Held = c.Mailbox.Held(who.GID)
	}
	switch {
	case !done:
		r.State, r.Note = StateStopping, stoppingNote
	case t.Gone:
		r.Note = "It had ended before."
	}
	return r, nil
}
