package roster

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
)

func (m *member) syncTook(t *testing.T) time.Duration {
	t.Helper()
	start := time.Now()
	if err := m.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	return time.Since(start)
}

// Fails when a gateway that is alone waits the whole five seconds, or doesn't
// listen for a moment at all.
func TestSyncOfALonelyHostIsShort(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		want(t, "took", f.start("hosta").syncTook(t), 250*time.Millisecond)
	})
}

// Fails when an answer that is on its way isn't waited for: names that exist
// would be unknown to a host that calls its view current.
func TestSyncWaitsForWhoeverWasHeard(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		f.join("hosta", worker(1, "builder"))
		c := f.start("hostc")
		c.connect() // hosta just gave its full announcement: it has to wait for the next second
		b := f.start("hostb")
		if took := b.syncTook(t); took < fullEvery/2 || took > 2*fullEvery {
			t.Errorf("took %v", took)
		}
		want(t, "sees", b.sees("hosta"), "builder:idle")
	})
}

// Fails when a host that speaks but never answers holds up the others for
// longer than five seconds, or is not named.
func TestSyncGivesUpOnASilentHost(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		a := f.start("hosta")
		done := make(chan time.Duration)
		go func() { done <- a.syncTook(t) }()
		synctest.Wait()
		f.say("hostx", envelope.RosterGateway, gatewayBody{stamp: stamp{1, 1}, Digest: "odd", Serving: true})
		want(t, "took", <-done, 5*time.Second)
		want(t, "current", a.Current(), true)
		want(t, "named", a.log.count("hosts=[\"hostx\"]")+a.log.count("hosts=[hostx]"), 1)
		_, err := a.Resolve("nobody")
		if err == nil || !strings.Contains(err.Error(), "hostx") {
			t.Errorf("a name that hostx might know: %v", err)
		}
	})
}

// Fails when a caller whose own deadline is no later than ours never gets a
// view that counts as current, or an echo that comes late doesn't help.
func TestSyncAtTheCallersDeadline(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		a := f.start("hosta")
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		done := make(chan error)
		go func() { done <- a.Sync(ctx) }()
		synctest.Wait()
		f.say("hostx", envelope.RosterGateway, gatewayBody{stamp: stamp{1, 1}, Digest: "odd", Serving: true})
		if err := <-done; err != nil {
			t.Error(err)
		}
		want(t, "current", a.Current(), true)

		f.setLose(func(string, *envelope.Envelope) bool { return true })
		want(t, "without echo", fault.CodeOf(a.Sync(t.Context())), fault.BrokerDown)
		want(t, "current without echo", a.Current(), false)
		f.setLose(nil)
		pass(DefaultInterval)
		want(t, "current with a late echo", a.Current(), true)
		a.Disconnected()
		pass(DefaultInterval)
		want(t, "current when disconnected", a.Current(), false)
	})
}

// Fails when an expected host gets no more time than strangers.
func TestSyncGivesRememberedHostsLonger(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		a, b := f.join("hosta"), f.join("hostb", worker(1, "builder"))
		pass(time.Minute)
		b.crash()
		a.Disconnected()
		want(t, "current", a.Current(), false)
		want(t, "took", a.syncTook(t), quietExpected)
	})
}

// Fails when Sync calls a view current though presence doesn't flow.
func TestSyncFailsWhenPresenceDoesNotFlow(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		a := f.start("hosta")
		a.setCut(true)
		start := time.Now()
		err := a.Sync(t.Context())
		want(t, "said after", time.Since(start), 0)
		want(t, "not connected", fault.CodeOf(err), fault.BrokerDown)
		a.setCut(false)
		f.setLose(func(string, *envelope.Envelope) bool { return true })
		err = a.Sync(t.Context())
		want(t, "no echo", fault.CodeOf(err), fault.BrokerDown)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if err = a.Sync(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("given up: %v", err)
		}
		lost := make(chan error)
		go func() { lost <- a.Sync(t.Context()) }()
		synctest.Wait()
		start = time.Now()
		a.Disconnected()
		want(t, "connection lost", fault.CodeOf(<-lost), fault.BrokerDown)
		want(t, "said after", time.Since(start), 0)
		want(t, "current", a.Current(), false)
	})
}

// Fails when a view goes on being current although nothing comes in any more.
func TestViewGrowsOldWhenPresenceStops(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		a := f.join("hosta")
		pass(time.Minute)
		want(t, "current", a.Current(), true)
		if a.Age() > DefaultInterval {
			t.Errorf("the view is %v old", a.Age())
		}
		f.setLose(func(string, *envelope.Envelope) bool { return true })
		pass(time.Minute)
		want(t, "current without echo", a.Current(), false)
		_, err := a.Resolve("nobody")
		if !fault.Is(err, fault.UnknownRecipient) || !strings.Contains(err.Error(), "1m") {
			t.Errorf("the age of the view is not said: %v", err)
		}
	})
}

// Fails when anything is announced before the first Sync: the claim on the
// host id may not be held yet.
func TestNothingIsSaidBeforeTheFirstSync(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		a := f.start("hosta")
		a.mustSet(worker(1, "builder"))
		a.Solicit("hostb")
		a.Pulse()
		pass(time.Minute)
		a.stop()
		want(t, "messages", f.mark(), 0)
	})
}

// Fails when changes made while cut off are lost to the others.
func TestWhatChangedWhileCutOffArrivesAfterwards(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		a, b := f.join("hosta", worker(1, "builder")), f.join("hostb")
		a.setCut(true)
		a.Disconnected()
		a.SetStatus(gid(1), Status{State: "blocked"})
		a.mustSet(worker(2, "tester"))
		pass(time.Minute)
		want(t, "b while a is cut off", b.sees("hosta"), "builder:unknown")
		a.connect()
		want(t, "b afterwards", b.sees("hosta"), "builder:blocked tester:idle")
		from := f.mark()
		pass(time.Minute)
		want(t, "solicitations", f.count(from, "", envelope.RosterSolicit), 0)
	})
}

// Fails when what could not be published is not published again.
func TestFailedAnnouncementIsRepeated(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		a := f.join("hosta", worker(1, "builder"))
		a.setCut(true)
		a.SetStatus(gid(1), Status{State: "blocked"})
		pass(coalesce)
		a.setCut(false)
		from := f.mark()
		pass(DefaultInterval)
		want(t, "announcements", f.count(from, "hosta", gid(1)), 1)
	})
}

// Fails when Solicit brings no full announcement, brings one per call, or a
// heartbeat that comes first makes it forget.
func TestSolicitBringsAFullAnnouncement(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		f.join("hosta", worker(1, "builder"))
		b := f.join("hostb")
		pass(time.Minute)
		before, from := b.FullCount("hosta"), f.mark()
		for range 100 {
			b.Solicit("hosta")
		}
		pass(time.Second / 2)
		want(t, "full announcements", b.FullCount("hosta"), before+1)
		want(t, "solicitations", f.count(from, "hostb", envelope.RosterSolicit), 1)
		b.Solicit("hosta") // due when its second is over
		f.members["hosta"].Pulse()
		pass(time.Second / 4)
		want(t, "solicitations within a second", f.count(from, "hostb", envelope.RosterSolicit), 1)
		pass(time.Second)
		want(t, "full announcements after a heartbeat", b.FullCount("hosta"), before+2)
	})
}

// Fails when a single host without a broker isn't a whole fleet.
func TestWithoutABroker(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		a := f.start("hosta", func(c *Config) { c.Publish = nil })
		a.mustSet(worker(1, "builder"))
		a.SetStatus(gid(1), Status{State: "working"})
		want(t, "sees", a.sees("hosta"), "builder:working")
		want(t, "current", a.Current(), true)
		if err := a.Sync(t.Context()); err != nil {
			t.Error(err)
		}
		_, err := a.Resolve("builder@hostb")
		if !fault.Is(err, fault.UnknownRecipient) || !strings.Contains(err.Error(), "no broker") {
			t.Error(err)
		}
		pass(time.Hour)
		a.RemoveLocal(gid(1))
		want(t, "sees", a.sees("hosta"), "builder:gone")
	})
}
