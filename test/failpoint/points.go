package failpoint

// Side is who runs through a point: the gateway of the one who sent the
// message that a path begins with, or that of the one who gets it.
type Side string

// The sides. Of a local message they are one gateway.
const (
	Sender   Side = "sender"
	Receiver Side = "receiver"
	Mover    Side = "mover" // bridged migrate, a process of its own
)

// Path is what a message goes along when it runs through a point.
type Path string

// The paths (design §1).
const (
	Forward Path = "forward" // a brief into a worker of another host
	Reply   Path = "reply"   // its answer, to a main that pulls
	Mail    Path = "mail"    // a message to a main of another host
	Local   Path = "local"   // a brief and its reply within one host
	Spread  Path = "spread"  // a message to a group with members on both hosts

	Question     Path = "ask"       // of a worker to the main of another host whose brief it has, and the answer
	QuestionHere Path = "ask-local" // the same within one host

	Launch     Path = "spawn"       // of an agent on another host
	LaunchHere Path = "spawn-local" // on the own one
	End        Path = "stop"        // of an agent of another host

	Upgrade Path = "upgrade" // of the old daemon's mail to the inbox of a main
)

// Setup is what brings a message to a point beside its way there.
type Setup string

// The setups. From Again on the point is on the way back from another fault.
const (
	Ordinary  Setup = ""
	Waiting   Setup = "waiting"   // the worker is busy for a while
	Away      Setup = "away"      // the recipient's gateway is stopped
	Dead      Setup = "dead"      // it is stopped for longer than the message lives
	Expired   Setup = "expired"   // the worker stays busy until the brief's life is over
	Doubtful  Setup = "doubtful"  // a dialog swallows the paste
	Refused   Setup = "refused"   // herdr refuses the paste
	Gone      Setup = "gone"      // the worker's pane is closed while the brief is open
	Again     Setup = "again"     // the connection breaks with a message on the wire
	Asked     Setup = "asked"     // the same, and the message is a brief
	Untold    Setup = "untold"    // expired, and the gateway is killed before the report's signal leaves
	Held      Setup = "held"      // the connection breaks while the brief waits for the worker
	Unseen    Setup = "unseen"    // the gateway is killed before the message leaves, and nobody has seen it
	Booted    Setup = "booted"    // the gateway was killed with an injection under way
	Duplicate Setup = "duplicate" // the connection breaks before the broker heard the ack
	Repeated  Setup = "repeated"  // the message was accepted, and its sender calls again
	Unheard   Setup = "unheard"   // nobody listens when the question comes
	Late      Setup = "late"      // the answer comes when its asker waits no more
	Failing   Setup = "failing"   // the agent to launch never takes input
)

// Point is one place where Hit is called.
type Point struct {
	Name  string
	Side  Side
	Paths []Path
	Setup Setup
}

var (
	forward = []Path{Forward}
	reply   = []Path{Reply}
	local   = []Path{Local}
	brief   = []Path{Forward, Local}       // into a pane
	pull    = []Path{Reply, Mail}          // to a client
	across  = []Path{Forward, Reply, Mail} // over the broker
	send    = []Path{Forward, Mail, Local} // with bridge_send
	spread  = []Path{Spread}
	every   = []Path{Forward, Reply, Mail, Local}
	ask     = []Path{Question}
	asks    = []Path{Question, QuestionHere}
	spawn   = []Path{Launch}
	spawns  = []Path{Launch, LaunchHere}
	stop    = []Path{End}
	ends    = []Path{Forward, Local, End}
	upgrade = []Path{Upgrade}
)

// Points is the table of all names, in the order of a message's trip. It is
// written without calls, so that a daemon without failpoints does not hold it.
var Points = []Point{
	// A call, and what leaves.
	{"outbox.local.before", Sender, local, Ordinary},
	{"outbox.intent.before", Sender, across, Ordinary},
	{"outbox.intent.after", Sender, across, Ordinary},
	{"outbox.publish.before", Sender, across, Ordinary},
	{"fabric.publish.written", Sender, across, Ordinary},
	{"outbox.confirm.before", Sender, across, Ordinary},
	{"outbox.publish.after", Sender, across, Ordinary},
	{"outbox.lease.before", Sender, []Path{Forward, Mail}, Away},
	{"outbox.cast.intent.before", Sender, spread, Ordinary},
	{"outbox.cast.intent.after", Sender, spread, Ordinary},
	{"outbox.cast.local", Sender, spread, Ordinary},
	{"outbox.cast.publish.before", Sender, spread, Ordinary},
	{"outbox.cast.publish.after", Sender, spread, Ordinary},
	{"mcp.send.accepted", Sender, send, Ordinary},
	{"mcp.reply.accepted", Sender, reply, Ordinary},
	{"mcp.send.answered", Sender, send, Ordinary},
	{"store.commit.before", Sender, every, Ordinary},
	{"store.commit.after", Sender, every, Ordinary},

	// What arrives.
	{"inbox.accept.before", Receiver, across, Ordinary},
	{"inbox.accept.held", Receiver, []Path{Spread, Forward, Reply, Mail}, Ordinary},
	{"inbox.deliver.before", Receiver, local, Ordinary},
	{"inbox.deliver.after", Receiver, local, Ordinary},

	// Into a pane.
	{"inbox.deferred.before", Receiver, brief, Waiting},
	{"outbox.deferred.before", Sender, forward, Waiting},
	{"inbox.injecting.before", Receiver, brief, Ordinary},
	{"inbox.injecting.after", Receiver, []Path{Spread, Forward, Local}, Ordinary},
	{"inbox.injecting.acked", Receiver, brief, Ordinary},
	{"herdr.paste.after", Receiver, brief, Ordinary},
	{"herdr.enter.before", Receiver, brief, Ordinary},
	{"herdr.enter.after", Receiver, brief, Ordinary},
	{"inbox.injected.before", Receiver, brief, Ordinary},
	{"inbox.injected.signalled", Receiver, brief, Ordinary},
	{"outbox.signal.before", Receiver, forward, Ordinary},
	{"outbox.signal.after", Receiver, forward, Ordinary},
	{"outbox.injected.before", Sender, []Path{Forward, Spread}, Ordinary},
	{"outbox.injected.told", Sender, forward, Ordinary},

	// To a client.
	{"outbox.replied.before", Receiver, reply, Ordinary},
	{"inbox.pull.offered", Receiver, pull, Ordinary},
	{"inbox.pull.written", Receiver, pull, Ordinary},
	{"inbox.pull.drained", Receiver, []Path{Spread, Reply, Mail}, Ordinary},
	{"inbox.pull.acked", Receiver, pull, Ordinary},

	// What goes wrong, and who is told.
	{"inbox.expel.before", Receiver, brief, Expired},
	{"inbox.expel.reported", Receiver, brief, Expired},
	{"inbox.fail.before", Receiver, brief, Doubtful},
	{"inbox.fail.reported", Receiver, brief, Doubtful},
	{"inbox.putback.before", Receiver, brief, Refused},
	{"inbox.putback.after", Receiver, brief, Refused},
	{"inbox.retire.before", Receiver, brief, Gone},
	{"inbox.retire.after", Receiver, ends, Gone},
	{"inbox.end.closed", Receiver, ends, Gone},
	{"inbox.end.unbound", Receiver, brief, Gone},
	{"inbox.abandon.before", Receiver, brief, Gone},
	{"inbox.abandon.reported", Receiver, brief, Gone},
	{"inbox.end.drained", Receiver, brief, Gone},
	{"inbox.end.removed", Receiver, ends, Gone},
	{"outbox.final.before", Receiver, forward, Expired},
	{"outbox.final.after", Receiver, forward, Expired},
	{"outbox.dead.before", Sender, forward, Expired},
	{"outbox.dead.noted", Sender, []Path{Forward, Mail}, Dead},
	{"outbox.notice.before", Sender, brief, Expired},
	{"outbox.notice.after", Sender, brief, Expired},

	// After another fault.
	{"outbox.reconnected", Sender, across, Again},
	{"outbox.again.before", Sender, reply, Again},
	{"outbox.again.after", Sender, reply, Again},
	{"outbox.query.before", Sender, forward, Asked},
	{"inbox.answer.before", Receiver, forward, Asked},
	{"inbox.report.committed", Sender, forward, Untold},
	{"inbox.duplicate.before", Receiver, across, Duplicate},
	{"inbox.duplicate.held", Receiver, forward, Held},
	{"outbox.repeated", Sender, send, Repeated},
	{"outbox.verdict.before", Sender, forward, Unseen},
	{"outbox.load", Sender, forward, Booted},
	{"inbox.boot.before", Receiver, brief, Booted},
	{"inbox.boot.reported", Receiver, brief, Booted},
	{"inbox.boot.settled", Receiver, brief, Booted},

	// A question in the middle of a brief: its sender is the worker's side.
	{"outbox.ask.before", Sender, ask, Ordinary},
	{"outbox.ask.after", Sender, asks, Ordinary},
	{"inbox.ask.before", Receiver, ask, Ordinary},
	{"inbox.ask.nobody", Receiver, ask, Unheard},
	{"mcp.question.offered", Receiver, asks, Ordinary},
	{"inbox.ask.written", Receiver, ask, Ordinary},
	{"outbox.answer.before", Receiver, ask, Ordinary},
	{"outbox.answer.after", Receiver, ask, Ordinary},
	{"outbox.answer.arrived", Sender, ask, Ordinary},
	{"outbox.late.before", Sender, ask, Late},
	{"mcp.ask.answered", Sender, asks, Ordinary},
	{"mcp.ask.written", Sender, ask, Ordinary},
	{"outbox.met.after", Sender, ask, Ordinary},
	{"outbox.answer.word", Receiver, asks, Ordinary},

	// An agent begins: its sender is who asks for it.
	{"control.asked.before", Sender, spawn, Ordinary},
	{"control.asked.after", Sender, spawn, Ordinary},
	{"control.spawn.published", Sender, spawn, Ordinary},
	{"control.spawn.before", Receiver, spawn, Ordinary},
	{"control.launching.after", Receiver, spawns, Ordinary},
	{"control.opened", Receiver, spawns, Ordinary},
	{"control.spawned.before", Receiver, spawn, Ordinary},
	{"control.spawned.after", Receiver, spawn, Ordinary},
	{"control.undo.before", Receiver, spawn, Failing},
	{"control.undo.closed", Receiver, spawn, Failing},
	{"control.undo.after", Receiver, spawn, Failing},
	{"control.conclude.before", Sender, spawn, Ordinary},
	{"control.task.sent", Sender, spawns, Ordinary},
	{"control.conclude.after", Sender, spawn, Ordinary},

	// And is ended.
	{"control.stop.published", Sender, stop, Ordinary},
	{"control.stop.before", Receiver, stop, Ordinary},
	{"control.stopped.before", Receiver, stop, Ordinary},
	{"control.stop.heard", Sender, stop, Ordinary},

	// Mail of the old daemon on its way to a main.
	{"migrate.marked", Mover, upgrade, Ordinary},
	{"migrate.taken", Mover, upgrade, Ordinary},
	{"migrate.numbered", Mover, upgrade, Ordinary},
	{"migrate.delivered", Mover, upgrade, Ordinary},
	{"migrate.acked", Mover, upgrade, Ordinary},
	{"migrate.settled", Mover, upgrade, Ordinary},
	{"migrate.delete.before", Mover, upgrade, Ordinary},
	{"migrate.delete.after", Mover, upgrade, Ordinary},
}

// Find returns the point of that name.
func Find(name string) (Point, bool) {
	for _, p := range Points {
		if p.Name == name {
			return p, true
		}
	}
	return Point{}, false
}
