package herdr

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/test/failpoint"
	"fleetd/wait"
)

// typist does what follows the point of no return: steps 7 to 9 of the herdr
// socket reference §10. The text is written once, in run; what is repeated is
// Enter.
type typist struct {
	in    *Injector
	kind  Kind
	pane  Pane
	text  string
	probe probe
	base  AgentInfo // the agent right before Enter: what must move
	log   hclog.Logger
}

func injected() *Outcome { return &Outcome{Result: Injected} }

func doubt(reason envelope.Reason, format string, args ...any) *Outcome {
	return &Outcome{Result: InDoubt, Reason: reason, Err: fault.New(fault.InDoubt, format, args...)}
}

const inDoubt = envelope.Reason(fault.InDoubt)

func (t *typist) run(ctx context.Context) Outcome {
	lookFor, out := t.paste(ctx)
	failpoint.Hit("herdr.paste.after")
	if out != nil {
		return *out
	}
	submitted, out := t.appeared(ctx, lookFor)
	if out != nil {
		return *out
	}
	if submitted {
		// Somebody else pressed Enter.
		return *t.verify(ctx, t.in.Timing.Verify, last)
	}
	return t.submit(ctx)
}

// paste is step 7a. It returns how long to look for the text.
func (t *typist) paste(ctx context.Context) (time.Duration, *Outcome) {
	err := t.in.Client.SendInput(ctx, t.pane.ID, t.text)
	switch {
	case err == nil:
		return t.in.Timing.LookFor, nil
	case fault.Is(err, fault.HerdrDown):
		t.in.forget()
		return 0, &Outcome{Result: NotSent, Reason: herdrDown, Err: err}
	case fault.Is(err, fault.TooLarge):
		return 0, &Outcome{Result: NotSent, Reason: envelope.Reason(fault.TooLarge), Err: err}
	case hasCode(err, "pane_send_failed", "pane_not_found", "agent_not_found", "agent_not_ready", "agent_blocked",
		"agent_prompt_failed", "invalid_request", "invalid_params"):
		return 0, &Outcome{Result: NotSent, Reason: envelope.Reason(fault.NotInjected),
			Err: fault.Wrap(err, fault.NotInjected, "herdr refused the text for pane %s; nothing was written", t.pane.ID)}
	}
	t.log.Warn("it is not known whether a paste was executed; looking", "error", err)
	t.in.forget()
	return t.in.Timing.Doubt, nil
}

// appeared is step 7b: it looks until the whole text is in the composer. After
// lookFor a part of it is enough (a composer may hide what does not fit it), but
// nothing is not. submitted tells that the text is out of the composer already.
// A dialog is believed when two looks in a row show it: one alone may have met
// a screen that was half drawn.
func (t *typist) appeared(ctx context.Context, lookFor time.Duration) (submitted bool, out *Outcome) {
	var at place
	dialog := false // the look before showed one
	for end := t.in.now().Add(lookFor); ; {
		if err := wait.Pause(ctx, t.in.Timing.Look); err != nil {
			return false, t.timeUp()
		}
		s, pl, err := t.read(ctx)
		switch {
		case hasCode(err, "pane_not_found"):
			return false, doubt(inDoubt, "pane %s closed right after the paste", t.pane.ID)
		case err == nil && s.reason == envelope.Blocked:
			if dialog {
				return false, doubt(envelope.Blocked, "a dialog opened in pane %s right after the paste; answer it and see whether the message is in the composer", t.pane.ID)
			}
			dialog = true
		case err == nil:
			at, dialog = pl, false
			if pl.whole || !s.known && pl.elsewhere && t.kind.Composer == nil {
				t.remember(&s, pl)
				return false, nil
			}
			if s.known && pl.elsewhere && !pl.inComposer {
				return true, nil
			}
		}
		if !dialog && !t.in.now().Before(end) {
			break
		}
	}
	if at.inComposer {
		return false, nil
	}
	return false, t.vanished(ctx)
}

// vanished says what the text that is not to be seen may have met.
func (t *typist) vanished(ctx context.Context) *Outcome {
	a, err := t.in.Client.AgentGet(ctx, t.pane.ID)
	if out := t.lost(a, err); out != nil {
		return out
	}
	if err == nil && a.AgentStatus == StatusBlocked {
		return doubt(envelope.Blocked, "the agent in pane %s shows a dialog that may have swallowed the text; answer it and look at the pane", t.pane.ID)
	}
	return doubt(inDoubt, "the text was pasted into pane %s but did not appear there; look at the pane", t.pane.ID)
}

// remember notes the collapse marker that stands for the text, to find it in
// the transcript later.
func (t *typist) remember(s *sight, pl place) {
	if pl.marker != "" {
		t.probe.marker = pl.marker
		t.probe.marked = strings.Count(s.outside(), pl.marker)
	}
}

func (t *typist) read(ctx context.Context) (sight, place, error) {
	r, err := t.in.Client.PaneRead(ctx, t.pane.ID, SourceDetection, false)
	if err != nil {
		return sight{}, place{}, err
	}
	s := t.kind.look(screenRows(r.Text))
	pl := t.kind.locate(&s, t.probe)
	if !s.known && s.reason != "" && t.kind.Composer == nil && t.onlyOurs(s.rows) {
		s.reason = ""
	}
	return s, pl, nil
}

// look is the agent and the screen, seen side by side: what is done next comes
// right behind both.
type look struct {
	agent   AgentInfo
	unknown error // why the agent could not be seen
	sight   sight
	place   place
	unread  error // why the screen could not be seen
}

func (t *typist) look(ctx context.Context) (l look) {
	start := t.in.now()
	var screen sync.WaitGroup
	screen.Go(func() { l.sight, l.place, l.unread = t.read(ctx) })
	l.agent, l.unknown = t.in.Client.AgentGet(ctx, t.pane.ID)
	screen.Wait()
	if t.in.late(start) { // a dialog may have opened since the screen was drawn
		l.sight, l.place, l.unread = t.read(ctx)
	}
	return l
}

// onlyOurs reports whether the words that look like a dialog are rows of our own
// text. It matters where no composer tells ours from the program's.
func (t *typist) onlyOurs(rows []string) bool {
	ours := squash(t.text)
	for _, r := range tail(rows, nearRows) {
		if (t.kind.Dialog.MatchString(r) || t.kind.Login.MatchString(r)) && !strings.Contains(ours, squash(r)) {
			return false
		}
	}
	return true
}

// lost says whether an agent.get shows that the occupant is no more.
func (t *typist) lost(a AgentInfo, err error) *Outcome {
	switch {
	case hasCode(err, "agent_not_found"), err == nil && a.Agent == "":
		return doubt(inDoubt, "the agent in pane %s ended right after the paste; the text may stand in its shell", t.pane.ID)
	case err == nil && (a.TerminalID != t.pane.Terminal || a.Agent != t.pane.Kind):
		return doubt(inDoubt, "pane %s changed hands right after the paste", t.pane.ID)
	}
	return nil
}

func (t *typist) timeUp() *Outcome {
	return doubt(inDoubt, "what became of the text in pane %s could not be seen within %s; look at the pane", t.pane.ID, t.in.Timing.Finish)
}

// turn says whether Enter may be repeated after a verification.
type turn bool

const (
	again turn = true
	last  turn = false
)

// submit presses Enter until the text is gone from the composer: step 7d, and
// at most two repetitions while the text is seen there (step 9).
func (t *typist) submit(ctx context.Context) Outcome {
	for press := 1; ; press++ {
		if out := t.ready(ctx); out != nil {
			return *out
		}
		failpoint.Hit("herdr.enter.before")
		if err := t.in.Client.SendKeys(ctx, t.pane.ID, "enter"); err != nil {
			// Not pressed, or not known to be: the screen tells which.
			t.log.Debug("Enter failed", "press", press, "error", err)
		}
		failpoint.Hit("herdr.enter.after")
		window, more := t.in.Timing.Verify, again
		switch press {
		case maxEnters:
			more = last
		case maxEnters - 1:
			window = t.in.Timing.EnterAgain
		}
		if out := t.verify(ctx, window, more); out != nil {
			return *out
		}
		t.log.Debug("Enter had no effect; pressing it again", "press", press)
	}
}

var errNotThere = errors.New("the text is not in the composer")

// ready is step 7c. It makes sure, right before Enter, that Enter submits our
// text and does nothing else: the same terminal, the same kind, no dialog, the
// text in the composer. What cannot be seen is looked at again. Where
// Enter would break off a running answer it waits for the end of that. One look
// that speaks against Enter may have met a screen that was half drawn, as may
// herdr's own that calls the agent blocked, so two in a row decide; after it, two
// in a row must speak for Enter, too.
func (t *typist) ready(ctx context.Context) *Outcome {
	against := false // the look before spoke against Enter
	for {
		l := t.look(ctx)
		a, s, pl := l.agent, l.sight, l.place
		if out := t.lost(a, l.unknown); out != nil {
			return out
		}
		running := a.AgentStatus == StatusWorking && t.kind.Steers
		if l.unknown == nil && l.unread == nil && !running {
			blocked := s.reason == envelope.Blocked || a.AgentStatus == StatusBlocked
			if s.known && !blocked && !pl.inComposer && pl.elsewhere { // somebody else pressed it
				t.base = a
				return t.verify(ctx, t.in.Timing.Verify, last)
			}
			out := t.refuses(a, s, pl)
			if against == (out != nil) {
				t.base = a
				return out
			}
			against = out != nil
		}
		if wait.Pause(ctx, t.in.Timing.VerifyPoll) != nil {
			return t.timeUp()
		}
	}
}

// refuses says what a look has against Enter; nil: nothing.
func (t *typist) refuses(a AgentInfo, s sight, pl place) *Outcome {
	switch {
	case a.AgentStatus == StatusBlocked:
		return doubt(envelope.Blocked, "the agent in pane %s opened a dialog after the paste; answer it and see whether the message is in the composer", t.pane.ID)
	case s.reason == envelope.Blocked:
		return doubt(envelope.Blocked, "a dialog opened in pane %s before Enter; answer it and see whether the message is in the composer", t.pane.ID)
	case pl.inComposer, t.kind.Composer == nil && pl.elsewhere:
		return nil
	}
	return &Outcome{Result: InDoubt, Reason: inDoubt, Err: fault.Wrap(errNotThere, fault.InDoubt,
		"the pasted text is no longer in the composer of pane %s; look at the pane", t.pane.ID)}
}

// verify is step 8: it looks for window whether the text was submitted. nil
// means that Enter was swallowed and may be pressed again. Whether a dialog is
// open then, two looks in a row decide.
func (t *typist) verify(ctx context.Context, window time.Duration, more turn) *Outcome {
	var v finding
	dialog := false // the look before showed one
	for end := t.in.now().Add(window); ; dialog = v.blocked() {
		if err := wait.Pause(ctx, t.in.Timing.VerifyPoll); err != nil {
			return t.timeUp()
		}
		var out *Outcome
		if v, out = t.check(ctx, v.moved); out != nil {
			return out
		}
		if !t.in.now().Before(end) && v.blocked() == dialog {
			break
		}
	}
	switch {
	case v.err != nil:
		return &Outcome{Result: InDoubt, Reason: inDoubt, Err: fault.Wrap(v.err, fault.InDoubt,
			"herdr does not show what became of the text in pane %s; look at the pane", t.pane.ID)}
	case v.blocked():
		return doubt(envelope.Blocked, "a dialog is open in pane %s; it is not known whether the message was taken", t.pane.ID)
	case !v.place.inComposer:
		return doubt(inDoubt, "the text left the composer of pane %s, but nothing shows that it was taken; look at the pane", t.pane.ID)
	case v.agent.AgentStatus != StatusIdle && v.agent.AgentStatus != StatusDone:
		return doubt(inDoubt, "the text stands in the composer of pane %s while the agent is %s; look at the pane", t.pane.ID, v.agent.AgentStatus)
	case more == last:
		return doubt(inDoubt, "the text stands in the composer of pane %s and Enter has no effect; press it there", t.pane.ID)
	}
	return nil
}

// finding is what one check saw.
type finding struct {
	agent AgentInfo
	sight sight
	place place
	moved bool  // the state moved since Enter, now or in an earlier check
	err   error // why agent or screen could not be seen
}

// blocked reports whether a dialog was seen.
func (v finding) blocked() bool {
	return v.sight.reason == envelope.Blocked || v.agent.AgentStatus == StatusBlocked
}

// check looks once, at agent and screen together. The status alone could have been moved by something else,
// and the screen alone cannot tell a wiped composer from a submitted one: the
// text must not be in the composer, and either the status moved or the text is
// seen elsewhere. Behind a dialog the composer cannot be seen: then only the
// text elsewhere counts.
func (t *typist) check(ctx context.Context, moved bool) (finding, *Outcome) {
	l := t.look(ctx)
	a, s, pl := l.agent, l.sight, l.place
	if out := t.lost(a, l.unknown); out != nil {
		return finding{}, out
	}
	if l.unknown != nil {
		return finding{err: fmt.Errorf("agent: %w", l.unknown), moved: moved}, nil
	}
	if l.unread != nil {
		return finding{err: fmt.Errorf("screen: %w", l.unread), moved: moved}, nil
	}
	v := finding{agent: a, sight: s, place: pl, moved: moved || t.moved(a)}
	switch {
	case pl.inComposer:
	case t.kind.Composer == nil:
		if v.moved && !v.blocked() {
			return v, injected()
		}
	case t.kind.Lost != nil && anyMatch(tail(s.rows, 2*nearRows), t.kind.Lost):
		return v, doubt(envelope.Blocked, "the agent in pane %s is not logged in and threw the message away; log in there", t.pane.ID)
	case pl.elsewhere && (v.moved || s.known):
		return v, injected()
	case v.moved && !v.blocked():
		return v, injected()
	}
	return v, nil
}

// moved reports whether the agent's state moved since right before Enter. If a
// turn was running then, its end would look like ours.
func (t *typist) moved(a AgentInfo) bool {
	if t.base.AgentStatus == StatusWorking {
		return false
	}
	return a.StateChangeSeq > t.base.StateChangeSeq || a.AgentStatus == StatusWorking
}
