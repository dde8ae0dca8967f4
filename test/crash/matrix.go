package main

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"fleetd/test/failpoint"
)

// damage is what happens at a step.
type damage string

const (
	kill   damage = "kill"   // kill -9 of the gateway that takes the step
	cut    damage = "cut"    // every connection of that gateway to the broker is reset
	broker damage = "broker" // kill -9 of the broker
	stall  damage = "stall"  // that gateway's store commits nothing more, and soon it is killed
)

var damages = []damage{kill, cut, broker, stall}

// kase is one row of the matrix. The mains of a world that send are on hosta,
// its workers on both hosts.
type kase struct {
	n      int
	point  failpoint.Point
	path   failpoint.Path
	damage damage
	nth    int
}

func (k kase) String() string { return fmt.Sprintf("%s %s %s", k.point.Name, k.path, k.damage) }

// cases is the matrix: every point on each of its paths with every damage that
// it can have, in an order that the seed decides.
func cases(seed uint64) []kase {
	rng := rand.New(rand.NewPCG(seed, 0))
	var all []kase
	for _, p := range failpoint.Points {
		for _, path := range p.Paths {
			for _, d := range damages {
				if d == stall && !slices.Contains(records, p.Name) {
					continue
				}
				all = append(all, kase{point: p, path: path, damage: d, nth: 1})
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
		if upgrades(all[i]) {
			all[i].nth = nthMove(all[i].point.Name)
		}
	}
	return all
}

// patience sorts cases whose last word takes a minute before the others, so
// that nobody waits for it.
func (k kase) patience() int {
	switch {
	case k.point.Setup == failpoint.Unseen:
		return -1
	case k.point.Side == failpoint.Sender && (k.path == failpoint.Forward || k.path == failpoint.Mail):
		return 0
	}
	return 1
}
