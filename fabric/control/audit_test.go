package control

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
)

// audited are a host's acts since the last call, in words, once there are n.
func (h *host) audited(n int) (out []string) {
	h.w.t.Helper()
	await(h.w.t, fmt.Sprintf("%d acts at %s", n, h.name), func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.acts) >= n
	})
	h.set(func() {
		for _, a := range h.acts {
			who := a.Who
			if who == lead {
				who = "lead"
			}
			if a.TraceID == "" {
				who += " without a trace"
			}
			out = append(out, fmt.Sprintf("%s %s>%s by %s: %s %s", a.Verb, a.From, a.Host, who, a.Outcome, a.Code))
		}
		h.acts = nil
	})
	return out
}

// Fails when something that one host asks of another, or is refused, is not in
// the audit log of both; when it is not said who asked; or when both do not
// name one trace.
func TestBothSidesKeepARecord(t *testing.T) {
	t.Attr("threat", "G8 G4")
	w := newWorld(t)
	a, b := w.hosts["hosta"], w.hosts["hostb"]
	a.Control.cfg.Repeat = time.Hour // nothing is lost, and each request that is refused is on record
	both := func(what string, onA, onB []string) {
		t.Helper()
		if got := a.audited(len(onA)); !slices.Equal(got, onA) {
			t.Errorf("%s, who asks: %q, want %q", what, got, onA)
		}
		if got := b.audited(len(onB)); !slices.Equal(got, onB) {
			t.Errorf("%s, who is asked: %q, want %q", what, got, onB)
		}
	}
	act := func(verb, outcome string) string { return fmt.Sprintf("%s hosta>hostb by lead: %s", verb, outcome) }

	got, err := a.Spawn(t.Context(), w.ask(func(r *Request) { r.Task = "a secret" }))
	if err != nil {
		t.Fatal(err)
	}
	trace := func(h *host) string { h.mu.Lock(); defer h.mu.Unlock(); return h.acts[0].TraceID }
	await(t, "acts", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.acts) > 0 })
	if trace(a) != trace(b) || trace(a) != got.TraceID {
		t.Errorf("the traces are %s and %s, the spawn's is %s", trace(a), trace(b), got.TraceID)
	}
	both("a spawn", []string{act("spawn", "asked "), act("spawn", "spawned ")}, []string{act("spawn", "begun "), act("spawn", "spawned ")})

	_, err = a.Spawn(t.Context(), w.ask(func(r *Request) { r.Profile = "private" }))
	wants(t, err, fault.ProfileUnknown, "private")
	both("a closed profile", []string{act("spawn", "asked "), act("spawn", "refused PROFILE_UNKNOWN")}, []string{act("spawn", "refused PROFILE_UNKNOWN")})

	foreign, late := *w.last(envelope.Spawn), *w.last(envelope.Spawn)
	foreign.SpawnID, foreign.Signer = got.Target.GID, "hostc"
	w.bring(envelope.LaneControl, &foreign)
	late.SpawnID, late.ExpiresAt = newID(), time.Now().Add(-time.Minute).UnixMilli()
	w.bring(envelope.LaneControl, &late)
	both("captured requests", nil, []string{"spawn hostc>hostb by lead: refused NOT_ALLOWED", act("spawn", "refused EXPIRED")})

	if _, err := a.Trace(t.Context(), got.TraceID); err != nil {
		t.Fatal(err)
	}
	both("a trace", []string{"trace hosta>hostb by _gateway@hosta: asked "}, []string{"trace hosta>hostb by _gateway@hosta: told "})

	b.set(func() { b.allows = false })
	_, err = a.Spawn(t.Context(), w.ask())
	wants(t, err, fault.NotAllowed, "control.allow")
	both("a spawn that is not allowed", []string{act("spawn", "asked "), act("spawn", "refused NOT_ALLOWED")}, []string{act("spawn", "refused NOT_ALLOWED")})
	_, _, err = a.Control.Stop(t.Context(), lead, got.Target.GID)
	wants(t, err, fault.NotAllowed, "control.allow")
	both("a stop that is not allowed", []string{act("stop", "asked "), act("stop", "refused NOT_ALLOWED")}, []string{act("stop", "refused NOT_ALLOWED")})

	b.set(func() { b.allows = true })
	if _, done, err := a.Control.Stop(t.Context(), lead, got.Target.GID); !done || err != nil {
		t.Fatalf("stopped %v, %v", done, err)
	}
	both("a stop", []string{act("stop", "asked "), act("stop", "stopped ")}, []string{act("stop", "begun "), act("stop", "stopped ")})

	if _, err := a.Spawn(t.Context(), w.ask(func(r *Request) { r.Host = "hosta" })); err != nil {
		t.Fatal(err)
	}
	both("a spawn at home", []string{"spawn hosta>hosta by lead: begun ", "spawn hosta>hosta by lead: spawned "}, nil)
}

// What has been done is on record once. Fails when an agent that stops again what
// has ended, here or elsewhere, or a task that cannot be sent yet, writes it down
// again and again: that pushes out what was done before.
func TestWhatWasDoneIsWrittenOnce(t *testing.T) {
	t.Attr("threat", "G8")
	w := newWorld(t)
	a, b := w.hosts["hosta"], w.hosts["hostb"]
	a.set(func() { a.mute = fault.New(fault.BrokerDown, "it is away") })
	r := w.ask(func(r *Request) { r.Task = "go" })
	for range 3 { // and by itself, in between
		_, err := a.Spawn(t.Context(), r)
		wants(t, err, fault.BrokerDown, "its task was not sent")
	}
	a.set(func() { a.mute = nil })
	got, err := a.Spawn(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	here, err := b.Spawn(t.Context(), w.ask())
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		for _, gid := range []string{here.Target.GID, got.Target.GID} {
			if _, done, err := b.Control.Stop(t.Context(), lead, gid); !done || err != nil {
				t.Fatalf("stopped %v, %v", done, err)
			}
		}
	}
	w.mu.Lock()
	w.gone[got.Target.GID] = true // as presence says
	w.mu.Unlock()
	for range 3 {
		if _, done, err := a.Control.Stop(t.Context(), lead, got.Target.GID); !done || err != nil {
			t.Fatalf("stopped %v, %v", done, err)
		}
	}
	if got, want := a.audited(2), []string{"spawn hosta>hostb by lead: asked ", "spawn hosta>hostb by lead: spawned "}; !slices.Equal(got, want) {
		t.Errorf("who asks wrote %q, want %q", got, want)
	}
	seen := map[string]int{}
	for _, act := range b.audited(8) {
		seen[act]++
	}
	for act, n := range map[string]int{
		"spawn hosta>hostb by lead: begun ": 1, "spawn hosta>hostb by lead: spawned ": 1,
		"spawn hostb>hostb by lead: begun ": 1, "spawn hostb>hostb by lead: spawned ": 1,
		"stop hostb>hostb by lead: begun ": 2, "stop hostb>hostb by lead: stopped ": 2,
	} {
		if seen[act] != n {
			t.Errorf("%q is written %d times, want %d", act, seen[act], n)
		}
	}
}

// Fails when a host that may spawn here buries what was done under the text of
// its requests: the log is bounded in bytes.
func TestARequestsTextIsNotInTheAuditLog(t *testing.T) {
	t.Attr("threat", "G8")
	w := newWorld(t)
	b := w.hosts["hostb"]
	long := w.hosts["hosta"].request(envelope.Spawn, lead, "hostb", newID(), strings.Repeat("a", 32), time.Now().Add(hang), nil)
	long.Body = []byte(`{"profile":"` + strings.Repeat("x", 200<<10) + `"}`)
	w.bring(envelope.LaneControl, long)
	await(t, "its act", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.acts) > 0 })
	if a := b.acts[0]; a.Outcome != actRefused || a.Code != fault.ProfileUnknown || len(a.Profile) > 63 {
		t.Errorf("%s %s, with a profile of %d bytes", a.Outcome, a.Code, len(a.Profile))
	}
}
