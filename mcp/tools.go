package mcp

import (
	"context"
	"encoding/json"
	"time"

	"fleetd/fabric/envelope"
)

// MaxWaitSeconds bounds every wait. Hosts of MCP clients cut calls after one to
// six minutes (design §7).
const MaxWaitSeconds = 240

// maxTTLSeconds is the longest life a message can have: 7 days (design §4).
const maxTTLSeconds = int(envelope.MaxLife / time.Second)

// argument says what one argument of a verb means; its type comes from the Go
// field of the same JSON name.
type argument struct {
	doc     string
	bounded bool // min and max hold; for whole numbers only
	min     int
	max     int
	def     any // what an absent one means; nil: nothing to say
}

// verb is one thing a client can ask, as a tool and as a REST path alike.
type verb struct {
	name  string // last word of the tool's name and of the path
	title string
	doc   string
	args  map[string]argument
	alias map[string]string // name of the old daemon → name of today

	readOnly, destructive, idempotent, openWorld bool

	// hostUser marks a verb that the host's own user may ask without speaking
	// for an entity.
	hostUser bool

	input, output json.RawMessage // schemas
	prepare       func(raw json.RawMessage) (call, error)
}

// call is a verb with its arguments decoded, ready to run.
type call struct {
	wait time.Duration // how long the caller is willing to wait
	run  func(ctx context.Context) (any, error)
}

func (v verb) tool() string { return "bridge_" + v.name }

// newVerb binds a verb to the method that fulfils it.
func newVerb[A, R any](v verb, method func(context.Context, A) (R, error)) verb {
	v.input = inputSchema[A](v.args)
	v.output = outputSchema[R]()
	v.prepare = func(raw json.RawMessage) (call, error) {
		a, err := decode[A](v, raw)
		if err != nil {
			return call{}, err
		}
		c := call{run: func(ctx context.Context) (any, error) {
			r, err := method(ctx, a)
			if err != nil {
				return nil, err
			}
			return &r, nil
		}}
		if w, ok := any(a).(interface{ waitFor() time.Duration }); ok {
			c.wait = w.waitFor()
		}
		return c, nil
	}
	return v
}

func (a SendArgs) waitFor() time.Duration { return time.Duration(a.WaitSeconds) * time.Second }
func (a PollArgs) waitFor() time.Duration { return time.Duration(a.WaitSeconds) * time.Second }

const (
	waitDoc = "How long to wait, in seconds, at most 240. Use 50: longer waits are cut off by many clients. 0 does not wait."
	keyDoc  = "Any text of your own that names this one message. Repeating the call with the same key within 24 hours never sends it twice."
)

// verbs is the table of tools (design §11), in the order they are listed.
func verbs(g Gateway) []verb {
	return []verb{
		newVerb(sendVerb, g.Send),
		newVerb(pollVerb, g.Poll),
		newVerb(readVerb, g.Read),
		newVerb(replyVerb, g.Reply),
		newVerb(askVerb, g.Ask),
		newVerb(answerVerb, g.Answer),
		newVerb(broadcastVerb, g.Broadcast),
		newVerb(spawnVerb, g.Spawn),
		newVerb(stopVerb, g.Stop),
		newVerb(whoamiVerb, func(ctx context.Context, _ struct{}) (WhoamiResult, error) { return g.Whoami(ctx) }),
		newVerb(rosterVerb, g.Roster),
		newVerb(traceVerb, g.Trace),
	}
}

// adminVerbs are no tools: the host's own user asks them over the local socket.
func adminVerbs(a Admin) []verb {
	return []verb{
		newVerb(verb{name: "register"}, a.Register),
		newVerb(verb{name: "unregister"}, a.Unregister),
		newVerb(verb{name: "groups"}, a.Groups),
		newVerb(verb{name: "info"}, func(ctx context.Context, _ struct{}) (InfoResult, error) { return a.Info(ctx) }),
	}
}

var sendVerb = verb{
	name:  "send",
	title: "Send a message to an agent",
	doc: `Send a message (a brief) to another agent or main session, on this host or another one.

With wait_seconds it waits for the reply; 50 works with every client. What comes back in "state":
- replied: the answer is in "reply".
- pending: no reply yet. This is normal, nothing is lost: the reply will be kept for you. Go on with other work and fetch it with bridge_poll. Do not send again.
- injected: the agent has been given the message. It has not answered, and may not have read all of it yet.
- deferred: it is accepted and waits until the agent is free; "reason" says why. Do not send again.
- queued: it lies in the recipient's inbox until that one asks for its mail.
- ask: the agent has a question before it can go on, in "question". Answer it at once with bridge_answer and the "turn_id".

Errors: after UNCONFIRMED or IN_DOUBT the message may still have arrived. Never send it again; wait for a reply with bridge_poll, or look with bridge_trace. After BROKER_DOWN, HOST_OFFLINE, UNROUTABLE, INBOX_FULL or BROKER_REFUSED nothing was sent: you may try again later. "held" counts mail waiting for you: fetch it with bridge_poll.`,
	args: map[string]argument{
		"to":                 {doc: "Who gets it: a name, name@host, a local pane id, or the entity's id; any:GROUP leaves it to one worker of the group that is free. bridge_roster lists them."},
		"content":            {doc: "The message, plain text. Say what you want back; the recipient does not see your screen or files."},
		"wait_seconds":       {doc: waitDoc, bounded: true, max: MaxWaitSeconds, def: 0},
		"expires_in_seconds": {doc: "After so many seconds an undelivered message is given up and you are told. At most 7 days.", bounded: true, max: maxTTLSeconds, def: 900},
		"idempotency_key":    {doc: keyDoc},
		"queue_if_offline":   {doc: "true: accept the message although the recipient's host is offline; it is delivered when that host comes back within the message's life.", def: false},
	},
	alias:     map[string]string{"target": "to"},
	openWorld: true,
}

var pollVerb = verb{
	name:  "poll",
	title: "Fetch waiting mail",
	doc: `Fetch your mail: replies to what you sent, and notices of what became of it. Each message is handed over once and then counts as delivered, so act on all of them; one marked "redelivered" you may have seen before.

A message of kind ASK is a question of an agent that is blocked until you answer it with bridge_answer and its "turn_id"; questions only come to a poll that waits.

An empty list is normal. With wait_seconds the call waits for the first message; use 50 and call again rather than waiting longer. "remaining" > 0 means there is more: call again. A message with "next_offset" is only the beginning: get the rest with bridge_read. "window_full" means that mail from others hides more behind it: poll without "from" first.`,
	args: map[string]argument{
		"from":         {doc: "Only mail from this one: name, name@host, pane id or entity id. Absent: from everybody."},
		"wait_seconds": {doc: waitDoc, bounded: true, max: MaxWaitSeconds, def: 0},
		"max":          {doc: "At most so many messages at once.", bounded: true, max: 1000, def: 20},
	},
	alias: map[string]string{"target": "from"},
	// It hands mail over, so it changes something, but destroys nothing: what
	// was drained stays readable with bridge_read for an hour.
	openWorld: true,
}

var readVerb = verb{
	name:  "read",
	title: "Read the content of a message",
	doc:   `Read a message in full, in parts of some kilobytes: one that was announced to you by its id, one of which you only got the beginning, or one that you fetched within the last hour. Begin with offset 0 and go on with "next_offset" until it is absent; only then is the message complete.`,
	args: map[string]argument{
		"msg_id": {doc: "The message id from the announcement, from bridge_poll or from bridge_whoami."},
		"offset": {doc: "Where to go on: next_offset of the part before.", bounded: true, max: 1 << 30, def: 0},
	},
	readOnly: true, idempotent: true, openWorld: true,
}

var replyVerb = verb{
	name:  "reply",
	title: "Answer a message",
	doc: `Answer a brief that was given to you. This is how the sender gets your result: text that you only print in your own session reaches nobody. With one open brief nothing else is needed; with several, say which one with in_reply_to (the error lists them).

State "queued" means the answer lies safely in the sender's inbox. After IN_DOUBT or UNCONFIRMED do not reply again: the gateway keeps trying by itself.`,
	args: map[string]argument{
		"content":         {doc: "The answer, plain text."},
		"in_reply_to":     {doc: "Message id of the brief you answer. Needed only with several open briefs; bridge_whoami lists them."},
		"idempotency_key": {doc: keyDoc},
	},
	openWorld: true,
}

var whoamiVerb = verb{
	name:     "whoami",
	title:    "Who am I, what is open",
	doc:      `Your own name and address, the briefs you have been given and not answered, how much mail waits for you ("held"), and what you fetched within the last hour. Call it when you are unsure what is open, after an error, or after your context was cleared.`,
	readOnly: true, idempotent: true,
}

var rosterVerb = verb{
	name:  "roster",
	title: "List agents and hosts",
	doc:   `List the agents, main sessions and hosts that can be addressed, with what each is doing. "age_seconds" says how old the view of a host is; "unknown" means that it has not been heard from lately, not that it is gone. Filters narrow a long list.`,
	args: map[string]argument{
		"host":   {doc: "Only this host."},
		"kind":   {doc: "Only this kind: worker, main or orchestrator."},
		"group":  {doc: "Only members of this group."},
		"status": {doc: "Only this status, such as idle or working."},
	},
	readOnly: true, idempotent: true, openWorld: true, hostUser: true,
}

var traceVerb = verb{
	name:  "trace",
	title: "Follow a message",
	doc: `Show what this host saw of one message and its answers, step by step, oldest first; never the content. Use it to find out what became of a message instead of sending it again.

With "fleet" the other hosts are asked, too, and their steps merged in; that takes some seconds where one does not answer. "hosts" and "note" say who did not: what happened there is then not known, which does not mean that nothing did. The latest second may be missing.`,
	args: map[string]argument{
		"trace_id": {doc: "The trace_id from the result of bridge_send, bridge_reply or bridge_poll."},
		"fleet":    {doc: "true: the steps of every host that can be reached, not only of this one.", def: false},
	},
	readOnly: true, idempotent: true, openWorld: true, hostUser: true,
}
