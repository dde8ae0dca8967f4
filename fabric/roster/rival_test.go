package roster

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"fleetd/fabric/envelope"
)

func (m *member) setServing(serving bool) {
	m.fleet.mu.Lock()
	m.serving = serving
	m.fleet.mu.Unlock()
	m.Pulse()
	pass(0)
}

// clone has a copy of hosta, which knows builder alone, announce itself under
// that boot and perhaps leave.
func (f *fleet) clone(boot uint64, leaves bool) {
	e := bodyOf(1, "builder")
	digest := digestOf(map[string]*record{e.GID: {line: lineOf(e.entity(), false)}})
	f.say("hosta", envelope.RosterGateway, gatewayBody{stamp: stamp{boot, 1}, IntervalMS: 5000, Count: 1, Digest: digest, Serving: true, Part: 1, Parts: 1, Entities: []entityBody{e}})
	if leaves {
		f.say("hosta", envelope.RosterGateway, gatewayBody{stamp: stamp{boot, 2}, IntervalMS: 5000, Count: 1, Digest: digest, Leaving: true})
	}
}

// Fails when a gateway stays offline for its peers after a clone with a newer
// boot came and went, comes back without all its entities, or starts below that
// boot the next time.
func TestOriginalIsSeenAgainAfterAClone(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		var mu sync.Mutex
		var kept []uint64
		keep := func(c *Config) {
			c.KeepBoot = func(boot uint64) error {
				mu.Lock()
				defer mu.Unlock()
				if kept = append(kept, boot); len(kept) == 1 {
					return errors.New("the disk is full")
				}
				return nil
			}
		}
		a := f.start("hosta", keep)
		a.mustSet(worker(1, "builder"))
		a.mustSet(worker(2, "tester"))
		a.connect()
		b := f.join("hostb")
		newer := uint64(time.Now().Add(time.Hour).UnixMilli())

		a.setServing(false)
		f.clone(newer, true)
		pass(time.Minute)
		want(t, "while the claim is not held", b.HostState("hosta"), Offline)
		want(t, "boot meanwhile", b.Hosts()[0].Boot, newer)

		a.setServing(true)
		pass(fullEvery)
		want(t, "once it is held", b.HostState("hosta"), Online)
		want(t, "entities", b.sees("hosta"), "builder:idle tester:idle")
		want(t, "boot", b.Hosts()[0].Boot, newer+1)
		pass(time.Minute)
		want(t, "a minute later", b.HostState("hosta"), Online)
		want(t, "boot a minute later", b.Hosts()[0].Boot, newer+1)
		want(t, "its own view is current", a.Current(), true)
		mu.Lock()
		defer mu.Unlock()
		if !slices.Equal(kept, []uint64{newer + 1, newer + 1}) {
			t.Errorf("kept %v; want %d until it worked, and no more", kept, newer+1)
		}
	})
}

// Fails when a gateway that serves does not answer a clone's boot at once, or
// answers one boot more than once.
func TestCloneIsOutrankedOnceForEachBoot(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		a, b := f.join("hosta", worker(1, "builder")), f.join("hostb")
		newer := uint64(time.Now().Add(time.Hour).UnixMilli())
		for i, boot := range []uint64{newer, newer, newer + 10, newer - 5} {
			f.clone(boot, false)
			pass(2 * fullEvery)
			wanted := newer + 1
			if i >= 2 {
				wanted = newer + 11
			}
			want(t, "boot", b.Hosts()[0].Boot, wanted)
		}
		want(t, "times", a.log.count("takes a boot epoch above"), 2)
		want(t, "state", b.HostState("hosta"), Online)
	})
}

// Fails when two live gateways of one host id chase each other's boot: the one
// without the claim must leave the fleet to the other.
func TestWithoutTheClaimNobodyIsOutranked(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		f.quick = true
		a, b := f.join("hosta", worker(1, "builder")), f.join("hostb")
		newer := uint64(time.Now().Add(time.Hour).UnixMilli())
		a.setServing(false)
		for range 100 {
			f.clone(newer, false)
			pass(DefaultInterval)
		}
		want(t, "boot", b.Hosts()[0].Boot, newer)
		want(t, "times", a.log.count("takes a boot epoch above"), 0)
	})
}
