package roster

import (
	"fmt"
	"testing"
	"time"

	"fleetd/fabric/envelope"
)

func want[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// Fails when a joining host doesn't announce itself in full or isn't answered.
func TestHostsSeeEachOtherOnceJoined(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		a := f.join("hosta", worker(1, "builder", "builders"))
		b := f.join("hostb", worker(2, "reviewer"), worker(3, "tester"))
		want(t, "a sees of b at once", a.sees("hostb"), "reviewer:idle tester:idle")
		want(t, "and knows that it is all", a.Hosts()[1].Complete, true)
		c := f.join("hostc")
		for _, m := range []*member{a, b, c} {
			want(t, m.host+" sees of a", m.sees("hosta"), "builder:idle")
			want(t, m.host+" sees of b", m.sees("hostb"), "reviewer:idle tester:idle")
			want(t, m.host+" of c", m.HostState("hostc"), Online)
			want(t, m.host+" is current", m.Current(), true)
		}
		home, known := a.Home(gid(2))
		want(t, "home", home, "hostb")
		want(t, "home known", known, true)
		want(t, "c of a stranger", c.HostState("hostz"), Never)
		for _, host := range []string{"hosta", "hostb", "hostc"} {
			want(t, "solicitations of "+host, f.count(0, host, envelope.RosterSolicit), 1)
		}
		if len(f.refused) > 0 {
			t.Error(f.refused)
		}
	})
}

// Fails when a change of an entity waits for the next heartbeat, or when what
// was withdrawn is forgotten.
func TestChangesArriveAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		a, b := f.join("hosta", worker(1, "builder")), f.join("hostb")
		since := time.Now().Truncate(time.Millisecond)
		a.SetStatus(gid(1), Status{State: "working", Since: since, Refusing: "a draft is in the composer"})
		pass(coalesce)
		want(t, "after a status", b.sees("hosta"), "builder:working")
		got := b.Entities(Filter{Status: "working"})[0].Status
		want(t, "since", got.Since.Equal(since), true)
		want(t, "refusing", got.Refusing, "a draft is in the composer")
		a.mustSet(worker(2, "tester"))
		pass(0)
		want(t, "after a birth", b.sees("hosta"), "builder:working tester:idle")
		a.RemoveLocal(gid(1))
		pass(0)
		want(t, "after a withdrawal", b.sees("hosta"), "builder:gone tester:idle")
		want(t, "listed", len(b.Entities(Filter{Kind: "worker"})), 1)
	})
}

// Fails when saying the same again is a message.
func TestSameAgainIsNoChange(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		a := f.join("hosta", worker(1, "builder"))
		from := f.mark()
		a.mustSet(worker(1, "builder"))
		a.SetStatus(gid(1), worker(1, "builder").Status)
		pass(time.Second)
		want(t, "the same again", f.count(from, "hosta", gid(1)), 0)
		moved := worker(1, "builder")
		moved.Pane = "wQ:p9"
		a.mustSet(moved)
		pass(coalesce)
		want(t, "another pane", f.count(from, "hosta", gid(1)), 1)
	})
}

// Fails when each change of a flapping status is a message.
func TestFlappingStatusIsGathered(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		a, b := f.join("hosta", worker(1, "builder")), f.join("hostb")
		from := f.mark()
		for i := range 1000 {
			a.SetStatus(gid(1), Status{State: []State{Idle, Working}[i%2]})
			pass(time.Millisecond)
		}
		pass(coalesce)
		want(t, "the last one", b.sees("hosta"), "builder:working")
		if n := f.count(from, "hosta", gid(1)); n > 11 {
			t.Errorf("1000 changes within a second made %d announcements", n)
		}
	})
}

// Fails when a clean stop is only seen by missing heartbeats.
func TestCleanStopIsOfflineAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		f.quick = true
		a, b := f.join("hosta", worker(1, "builder")), f.join("hostb")
		changed := b.Changed()
		a.stop()
		want(t, "state", b.HostState("hosta"), Offline)
		want(t, "entities", b.sees("hosta"), "builder:offline")
		select {
		case <-changed:
		default:
			t.Error("nobody was woken")
		}
		pass(time.Hour)
		want(t, "an hour later", b.HostState("hosta"), Offline)
		f.join("hosta", worker(1, "builder"))
		want(t, "back again", b.sees("hosta"), "builder:idle")
	})
}

// Fails when silence is noticed too early, too late, or wakes nobody.
func TestThreeMissedHeartbeatsMakeAHostUnknown(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		a, b := f.join("hosta", worker(1, "builder")), f.join("hostb")
		pass(time.Minute)
		age := b.Hosts()[0].Age
		a.crash()
		pass(3*DefaultInterval - age - time.Millisecond)
		want(t, "just before", b.HostState("hosta"), Online)
		pass(time.Millisecond)
		want(t, "after three", b.HostState("hosta"), Unknown)
		f.setLose(func(string, *envelope.Envelope) bool { return true }) // our own echo wakes too
		changed := b.Changed()
		pass(2 * DefaultInterval)
		select {
		case <-changed:
		default:
			t.Error("nobody was woken")
		}
		want(t, "entities", b.sees("hosta"), "builder:unknown")
		want(t, "log lines", b.log.count("to=unknown"), 1)
	})
}

// Fails when a gateway that doesn't hold its claim counts as online.
func TestHostThatIsNotServingIsOffline(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		a, b := f.join("hosta"), f.join("hostb")
		for _, serving := range []bool{false, true} {
			f.mu.Lock()
			a.serving = serving
			f.mu.Unlock()
			a.Pulse()
			pass(0)
			want(t, fmt.Sprint("serving ", serving), b.Live("hosta"), serving)
		}
	})
}

// Fails when a lost announcement isn't noticed by the digest of the next
// heartbeat, or the answer doesn't heal the view.
func TestLostAnnouncementHeals(t *testing.T) {
	for name, change := range map[string]func(*member){
		"a birth":      func(a *member) { a.mustSet(worker(2, "tester")) },
		"a withdrawal": func(a *member) { a.RemoveLocal(gid(1)) },
		"a status":     func(a *member) { a.SetStatus(gid(1), Status{State: "blocked"}) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, f *fleet) {
				a, b := f.join("hosta", worker(1, "builder")), f.join("hostb")
				f.setLose(func(to string, _ *envelope.Envelope) bool { return to == "hostb" })
				change(a)
				pass(coalesce)
				f.setLose(nil)
				want(t, "before", b.sees("hosta"), "builder:idle")
				pass(2 * DefaultInterval)
				want(t, "after", b.sees("hosta"), a.sees("hosta"))
				from := f.mark()
				pass(time.Minute)
				want(t, "solicitations once healed", f.count(from, "", envelope.RosterSolicit), 0)
			})
		})
	}
}

// Fails when a digest that differs is not looked at where no gap shows that
// something was lost, or one that agrees solicits.
func TestDigestThatDiffersSolicits(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		a, seq := f.join("hosta"), uint64(0)
		e := bodyOf(5, "x")
		good := digestOf(map[string]*record{e.GID: {line: lineOf(e.entity(), false)}})
		beat := func(digest string, parts int, entities ...entityBody) uint64 {
			seq++
			f.say("hostx", envelope.RosterGateway, gatewayBody{stamp: stamp{1, seq}, Digest: digest, Serving: true, Part: parts, Parts: parts, Entities: entities})
			pass(DefaultInterval / 2)
			return a.Stats().Solicited
		}
		before := beat(good, 1, e)
		want(t, "agrees", beat(good, 0), before)
		want(t, "differs", beat("odd", 0), before+1)
		want(t, "agrees again", beat(good, 1, e), before+1)
		want(t, "stays so", beat(good, 0), before+1)
	})
}

// Fails when the digest leaves out what the receiver refused: it would solicit
// for ever. Fails too when the claim moves the gid or is not loud exactly once.
func TestClaimOfAForeignGidIsRefusedAndDoesNotSolicitForEver(t *testing.T) {
	t.Attr("threat", "G2")
	bubble(t, func(t *testing.T, f *fleet) {
		f.quick = true
		a := f.join("hosta", worker(1, "builder"))
		b := f.start("hostb") // never heard of hosta when it makes its own of that gid
		b.mustSet(worker(1, "thief"))
		b.mustSet(worker(2, "reviewer"))
		b.connect()
		pass(time.Minute)
		from := f.mark()
		pass(time.Hour)
		a.Solicit("hostb") // to hear the claim once more
		pass(time.Second)
		want(t, "solicitations", f.count(from, "hosta", envelope.RosterSolicit), 1)
		home, _ := a.Home(gid(1))
		want(t, "home", home, "hosta")
		want(t, "what is believed of b", a.sees("hostb"), "reviewer:idle")
		want(t, "refused claims", a.Stats().Refused, 1)
		want(t, "loud lines", a.log.count("is at home on host hosta"), 1)
		got, err := a.Resolve("thief")
		if err == nil {
			t.Errorf("the claim can be addressed: %+v", got)
		}
	})
}

// Fails when solicitations that don't help keep their pace, or when a host that
// answers each of them passes for one that does not.
func TestSolicitationsThatDoNotHelpSlowDown(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		f.quick = true
		a := f.join("hosta")
		for seq := range uint64(720) { // an hour of heartbeats with a digest that nothing will meet
			f.say("hostx", envelope.RosterGateway, gatewayBody{stamp: stamp{7, 2*seq + 1}, IntervalMS: 5000, Digest: "odd", Serving: true})
			pass(DefaultInterval / 2)
			f.say("hostx", envelope.RosterGateway, gatewayBody{stamp: stamp{7, 2*seq + 2}, IntervalMS: 5000, Digest: "odd", Serving: true, Part: 1, Parts: 1})
			pass(DefaultInterval / 2)
		}
		if n := a.Stats().Solicited; n < 10 || n > 40 {
			t.Errorf("%d solicitations in an hour; there should be some and few", n)
		}
		if v := a.Hosts()[1]; v.Complete || v.Silent {
			t.Errorf("it answers what does not fit its digest: %+v", v)
		}
	})
}

// Fails when a restarted gateway is taken for the old one, or the old one is
// still listened to.
func TestNewerBootReplacesTheOlder(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		a, b := f.join("hosta", worker(1, "builder"), worker(2, "tester")), f.join("hostb")
		old := f.sent[0]
		a.crash()
		a = f.join("hosta", worker(2, "tester"), worker(3, "writer"))
		want(t, "of the new boot", b.sees("hosta"), "builder:gone tester:idle writer:idle")
		want(t, "boot", b.Hosts()[0].Boot, a.boot)

		a.crash()
		pass(time.Minute)
		f.spread(old)
		f.say("hosta", gid(9), announceBody{stamp{a.boot, 1}, bodyOf(9, "ghost")})
		f.say("hosta", gid(9), announceBody{stamp{a.boot - 1, 1 << 40}, bodyOf(9, "ghost")})
		want(t, "after a replay", b.HostState("hosta"), Unknown)
		want(t, "counted", b.Stats().Old, 3)
		_, known := b.Home(gid(9))
		want(t, "a ghost has a home", known, false)
	})
}

func bodyOf(n int, name string) entityBody {
	return entityBody{GID: gid(n), Name: name, Kind: "worker"}
}

// Fails when withdrawn entities leave the announcements before 8 days, stay
// after, or are lost by a restart.
func TestWithdrawnStayForEightDays(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		f.quick = true
		slow := func(c *Config) { c.Interval = time.Minute }
		a := f.start("hosta", slow)
		a.mustSet(worker(1, "builder"))
		a.connect()
		a.RemoveLocal(gid(1))
		if err := a.SetLocal(worker(1, "builder")); err == nil {
			t.Error("a gid that is gone came back")
		}
		pass(4 * 24 * time.Hour)
		a.stop()
		pass(3 * 24 * time.Hour)
		a = f.start("hosta", slow)
		a.connect()
		b := f.start("hostb", slow) // was never told of it while it lived
		b.connect()
		want(t, "on day 7", b.sees("hosta"), "builder:gone")
		pass(26 * time.Hour)
		want(t, "on day 8 at home", len(a.self.records), 0)
		want(t, "on day 8", len(b.hosts["hosta"].records), 0)
		home, known := b.Home(gid(1))
		want(t, "home is remembered longer", home, "hosta")
		want(t, "known", known, true)
	})
}

// Fails when liveness or order depend on a wall clock.
func TestJumpOfTheWallClockChangesNoLiveness(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		f.quick = true
		a, b := f.join("hosta", worker(1, "builder")), f.join("hostb", worker(2, "reviewer"))
		for _, jump := range []time.Duration{30 * 24 * time.Hour, -30 * 24 * time.Hour} {
			f.mu.Lock()
			a.ahead = jump
			f.mu.Unlock()
			for range 60 {
				pass(10 * time.Second)
				if !a.Live("hostb") || !b.Live("hosta") || !a.Current() {
					t.Fatalf("%v: a sees b %s, b sees a %s", jump, a.HostState("hostb"), b.HostState("hosta"))
				}
			}
			want(t, "entities", a.sees("hostb"), "reviewer:idle")
			if _, known := a.Home(gid(2)); !known {
				t.Error("a home was forgotten")
			}
			offset := b.Hosts()[0].Offset
			if (offset - jump).Abs() > time.Second {
				t.Errorf("b thinks that a is %v ahead; it is %v", offset, jump)
			}
		}
		want(t, "warnings", b.log.count("the clocks of two hosts differ"), 1)
	})
}

// Fails when presence per minute grows with the number of agents.
func TestSteadyTrafficDoesNotGrowWithAgents(t *testing.T) {
	minute := func(t *testing.T, agents int) (n int) {
		bubble(t, func(t *testing.T, f *fleet) {
			var all []Entity
			for i := range agents {
				all = append(all, worker(i, fmt.Sprintf("w%d", i)))
			}
			a, b := f.join("hosta", all...), f.join("hostb")
			pass(time.Minute)
			from := f.mark()
			for range 60 { // all of them show progress all the time
				for i := range agents {
					a.SetStatus(gid(i), Status{State: "idle", Progress: time.Now()})
				}
				pass(time.Second)
			}
			n = f.count(from, "hosta", "")
			if last := b.Entities(Filter{Host: "hosta"})[agents-1].Status.Progress; time.Since(last) > progressEvery+DefaultInterval {
				t.Errorf("with %d agents b saw the last progress at %v, now is %v", agents, last, time.Now())
			}
		})
		return n
	}
	want(t, "messages in a minute", minute(t, 100), minute(t, 1))
}
