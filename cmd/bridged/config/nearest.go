package config

import (
	"cmp"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
)

// nearest returns the one of known that takes the fewest edits to reach from
// s; the first of equals.
func nearest(s string, known []string) string {
	return slices.MinFunc(known, func(a, b string) int { return cmp.Compare(apart(s, a), apart(s, b)) })
}

// apart is the distance of two names; one that is a word of the other
// (timeout, ready_timeout) is a single slip away.
func apart(a, b string) int {
	for _, sep := range []string{"_", "."} {
		if strings.HasSuffix(b, sep+a) || strings.HasPrefix(b, a+sep) {
			return 1
		}
	}
	return levenshtein.ComputeDistance(a, b)
}

// nearestKey finds the known key for an unknown one. Its siblings come first;
// then a key of the same name elsewhere, since a level too much or too little
// is as common as a slip.
func nearestKey(at, name string, table rule) string {
	if !keyShape.MatchString(name) {
		return join(at, table.fields[0].name)
	}
	siblings := make([]string, len(table.fields))
	for i, f := range table.fields {
		siblings[i] = f.name
	}
	sibling := nearest(name, siblings)
	best, least := join(at, sibling), apart(name, sibling)
	for _, k := range keys {
		if d := min(apart(name, last(k.path)), apart(join(at, name), k.path)); d < least {
			best, least = k.path, d
		}
	}
	return best
}

func last(path string) string {
	for i := len(path) - 1; i >= 0; i-- {
		if path[i] == '.' {
			return path[i+1:]
		}
	}
	return path
}
