package config

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"fleetd/fault"
)

// problem is one thing wrong with the configuration.
type problem struct {
	where string // FILE:LINE:COLUMN, $VARIABLE or --flag
	key   string // "" if it is about no key
	says  string
}

func (p problem) String() string {
	parts := make([]string, 0, 3)
	for _, part := range []string{p.where, p.key, p.says} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, ": ")
}

// asError makes one BAD_REQUEST of all that was found, one line each, so that
// a file is corrected in one go.
func asError(found []problem) error {
	if len(found) == 0 {
		return nil
	}
	lines := make([]string, len(found))
	for i, p := range found {
		lines[i] = p.String()
	}
	if len(lines) == 1 {
		return fault.New(fault.BadRequest, "the configuration cannot be used: %s", lines[0])
	}
	return fault.New(fault.BadRequest, "the configuration cannot be used, %d things are wrong:\n  %s",
		len(lines), strings.Join(lines, "\n  "))
}

// quote shows a value in an error, short and without control characters.
func quote(s string) string {
	if r := []rune(s); len(r) > 60 {
		s = string(r[:60]) + "…"
	}
	return strconv.Quote(s)
}

var keyShape = regexp.MustCompile(`^[\w.-]{1,64}$`)

// quoteKey shows a key, unless it is so odd that it may be a value in the
// wrong place: a URI with a password makes a valid YAML key.
func quoteKey(s string) string {
	if keyShape.MatchString(s) {
		return strconv.Quote(s)
	}
	return "(not shown)"
}

// unknown says which known key is nearest.
func unknown(nearest string) string {
	return fmt.Sprintf("there is no such key; the nearest is %s", nearest)
}
