package config

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// place is what a path is read against.
type place struct {
	home string // of ~; "" if unknown
	dir  string // of relative paths, absolute
}

// parse reads one scalar. The second result is what is wrong with it.
func (p place) parse(r rule, s string) (any, string) {
	switch r.kind {
	case text:
		if r.check != nil {
			return s, r.check(s)
		}
		return s, ""
	case path:
		return p.path(s)
	case duration:
		return parseDuration(r, s)
	case count:
		return parseCount(r, s)
	case boolean:
		switch s {
		case "true", "false":
			return s == "true", ""
		}
		return nil, fmt.Sprintf("%s is not true or false", quote(s))
	}
	return nil, fmt.Sprintf("must be %s; write %s", r.kind, r.sample)
}

func (p place) path(s string) (any, string) {
	switch {
	case s == "~" || strings.HasPrefix(s, "~/"):
		if p.home == "" {
			return nil, fmt.Sprintf("%s needs HOME, which is not set; set it or write a path that begins with /", quote(s))
		}
		s = filepath.Join(p.home, s[1:])
	case strings.HasPrefix(s, "~"):
		return nil, fmt.Sprintf("%s: only one's own ~ is known; write the path in full", quote(s))
	}
	if strings.ContainsRune(s, 0) {
		return nil, "no path holds a zero byte; leave it out"
	}
	if !filepath.IsAbs(s) {
		s = filepath.Join(p.dir, s)
	}
	return filepath.Clean(s), ""
}

func parseDuration(r rule, s string) (any, string) {
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return nil, fmt.Sprintf("%s is not a duration; write a number with its unit (ms, s, m, h), as in %s", quote(s), r.sample)
	case int64(d) < r.min || int64(d) > r.max:
		return nil, fmt.Sprintf("%s is out of range; write %s to %s", quote(s), short(time.Duration(r.min)), short(time.Duration(r.max)))
	case r.step > 0 && d%r.step != 0:
		return nil, fmt.Sprintf("%s is not a multiple of %s; write %s", quote(s), short(r.step), r.sample)
	}
	return d, ""
}

func parseCount(r rule, s string) (any, string) {
	n, err := strconv.ParseInt(s, 10, 64)
	switch {
	case err != nil:
		return nil, fmt.Sprintf("%s is not a whole number; write digits only, as in %s", quote(s), r.sample)
	case n < r.min || n > r.max:
		return nil, fmt.Sprintf("%d is out of range; write %d to %d", n, r.min, r.max)
	}
	return int(n), ""
}

// short is a duration as people write it: 168h, not 168h0m0s.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
