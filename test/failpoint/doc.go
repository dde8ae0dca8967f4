// Package failpoint names the places at which a crash test ends, stops or
// disturbs the gateway: every step between "call accepted" and "answer given",
// on both sides. A place is one line,
//
//	failpoint.Hit("inbox.injecting.after")
//
// and one entry of Points. Without the build tag failpoints Hit is empty, is
// inlined, and nothing of it is left in the binary. With the tag it obeys
//
//	BRIDGED_FAILPOINT="name[:nth]=kill|hang|panic|stall"
//
// for the nth hit (1 if not said) since the start, or whoever listens on the
// unix socket BRIDGED_FAILPOINT_CONTROL, who may arm one point after the other
// while the process runs (see Order).
//
// What a crash test does with all this lives in fleetd/test/crash.
package failpoint
