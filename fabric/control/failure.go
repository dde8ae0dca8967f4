package control

import (
	"fmt"
	"regexp"
	"strings"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
)

// headerDetail carries in which way a spawn or a stop failed, beside the code
// in reason. A gateway that does not know it has the code.
const headerDetail = "detail"

// detail is what headerDetail may hold: codes, because it is told to an agent in
// words of our own, and another host's text must not stand there.
var detail = regexp.MustCompile(`^[A-Z][A-Z0-9_]*( [A-Z][A-Z0-9_]*)?$`)

// The ways in which a launch fails.
const (
	NotInstalled = "NOT_INSTALLED" // the program could not be started
	NoDirectory  = "NO_DIRECTORY"  // its working directory does not exist
	Exited       = "EXITED"        // it ended before it was ready
	NeverReady   = "NEVER_READY"   // followed by why the gate was closed last
	Interrupted  = "INTERRUPTED"   // the gateway ended meanwhile
	stoppedEarly = "STOPPED"       // somebody stopped it meanwhile
)

// Failure is why a launch failed: a code of design §11, and in which way.
type Failure struct {
	Code   fault.Code
	Detail string
	Cause  error
}

// Error is for the log.
func (f *Failure) Error() string {
	return strings.TrimSpace(fmt.Sprintf("%s %s (%v)", f.Code, f.Detail, f.Cause))
}

// Unwrap returns the cause.
func (f *Failure) Unwrap() error { return f.Cause }

// refused reports whether nothing was launched: without a key of the caller's
// there is nothing to remember.
func (f *Failure) refused() bool {
	switch f.Code {
	case fault.BadRequest, fault.NotAllowed, fault.ProfileUnknown, fault.Conflict, fault.TooLarge:
		return true
	}
	return false
}

// outcome is how a spawn ended.
type outcome struct {
	spawned bool
	failure *Failure
}

func outcomeOf(env *envelope.Envelope) outcome {
	if env.Kind == envelope.Spawned {
		return outcome{spawned: true}
	}
	f := &Failure{Code: fault.Code(env.Reason), Detail: env.Headers[headerDetail]}
	if !detail.MatchString(f.Detail) {
		f.Detail = ""
	}
	return outcome{failure: f}
}

// sentence is a failed spawn in words, for whoever asked for it.
func sentence(s store.Spawn, f *Failure) error {
	what := fmt.Sprintf("profile %s on %s", s.Profile, s.Host)
	text := ""
	why, reason, _ := strings.Cut(f.Detail, " ")
	switch {
	case f.Code == fault.ProfileUnknown:
		text = fmt.Sprintf("host %s has no profile %s that may be asked for; its bridged.yaml names them under profiles", s.Host, s.Profile)
	case f.Code == fault.NotAllowed:
		text = fmt.Sprintf("host %s takes no spawns from this one; whoever runs it can change that with control.allow", s.Host)
	case f.Code == fault.Conflict:
		text = fmt.Sprintf("the name %s is in use on %s; choose another one, or leave it out", s.Name, s.Host)
	case f.Code == fault.TooLarge:
		text = fmt.Sprintf("with the groups of its profile it would be in more than %d; ask for fewer, nothing was started", envelope.MaxGroups)
	case f.Code == fault.HerdrDown:
		text = fmt.Sprintf("herdr does not answer on %s, so nothing could be started; have it started there, then spawn again", s.Host)
	case f.Code == fault.StoreUnavailable:
		text = fmt.Sprintf("host %s cannot store anything now, so nothing was started; try again later", s.Host)
	case why == NotInstalled:
		text = fmt.Sprintf("the program of %s could not be started: it is not installed there, or not in herdr's PATH; nothing is left of the attempt", what)
	case why == NoDirectory:
		text = fmt.Sprintf("the working directory of %s does not exist there; nothing was started", what)
	case why == Exited:
		text = fmt.Sprintf("the program of %s ended before it was ready; run it there by hand to see why. Nothing is left of the attempt", what)
	case why == NeverReady:
		text = fmt.Sprintf("the agent of %s started and did not come to take input in time (%s); it was closed again. Start it there by hand once: it may ask for a login or for trust", what, reason)
	case why == Interrupted:
		text = fmt.Sprintf("the gateway of %s ended during the launch; what had been started was closed. Spawn again", s.Host)
	case why == stoppedEarly:
		text = "it was stopped before it was ready; nothing is left of it"
	default:
		text = fmt.Sprintf("%s could not be spawned; the log of that gateway says why", what)
	}
	return fault.Wrap(f.Cause, f.Code, "%s", text)
}

// failureOf sorts what a step of a launch returned.
func failureOf(err error) *Failure {
	if f, ok := err.(*Failure); ok {
		return f
	}
	return &Failure{Code: fault.CodeOf(err), Cause: err}
}
