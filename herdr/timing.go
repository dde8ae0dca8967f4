package herdr

import "time"

// Timing holds every wait of the gate and the injector; begin with
// DefaultTiming.
type Timing struct {
	Stable     time.Duration // the same status and no transition for this long
	FirstSight time.Duration // since the agent was first seen, on a herdr that calls a new agent idle
	Settle     time.Duration // most of a kind's settle time that is asked for

	Look    time.Duration // between two looks at a composer, and before the first one after a paste
	LookFor time.Duration // how long a pasted text may take to appear
	Doubt   time.Duration // the same when it is not known whether the paste was executed

	VerifyPoll time.Duration // between looks after Enter
	Verify     time.Duration // how long they go on
	EnterAgain time.Duration // between the repetitions of Enter

	Poll    time.Duration // between looks at a closed gate that wait for the screen, and without a monitor
	Recheck time.Duration // the same with a monitor that wakes the gate
	Down    time.Duration // between tries while herdr is down
	Fit     time.Duration // how long a ping's answer is believed

	Finish time.Duration // bound of everything after the point of no return
}

// DefaultTiming returns the waits of the herdr socket reference §10.
func DefaultTiming() Timing {
	return Timing{
		Stable:     time.Second,
		FirstSight: 4 * time.Second,
		Settle:     10 * time.Second,
		Look:       300 * time.Millisecond,
		LookFor:    3 * time.Second,
		Doubt:      2 * time.Second,
		VerifyPoll: 250 * time.Millisecond,
		Verify:     5 * time.Second,
		EnterAgain: time.Second,
		Poll:       500 * time.Millisecond,
		Recheck:    5 * time.Second,
		Down:       2 * time.Second,
		Fit:        5 * time.Second,
		Finish:     20 * time.Second,
	}
}

// maxEnters is how often Enter is pressed at most: once and two repetitions
// (herdr socket reference §10 step 9).
const maxEnters = 3
