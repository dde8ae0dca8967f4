package main

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"fleetd/fault"
)

// content is what a message shall say: the argument, or standard input where
// it is "-" or left out. limit is in bytes.
func (a *app) content(arg string, given bool, limit int) (string, error) {
	if !given && a.InTTY {
		return "", usagef("there is nothing to send; add the content, or - to type it and end with Ctrl-D")
	}
	s := arg
	if !given || arg == "-" {
		data, err := io.ReadAll(io.LimitReader(a.In, int64(limit)+2)) // the last newline does not count
		if err != nil {
			return "", fault.Wrap(err, fault.BadRequest, "the content could not be read from standard input")
		}
		s = strings.TrimSuffix(string(data), "\n")
	}
	if len(s) > limit {
		return "", fault.New(fault.TooLarge, "the content is longer than %d bytes (limits.content_bytes); send a part of it, or the name of a file that holds it", limit)
	}
	if !utf8.ValidString(s) { // JSON would make another text of it
		return "", fault.New(fault.BadContent, "the content is not valid UTF-8; send text, and binary data as a file path")
	}
	if s == "" {
		return "", usagef("the content is empty; there is nothing to send")
	}
	return s, nil
}

// seconds is a flag for a time in whole seconds: 50, 50s or 15m.
type seconds int

func (s *seconds) Type() string { return "TIME" }

func (s *seconds) String() string {
	if *s == 0 {
		return ""
	}
	return (time.Duration(*s) * time.Second).String()
}

// Set reads a number of seconds or a duration.
func (s *seconds) Set(in string) error {
	d, err := time.ParseDuration(in)
	if err != nil {
		d, err = time.ParseDuration(in + "s")
	}
	if err != nil || d < 0 || d%time.Second != 0 {
		return fmt.Errorf("write whole seconds, as in 50, 50s or 15m")
	}
	*s = seconds(d / time.Second)
	return nil
}
