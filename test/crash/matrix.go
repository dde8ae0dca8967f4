package main

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"fleetd/test/failpoint"
)

// flow is a message's way through the fleet of a world, whose mains are on
// hosta and whose workers are on both.
type flow string

const (
	forward flow = "forward" // a brief of a main on hosta to a worker on hostb
	reply   flow = "reply"   // its answer
	mail    flow = "mail"    // a message of a main on hosta to one on hostb
	local   flow = "local"   // a brief to a worker on hosta
)

// damage is what happens at a step.
type damage string

const (
	kill   damage = "kill"   // kill -9 of the gateway that takes the step
	broker damage = "broker" // kill -9 of the broker
	cut    damage = "cut"    // every connection of that gateway to the broker is reset
)

// kase is one row of the matrix.
type kase struct {
	n      int
	point  failpoint.Point
	flow   flow
	damage damage
	nth    int
}

func (k kase) String() string { return fmt.Sprintf("%s %s %s", k.point.Name, k.flow, k.damage) }

// cases is the matrix: every point on every path with every damage that can do
// harm there, in an order that the seed decides.
func cases(seed uint64) []kase {
	rng := rand.New(rand.NewPCG(seed, 0))
	var all []kase
	for _, p := range failpoint.Points {
		for _, path := range p.Paths {
			for _, f := range flows(p, path) {
				for _, d := range damages(p, f) {
					all = append(all, kase{point: p, flow: f, damage: d, nth: 1})
				}
			}
		}
	}
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	slices.SortStableFunc(all, func(a, b kase) int { return a.patience() - b.patience() })
	for i := range all {
		all[i].n = i + 1
		if all[i].point.Name == "store.commit.before" || all[i].point.Name == "store.commit.after" {
			all[i].nth = 1 + rng.IntN(4)
		}
	}
	return all
}

// patience sorts cases whose last word takes a minute before the others, so
// that nobody waits for it.
func (k kase) patience() int {
	if k.point.Setup == failpoint.Unseen {
		return -1
	}
	if k.flow == forward && k.point.Side == failpoint.Sender {
		return 0
	}
	return 1
}

func flows(p failpoint.Point, path failpoint.Path) []flow {
	switch {
	case path == failpoint.Forward:
		return []flow{forward}
	case path == failpoint.Local:
		return []flow{local}
	case p.Side == failpoint.Receiver && p.Setup == failpoint.Ordinary && p.Name != "outbox.replied.before":
		return []flow{reply, mail}
	}
	return []flow{reply}
}

func damages(p failpoint.Point, f flow) []damage {
	switch {
	case f == local:
		return []damage{kill}
	case p.Setup == failpoint.Ordinary && f != mail:
		return []damage{kill, cut, broker}
	case p.Setup == failpoint.Booted || p.Setup == failpoint.Unseen:
		return []damage{kill}
	}
	return []damage{kill, cut}
}
