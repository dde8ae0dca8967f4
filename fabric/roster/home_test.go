package roster

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
)

// Fails when homes are not saved, not loaded, or lose their host's name.
func TestHomesSurviveARestart(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		f.quick = true
		slow := func(c *Config) { c.Interval = maxInterval }
		a, b := f.start("hosta", slow), f.start("hostb", slow)
		a.connect()
		b.mustSet(worker(1, "reviewer", "reviewers"))
		b.mustSet(worker(2, "tester"))
		b.connect()
		b.RemoveLocal(gid(2))
		pass(time.Minute)
		a.stop()
		b.crash()
		pass(9 * 24 * time.Hour)
		a = f.start("hosta", slow)
		home, known := a.Home(gid(1))
		want(t, "home", home, "hostb")
		want(t, "known", known, true)
		want(t, "its host", a.HostState("hostb"), Unknown)
		got, err := a.Resolve(gid(1))
		if err != nil {
			t.Fatal(err)
		}
		want(t, "by gid", fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", Target{
			GID: gid(1), Name: "reviewer", Host: "hostb", Kind: "worker", Groups: []string{"reviewers"}, HostState: Unknown,
		}))
		got, err = a.Resolve(gid(2))
		if err != nil || !got.Gone {
			t.Errorf("the withdrawn one: %+v, %v", got, err)
		}
		a.connect()
		f.say("hostx", gid(1), announceBody{stamp{1, 1}, bodyOf(1, "thief")})
		home, _ = a.Home(gid(1))
		want(t, "home after a claim", home, "hostb")
		pass(7 * 24 * time.Hour)
		_, known = a.Home(gid(1))
		want(t, "known after 16 days", known, false)
	})
}

// Fails when a host that lives on lets its entities' homes run out, or each
// heartbeat writes to the store.
func TestHomesOfALiveHostAreRefreshedRarely(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		f.quick = true
		slow := func(c *Config) { c.Interval = time.Minute }
		a, b := f.start("hosta", slow), f.start("hostb", slow)
		b.mustSet(worker(1, "reviewer"))
		a.connect()
		b.connect()
		pass(16 * 24 * time.Hour)
		home, saves := a.homes.get(gid(1))
		if age := time.Since(time.UnixMilli(home.LastSign)); age > saveEvery+time.Hour {
			t.Errorf("the stored sign of life is %v old", age)
		}
		if saves < 16*12 || saves > 16*24+1 {
			t.Errorf("%d writes in 16 days", saves)
		}
		if _, known := a.Home(gid(1)); !known {
			t.Error("the home ran out")
		}
	})
}

// Fails when a change waits for the hour, or a store that fails loses homes.
func TestChangedHomesAreSavedAtOnceAndAgainAfterAFailure(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		a, b := f.join("hosta"), f.join("hostb", worker(1, "reviewer"))
		pass(0)
		home, _ := a.homes.get(gid(1))
		want(t, "host", home.Host, "hostb")
		a.homes.setFail(errors.New("disk full"))
		b.RemoveLocal(gid(1))
		pass(time.Minute)
		home, _ = a.homes.get(gid(1))
		want(t, "while it fails", home.Gone, false)
		want(t, "log lines", a.log.count("could not save where entities live"), 1)
		a.homes.setFail(nil)
		pass(DefaultInterval)
		home, _ = a.homes.get(gid(1))
		want(t, "once it works", home.Gone, true)
	})
}

// Fails when New goes on with a store that can't be read.
func TestNewRefusesWhatItCannotWorkWith(t *testing.T) {
	broken := &memory{fail: errors.New("checksum")}
	for _, c := range []struct {
		cfg  Config
		code fault.Code
	}{
		{Config{Host: "hosta", Boot: 1, Homes: broken}, fault.StoreUnavailable},
		{Config{Host: "Host A", Boot: 1}, fault.BadRequest},
		{Config{Host: "hosta"}, fault.BadRequest},
	} {
		_, err := New(c.cfg)
		want(t, "code", fault.CodeOf(err), c.code)
	}
}

// Fails when an entity that could not be announced is taken, or a gid is moved
// here from its home.
func TestSetLocalRefusals(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		a := f.join("hosta")
		f.join("hostb", worker(1, "reviewer"))
		for name, c := range map[string]struct {
			e    Entity
			code fault.Code
		}{
			"foreign gid": {worker(1, "thief"), fault.Conflict},
			"no gid":      {Entity{Name: "x", Kind: "worker"}, fault.BadRequest},
			"reserved":    {worker(2, "all"), fault.BadRequest},
			"no kind":     {Entity{GID: gid(2), Name: "x"}, fault.BadRequest},
			"group":       {worker(2, "x", "Group"), fault.BadRequest},
			"groups":      {worker(2, "x", make([]string, 1)...), fault.BadRequest},
		} {
			if err := a.SetLocal(c.e); !fault.Is(err, c.code) {
				t.Errorf("%s: got %v, want %s", name, err, c.code)
			}
		}
		want(t, "entities", a.sees("hosta"), "")
	})
}

// Fails when a trusted host that runs wild fills our memory: too many entities,
// or strings without a bound.
func TestHostileHostIsBounded(t *testing.T) {
	t.Attr("threat", "G6")
	bubble(t, func(t *testing.T, f *fleet) {
		a := f.join("hosta")
		seq := uint64(0)
		next := func() stamp { seq++; return stamp{1, seq} }
		long := entityBody{
			GID: gid(0), Name: "long", Kind: "worker", Pane: string(make([]byte, 1000)),
			State: State("\x1b[2J" + string(make([]byte, 1000))), Refusing: string(make([]byte, 1000)),
		}
		f.say("hostx", gid(0), announceBody{next(), long})
		e := a.Entities(Filter{Host: "hostx"})[0]
		if len(e.Pane) > maxWord || len(e.Status.State) > maxWord || len(e.Status.Refusing) > maxReason || e.Status.State[0] == '\x1b' {
			t.Errorf("kept: %d bytes of pane, %q", len(e.Pane), e.Status.State)
		}
		const chunk = 500
		for i := 0; i < maxEntities+2*chunk; i += chunk {
			b := gatewayBody{stamp: next(), Digest: "odd", Serving: true, Part: i/chunk + 1, Parts: maxEntities/chunk + 2}
			for j := range chunk {
				b.Entities = append(b.Entities, bodyOf(i+j, fmt.Sprintf("w%d", i+j)))
			}
			f.say("hostx", envelope.RosterGateway, b)
		}
		want(t, "entities", len(a.Entities(Filter{Host: "hostx"})), maxEntities)
		want(t, "left out", a.Stats().Overflow, 2*chunk)
		want(t, "lines", a.log.count("more entities than one host can have"), 1)
		var words []string
		for range 3000 {
			words = append(words, "w")
		}
		f.say("hostx", envelope.RosterGateway, gatewayBody{stamp: next(), Digest: string(make([]byte, 1000)), IntervalMS: time.Hour.Milliseconds(), Profiles: words})
		h := a.Hosts()[1]
		if len(h.Profiles) > maxProfiles || h.Interval > maxInterval {
			t.Errorf("%d profiles, interval %v", len(h.Profiles), h.Interval)
		}
	})
}

// Fails when a full announcement of many entities doesn't fit its bodies, or
// what is missing from one is kept.
func TestFullAnnouncementOfManyEntities(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		var all []Entity
		for i := range 2000 {
			e := worker(i, fmt.Sprintf("w%d", i), "builders", "testers")
			e.Capabilities, e.Status.Refusing = []string{"<html>", "go"}, "because"
			all = append(all, e)
		}
		a, b := f.join("hosta", all...), f.join("hostb")
		want(t, "entities", len(b.Entities(Filter{Host: "hosta", Group: "testers"})), len(all))
		parts := 0
		for _, e := range f.sent {
			if len(e.Body) > maxBody {
				t.Errorf("a body of %d bytes", len(e.Body))
			}
			if len(e.Body) > maxBody/2 {
				parts++
			}
		}
		if parts < 2 {
			t.Errorf("%d large parts; the test is to need several", parts)
		}
		want(t, "seen as whole", b.Hosts()[0].Complete, true)

		// A part is lost while its host starts anew: nothing may vanish for that.
		a.crash()
		first := true
		f.setLose(func(to string, e *envelope.Envelope) bool {
			if to != "hostb" || e.Signer != "hosta" || len(e.Body) < maxBody/2 || !first {
				return false
			}
			first = false
			return true
		})
		f.join("hosta", all[:1900]...)
		pass(2 * DefaultInterval)
		want(t, "after the restart", len(b.Entities(Filter{Host: "hosta"})), 1900)
		for i := range 100 {
			if home, saves := b.homes.get(gid(i)); home.Gone || saves != 1 {
				t.Errorf("w%d was taken for gone: %d writes", i, saves)
			}
		}
		want(t, "vanished", len(b.Entities(Filter{Host: "hosta", Status: "gone"})), 100)
	})
}
