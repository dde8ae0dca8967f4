package config

import "strings"

// nearest returns the one of known that takes the fewest edits to reach from
// s; the first of equals.
func nearest(s string, known []string) string {
	best, least := "", -1
	for _, k := range known {
		if d := apart(s, k); least < 0 || d < least {
			best, least = k, d
		}
	}
	return best
}

// apart is the distance of two names; one that is a word of the other
// (timeout, ready_timeout) is a single slip away.
func apart(a, b string) int {
	for _, sep := range []string{"_", "."} {
		if strings.HasSuffix(b, sep+a) || strings.HasPrefix(b, a+sep) {
			return 1
		}
	}
	return distance(a, b)
}

// distance is the Levenshtein distance in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := diagonal
			if a[i-1] != b[j-1] {
				cost++
			}
			diagonal = row[j]
			row[j] = min(row[j]+1, row[j-1]+1, cost)
		}
	}
	return row[len(b)]
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
