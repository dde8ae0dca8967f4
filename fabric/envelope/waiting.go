package envelope

// Reason is why a message is not in: one of these words or an error code
// (design §11). Of what waits a DEFERRED says it (design §4).
type Reason string

// Why the gate of a pane is closed.
const (
	Busy        Reason = "BUSY"         // a turn is running, or another text goes in
	Blocked     Reason = "BLOCKED"      // a dialog or a login is open: a person must act
	Draft       Reason = "DRAFT"        // somebody's text is in the composer
	Unsent      Reason = "UNSENT"       // a text of ours is, whose Enter was lost: a person must send or clear it
	NotReady    Reason = "NOT_READY"    // no idle composer to be seen
	Settling    Reason = "SETTLING"     // idle, but not for long enough; opens by itself within seconds
	PaneChanged Reason = "PANE_CHANGED" // another terminal or agent than the pinned one
	AgentGone   Reason = "AGENT_GONE"   // only the shell of its agent is left
	Unfit       Reason = "HERDR_UNFIT"  // a herdr too old to inject through
)

// Why a message waits before that.
const (
	NoPane Reason = "NO_PANE" // the worker is registered and has no pane yet
	Queued Reason = "QUEUED"  // others are before it
	Unseen Reason = "UNSEEN"  // the answer to a QUERY: it has not arrived
)
