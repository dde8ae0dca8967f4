package roster

import (
	"cmp"
	"slices"
	"strings"
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
		g := guess{address: t.Address(), name: distance(name, t.Name, limit)}
		if qualified {
			g.host = distance(host, t.Host, len(host)+len(t.Host))
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

// distance is the Levenshtein distance between a and b in bytes, or limit+1 if
// their lengths alone put it over limit.
func distance(a, b string, limit int) int {
	if max(len(a)-len(b), len(b)-len(a)) > limit {
		return limit + 1
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
