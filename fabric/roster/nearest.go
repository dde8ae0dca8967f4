package roster

import (
	"cmp"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
)

// nearest returns the addresses of at most three targets that address may have
// been meant for, the likeliest first. Of those whose name is near enough, the
// host only decides which is the likeliest.
func nearest(address string, targets []Target) []string {
	type guess struct {
		address    string
		name, host int // distances
	}
	name, host, qualified := strings.Cut(strings.ToLower(address), "@")
	limit := max(2, len(name)/3)
	var guesses []guess
	for _, t := range targets {
		if max(len(name)-len(t.Name), len(t.Name)-len(name)) > limit {
			continue // an address may be of any length; no need to look
		}
		g := guess{address: t.Address(), name: levenshtein.ComputeDistance(name, t.Name)}
		if qualified {
			g.host = levenshtein.ComputeDistance(host, t.Host)
		}
		if g.name <= limit {
			guesses = append(guesses, g)
		}
	}
	slices.SortFunc(guesses, func(a, b guess) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.host, b.host), strings.Compare(a.address, b.address))
	})
	var names []string
	for _, g := range guesses[:min(maxNear, len(guesses))] {
		names = append(names, g.address)
	}
	return names
}
