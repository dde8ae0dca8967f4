package roster

import (
	"errors"
	"strings"
	"testing"
	"time"

	"fleetd/fabric/envelope"
)

// Fails when a host speaks for another one, or nonsense changes anything.
func TestRefusalsChangeNothing(t *testing.T) {
	t.Attr("threat", "G2 B8")
	bubble(t, func(t *testing.T, f *fleet) {
		a := f.join("hosta")
		good := announceBody{stamp{1, 1}, bodyOf(5, "x")}
		foreign := raw("hostb", gid(5), good)
		foreign.To = envelope.RosterKey("hostc", gid(5))
		other := raw("hostb", gid(5), good)
		other.From = envelope.GatewayAddress("hostc")
		kind := raw("hostb", gid(5), good)
		kind.Kind = envelope.Send
		key := raw("hostb", gid(5), good)
		key.To = "roster.hostb"
		for _, c := range []struct {
			reason string
			e      *envelope.Envelope
		}{
			{ForeignWord, foreign}, {ForeignWord, other}, {NotPresence, kind}, {NotPresence, key},
			{BadPresence, raw("hostb", gid(5), "text")},
			{BadPresence, raw("hostb", gid(5), announceBody{stamp{0, 1}, good.Entity})},
			{BadPresence, raw("hostb", gid(5), announceBody{stamp{1, 0}, good.Entity})},
			{BadPresence, raw("hostb", gid(6), good)},
			{BadPresence, raw("hostb", envelope.RosterGateway, gatewayBody{stamp: stamp{1, 1}, Part: 2, Parts: 1})},
			{HugePresence, raw("hostb", envelope.RosterGateway, strings.Repeat("x", maxBody))},
		} {
			var refusal *envelope.Refusal
			if err := a.Handle(c.e); !errors.As(err, &refusal) || refusal.Reason != c.reason {
				t.Errorf("%s to %s: got %v, want %s", c.e.From, c.e.To, err, c.reason)
			}
		}
		want(t, "state of b", a.HostState("hostb"), Never)
		want(t, "state of c", a.HostState("hostc"), Never)
		want(t, "entities", len(a.Entities(Filter{})), 0)
		want(t, "counted", a.Stats().Malformed, 10)
	})
}

// Fails when a solicitation under our own host word, the other reading of the
// key, goes unanswered.
func TestSolicitationUnderOurHostWordIsAnswered(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		a := f.join("hosta", worker(1, "builder"))
		pass(time.Minute)
		from := f.mark()
		ask := raw("hostx", envelope.RosterSolicit, struct{}{})
		ask.To = envelope.RosterKey("hosta", envelope.RosterSolicit)
		if err := a.Handle(ask); err != nil {
			t.Fatal(err)
		}
		pass(0)
		want(t, "full announcements", f.count(from, "hosta", envelope.RosterGateway), 1)
		want(t, "hostx is alive by that", a.HostState("hostx"), Never)
	})
}

// Fails when an announcement in the name of the entity itself, as another
// gateway may write it, is refused.
func TestEntityMaySpeakInItsOwnName(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		a := f.join("hosta")
		e := raw("hostb", gid(5), announceBody{stamp{1, 1}, bodyOf(5, "x")})
		e.From = gid(5)
		if err := a.Handle(e); err != nil {
			t.Error(err)
		}
		want(t, "entities", a.sees("hostb"), "x:")
	})
}

// Fails when a flood of solicitations makes more than one full announcement a
// second.
func TestFullAnnouncementIsGivenOnceASecond(t *testing.T) {
	t.Attr("threat", "G6")
	bubble(t, func(t *testing.T, f *fleet) {
		f.quick = true
		f.join("hosta", worker(1, "builder"))
		pass(time.Minute)
		from, full := f.mark(), 0
		for i := range uint64(2000) {
			f.say("hostx", envelope.RosterSolicit, solicitBody{stamp: stamp{1, i + 1}})
			pass(5 * time.Millisecond)
		}
		for _, e := range f.sent[from:] {
			if strings.Contains(string(e.Body), `"parts":1`) {
				full++
			}
		}
		if full < 9 || full > 11 {
			t.Errorf("%d full announcements in ten seconds", full)
		}
		if n := f.count(from, "hosta", envelope.RosterGateway); n > 120 {
			t.Errorf("%d messages in ten seconds", n)
		}
	})
}

// Fails when a gateway with our host id and key goes unnoticed or is believed.
func TestCloneIsLoudAndNotBelieved(t *testing.T) {
	t.Attr("threat", "B6")
	bubble(t, func(t *testing.T, f *fleet) {
		a := f.join("hosta", worker(1, "builder"))
		for seq := range uint64(5) {
			f.say("hosta", gid(2), announceBody{stamp{5000, seq + 1}, bodyOf(2, "clone")})
		}
		want(t, "entities", a.sees("hosta"), "builder:idle")
		want(t, "counted", a.Stats().Clones, 5)
		want(t, "lines", a.log.count("another gateway announces itself"), 1)
	})
}

// Fails when a host that announces nonsense, or is started anew, with each
// message has a line written for each.
func TestAHostThatRunsWildDoesNotFloodTheLog(t *testing.T) {
	t.Attr("threat", "G6 B8")
	bubble(t, func(t *testing.T, f *fleet) {
		a := f.join("hosta")
		before := a.log.count("\n")
		for i := range uint64(1000) {
			wild := bodyOf(5, "x")
			wild.Name = "no name\n"
			if err := a.Handle(raw("hostb", gid(5), announceBody{stamp{i + 1, 1}, wild})); err != nil {
				t.Fatal(err)
			}
		}
		if n := a.log.count("\n") - before; n == 0 || n > 2*linesBurst {
			t.Errorf("%d lines", n)
		}
	})
}
